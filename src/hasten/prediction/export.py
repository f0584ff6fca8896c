"""A trained network for others: safetensors, checked ONNX with or without all that it needs to predict, a folder for
Hugging Face's hub, a MONAI bundle, or nnU-Net's model folder.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from hasten.checkpoint.custom_network import model_network
from hasten.checkpoint.shared import SUMS, safetensors_bytes
from hasten.config.load import from_dict
from hasten.config.networks import is_own
from hasten.config.schema import Triple
from hasten.config.settled import PlannedRun, planned_run
from hasten.files import first_line
from hasten.nets.build import divisor
from hasten.nets.custom_network import decides_by_values
from hasten.prediction.ensemble import Ensemble, Member, joined, read_members
from hasten.prediction.folders import bundle_files, nnunet_files, onnx_files
from hasten.prediction.hub import CARD, hub_files, public_content
from hasten.prediction.infer import inference_of
from hasten.prediction.outputs import write_file
from hasten.prediction.postprocess import read_cleanings
from hasten.prediction.scores import first_output

Format = Literal["safetensors", "onnx", "hub", "bundle", "nnunet"]
_FOLDERS: dict[Format, Callable[..., dict[str, bytes]]] = {
    "hub": hub_files,
    "bundle": bundle_files,
    "nnunet": nnunet_files,
}
"""What the formats that are always folders hold."""
_INSTALL = "pip install 'hasten[export]'"
_OPSET = 17
_LARGEST = 2_000_000_000
"""Bytes of weights that fit in one ONNX file, whose format ends at 2 GiB."""
_TOLERANCE = 1e-4
"""Largest difference of an ONNX file's scores, relative to the largest score, if that is above 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written, and how well it was found to agree."""

    path: Path
    format: Format
    difference: float | None
    """Largest absolute difference between the file's scores and PyTorch's; None where nothing could be compared."""
    scale: float
    """Largest absolute score in that comparison."""


def export_weights(
    run: str | Path | Sequence[str | Path],
    out: str | Path,
    format: Format | None = None,
    *,
    overwrite: bool = False,
    trust_changed_code: bool = False,
) -> Exported:
    """Write the best weights of a run as `out`.

    `safetensors` holds the weights bit for bit, under their names in MONAI's network (for
    `safetensors.torch.load_model`). `onnx` holds the network: `image` (B, C, D, H, W) or (B, C, H, W) float32, prepared
    as in training, any batch and any sides that the strides divide, to `scores` (B, K, ...). Both say in their metadata
    how the image is prepared and what the classes mean. The format `onnx` where `out` does not end in .onnx is a folder
    with that file and a predict.py that prepares images and writes label maps, without torch and Hasten (`onnx_files`).
    `bundle` and `nnunet` are folders that MONAI and nnU-Net predict with (`bundle_files`, `nnunet_files`), `hub` one to
    share, from which Hasten predicts and trains on (`hub_files`). An ONNX file is run beside PyTorch on random images
    of several shapes.

    Args:
        run: a run directory, or a best.pt; for the folder of `onnx` whatever `hasten.predict` takes.
        out: file or folder to write.
        format: None takes the one of `out`'s suffix.
        overwrite: replace what is there. A model card stays, as its author may have edited it.
        trust_changed_code: as for `predict`.

    Raises:
        ValueError: also for an `out` that exists, without `overwrite`, and for a missing package of the extra `export`.

    Example:
        >>> written = hasten.export_weights("runs/first", "first.safetensors")
    """
    out = Path(out)
    kind = cast(Format, format or out.suffix.removeprefix(".").lower())
    if kind not in get_args(Format) or (kind in _FOLDERS and not format):
        raise ValueError(f"{out}: {kind or 'it'} names no format; end it in .onnx or .safetensors, or use --format")
    files_of, with_script = _FOLDERS.get(kind), kind == "onnx" and out.suffix.lower() != ".onnx"
    replaceable = not (out.is_file() if files_of or with_script else out.is_dir())
    if kind == "hub" and out.is_dir() and any(out.iterdir()):
        replaceable = (out / SUMS).is_file()  # names such as config.json may be another program's
    if out.exists() and not (replaceable and overwrite):
        raise ValueError(f"{out}: exists; choose another --out" + (", or add --overwrite" if replaceable else ""))
    members = read_members(run)
    if members[1:] and not with_script:
        raise ValueError(f"{out}: holds one run, not {len(members)}; export one, or a folder by --format onnx")
    content, where = members[0].content, str(members[0].where)
    read = [_plain_network(member, trust_changed_code=trust_changed_code) for member in members]
    configs, networks = [config for config, _ in read], [network for _, network in read]
    network = Ensemble(networks, overlapping=bool(content.get("regions"))) if networks[1:] else networks[0]
    network.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    if files_of:
        for name, data in files_of(content, configs[0], network, where=where).items():
            if name != CARD or not (out / name).exists():  # the user may have edited it
                write_file(out / name, data)
        return Exported(path=out, format=kind, difference=None, scale=0.0)
    if kind == "safetensors":
        write_file(out, safetensors_bytes(network.state_dict(), _metadata(content)))
        return Exported(path=out, format=kind, difference=0.0, scale=0.0)
    how, unit = None, divisor(configs[0].network)
    if with_script:
        dims, cpu = content["spatial_dims"], torch.device("cpu")
        each_how = [inference_of(config, spatial_dims=dims, device=cpu, classes=0) for config in configs]
        how = joined(each_how, members[0].where)
        unit = how.divisor
    shapes, own = _shapes(content, unit, configs[0].sample.patch), any(is_own(each.network) for each in configs)
    data, difference, scale = _checked_onnx(network, content, shapes, out, own)
    files = {"": data}
    if how is not None:
        files = onnx_files(data, content, configs[0], how, read_cleanings(run, content["labels"]))
    for name, data in files.items():
        write_file(out / name, data)
    return Exported(path=out, format=kind, difference=difference, scale=scale)


