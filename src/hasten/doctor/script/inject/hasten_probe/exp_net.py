"""Experiments on the step: gains by another precision, layout or batch size, and the idle biases.

Each uses deep copies of the root module and its last batch, so that weights, gradients, statistics and hooks of the
user's objects don't change. The real loss isn't known: the mean square of all outputs stands in for it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .exp_time import memory, versus
from .nested import in_channels_last, mapped, tensors_in

_BUSY = 0.3
"""Cores used by other programs from which their load changes wall times."""


class Net:
    """A root module with the arguments of its last call in training."""

    def __init__(
        self, module: nn.Module, site: str, batch: tuple[tuple[Any, ...], dict[str, Any]], others: float
    ) -> None:
        """others: cores that other programs use."""
        self.module, self.site, (self.args, self.kwargs) = module, site, batch
        self.device = next(module.parameters()).device
        self.sync: Callable[[], object] | None = torch.cuda.synchronize if self.device.type == "cuda" else None
        # Beside other programs, one thread's processor time is what its work takes; several wait for each other.
        own = others > _BUSY and self.device.type == "cpu" and torch.get_num_threads() == 1
        self.clock = time.thread_time if own else None

    def copied(self) -> nn.Module:
        """Deep copy without gradients; `hooks_off` has taken the hooks of this package away meanwhile."""
        clone = copy.deepcopy(self.module)
        forget_gradients(clone)
        return clone if clone.training else clone.train()

    def cycle(self, model: nn.Module, args: Any = None, kwargs: Any = None) -> Callable[[], object]:
        """Forward and backward of `model`, on the last batch if none is given."""
        args, kwargs = (self.args, self.kwargs) if args is None else (args, kwargs)

        def run() -> None:
            forget_gradients(model)
            mean_square(model(*args, **kwargs)).backward()

        return run


def nets(session: Any) -> list[Net]:
    """Root modules with trainable parameters and a batch, the one with most parameters first."""
    roots = []
    for module, site in session.roots:
        batch = session.last_batches.get(id(module))
        if batch is not None and any(parameter.requires_grad for parameter in module.parameters()):
            roots.append(Net(module, site, batch, session.load.get("others", 0.0)))
    return sorted(roots, key=lambda net: -sum(parameter.numel() for parameter in net.module.parameters()))


def compiled(module: nn.Module) -> bool:
    """Whether a network is compiled: every arm would compile it again, for minutes."""
    return any(
        type(part).__name__ == "OptimizedModule" or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def forget_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def floats_in(value: Any) -> list[torch.Tensor]:
    """The floating-point tensors, of any shape, in nested outputs."""
    return [tensor for tensor in tensors_in(value) if tensor.is_floating_point()]


def mean_square(outputs: Any) -> torch.Tensor:
    """The sum () of the tensors' mean squares, in float32. Raises RuntimeError where none has a gradient."""
    means = [tensor.float().pow(2).mean() for tensor in floats_in(outputs)]
    if not means or not any(value.requires_grad for value in means):
        raise RuntimeError("the outputs hold no tensor to go backward from")
    return torch.stack(means).sum()


def difference(one: Any, other: Any) -> float:
    """Largest difference of two outputs, relative to the largest value of the first."""
    worst = 0.0
    for expected, actual in zip(floats_in(one), floats_in(other)):  # noqa: B905
        scale = max(float(expected.detach().abs().max()), 1e-12) if expected.numel() else 1.0
        worst = max(worst, float((expected.detach().float() - actual.detach().float()).abs().max()) / scale)
    return worst


def _outputs(model: nn.Module, args: Any, kwargs: Any) -> Any:
    """The outputs with a fixed seed, so that dropout draws the same in both arms."""
    torch.manual_seed(0)
    with torch.no_grad():
        return model(*args, **kwargs)


def autocast(net: Net, session: Any, seconds: float) -> dict[str, Any]:
    if any(count and name for name, count in session.autocast.items()):
        return {"skipped": "the script uses autocast"}
    if any(p.dtype in (torch.bfloat16, torch.float16) for p in net.module.parameters()):
        return {"skipped": "the network is in low precision already"}
    kind = net.device.type
    dtype = torch.bfloat16 if kind != "cuda" or torch.cuda.is_bf16_supported() else torch.float16
    clone = net.copied()

    def cast() -> None:
        forget_gradients(clone)
        # The backward runs outside, as torch asks for.
        with torch.autocast(kind, dtype=dtype):
            loss = mean_square(clone(*net.args, **net.kwargs))
        loss.backward()

    result = versus(net.cycle(clone), cast, seconds, net.sync, net.clock)
    plain = _outputs(clone, net.args, net.kwargs)
    with torch.autocast(kind, dtype=dtype):
        deviation = difference(plain, _outputs(clone, net.args, net.kwargs))
    return {**result, "dtype": str(dtype).rpartition(".")[2], "difference": deviation}


