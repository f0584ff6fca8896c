"""Arithmetic on each value: fusing it, and doing it for a batch at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn import functional

from benchmarks.guide.claim import MONAI, SLIDES, Budget, Guidance, Outcome, apart, judged
from benchmarks.guide.nets import repeated, values
from hasten.augment.colour import ColorJitter

_FACTORS = {"brightness": 1.2, "contrast": 0.8, "saturation": 1.3, "hue": 0.05}


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421))


def _fused_gelu(budget: Budget) -> Outcome:
    x = values(budget.size(1_000_000, 1000), device=budget.device)
    torch.compiler.reset()
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "unfused": _gelu,
        "TorchScript": torch.jit.script(_gelu),
        "torch.compile": torch.compile(_gelu, backend=budget.backend),
        "built in": functional.gelu,
    }
    # Three calls: TorchScript watches two before it fuses.
    results = {name: [way(x) for _ in range(3)][-1] for name, way in ways.items()}
    arms = {name: repeated(partial(way, x), budget.size(4, 1, cuda=50)) for name, way in ways.items()}
    comparison = budget.compare(arms, base="unfused")
    return judged(
        comparison,
        advised=("TorchScript", "torch.compile"),
        difference=max(apart(results["unfused"], result) for result in results.values()),
        tolerance=1e-5,
    )


def _jittered(image: np.ndarray) -> Tensor:
    """One sample as torchvision does it with PIL. image: (H, W, 3) uint8; returns (3, H, W) float32 in 0..1."""
    picture = Image.fromarray(image)
    picture = ImageEnhance.Brightness(picture).enhance(_FACTORS["brightness"])
    picture = ImageEnhance.Contrast(picture).enhance(_FACTORS["contrast"])
    picture = ImageEnhance.Color(picture).enhance(_FACTORS["saturation"])
    hue, saturation, value = picture.convert("HSV").split()
    turned = np.asarray(hue) + np.uint8(round(_FACTORS["hue"] * 255))
    picture = Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255


def _jitter_batch(images: Tensor) -> Tensor:
    """The same for a batch at once. images: (B, H, W, 3) uint8, made float on their device."""
    count = len(images)
    drawn = {name: torch.full((count,), factor, device=images.device) for name, factor in _FACTORS.items()}
    drawn["order"] = torch.arange(4, device=images.device).expand(count, 4)
    op = ColorJitter(brightness=0.5, contrast=0.5, saturation=0.5, hue=0.1)
    return op.apply(images.permute(0, 3, 1, 2).float().div_(255), drawn)


def _pictures(count: int, side: int) -> np.ndarray:
    """Smooth colours, (count, side, side, 3) uint8."""
    draw = np.random.default_rng(0)
    coarse = draw.integers(40, 216, (count, 8, 8, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(one).resize((side, side), Image.Resampling.BICUBIC)) for one in coarse])


def _color_jitter_batch(budget: Budget) -> Outcome:
    pictures = _pictures(budget.size(16, 2), budget.size(256, 32))
    arms: dict[str, Callable[[], Tensor]] = {
        "each sample by PIL": lambda: torch.stack([_jittered(one) for one in pictures]),
        "the batch by Hasten": lambda: _jitter_batch(torch.from_numpy(pictures)),
    }
    # PIL rounds to 8 bits after each change, and the hue to one of 256.
    difference = apart(*(arm() for arm in arms.values()))
    return judged(budget.compare(arms, base="each sample by PIL"), difference=difference, tolerance=0.06)


def _color_jitter_gpu(budget: Budget) -> Outcome:
    pictures = torch.from_numpy(_pictures(budget.size(32, 2), budget.size(256, 32)))
    arms: dict[str, Callable[[], Tensor]] = {
        "on the CPU": lambda: _jitter_batch(pictures).to(budget.device),
        "on the GPU": lambda: _jitter_batch(pictures.to(budget.device)),
    }
    difference = apart(*(arm() for arm in arms.values()))
    return judged(budget.compare(arms, base="on the CPU"), difference=difference, tolerance=1e-4)


CLAIMS = (
    Guidance(
        name="fused-gelu",
        claim="A fused GELU on 1 million values is faster than its five operations one by one",
        source=f"{SLIDES}: Fuse pointwise operations",
        published="5 kernels 65 us, fused by TorchScript 1 kernel 16 us: 4.1x (on a GPU)",
        run=_fused_gelu,
        setup_s=16.0,
    ),
    Guidance(
        name="color-jitter-batch",
        claim="ColorJitter, the bottleneck of pathology pipelines, is faster for a whole batch than sample by sample",
        source=f"{MONAI}: Pathology metastasis detection task",
        run=_color_jitter_batch,
    ),
    Guidance(
        name="color-jitter-gpu",
        claim="ColorJitter is faster on the GPU than on the CPU",
        source=f"{MONAI}: Pathology metastasis detection task",
        published="3.3x for the whole training, with cuCIM for reading and transforms (V100)",
        needs="a CUDA device",
        run=_color_jitter_gpu,
    ),
)
