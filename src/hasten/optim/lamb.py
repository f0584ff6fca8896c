"""LAMB: Adam's direction with weight decay, scaled layer by layer to the norm of the weights.

Y. You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020
(arXiv:1904.00962), algorithm 2 with phi(x) = x. Of what that leaves open, this has timm's choices: layers without
weight decay (biases, norms) take Adam's step as it is, and so does a layer whose weights or direction are all 0.

NVLAMB (S. Sreenivas et al., "Pretraining BERT with layer-wise adaptive learning rates", NVIDIA technical blog 2019)
differs in two ways: the gradients of the whole network are divided by their common norm before the moments see them,
and every layer is scaled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from hasten.optim.base import Amp, BaseOptimizer, check_rates, norms_of


class Lamb(BaseOptimizer):
    """LAMB, or NVIDIA's variant of it.

    nvlamb: divide the gradients by their common norm, and scale the layers without weight decay too.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        nvlamb: bool = False,
    ) -> None:
        check_rates(lr=lr, eps=eps, weight_decay=weight_decay, shares={"betas[0]": betas[0], "betas[1]": betas[1]})
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "nvlamb": nvlamb}
        super().__init__(params, defaults)

    def _update(self, amp: Amp) -> None:
        moving = [(group, pair) for group in self.param_groups for pair in self._moving(group)]
        divisor = self._divisor([gradients for _, (_, gradients) in moving], amp)
        for group, (parameters, gradients) in moving:
            updates = self._directions(parameters, gradients, group, Amp(amp.scaled_by(divisor), amp.skip))
            ratios = self._ratios(parameters, updates, group) * -group["lr"]
            # A masked +0 on this side of the product keeps even the sign of a weight of -0.
            factors = ratios if amp.skip is None else torch.where(amp.skip, 0.0, ratios)
            if self._reads(factors):
                # As numbers, which spare spreading a tensor of one element over the weights.
                for parameter, update, factor in zip(parameters, updates, factors.tolist(), strict=True):
                    parameter.add_(update, alpha=factor)
                continue
            factors = factors.to(parameters[0].dtype)
            torch._foreach_addcmul_(parameters, updates, list(factors.unbind()))

    def _divisor(self, gradients: list[list[Tensor]], amp: Amp) -> Tensor | None:
        """(): divisor of all gradients before their moments; None if they are not divided."""
        if not gradients or not self.defaults["nvlamb"]:
            return None
        device = gradients[0][0].device
        norms = torch.cat([norms_of(each).to(device, non_blocking=True) for each in gradients])
        norm = amp.unscaled(torch.linalg.vector_norm(norms))
        return torch.where(norm > 0, norm, 1.0)

    def _directions(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any], amp: Amp
    ) -> list[Tensor]:
        """Adam's direction plus weight decay for each parameter; updates moments and steps."""
        directions = self._scratches(parameters)
        torch._foreach_copy_(directions, parameters)
        # With a rate of -1 AdamW's kernel computes w * (1 + its weight decay) + direction: from copies of the weights,
        # and with weight_decay - 1, that is LAMB's direction in one pass.
        settings = {**group, "lr": -1.0, "weight_decay": group["weight_decay"] - 1.0}
        self._adamw(directions, parameters, gradients, settings, amp)
        return directions

    def _ratios(self, parameters: list[Tensor], updates: list[Tensor], group: dict[str, Any]) -> Tensor:
        """(N,): factor of each update besides the learning rate."""
        if group["weight_decay"] == 0 and not group["nvlamb"]:
            return torch.ones(len(parameters), device=parameters[0].device)
        weights, steps = norms_of(parameters), norms_of(updates)
        return torch.where((weights > 0) & (steps > 0), weights / steps, 1.0)
