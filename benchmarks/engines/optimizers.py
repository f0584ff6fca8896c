"""Milliseconds of one optimizer step on MONAI's UNet of 4.8 M parameters, every gradient fixed.

timm cannot be imported without torchvision, so its two loops are written anew here as `peer_lamb` and `peer_muon`: the
same operations on one parameter after another as `timm.optim.Lamb` (without foreach) and `timm.optim.Muon` (conv_mode
"flatten", bfloat16 iterations, AdamW for vectors) run them. `peer_lars` is `timm.optim.Lars` in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.harness import interleave, median_ratio

if TYPE_CHECKING:
    from torch import Tensor, nn

Step = Callable[[], object]
PAIRS = {
    "hasten novograd": "MONAI Novograd",
    "hasten lamb": "timm Lamb, its loop",
    "hasten nvlamb": "timm Lamb, its loop",
    "hasten lars": "timm Lars, its loop",
    "hasten muon": "timm Muon, its loop",
}
"""Whom each of ours is compared with."""
QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
"""timm's default coefficients, one triple an iteration."""


def optimizer_times(rounds: int, *, device: str = "cpu") -> dict[str, list[float]]:
    """Arm to the ms of each of `rounds` steps; the arms take turns. On a GPU each step is waited for."""
    import torch

    def timed(step: Step) -> Callable[[], None]:
        def run() -> None:
            step()
            if device != "cpu":
                torch.cuda.synchronize()

        return run

    arms = {name: timed(make(network(device))) for name, make in makers().items()}
    figures = interleave(arms, rounds, warmup=3)
    return {name: [1e3 * value for value in values] for name, values in figures.items()}


def ratios(times: dict[str, list[float]]) -> dict[str, float | None]:
    """Our arm to how many times its step the peer's takes, of the medians."""
    return {ours: median_ratio(times[peer], times[ours]) for ours, peer in PAIRS.items()}


def network(device: str = "cpu") -> nn.Module:
    """MONAI's UNet with a gradient on every parameter, the same each time."""
    import torch
    from monai.networks.nets import UNet

    torch.manual_seed(0)
    made = UNet(
        spatial_dims=3, in_channels=1, out_channels=3, channels=(16, 32, 64, 128, 256), strides=(2, 2, 2, 2),
        num_res_units=2,
    ).to(device)  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        parameter.grad = (0.01 * torch.randn(parameter.shape, generator=generator)).to(device)
    return made


def makers() -> dict[str, Callable[[nn.Module], Step]]:
    """Arm to what makes its step for a network. Weight decay acts on all parameters in every arm but Muon's."""
    import torch
    from monai.optimizers import Novograd as MonaiNovograd

    from hasten.optim.groups import transposed_filters
    from hasten.optim.lamb import Lamb
    from hasten.optim.lars import Lars
    from hasten.optim.muon import Muon
    from hasten.optim.novograd import Novograd

    decay, rate = 0.01, 1e-5

    def adamw(net: nn.Module, fused: bool) -> torch.optim.Optimizer:
        return torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=decay, fused=fused or None)

    return {
        "torch AdamW": lambda net: adamw(net, False).step,
        "torch AdamW fused": lambda net: adamw(net, True).step,
        "MONAI Novograd": lambda net: MonaiNovograd(net.parameters(), lr=rate, weight_decay=decay).step,
        "hasten novograd": lambda net: Novograd(net.parameters(), lr=rate, weight_decay=decay).step,
        "timm Lamb, its loop": lambda net: peer_lamb(net, lr=rate, weight_decay=decay),
        "hasten lamb": lambda net: Lamb(net.parameters(), lr=rate, weight_decay=decay).step,
        "hasten nvlamb": lambda net: Lamb(net.parameters(), lr=rate, weight_decay=decay, nvlamb=True).step,
        "timm Lars, its loop": lambda net: peer_lars(net, lr=rate, weight_decay=decay),
        "hasten lars": lambda net: Lars(net.parameters(), lr=rate, weight_decay=decay).step,
        "timm Muon, its loop": lambda net: peer_muon(net, lr=rate, weight_decay=decay),
        "hasten muon": lambda net: (
            Muon(net.parameters(), lr=rate, weight_decay=decay, transposed=transposed_filters(net)).step
        ),
    }


