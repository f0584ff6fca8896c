"""Means and variances of (B, C, ...) images, normalisation and its gradients, on a CPU.

Channels-last images go to the kernels of batch norm, one sample at a time: only those support that format forward
and backward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.nets.surgery.activate import per_channel

_aten = torch.ops.aten
_ROWS = 8192
"""Voxels that are summed in float32 one after the other; more are combined in float64 (without it 5e-5 is lost)."""

Grads = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Gradients of the image, the weight and the bias."""


def layout_of(image: Tensor) -> torch.memory_format:
    """Channels-last only where that is not contiguous at the same time.

    image: (B, C, H, W) or (B, C, D, H, W); any other shape counts as contiguous.
    """
    if image.ndim not in (4, 5):
        return torch.contiguous_format
    last = torch.channels_last_3d if image.ndim == 5 else torch.channels_last
    return last if image.is_contiguous(memory_format=last) and not image.is_contiguous() else torch.contiguous_format


def on_cpu_only(*tensors: Tensor | None) -> bool:
    """Whether Hasten's CPU operations, which are differentiable once, may run now on these tensors.

    They may have any shape, or be None.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.jit.is_scripting():
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    return all(tensor is None or tensor.device.type == "cpu" for tensor in tensors)


def _pieces(image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B, P, C) float64 means and variances of pieces of every sample, and (P,) their shares of it."""
    exact = torch.promote_types(image.dtype, torch.float32)
    # Passed only so that the statistics of a half-precision image are not half precision; a momentum of 0 keeps them.
    running = image.new_zeros(image.shape[1], dtype=exact)
    size = image.shape[2]
    if layout_of(image) is not torch.contiguous_format:
        size = max(1, _ROWS // image[0, 0, 0].numel())
    parts = [part for sample in image.split(1) for part in sample.split(size, dim=2)]
    moments = [_aten.batch_norm_update_stats(part, running, running, 0.0) for part in parts]
    shape = (image.shape[0], -1, image.shape[1])
    mean, var = (torch.stack(list(each)).double().reshape(shape) for each in zip(*moments, strict=True))
    lengths = [float(part.shape[2]) for part in parts[: mean.shape[1]]]
    return mean, var, torch.tensor(lengths, dtype=torch.float64).div_(image.shape[2])


def group_moments(image: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """(B, G) means and biased variances, each of one sample's C / G channels, of a (B, C, ...) image."""
    means, vars, share = _pieces(image)
    samples, pieces, channels = means.shape
    exact = torch.promote_types(image.dtype, torch.float32)
    if pieces == 1 and groups == channels:
        return means[:, 0].to(exact), vars[:, 0].to(exact)
    shape = (samples, pieces, groups, channels // groups)
    means, vars, share = means.reshape(shape), vars.reshape(shape), share.div(shape[3]).reshape(1, -1, 1, 1)
    mean = (means * share).sum((1, 3), keepdim=True)
    var = ((vars + (means - mean).square()) * share).sum((1, 3))
    return mean.reshape(var.shape).to(exact), var.to(exact)


def normalise(image: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(image - mean) * rstd * weight + bias, in the image's memory format.

    mean, rstd: (B, G). weight, bias: (C,).
    """
    # The kernel takes a variance and adds nothing to it.
    var = rstd.square().reciprocal()
    mean, var = _to_channels(mean, image), _to_channels(var, image)
    if layout_of(image) is torch.contiguous_format:
        # One sample of B * C channels is one call.
        count = len(image)
        flat = image.reshape(1, -1, *image.shape[2:])
        weight, bias = weight.repeat(count), bias.repeat(count)
        output: Tensor = _aten.native_batch_norm(flat, weight, bias, mean.flatten(), var.flatten(), False, 0.0, 0.0)[0]
        return output.reshape(image.shape)
    output, none = torch.empty_like(image), mean.new_empty(0)
    for number, sample in enumerate(image.split(1)):
        _aten.native_batch_norm.out(
            sample,
            weight,
            bias,
            mean[number],
            var[number],
            False,
            0.0,
            0.0,
            out=output[number : number + 1],
            save_mean=none,
            save_invstd=none,
        )
    return output


def _to_channels(values: Tensor, image: Tensor) -> Tensor:
    """(B, G) values of groups as (B, C) of channels."""
    if values.shape[1] == image.shape[1]:
        return values
    return values.repeat_interleave(image.shape[1] // values.shape[1], dim=1)


def _of_samples(
    gradient: Tensor, image: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, mask: list[bool]
) -> list[tuple[Tensor, ...]]:
    """The gradients of image, weight and bias, sample by sample, as batch norm gives them. mean, rstd: (B, C)."""
    gradients = [
        _aten.native_batch_norm_backward(
            gradient[number : number + 1], sample, weight, None, None, mean[number], rstd[number], True, 0.0, mask
        )
        for number, sample in enumerate(image.split(1))
    ]
    return list(zip(*gradients, strict=True))


def backward_last(
    gradient: Tensor, image: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, mask: list[bool]
) -> Grads:
    """Gradients of an instance norm of a channels-last image. mean, rstd: (B, C)."""
    images, weights, biases = _of_samples(gradient, image, mean, rstd, weight, mask)
    whole = None if not mask[0] else images[0] if len(images) == 1 else torch.cat(images)
    to_weight = torch.stack(weights).sum(0) if mask[1] else None
    return whole, to_weight, torch.stack(biases).sum(0) if mask[2] else None


def backward_in_groups(
    gradient: Tensor, image: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, mask: list[bool]
) -> Grads:
    """Gradients of a group norm of a channels-last image. mean, rstd: (B, G)."""
    groups = mean.shape[1]
    wide_mean, wide_rstd = _to_channels(mean, image), _to_channels(rstd, image)
    _, *sums = _of_samples(gradient, image, wide_mean, wide_rstd, weight, [False, True, True])
    to_weight, to_bias = map(torch.stack, sums)
    grad_image = None
    if mask[0]:
        # With x^ the normalised image and g the gradient times the weight: rstd * (g - mean(g) - x^ * mean(g * x^)).
        count = image[0, 0].numel() * (image.shape[1] // groups)
        through, along = (
            _to_channels((each * weight).unflatten(1, (groups, -1)).sum(2).div_(count), image)
            for each in (to_bias, to_weight)
        )
        slant = -wide_rstd.square() * along
        offset = -wide_rstd * through - slant * wide_mean
        factors = (per_channel(each, image) for each in (offset, wide_rstd * weight, slant))
        start, of_gradient, of_image = factors
        exact = torch.addcmul(start, gradient, of_gradient).addcmul_(image, of_image)
        grad_image = exact.to(image.dtype)
    return grad_image, to_weight.sum(0) if mask[1] else None, to_bias.sum(0) if mask[2] else None
