"""A trained network, the label map that it predicts for a prepared image, and its passes over windows on a GPU."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hasten.cases.regions import Region, paint, resolve_regions
from hasten.checkpoint.custom_network import model_network
from hasten.config.load import from_dict
from hasten.config.networks import is_own
from hasten.config.schema import PrepareConfig, RunConfig
from hasten.config.settled import planned_run
from hasten.devices import empty_cache, kind_of
from hasten.files import first_line
from hasten.nets.build import divisor
from hasten.nets.size import small_image
from hasten.nets.surgery.fuse import fused_norms
from hasten.nets.surgery.operate import operate_built
from hasten.prediction.ensemble import Ensemble, Member, joined
from hasten.prediction.foreground import foreground_size, size_warning, spacing_warning
from hasten.prediction.infer import Inference, infer_on_own_grid, inference_of, network_scores
from hasten.prediction.regrid import Planes
from hasten.prediction.scores import first_output
from hasten.prediction.windows import available_bytes
from hasten.prepare.case import restore_label
from hasten.prepare.orient import orient
from hasten.prepare.types import Geometry, PreparedCase
from hasten.runtime.device import current_device, pick_device, seconds_of
from hasten.runtime.measure import certainly_faster, compared
from hasten.runtime.out_of_memory import out_of_memory_ends_block
from hasten.runtime.precision import memory_format
from hasten.runtime.side_stream import SideStream
from hasten.runtime.variant import fitted_to_device

log = logging.getLogger(__name__)

_HIGHEST = 64
_LEAST_SAVED = 0.05
"""Smallest share of a window's time that a doubled batch has to save."""
_SHARE = 0.25
"""Share of free memory that a batch may take: sums and the images need the rest."""
_PASSES = 3


def best_batch(trial: Callable[[int], tuple[float, int]], free: int) -> int:
    """The batch from which on doubling it gains nothing or takes too much memory.

    trial: runs this many windows, and gives seconds and bytes at the peak. free: bytes. One window is always allowed.
    """
    count, (seconds, num_bytes) = 1, trial(1)
    while count < _HIGHEST and 2 * num_bytes <= _SHARE * free:
        doubled = None
        with out_of_memory_ends_block():
            doubled = trial(2 * count)
        if doubled is None or doubled[0] / 2 > (1 - _LEAST_SAVED) * seconds:
            break
        count, (seconds, num_bytes) = 2 * count, doubled
    return count


def measured_batch(network: nn.Module, channels: int, inference: Inference) -> int:
    """The best batch of windows on its device, a GPU. On a CPU, a batch gains nothing from more voxels than `Windows`
    allows it.
    """
    if not kind_of(inference.device).memory_stats:
        return inference.batch_size
    count = best_batch(lambda count: _trial(network, channels, inference, count), available_bytes(inference.device))
    log.info("%d windows of %s go through the network at once", count, inference.window)
    empty_cache()
    return count


@torch.inference_mode()
def _trial(network: nn.Module, channels: int, inference: Inference, count: int) -> tuple[float, int]:
    generator = torch.Generator(inference.device).manual_seed(0)
    batch = torch.randn(count, channels, *inference.window, device=inference.device, generator=generator)
    memory = torch.get_device_module(inference.device)
    before = memory.memory_allocated(inference.device)
    memory.reset_peak_memory_stats(inference.device)
    network_scores(network, batch, inference)  # libraries choose their algorithms for this shape
    num_bytes = memory.max_memory_allocated(inference.device) - before
    seconds = [seconds_of(lambda: network_scores(network, batch, inference), inference.device) for _ in range(_PASSES)]
    return min(seconds), num_bytes


_WARM_UP = 3
"""Batches of a shape that run as they are, so that libraries have made their handles and workspaces."""
_SHAPES = 4
"""Graphs at most, as each holds the memory of a pass."""
_SECONDS = 2.0
"""Time limit of comparing a graph with the pass."""
_LEAST = 0.02
"""Smallest gain that counts."""


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    image: Tensor
    """What the graph reads."""
    scores: Tensor
    """What it writes."""

    def __call__(self, image: Tensor) -> Tensor:
        self.image.copy_(image)
        self.graph.replay()
        return self.scores.clone()