def peer_lamb(
    net: nn.Module, *, lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6
) -> Step:
    import torch

    parameters = [parameter.detach() for parameter in net.parameters()]
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    means, squares = [torch.zeros_like(each) for each in parameters], [torch.zeros_like(each) for each in parameters]
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
        clip = norm.clamp(min=1.0)
        first, second = 1 - betas[0] ** count, 1 - betas[1] ** count
        for parameter, gradient, mean, square in zip(parameters, gradients, means, squares, strict=True):
            gradient = gradient / clip
            mean.lerp_(gradient, 1 - betas[0])
            square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
            update = (mean / first).div_((square.sqrt() / second**0.5).add_(eps))
            update.add_(parameter, alpha=weight_decay)
            weight, length = parameter.norm(2.0), update.norm(2.0)
            ratio = torch.where(weight > 0, torch.where(length > 0, weight / length, 1.0), 1.0)
            parameter.add_(update.mul_(ratio), alpha=-lr)

    return step


def peer_lars(
    net: nn.Module, *, lr: float, weight_decay: float, momentum: float = 0.9, trust: float = 0.001, eps: float = 1e-8
) -> Step:
    import torch

    parameters = [parameter.detach() for parameter in net.parameters()]
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    moments = [torch.zeros_like(each) for each in parameters]

    def step() -> None:
        for parameter, gradient, moment in zip(parameters, gradients, moments, strict=True):
            weight, slope = parameter.norm(2.0), gradient.norm(2.0)
            ratio = trust * weight / (slope + weight * weight_decay + eps)
            ratio = torch.where(weight > 0, torch.where(slope > 0, ratio, 1.0), 1.0)
            moment.mul_(momentum).add_(gradient.add(parameter, alpha=weight_decay).mul_(ratio))
            parameter.add_(moment, alpha=-lr)

    return step


def peer_muon(net: nn.Module, *, lr: float, weight_decay: float, momentum: float = 0.95) -> Step:
    import torch

    banks = [each for each in net.parameters() if each.ndim >= 2 and each.shape[0] > 1 and each.shape[1] > 1]
    held = {id(each) for each in banks}
    rest = torch.optim.AdamW([each for each in net.parameters() if id(each) not in held], lr=lr, betas=(0.9, 0.95))
    moments = [torch.zeros_like(each) for each in banks]

    @torch.no_grad()
    def step() -> None:
        for bank, moment in zip(banks, moments, strict=True):
            assert bank.grad is not None
            bank.mul_(1 - lr * weight_decay)
            moment.lerp_(bank.grad, 1 - momentum)
            update = newton_schulz(moment.clone().flatten(1))
            bank.add_(update.reshape(bank.shape), alpha=-lr * 0.2 * max(update.shape) ** 0.5)
        rest.step()

    return step


def newton_schulz(matrix: Tensor) -> Tensor:
    """Five iterations on the matrix itself, in bfloat16."""
    import torch

    result = matrix.to(torch.bfloat16, copy=True)
    tall = result.shape[0] > result.shape[1]
    result = result.mT if tall else result
    result.div_(result.norm(2).clamp_(min=1e-7))
    result = result.contiguous()
    gram = torch.empty(result.shape[0], result.shape[0], dtype=result.dtype, device=result.device)
    factor, other = torch.empty_like(gram), torch.empty_like(result)
    for a, b, c in QUINTIC:
        torch.addmm(gram, result, result.mT, beta=0.0, out=gram)
        torch.addmm(gram, gram, gram, beta=b, alpha=c, out=factor)
        torch.addmm(result, factor, result, beta=a, out=other)
        result, other = other, result
    return result.mT if tall else result
