"""LARS: momentum on gradients that are scaled, layer by layer, to a share of the norm of the weights.

Y. You, I. Gitman, B. Ginsburg, "Large batch training of convolutional networks", arXiv:1708.03888. The ratio
trust * |w| / (|g| + decay * |w|) multiplies gradient and decay before the momentum, and the learning rate what comes
out of it, as in timm and in NVIDIA's LARC, so that a schedule acts as on SGD.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from hasten.optim.base import Amp, BaseOptimizer, check_rates, momentum_step, norms_of


class Lars(BaseOptimizer):
    """SGD with momentum and layer-wise adaptive rates.

    trust: share of its weights' norm that a layer moves at a learning rate of 1. Layers without weight decay take SGD's
    step.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        trust: float = 0.001,
        eps: float = 1e-8,
    ) -> None:
        check_rates(lr=lr, eps=eps, weight_decay=weight_decay, shares={"momentum": momentum})
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "eps": eps}
        super().__init__(params, defaults)

    def _update(self, amp: Amp) -> None:
        for group in self.param_groups:
            kwargs = {"lr": group["lr"], "momentum": group["momentum"]}
            for parameters, gradients in self._moving(group):
                moments = self._moments(parameters, "momentum_buffer")
                moving = list(zip(parameters, gradients, moments, strict=True))
                if group["weight_decay"] == 0:
                    for one in moving:
                        momentum_step(one, **kwargs, amp=amp)
                    continue
                ratios = _ratios(parameters, gradients, group, amp)
                if amp.scale is not None:
                    torch._foreach_div_(gradients, amp.scale)
                if self._reads(ratios) and group["momentum"] > 0:
                    # As numbers that the kernel multiplies by anyway, they spare it writing the scaled gradients.
                    for one, ratio in zip(moving, ratios.tolist(), strict=True):
                        momentum_step(one, **kwargs, factor=ratio, decay=group["weight_decay"])
                    continue
                torch._foreach_add_(gradients, parameters, alpha=group["weight_decay"])
                for one, divisor in zip(moving, ratios.reciprocal().unbind(), strict=True):
                    momentum_step(one, **kwargs, amp=Amp(divisor, amp.skip))


def _ratios(parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any], amp: Amp) -> Tensor:
    """(N,): factor of the gradient and the weight decay of each layer."""
    weights, slopes = norms_of(parameters), amp.unscaled(norms_of(gradients))
    ratios = group["trust"] * weights / (slopes + group["weight_decay"] * weights + group["eps"])
    return torch.where((weights > 0) & (slopes > 0), ratios, 1.0)