class GraphedNetwork(nn.Module):
    """`network(image)`, its first output alone. Runs without a graph where capturing fails, and where the graph gives
    other scores or is not faster.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.network, self.device = network, device
        self._graphs: dict[tuple[int, ...], _Graph | None] = {}
        """Graphs by shape; None for a shape that runs without one."""
        self._seen = Counter[tuple[int, ...]]()
        self._side_stream: SideStream | None = None

    def forward(self, image: Tensor) -> Tensor:
        """(B, K, *S) scores of (B, C, *S), in inference mode."""
        shape = tuple(image.shape)
        if (graph := self._graphs.get(shape)) is not None:
            return graph(image)
        if shape in self._graphs or len(self._graphs) >= _SHAPES:
            return self._scores(image)
        if self._side_stream is None:
            self._side_stream = SideStream(self.device)
        self._seen[shape] += 1
        scores = self._side_stream.run(lambda: self._scores(image))
        if self._seen[shape] >= _WARM_UP:
            self._graphs[shape] = self._captured(self._side_stream, image, scores)
        return scores

    def _scores(self, image: Tensor) -> Tensor:
        return first_output(self.network(image), image.ndim)

    def _captured(self, stream: SideStream, image: Tensor, expected: Tensor) -> _Graph | None:
        why, captured = "", None
        try:
            static = image.clone()
            graph, scores = stream.capture(lambda: self._scores(static))
            captured = _Graph(graph, static, scores)
            why = self._why_not(captured, image, expected)
        except Exception as error:  # lack of memory, a network that asks for values
            why = first_line(error)
        # Only after the except block: the traceback keeps the tensors of the failed capture alive.
        if not why:
            return captured
        if captured is not None:
            captured.graph.reset()
        del captured
        log.info("windows of %s go through the network without a CUDA graph: %s", tuple(image.shape), why)
        empty_cache()
        return None

    def _why_not(self, graph: _Graph, image: Tensor, expected: Tensor) -> str:
        """Why the graph is not used; empty if it is. Reads device values."""
        if not torch.allclose(graph(image).float(), expected.float(), rtol=1e-2, atol=1e-3):
            return "the graph gives other scores"
        calls = {"network": lambda: self._scores(image), "graph": lambda: graph(image)}
        comparison = compared(calls, self.device, base="network", seconds=_SECONDS, least=_LEAST)
        return "" if certainly_faster(comparison, "graph", self.device, least=_LEAST) else "it is not faster"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A trained network and what its input and output mean."""

    network: nn.Module
    prepare: PrepareConfig
    inference: Inference
    channels: tuple[str, ...]
    values: tuple[int, ...]
    """Label value of each class index."""
    classes: tuple[str, ...]
    """What each of the network's outputs is: the classes by label value, or the regions."""
    activation: Callable[[Tensor], Tensor]
    """Turns scores (K, ...) into probabilities."""
    regions: tuple[Region, ...] = ()
    """Overlapping classes, one of the network's outputs each; empty where its outputs are the classes."""
    foreground: dict[str, float] = dataclasses.field(default_factory=dict)
    """How much of it training cases had, as `training_range` gives it."""
    spacing: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    """Spacing of the training cases, as `training_spacing` returns it."""


def load_members(members: Sequence[Member], *, device: str = "auto", trust_changed_code: bool = False) -> Model:
    """The network of these, or all of them as one, ready to predict. Raises ValueError."""
    models = [
        load_model(member.content, where=str(member.where), device=device, trust_changed_code=trust_changed_code)
        for member in members
    ]
    first = models[0]
    if len(models) > 1:
        overlapping = first.inference.overlapping
        network = Ensemble([model.network for model in models], overlapping=overlapping)
        first = dataclasses.replace(
            first,
            network=network.eval(),
            inference=joined([model.inference for model in models], members[0].where),
            activation=(lambda scores: scores + 0.5) if overlapping else (lambda scores: scores),
        )
    how = first.inference
    if members[0].content["config"]["infer"].get("batch_size") is None:
        with current_device(how.device):
            how = dataclasses.replace(how, batch_size=measured_batch(first.network, len(first.channels), how))
    if kind_of(how.device).graphs:
        return dataclasses.replace(first, network=GraphedNetwork(first.network, how.device).eval(), inference=how)
    return dataclasses.replace(first, inference=how)


