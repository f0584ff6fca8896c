"""Removes redundant computations of a network. Parameters keep names and shapes: checkpoints load both ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from hasten.nets.surgery.bias import cancelled_biases, is_unbiased, leave_out, to_unbiased
from hasten.nets.surgery.dataflow import Probe, see_flow
from hasten.nets.surgery.few_cpu import few_channel_layers, undo_few_channels
from hasten.nets.surgery.fuse import Surgery, fuse_block, unfuse
from hasten.nets.surgery.fuse import fuse as fuse_norms
from hasten.nets.surgery.reclass import original


def operate(network: nn.Module, probe: Probe | None = None, *, biases: bool = True, fuse: bool = True) -> Surgery:
    """Fuse norms with activations, leave out biases that cancel, use C++ for few channels on a CPU; in place.

    probe: an input as in training, on the network's device: copies of the network run it a few times, to trace the
    data flow. Without one, only blocks of MONAI's `Convolution` with an instance norm are known. A bias that a norm
    cancels stays a parameter, but is neither added nor trained; make the optimizer afterwards. On a GPU norms
    stay torch's own until `fused_norms(network, True)`. Raises ValueError if the network can't be copied or does not
    run on the probe.
    """
    if probe is None:
        return _known_blocks(network)
    flow = see_flow(network, probe)
    unbiased = leave_out(network, cancelled_biases(flow)) if biases else ()
    surgery = fuse_norms(network, flow) if fuse else Surgery()
    return replace(surgery, unbiased=unbiased, few_channels=few_channel_layers(network) if fuse else ())


def operate_built(network: nn.Module, example: Callable[[], Tensor], *, biases: bool = True) -> Surgery:
    """`operate` by the types of MONAI's blocks with an instance norm, or else by tracing an example on the meta device.

    There nothing is computed, but torch imports its compiler; elsewhere, the pass takes up to some seconds. example:
    gives an image (B, C, *S). network: one that Hasten has built, which decides nothing by values. Changes it in place.
    """
    surgery = operate(network)
    return surgery if surgery.fused else operate(network, example().to("meta"), biases=biases)


def undo(network: nn.Module) -> None:
    """Restore the classes of modules that `operate` changed, and train their biases again."""
    for module in network.modules():
        undo_few_channels(module)
        unfuse(module)
        if is_unbiased(module):
            original(module)
            bias = module._parameters["bias"]
            assert bias is not None
            bias.requires_grad_(True)


def _known_blocks(network: nn.Module) -> Surgery:
    """MONAI's `Convolution`: a layer and its ADN block, one after the other."""
    fused, unbiased = [], []
    for prefix, parent in list(network.named_modules(prefix="")):
        if not isinstance(parent, nn.Sequential):
            continue
        start = f"{prefix}." if prefix else ""
        for (first, layer), (name, block) in pairwise(list(parent.named_children())):
            if not fuse_block(block):
                continue
            fused.append(f"{start}{name}.N")
            bias = layer._parameters.get("bias") if isinstance(layer, _ConvNd) else None
            if bias is not None and to_unbiased(layer):
                bias.requires_grad_(False)
                unbiased.append(start + first)
    return Surgery(
        tuple(fused), tuple(unbiased), tuple(fused), few_channels=few_channel_layers(network) if fused else ()
    )