def channels_last(net: Net, session: Any, seconds: float) -> dict[str, Any]:
    convs = [m for m in net.module.modules() if isinstance(m, (nn.Conv2d, nn.Conv3d))]
    if not convs:
        return {"skipped": "no 2-D or 3-D convolution"}
    # A 1x1 kernel is in both layouts at once.
    wide = [m.weight for m in convs if m.weight[0, 0].numel() > 1 and m.weight.shape[1] > 1]
    if wide and all(in_channels_last(weight) is weight for weight in wide):
        return {"skipped": "the network is in channels_last already"}
    clone, other = net.copied(), net.copied()
    for parameter in other.parameters():
        parameter.data = in_channels_last(parameter.data)

    def laid() -> tuple[Any, Any]:
        return mapped(net.args, in_channels_last), mapped(net.kwargs, in_channels_last)

    # The batch arrives in the plain layout each step: its conversion belongs to the cost.
    result = versus(net.cycle(clone), lambda: net.cycle(other, *laid())(), seconds, net.sync, net.clock)
    result["layout"] = "channels_last_3d" if isinstance(convs[0], nn.Conv3d) else "channels_last"
    result["difference"] = difference(_outputs(clone, net.args, net.kwargs), _outputs(other, *laid()))
    return result


def _cancels(norm: nn.Module) -> bool:
    """Whether `norm` subtracts each channel's mean, so that a constant added to a channel has no effect."""
    if isinstance(norm, nn.GroupNorm):
        return norm.num_groups == norm.num_channels
    batch, instance = nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm
    return isinstance(norm, (batch, instance)) and norm.training


def idle_biases(net: Net, model: nn.Module) -> list[str]:
    """Names of the convolutions with a bias whose output goes directly into a norm that removes it."""
    names = {module: name for name, module in model.named_modules()}
    conv_outputs: dict[int, tuple[nn.Module, Any]] = {}
    idle: list[str] = []

    def record_output(module: nn.Module, args: Any, output: Any) -> None:
        conv_outputs[id(output)] = (module, output)  # Kept alive, so that no later tensor gets the same id.

    def check_input(module: nn.Module, args: Any) -> None:
        conv, output = conv_outputs.get(id(args[0]) if args else 0, (None, None))
        if conv is not None and output is args[0]:
            idle.append(names[conv])

    hooks = []
    for module in model.modules():
        if isinstance(module, nn.modules.conv._ConvNd) and module.bias is not None:
            hooks.append(module.register_forward_hook(record_output))
        elif _cancels(module):
            hooks.append(module.register_forward_pre_hook(check_input))
    with torch.no_grad():
        model(*net.args, **net.kwargs)
    for hook in hooks:
        hook.remove()
    return list(dict.fromkeys(idle))


def conv_bias(net: Net, session: Any, seconds: float) -> dict[str, Any]:
    for net in nets(session):  # A GAN's discriminator, say, after the generator.
        clone, other = net.copied(), net.copied()
        names = idle_biases(net, clone)
        if names:
            break
    else:
        return {"skipped": "no convolution with a bias right before a norm"}
    live = dict(net.module.named_modules())
    sites = [session.conv_sites.get(id(live[name]), "") for name in names]
    for name in names:
        other.get_submodule(name).register_parameter("bias", None)
    deviation = difference(_outputs(clone, net.args, net.kwargs), _outputs(other, net.args, net.kwargs))
    return {"modules": names, "sites": sites, "difference": deviation}


def doubled_batch(net: Net, session: Any, seconds: float) -> dict[str, Any]:
    """The gain is in samples a second, on the batch twice along its first dimension."""
    sizes = {t.shape[0] for t in tensors_in((net.args, net.kwargs)) if t.dim() > 1}
    if len(sizes) != 1:
        return {"skipped": "no single batch size in the arguments"}
    size = sizes.pop()
    if len({shape.partition("x")[2] for shape in session.shapes}) > 1:
        return {"skipped": "inputs of several shapes can't be joined to a batch", "size": size}
    free, total = free_memory(net.device)
    if total and free < 0.3 * total:
        return {"skipped": "less than 30 % of the memory is free", "size": size}
    clone = net.copied()

    def twice(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor, tensor]) if tensor.dim() and tensor.shape[0] == size else tensor

    both = net.cycle(clone, mapped(net.args, twice), mapped(net.kwargs, twice))
    result = versus(net.cycle(clone), both, seconds, net.sync, net.clock)
    # Two arms' work in one call.
    result.update({key: 2 * result[key] for key in ("gain", "low", "high") if key in result})
    result.update(size=size, free_share=free / total if total else None)
    return result


def free_memory(device: torch.device) -> tuple[int, int]:
    """Free and total bytes; memory that torch's allocator caches counts as free."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), total
    return memory()
