"""MONAI's arm for pathology tiles: colour jitter, flips, quarter turns and zoom, tile by tile.

MONAI has no colour jitter of its own: its tutorial takes torchvision's through TorchVisiond. torchvision is no
dependency of anything here and its wheels go with one build of torch each, so that where it cannot be imported a
stand-in takes its place (`jitter="stand_in"`): torchvision's definition in plain torch, a tile at a time. It does with
fewer operations and takes about a quarter of the time, so that what is claimed against it holds for torchvision too.
Tiles are float32 in 0..1; the tutorial's are uint8, which torchvision turns into floats and back for every change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Literal

import torch

from benchmarks.augments.loaders import Loader, batches_of
from benchmarks.augments.patches import Tiles

Jitter = Literal["torchvision", "stand_in"]
GREY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue."""


def tiles(
    sources: Sequence[torch.Tensor],
    work: Tiles,
    *,
    loader: Loader = "processes",
    workers: int = 2,
    jitter: Jitter | None = None,
    track_meta: bool = False,
) -> Iterator[torch.Tensor]:
    """Batches (B, 3, H, W). `jitter`: torchvision's where it can be imported, unless told otherwise.

    Raises ValueError where torchvision's is asked for and cannot be had.
    """
    result = has_torchvision()
    if jitter == "torchvision" and not result:
        raise ValueError("jitter: torchvision cannot be imported; `pip install --no-deps` the one made for this torch")
    jitter = jitter or ("torchvision" if result else "stand_in")
    return _run(list(sources), chain(work, jitter), work.batch, loader, workers, track_meta)


def has_torchvision() -> bool:
    """Whether torchvision's transforms can be had. After this call they are imported, if so.

    The wheel that package indexes hold is linked to CUDA. Beside a torch without it, torchvision's compiled operators
    do not load, and the import fails where it describes them to torch. ColorJitter needs none, so these are skipped.
    """
    register = torch.library.register_fake

    def tolerant(*args: Any, **options: Any) -> Callable[[Any], Any]:
        def describe(function: Any) -> Any:
            try:
                return register(*args, **options)(function)
            except RuntimeError:
                return function

        return describe

    torch.library.register_fake = tolerant
    try:
        import torchvision.transforms  # noqa: F401
    except (ImportError, RuntimeError, OSError):
        return False
    finally:
        torch.library.register_fake = register
    return True


def chain(work: Tiles, jitter: Jitter) -> list[Any]:
    from monai import transforms as mt

    settings = {name: getattr(work, name) for name in ("brightness", "contrast", "saturation", "hue")}
    colour = mt.TorchVisiond("image", name="ColorJitter", **settings) if jitter == "torchvision" else stand_in(work)
    low, high = work.zoom_range
    return [
        colour,
        *(mt.RandFlipd("image", prob=work.flip_prob, spatial_axis=axis) for axis in range(2)),
        mt.RandRotate90d("image", prob=work.rotate90_prob, max_k=3, spatial_axes=(-2, -1)),
        mt.RandZoomd("image", prob=work.zoom_prob, min_zoom=low, max_zoom=high, mode=work.zoom_mode),
    ]


def stand_in(work: Tiles) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """torchvision's ColorJitter: the four changes, each by a factor of its own, in an order drawn for each tile."""

    def apply(item: dict[str, Any]) -> dict[str, Any]:
        changes: list[tuple[Callable[[torch.Tensor, float], torch.Tensor], float]] = [
            (brightened, _factor(work.brightness)),
            (contrasted, _factor(work.contrast)),
            (saturated, _factor(work.saturation)),
            (turned, work.hue * (2 * float(torch.rand(())) - 1)),
        ]
        image = item["image"]
        for index in torch.randperm(len(changes)).tolist():
            change, amount = changes[index]
            image = change(image, amount)
        return {**item, "image": image}

    return apply


def _factor(width: float) -> float:
    return float(torch.empty(()).uniform_(max(0.0, 1 - width), 1 + width))


def brightened(image: torch.Tensor, factor: float) -> torch.Tensor:
    return (image * factor).clamp_(0, 1)


def contrasted(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Away from the mean grey of the tile."""
    return (image * factor).add_(grey(image).mean(), alpha=1 - factor).clamp_(0, 1)


def saturated(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Away from the grey of the pixel."""
    return (image * factor).add_(grey(image), alpha=1 - factor).clamp_(0, 1)


def grey(image: torch.Tensor) -> torch.Tensor:
    """(1, H, W)"""
    red, green, blue = image.unbind(-3)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])[None]


def turned(image: torch.Tensor, turns: float) -> torch.Tensor:
    """Hue shifted by `turns`, through hue, saturation and value."""
    hue, saturation, value = _hue_saturation_value(image)
    sector = torch.remainder(hue + turns, 1) * 6
    spread = saturation * value
    channels = []
    for offset in (5, 3, 1):  # red, green, blue
        place = torch.remainder(sector + offset, 6)
        channels.append(value - spread * torch.minimum(place, 4 - place).clamp_(0, 1))
    return torch.stack(channels)


def _hue_saturation_value(image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each (H, W), hue in turns; grey has hue and saturation 0."""
    red, green, blue = image.unbind(-3)
    low, high = torch.aminmax(image, dim=-3)
    spread = high - low
    divisor = torch.where(spread == 0, 1.0, spread)
    hue = torch.where(
        high == red, (green - blue) / divisor,
        torch.where(high == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )  # fmt: skip
    return torch.remainder(hue / 6, 1), spread / torch.where(high == 0, 1.0, high), high


def _run(
    sources: list[torch.Tensor], steps: list[Any], batch: int, loader: Loader, workers: int, track_meta: bool
) -> Iterator[torch.Tensor]:
    from monai.data import Dataset, MetaTensor, get_track_meta, set_track_meta
    from monai.transforms import Compose

    items = [{"image": MetaTensor(source) if track_meta else source} for source in sources]
    before = get_track_meta()
    set_track_meta(track_meta)
    try:
        with closing(batches_of(Dataset(items, Compose(steps)), batch, loader, workers)) as result:
            for item in result:
                yield item["image"]
    finally:
        set_track_meta(before)