def load_model(content: dict[str, Any], *, where: str, device: str = "auto", trust_changed_code: bool = False) -> Model:
    """The network of a best.pt's content, ready to predict. where: the file's path, for errors and `model_network`.

    Raises ValueError.
    """
    # The device is set in the configuration, which validates it.
    tree = {**content["config"], "train": {**content["config"]["train"], "device": device}}
    config = planned_run(_on_device(from_dict(tree, where=where)), where)
    target, dims = torch.device(config.train.device), content["spatial_dims"]
    labels = {int(value): name for value, name in content["labels"].items()}
    regions = resolve_regions(
        {name: tuple(members) for name, members in content.get("regions", {}).items()},
        content.get("region_values", {}),
        labels,
        f"{where}: regions",
    )
    network = model_network(content, config, where=where, trust_changed_code=trust_changed_code).to(target)
    how = inference_of(
        config, spatial_dims=dims, device=target, classes=len(regions or labels), overlapping=bool(regions)
    )
    # On a GPU without the kernels it would change nothing.
    if not is_own(config.network) and (target.type == "cpu" or how.fused_kernels):
        shape = (config.sample.patch, divisor(config.network), len(content["channels"]), dims)
        # As in training, which chose the layout.
        operate_built(network, lambda: small_image(*shape).to(target), biases=False)
        fused_norms(network, how.fused_kernels)
    layout = memory_format(dims, bool(config.train.channels_last))
    return Model(
        network=network.to(memory_format=layout).eval(),  # type: ignore[call-overload]
        prepare=config.prepare,
        inference=how,
        channels=tuple(content["channels"]),
        values=tuple(sorted(labels)),
        classes=tuple(region.name for region in regions) or tuple(labels[value] for value in sorted(labels)),
        activation=torch.sigmoid if regions else (lambda scores: scores.softmax(0)),
        regions=regions,
        foreground=content.get("foreground", {}),
        spacing=content.get("spacing", {}),
    )


def _on_device(config: RunConfig) -> RunConfig:
    """The settings with the device found; fp16 is a GPU's precision, which few CPUs have convolutions for."""
    device = pick_device(config.train.device)
    precision = "fp32" if device.type == "cpu" and config.train.precision == "fp16" else config.train.precision
    train = fitted_to_device(dataclasses.replace(config.train, device=str(device), precision=precision), device)
    return dataclasses.replace(config, train=train)


def predict_labels(
    prepared: PreparedCase, model: Model, *, probabilities: np.ndarray | None = None
) -> tuple[np.ndarray, tuple[str | None, str | None]]:
    """The label map on the image's own voxels.

    probabilities: (K, D, H, W) of a float dtype on these voxels, all 0, to be filled. Then come warnings on a spacing
    and on a predicted foreground that are unlike those of the training cases.
    """
    geometry = prepared.geometry
    planes = None if probabilities is None else probability_writer(probabilities, geometry, model)
    image = torch.from_numpy(prepared.image)
    labels = infer_on_own_grid(model.network, image, geometry, model.inference, planes=planes).cpu().numpy()
    label = paint(labels, model.regions) if model.regions else labels
    dims = model.inference.spatial_dims
    size = foreground_size(int(np.count_nonzero(label)), geometry.crop_shape, geometry, dims)
    warnings = spacing_warning(geometry, model.spacing), size_warning(size, model.foreground, dims)
    return restore_label(label, geometry, model.values), warnings


def probability_writer(target: np.ndarray, geometry: Geometry, model: Model) -> Planes:
    """Writes planes of scores, as probabilities, into `target` (K, D, H, W).

    Where rounding makes the decided class no longer the highest, it becomes the next value of the dtype above that.
    """
    whole = orient(target, geometry.permute, geometry.flip)
    box = tuple(slice(a, a + n) for a, n in zip(geometry.crop_start, geometry.crop_shape, strict=True))
    if not model.regions and geometry.crop_shape != whole.shape[1:]:
        whole[0] = 1  # what is cropped away is background
    inside = whole[(slice(None), *box)]

    def fill(axis: int, plane: int, scores: Tensor, labels: Tensor) -> None:
        probabilities = model.activation(scores).cpu().numpy().astype(target.dtype)
        decided = labels.cpu().numpy()
        if model.regions:
            differs = (probabilities > 0.5) != decided
            probabilities[differs] = np.where(
                decided[differs], np.nextafter(target.dtype.type(0.5), target.dtype.type(1)), 0.5
            )
        else:
            row, column = np.nonzero(probabilities.argmax(0) != decided[0])
            top = probabilities[:, row, column].max(0)
            probabilities[decided[0][row, column], row, column] = np.nextafter(top, target.dtype.type(2))
        np.moveaxis(inside, 1 + axis, 1)[:, plane] = probabilities

    return fill
