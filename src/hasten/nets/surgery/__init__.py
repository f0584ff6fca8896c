"""Changes to any network that leave its names, parameters and checkpoints as they are."""

from hasten.nets.surgery.fallback import keep_fp32, slice_strided, tiny_layers
from hasten.nets.surgery.fuse import Surgery, fused_norms
from hasten.nets.surgery.operate import operate, undo
from hasten.nets.surgery.sync_norm import sync_batch_norm

__all__ = [
    "Surgery",
    "fused_norms",
    "keep_fp32",
    "operate",
    "slice_strided",
    "sync_batch_norm",
    "tiny_layers",
    "undo",
]
