"""A sliding window in the form of MONAI's `SlidingWindowInferer`, for evaluators and loops written for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from typing import Any

import torch
from monai.data import MetaTensor
from monai.inferers import SlidingWindowInferer as MonaiSlidingWindowInferer
from monai.utils.enums import BlendMode
from torch import Tensor, nn

from hasten.config.schema import Triple, triple
from hasten.nets.losses.overlap import plain
from hasten.prediction.canvas import ArgmaxSink, Mode, Scores, Sink, score_room
from hasten.prediction.scores import Average, averaged, first_output, highest
from hasten.prediction.windows import Windows, count_windows, slide
from hasten.runtime.allocator import kept_memory
from hasten.runtime.precision import memory_format

_WORTH_KEEPING = 2**21
"""Voxels of all windows from which on it pays to keep freed host memory."""


class _SeveralOutputs(Exception):
    """The network gives a list, tuple or dict."""


class SlidingWindowInferer(MonaiSlidingWindowInferer):
    """`inferer(inputs, network)`: (B, C, *S) images to (B, K, *S) scores; `inferer.labels(...)`: to a label map.

    The arguments of MONAI's, with its defaults and, to rounding, its results; of images with 1 to 3 spatial axes.
    `labels` never holds the scores of a whole volume: a 14th of the memory where there are 14 classes.

    A network may have several outputs, in a tuple or dict, each of its own size, and so has the result; `labels`
    is of the first one. Gradients pass where inputs need them, or a network in training mode does. Both are
    left to MONAI's function, as are images of more than 3 axes, `with_coord` and `condition`; with these, none of the
    arguments that MONAI's has not can be used.

    `buffer_steps`, `buffer_dim` and `cache_roi_weight_map` are accepted and have no effect. Running out of memory
    halves the window batch, then moves sums, and at last the scores, to the host.
    """

    def __init__(
        self,
        roi_size: Sequence[int] | int,
        sw_batch_size: int = 1,
        overlap: Sequence[float] | float = 0.25,
        mode: Mode | str = "constant",
        sigma_scale: Sequence[float] | float = 0.125,
        padding_mode: str = "constant",
        cval: float = 0.0,
        sw_device: torch.device | str | None = None,
        device: torch.device | str | None = None,
        progress: bool = False,
        cache_roi_weight_map: bool = False,
        cpu_thresh: int | None = None,
        buffer_steps: int | None = None,
        buffer_dim: int = -1,
        with_coord: bool = False,
        *,
        flip_axes: Sequence[int] = (),
        average: Average = "scores",
        channels_last: bool = False,
    ) -> None:
        """MONAI's arguments, and these:

        flip_axes: spatial axes (0 is the first one) along all of whose mirrorings scores are averaged.
        average: what is averaged over mirror images and windows, "scores" or their "softmax".
        channels_last: windows go to the network in that memory format.
        Raises ValueError for values that cannot be.
        """
        blend, padding = getattr(mode, "value", mode), getattr(padding_mode, "value", padding_mode)
        for name, value, allowed in (
            ("mode", blend, ("constant", "gaussian")),
            ("padding_mode", padding, ("constant", "reflect", "replicate", "circular")),
            ("average", average, ("scores", "softmax")),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value}: use {' or '.join(allowed)}")
        if sw_batch_size < 1:
            raise ValueError(f"sw_batch_size={sw_batch_size}: use 1 or more")
        where = (sw_device, device, progress, False, cpu_thresh, buffer_steps, buffer_dim, with_coord)
        super().__init__(roi_size, sw_batch_size, overlap, blend, sigma_scale, padding, cval, *where)
        self.flip_axes, self.average, self.channels_last = tuple(flip_axes), average, channels_last

    def __call__(self, inputs: Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """inputs: (B, C, *S) of a float type. Returns (B, K, *S) of that type, on `device` or that of the inputs.

        network: a module, or any callable on (n, C, *roi_size). args, kwargs: passed on to it; but `device` replaces
        the inferer's, and `condition`, shaped as `inputs`, is cut into windows with them.
        """
        images, extra, device = plain(inputs), *self._for_network(kwargs)
        if device is None and self.cpu_thresh is not None and images.shape[2:].numel() > self.cpu_thresh:
            device = "cpu"
        device = torch.device(device) if device is not None else images.device
        if _passes_gradients(inputs, network) or images.ndim > 5 or self.with_coord or "condition" in extra:
            return self._by_monai(inputs, network, device, args, extra)
        try:
            return _wrapped(self._scores(images, lambda windows: network(windows, *args, **extra), device), inputs)
        except _SeveralOutputs:
            return self._by_monai(inputs, network, device, args, extra)

    def _scores(self, images: Tensor, network: Callable[[Tensor], Any], device: torch.device) -> Tensor:
        room: list[Tensor] = []

        def make(number: int, shape: Triple) -> Scores:
            def allocate(classes: int) -> Tensor:
                if not room:
                    room.append(score_room((len(images), classes, *shape), device, self._dtype(images)))
                return room[0][number]

            return Scores(allocate, self._sums(images))

        for _ in self._slide(images, network, make, several=True):
            pass
        return room[0].reshape(len(images), -1, *images.shape[2:])

    def _by_monai(
        self, inputs: Tensor, network: Callable[..., Any], device: torch.device, args: Any, extra: Any
    ) -> Any:
        options = {"flip_axes": bool(self.flip_axes), "average": self.average != "scores"}
        if any(options.values()):
            names = " and ".join(name for name, used in options.items() if used)
            raise ValueError(
                f"{names}: not with gradients, several outputs, with_coord, condition or more than 3 axes; leave it out"
            )
        return super().__call__(inputs, network, *args, device=device, buffer_steps=None, **extra)

    def labels(self, inputs: Tensor, network: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        """(B, 1, *S) class index of the highest score: uint8, int16 for more than 256 classes. Else as a call."""
        images, extra, chosen = plain(inputs), *self._for_network(kwargs)
        if self.with_coord or "condition" in extra:
            raise ValueError("labels: not with with_coord or condition; decide by the scores of a call")
        device = torch.device(chosen) if chosen is not None else images.device
        results = self._slide(
            images, lambda batch: network(batch, *args, **extra), lambda _, shape: ArgmaxSink(highest, shape, device)
        )
        outputs = torch.stack([each for _, each in sorted(results, key=lambda pair: pair[0])])
        return _wrapped(outputs.reshape(len(images), -1, *images.shape[2:]), inputs)

    @torch.inference_mode()
    def _slide(
        self,
        images: Tensor,
        network: Callable[[Tensor], Any],
        sink: Callable[[int, Triple], Sink],
        *,
        several: bool = False,
    ) -> Iterator[tuple[int, Tensor]]:
        """several: whether to raise `_SeveralOutputs` where the network gives them."""
        dims = images.ndim - 2
        how = self._windows(images)
        volumes = images.reshape(*images.shape[:2], *[1] * (3 - dims), *images.shape[2:])
        layout = memory_format(dims, self.channels_last and dims > 1)

        def forward(batch: Tensor) -> Tensor:
            def once(batch: Tensor) -> Tensor:
                windows = batch.reshape(*batch.shape[:2], *batch.shape[5 - dims :]).contiguous(memory_format=layout)
                output = network(windows)
                if several and isinstance(output, list | tuple | Mapping) and len(output):
                    raise _SeveralOutputs
                scores = first_output(output, dims + 2)
                return scores.reshape(*scores.shape[:2], *[1] * (3 - dims), *scores.shape[2:])

            return averaged(once, [axis % dims + 3 - dims for axis in self.flip_axes], self.average)(batch)

        total = len(images) * count_windows(triple(volumes.shape[2:]), how)
        large = how.device.type == "cpu" and total * prod(how.window) >= _WORTH_KEEPING
        keeping: AbstractContextManager[Any] = kept_memory() if large else nullcontext()
        with keeping, _progress(total, self.progress) as tick:
            yield from slide(forward, volumes, how, sink, tick)

    def _windows(self, images: Tensor) -> Windows:
        dims, space = images.ndim - 2, images.shape[2:]
        if not 1 <= dims <= 3:
            raise ValueError(f"inputs of shape {tuple(images.shape)}; give (batch, channel) and 1 to 3 spatial axes")
        roi = [side if side and side > 0 else space[axis] for axis, side in enumerate(self._each("roi_size", dims))]
        overlap, sigma = self._each("overlap", dims), self._each("sigma_scale", dims)
        if not all(0 <= share < 1 for share in overlap):
            raise ValueError(f"overlap={self.overlap}: use values of at least 0 and below 1")
        if not all(-dims <= axis < dims for axis in self.flip_axes):
            raise ValueError(f"flip_axes={self.flip_axes}: these images have {dims} spatial axes, 0 to {dims - 1}")
        missing = 3 - dims
        return Windows(
            window=triple([1] * missing + roi),
            overlap=triple([0.0] * missing + overlap),
            batch_size=self.sw_batch_size,
            least=2,
            device=torch.device(self.sw_device) if self.sw_device is not None else images.device,
            mode=BlendMode(self.mode).value,
            sigma=triple([1.0] * missing + sigma),
            sums=self._sums(images),
            dtype=self._dtype(images),
            padding_mode=self.padding_mode,
            padding_value=self.cval,
        )

    def _each(self, name: str, dims: int) -> list[Any]:
        value = getattr(self, name)
        if not isinstance(value, Sequence):
            return [value] * dims
        if len(value) != dims:
            raise ValueError(f"{name}={tuple(value)}: {len(value)} values for images with {dims} spatial axes")
        return list(value)

    def _for_network(self, kwargs: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """The network's keyword arguments, and the device, of a call's."""
        ours = ("device", "buffer_steps", "buffer_dim")
        return {name: kwargs[name] for name in kwargs if name not in ours}, kwargs.get("device", self.device)

    @staticmethod
    def _dtype(images: Tensor) -> torch.dtype:
        return images.dtype if images.is_floating_point() else torch.float32

    def _sums(self, images: Tensor) -> torch.dtype:
        return torch.float64 if images.dtype == torch.float64 else torch.float32


def _passes_gradients(inputs: Tensor, network: Callable[..., Any]) -> bool:
    if not torch.is_grad_enabled():
        return False
    learns = isinstance(network, nn.Module) and network.training and any(p.requires_grad for p in network.parameters())
    return inputs.requires_grad or learns


@contextmanager
def _progress(total: int, enabled: bool) -> Iterator[Callable[[int], None] | None]:
    if not enabled:
        yield None
        return
    from tqdm import tqdm  # type: ignore[import-untyped]

    with tqdm(total=total) as bar:
        yield bar.update


def _wrapped(output: Tensor, inputs: Tensor) -> Tensor:
    """`output` with the meta data of the inputs, where those are MONAI's."""
    return MetaTensor(output).copy_meta_from(inputs, copy_attr=False) if isinstance(inputs, MetaTensor) else output
