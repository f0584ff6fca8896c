"""NovoGrad: gradients divided by a running norm of their own layer, then momentum (Ginsburg et al. 2019).

As in `monai.optimizers.Novograd`, weight decay joins the normalised gradient before the momentum, and the running
mean of a layer's squared norm starts at its first one. B. Ginsburg et al., "Stochastic gradient methods with
layer-wise adaptive moments for training of deep networks", arXiv:1905.11286.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from hasten.optim.base import Amp, BaseOptimizer, check_rates, momentum_step, norms_of


class Novograd(BaseOptimizer):
    """NovoGrad, with the arguments and the states of MONAI's.

    betas: shares of the old momentum and of the old squared norm. grad_averaging: a gradient enters the momentum
    with 1 - betas[0]. amsgrad: divide by the largest running norm so far.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        grad_averaging: bool = False,
        amsgrad: bool = False,
    ) -> None:
        check_rates(lr=lr, eps=eps, weight_decay=weight_decay, shares={"betas[0]": betas[0], "betas[1]": betas[1]})
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"grad_averaging": grad_averaging, "amsgrad": amsgrad}
        super().__init__(params, defaults)

    def _update(self, amp: Amp) -> None:
        for group in self.param_groups:
            beta = group["betas"][0]
            share = 1 - beta if group["grad_averaging"] else 1.0
            for parameters, gradients in self._moving(group):
                moments = self._moments(parameters, "exp_avg")
                divisors = self._divisors(parameters, gradients, group, amp)
                divisors = divisors if amp.scale is None else divisors * amp.scale
                moving = zip(parameters, gradients, moments, strict=True)
                rates = {"lr": group["lr"], "momentum": beta}
                # The kernel's momentum is NovoGrad's, but it takes one divisor a call.
                if beta > 0 and self._reads(divisors):
                    # As numbers that the kernel multiplies by anyway, they spare it writing the divided gradients.
                    factors, decays = share / divisors.double(), group["weight_decay"] * divisors.double()
                    for one, factor, decay in zip(moving, factors.tolist(), decays.tolist(), strict=True):
                        momentum_step(one, **rates, factor=factor, decay=decay)
                else:
                    for one, divisor in zip(moving, divisors.unbind(), strict=True):
                        divided = Amp(divisor, amp.skip)
                        momentum_step(one, **rates, factor=share, decay=group["weight_decay"], amp=divided)

    def _divisors(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any], amp: Amp) -> Tensor:
        """(N,): the running norm of each gradient, after this one."""
        squares = amp.unscaled(norms_of(gradients)).square_()
        states = self._scalars(parameters, "exp_avg_sq")
        old, beta = torch.stack(states), group["betas"][1]
        new = torch.where(old == 0, squares, beta * old + (1 - beta) * squares)
        if amp.skip is not None:
            new = torch.where(amp.skip, old, new)
        torch._foreach_copy_(states, list(new.unbind()))
        if group["amsgrad"]:
            largest = self._scalars(parameters, "max_exp_avg_sq")
            new = torch.maximum(torch.stack(largest), new)
            torch._foreach_copy_(largest, list(new.unbind()))
        return new.sqrt().add_(group["eps"])
