"""The tile classifier: a ResNet-18 with one logit, its loss, and its precision and memory format on this machine."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hasten.cache.key import cache_dir
from hasten.config.decision import GIVEN, Accelerator, Accelerators
from hasten.config.schema import CacheConfig
from hasten.nets.surgery.fallback import keep_fp32, tiny_layers
from hasten.pathology.config import ClassifierConfig, DetectionConfig
from hasten.runtime.measure import MEASURE_S, Probe, fastest_variant
from hasten.runtime.variant import Precision, Variant, explain


def build_classifier(config: ClassifierConfig) -> nn.Module:
    """(B, 3, H, W) to (B, 1) logits: torchvision's ResNet-18, as in MONAI's pathology tutorial, untrained."""
    from monai.networks.nets import ResNet

    network: nn.Module = ResNet(
        block="basic", layers=[2, 2, 2, 2], block_inplanes=[config.width * factor for factor in (1, 2, 4, 8)],
        spatial_dims=2, n_input_channels=3, num_classes=1, conv1_t_stride=2, shortcut_type="B", bias_downsample=False,
    )  # fmt: skip
    return network


def tile_loss(output: Tensor, label: Tensor) -> Tensor:
    """() binary cross-entropy. output: (B, 1) logits; label: (B, ...), of which the first value is the tile's."""
    target = label.reshape(len(label), -1)[:, :1].to(torch.float32)
    return nn.functional.binary_cross_entropy_with_logits(output.float(), target)


def choose_variant(
    network: nn.Module, config: DetectionConfig, device: torch.device, seconds: float = math.inf
) -> tuple[Variant, Accelerators]:
    """Precision and memory format, as set or the fastest measured. Sets layers that bf16 breaks to fp32, in place.

    seconds: the time that measuring may take.
    """
    train, size = config.train, config.tiles.size
    note = ""
    if device.type == "cpu" and train.precision in (None, "bf16"):
        tiny = tiny_layers(network, torch.zeros(2, 3, size, size))
        if tiny:
            keep_fp32(network, tiny)
            note = f"; {len(tiny)} convolutions of the smallest features stay in float32"
    supported: list[Precision] = ["fp32", "tf32", "bf16"] if device.type == "cuda" else ["fp32", "bf16"]
    precisions = supported if train.precision is None else [train.precision]
    formats = [False, True] if train.channels_last is None else [train.channels_last]
    allowed = [Variant(precision=precision, channels_last=last) for precision in precisions for last in formats]
    variant, why = allowed[0], GIVEN
    if len(allowed) > 1:
        probe = Probe(
            loss=tile_loss, shape=(min(train.batch_size, 8), 3, 1, size, size), num_classes=2, spatial_dims=2,
            device=device,
        )  # fmt: skip
        memory = cache_dir(CacheConfig()) / "measured"
        measured = fastest_variant(network, probe, allowed, memory, seconds=min(MEASURE_S, seconds))
        variant, why = measured.variant, explain(measured)
    accelerators = {
        "precision": Accelerator(
            variant.precision != "fp32",
            "measured" if train.precision is None else "user",
            f"{variant.precision}: {why}{note}",
        ),
        "channels-last": Accelerator(variant.channels_last, "measured" if train.channels_last is None else "user", why),
    }
    return variant, accelerators