def _plain_network(member: Member, *, trust_changed_code: bool) -> tuple[PlannedRun, nn.Module]:
    """Settings and network of a run. What was done to the network for speed is not rebuilt."""
    where = str(member.where)
    config = planned_run(from_dict(member.content["config"], where=where), where)
    return config, model_network(member.content, config, where=where, trust_changed_code=trust_changed_code)


def _checked_onnx(
    network: nn.Module, content: dict[str, Any], shapes: Sequence[tuple[int, ...]], out: Path, own: bool
) -> tuple[bytes, float | None, float]:
    """An ONNX file, and what `_compare` gives of it. Raises ValueError where it would not give the same scores."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    if size > _LARGEST:
        raise ValueError(f"{out}: {size / 1e9:.1f} GB of weights are too many for an ONNX file; use safetensors")
    if own:
        if decides_by_values(network, torch.zeros(shapes[0])):
            why = "the network decides by values on its way, and an ONNX file holds one way only"
            raise ValueError(f"{out}: {why}; use safetensors")
        network = _FirstOutput(network).eval()
    try:
        data = _onnx(network, shapes[0], _metadata(content))
        difference, scale = _compare(network, data, shapes)
    except ValueError:
        raise
    except Exception as error:  # onnxruntime's have no class in common but this one
        raise ValueError(f"{out}: ONNX does not hold this network ({first_line(error)}); use safetensors") from error
    if difference is not None and not difference <= _TOLERANCE * max(1.0, scale):
        raise ValueError(
            f"{out}: not written, as its scores differ from PyTorch's by up to {difference:.1e} (scores up to "
            f"{scale:.1e}); use safetensors"
        )
    return data, difference, scale


class _FirstOutput(nn.Module):
    """The full-size scores of a network that gives several outputs in evaluation, too."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> Tensor:
        return first_output(self.network(image), image.ndim)


def _metadata(content: dict[str, Any]) -> dict[str, str]:
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in public_content(content).items()
        if value not in ({}, None)
    }
    return {"format": "pt", **texts}


def _shapes(content: dict[str, Any], unit: Triple, patch: Triple) -> list[tuple[int, ...]]:
    """(B, C, ...) of images that differ in batch and in every side; the first is the one that is traced."""
    channels, dims = len(content["channels"]), content["spatial_dims"]
    # A network that is built for its patch takes no other size.
    times = ((2, 2, 2), (3, 2, 2), (2, 2, 3), (2, 3, 2)) if unit[-dims:] != patch[-dims:] else ((1, 1, 1),) * 4
    sides = [tuple(by * count for by, count in zip(unit[-dims:], counts[-dims:], strict=True)) for counts in times]
    return [(batch, channels, *side) for batch, side in zip((2, 1, 3, 1), sides, strict=True)]


def _onnx(network: nn.Module, shape: tuple[int, ...], metadata: dict[str, str]) -> bytes:
    try:
        import onnx
    except ImportError as error:
        raise ValueError(f"ONNX files are written by onnx; install it ({_INSTALL})") from error
    image = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    names = ("depth", "height", "width")[-(len(shape) - 2) :]
    axes = {0: "batch", **dict(enumerate(names, start=2))}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = onnx.load_from_string(_traced(network, image, axes))
    onnx.checker.check_model(model)
    onnx.helper.set_model_props(model, metadata)
    return model.SerializeToString()


def _traced(network: nn.Module, image: Tensor, axes: dict[int, str]) -> bytes:
    """ONNX bytes by torch's older exporter, which keeps every axis open under its name, in well under a second."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        torch.onnx.export(
            network,
            (image,),
            path,
            input_names=["image"],
            output_names=["scores"],
            dynamic_axes={"image": axes, "scores": axes},
            opset_version=_OPSET,
            dynamo=False,
        )
        return path.read_bytes()


def _compare(network: nn.Module, data: bytes, shapes: Sequence[tuple[int, ...]]) -> tuple[float | None, float]:
    """Largest difference and largest score over random images of these shapes; (None, 0) without onnxruntime."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return None, 0.0
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(1)
    differences, scales = [], []
    for shape in shapes:
        image = torch.randn(shape, generator=generator)
        with torch.no_grad():
            torch_scores = network(image)
        onnx_scores = torch.from_numpy(session.run(["scores"], {"image": image.numpy()})[0])
        differences.append((torch_scores - onnx_scores).abs().max())
        scales.append(torch_scores.abs().max())
    # torch's max keeps a nan, which is a difference too.
    return float(torch.stack(differences).max()), float(torch.stack(scales).max())
