from __future__ import annotations

import copy
import functools
import gc
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.networks.nets import BasicUNet, DynUNet, SegResNet, UNet
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.host_bytes import HostBytes
from hasten.nets.recompute.apply import recompute, recompute_modules, undo
from hasten.nets.recompute.profile import Block, ModuleCall, Profile, choose, occupied, profile_network
from hasten.nets.surgery.operate import operate
from hasten.nets.surgery.reclass import ClassSwap, swap_class
from tests.nets.examples import network_of

LEAKY = ("leakyrelu", {"negative_slope": 0.1, "inplace": True})
BATCH = ("batch", {"momentum": 0.3})


class Both(nn.Module):
    """Gives a tuple, draws without a dropout module, and takes a keyword."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm3d(channels, momentum=None)

    def forward(self, image: Tensor, *, again: Tensor | None = None) -> tuple[Tensor, Tensor]:
        result = functional.leaky_relu(self.norm(self.conv(image)), 0.1, inplace=True)
        if again is not None:
            result = result + again
        return result, functional.dropout(result, 0.3, training=self.training)


class Own(nn.Module):
    """A user's net: tuples, keywords, a shared module, statistics that are a running mean, activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv3d(1, 6, 3, padding=1), nn.InstanceNorm3d(6, track_running_stats=True), nn.ELU(inplace=True)
        )
        self.both, self.again = Both(6), Both(6)
        self.shared = nn.Sequential(nn.BatchNorm3d(6), nn.PReLU(), nn.Conv3d(6, 6, 3, padding=1), nn.Dropout3d(0.2))
        self.head = nn.Conv3d(6, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        result = self.first(image)
        one, other = self.both(result)
        one, other = self.again(self.shared(one), again=other)
        return self.head(self.shared(functional.relu(one * other)))


NETS: dict[str, Callable[[], nn.Module]] = {
    "unet": lambda: UNet(3, 1, 2, (4, 8, 16), (2, 2), num_res_units=2, norm=BATCH, dropout=0.2),
    "unet instance": lambda: UNet(
        3, 1, 2, (4, 8), (2,), num_res_units=1, norm=("instance", {"affine": True, "track_running_stats": True})
    ),
    "dynunet": lambda: DynUNet(
        3, 1, 2, [3] * 3, [1, 2, 2], [2, 2], filters=[4, 8, 8], norm_name=BATCH, act_name=LEAKY, deep_supervision=True,
        deep_supr_num=1, dropout=0.1,
    ),
    "segresnet": lambda: SegResNet(
        3, 4, 1, 2, norm=BATCH, act=LEAKY, dropout_prob=0.2, blocks_down=(1, 2), blocks_up=(1,)
    ),
    "basicunet": lambda: BasicUNet(3, 1, 2, features=(4, 4, 8, 8, 8, 4), norm=BATCH, act=LEAKY),
    "own": Own,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # these nets are too small for more
    yield
    torch.set_num_threads(before)


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]()


def image_of(side: int = 16) -> Tensor:
    return torch.randn(2, 1, side, side, side, generator=torch.Generator().manual_seed(1))


def plain_of(network: nn.Module, share: float, image: Tensor) -> int:
    """Bytes of a share of what a step holds."""
    return max(1, int(share * occupied(profile_network(network, image), ()).peak))


def train(network: nn.Module, steps: int = 3) -> Iterator[tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]:
    """Loss, gradients and state of every step."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for step in range(steps):
        torch.manual_seed(step)
        output = network(torch.randn(2, 1, 16, 16, 16))
        loss = output.float().square().mean() + output.mean()
        optimizer.zero_grad()
        loss.backward()
        gradients = {name: value.grad.clone() for name, value in network.named_parameters() if value.grad is not None}
        optimizer.step()
        yield loss.detach(), gradients, {name: value.clone() for name, value in network.state_dict().items()}


@functools.cache
def trained(name: str) -> list[tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]:
    """What the plain network does."""
    return list(train(built(name)))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("share", [0.7, 0.0])
@pytest.mark.parametrize("name", NETS)
def test_training_is_that_without_it_bit_for_bit(name: str, share: float) -> None:
    saving = built(name)
    report = recompute(saving, image_of(), plain_of(saving, share, image_of()))
    assert report.modules
    assert report.predicted < report.before
    for wanted, result in zip(trained(name), train(saving), strict=True):
        assert torch.equal(result[0], wanted[0])
        assert same(result[1], wanted[1])
        assert same(result[2], wanted[2])


@pytest.mark.parametrize("name", NETS)
def test_every_module_alone_may_be_recomputed(name: str) -> None:
    blocks = profile_network(built(name), image_of()).blocks
    # Of blocks that are alike the first will do.
    kinds = {type(dict(built(name).named_modules())[block.name]).__name__: block for block in reversed(blocks)}
    for block in kinds.values():
        network = built(name)
        recompute_modules(network, [block.name], draws=[block.name] if block.draws else [])
        for (loss, gradients, state), reference in zip(train(network, steps=1), trained(name)[:1], strict=True):
            assert torch.equal(loss, reference[0]), block.name
            assert same(gradients, reference[1]), block.name
            assert same(state, reference[2]), block.name


@pytest.mark.parametrize("name", ["unet", "dynunet", "segresnet", "plainconvunet", "residualencoderunet"])
def test_norms_that_wait_for_their_activation_are_recomputed_with_it(name: str) -> None:
    kinds: dict[str, Callable[[], nn.Module]] = {
        "unet": lambda: UNet(3, 1, 2, (4, 8, 8), (2, 2), num_res_units=2),
        "dynunet": lambda: DynUNet(3, 1, 2, [3] * 3, [1, 2, 2], [2, 2], filters=[4, 8, 8], act_name=LEAKY),
        "segresnet": lambda: SegResNet(3, 8, 1, 2, blocks_down=(1, 2), blocks_up=(1,)),
        "plainconvunet": lambda: network_of("plainconvunet", 3),
        "residualencoderunet": lambda: network_of("residualencoderunet", 3),
    }
    torch.manual_seed(0)
    plain = kinds[name]()
    assert operate(plain, image_of()).fused > 0
    saving = copy.deepcopy(plain)
    report = recompute(saving, image_of(), 1)
    assert report.modules
    assert "not computed yet" in " ".join(report.left_out.values())
    for wanted, result in zip(train(plain, steps=2), train(saving, steps=2), strict=True):
        assert torch.equal(result[0], wanted[0])
        assert same(result[1], wanted[1])


def test_bf16_is_recomputed_in_bf16() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        plain, saving = built("unet"), built("unet")
        assert recompute(saving, image_of(), 1).modules
        wanted = next(train(plain))
    with torch.autocast("cpu", torch.bfloat16):
        result = next(train(saving))
    assert torch.equal(result[0], wanted[0])
    assert same(result[1], wanted[1])


def test_gradients_of_several_passes_add_up() -> None:
    plain, saving = built("unet"), built("unet")
    recompute(saving, image_of(), 1)
    for network in (plain, saving):
        torch.manual_seed(3)
        losses = [network(image_of() + number).square().mean() for number in range(2)]
        losses[0].backward(retain_graph=True)
        losses[0].backward()
        losses[1].backward()
    assert same(dict(saving.named_buffers()), dict(plain.named_buffers()))
    for one, other in zip(saving.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad) if one.grad is not None else other.grad is None


class Counting(nn.Module):
    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 4, 3, padding=1)
        self.note = lambda: calls.append(1)

    def forward(self, image: Tensor) -> Tensor:
        self.note()
        return functional.softplus(self.conv(image)).exp()


def test_only_training_is_computed_twice() -> None:
    calls: list[int] = []
    network = nn.Sequential(Counting(calls), nn.Conv3d(4, 1, 1))
    recompute_modules(network, ["0"])
    network(image_of(8)).sum().backward()
    assert len(calls) == 2
    with torch.no_grad():
        network(image_of(8))
    assert len(calls) == 3
    network.eval()(image_of(8)).sum().backward()
    assert len(calls) == 4
    undo(network)
    network.train()(image_of(8)).sum().backward()
    assert len(calls) == 5


def test_names_copies_and_files_are_kept() -> None:
    plain, saving = built("unet"), built("unet")
    recompute(saving, image_of(), 1)
    assert list(saving.state_dict()) == list(plain.state_dict())
    saving.load_state_dict(plain.state_dict())
    wanted = next(train(copy.deepcopy(saving)))
    for other in (copy.deepcopy(saving), pickle.loads(pickle.dumps(saving))):
        assert [type(module) for module in other.modules()] == [type(module) for module in saving.modules()]
        assert same(next(train(other))[1], wanted[1])
    assert undo(saving) > 0
    assert [type(module) for module in saving.modules()] == [type(module) for module in plain.modules()]
    assert repr(saving) == repr(plain)
    assert all(
        vars(one).keys() == vars(other).keys() for one, other in zip(saving.modules(), plain.modules(), strict=True)
    )
    assert undo(saving) == 0


class Louder(ClassSwap, nn.Module):
    def forward(self, *args: Any) -> Any:
        return 2 * super().forward(*args)


def test_what_was_put_in_front_of_it_since_stays() -> None:
    network = nn.Sequential(nn.Sequential(nn.Conv3d(1, 2, 1), nn.Softplus()), nn.Conv3d(2, 1, 1))
    plain = type(network[0])
    swap_class(network[0], Louder)
    louder, wanted = type(network[0]), network(image_of(8))
    recompute_modules(network, ["0"])
    assert torch.equal(network(image_of(8)), wanted)
    assert undo(network) == 1
    assert type(network[0]) is louder
    network[0].__class__ = plain
    recompute_modules(network, ["0"])
    swap_class(network[0], Louder)
    assert torch.equal(network(image_of(8)), wanted)
    undo(network)
    assert type(network[0]) is louder


@pytest.mark.parametrize("name", NETS)
def test_the_probe_leaves_no_trace(name: str) -> None:
    network = built(name)
    frozen = next(module for module in network.modules() if isinstance(module, nn.Dropout3d | nn.Conv3d)).eval()
    before, modes = {k: v.clone() for k, v in network.state_dict().items()}, [m.training for m in network.modules()]
    hooks = [len(module._forward_hooks) for module in network.modules()]
    random = torch.get_rng_state()
    profile_network(network, image_of())
    assert same(dict(network.state_dict()), before)
    assert [module.training for module in network.modules()] == modes
    assert not frozen.training
    assert [len(module._forward_hooks) for module in network.modules()] == hooks
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in network.parameters())
    copy.deepcopy(network)  # which what a module keeps of a graph would forbid


class Doubled(nn.Module):
    """Saves nothing, not even its input."""

    def forward(self, image: Tensor) -> Tensor:
        return image * 2


class Around(nn.Module):
    """A block between two convolutions, with a habit of the given kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.before, self.behind = nn.Conv3d(1, 4, 3, padding=1), nn.Conv3d(4, 1, 1)
        self.within: nn.Module = nn.Sequential(Doubled(), nn.Conv3d(4, 4, 3, padding=1), nn.Softplus())
        if kind == "spectral norm":
            nn.utils.parametrizations.spectral_norm(self.within.get_submodule("1"))
        if kind == "hook":
            self.within.get_submodule("1").register_forward_hook(lambda *_: None)
        if kind == "own forward":
            self.within.forward = self.within.forward  # type: ignore[method-assign]
        if kind in ("changes its input", "list", "counts", "keeps"):
            self.within = Unfit(kind)

    def forward(self, image: Tensor) -> Tensor:
        result = self.before(image) + 0
        output: Tensor = self.within([result] if self.kind == "list" else result)
        return self.behind(output + result.add_(1) if self.kind == "input changed later" else output)


class Unfit(nn.Sequential):
    def __init__(self, kind: str) -> None:
        super().__init__(nn.Conv3d(4, 4, 3, padding=1), nn.Softplus())
        self.kind, self.steps = kind, 0
        self.kept: list[Tensor] = []

    def forward(self, image: Tensor | list[Tensor]) -> Tensor:  # type: ignore[override]
        if isinstance(image, list):
            image = image.pop()
        if self.kind == "changes its input":
            image = functional.leaky_relu(image, 0.1, inplace=True)
        if self.kind == "counts":
            self.steps += 1
        result: Tensor = super().forward(image + 0)
        if self.kind == "keeps":
            self.kept.append(result)
        return result


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("spectral norm", "keeps something"),
        ("hook", "hooks within"),
        ("own forward", "its own forward"),
        ("changes its input", "changes its input in place"),
        ("input changed later", "in place later on"),
        ("list", "takes a list"),
        ("counts", "keeps something"),
        ("keeps", "keeps something"),
    ],
)
def test_what_cannot_be_computed_twice_is_left_out(kind: str, reason: str) -> None:
    network = Around(kind)
    report = recompute(network, image_of(8), 1)
    assert reason in report.left_out["within"]
    assert "within" not in report.modules
    network(image_of(8)).sum().backward()
    assert "within" not in profile_network(Around("none"), image_of(8)).left_out


def blocks_of(data: st.DataObject) -> Profile:
    """A chain of saves under a random tree of blocks; a block that begins at 0 takes the network's input."""
    count = data.draw(st.integers(3, 12))
    sizes = (0, *(data.draw(st.integers(1, 9)) * 100 for _ in range(count)))
    results: list[Block] = []

    def divide(begin: int, end: int, name: str) -> None:
        if end - begin < 2 or len(results) > 8:
            return
        inputs = tuple({begin, data.draw(st.integers(0, begin))})
        results.append(Block(name=name, call=ModuleCall(begin, end, inputs)))
        cut = data.draw(st.integers(begin, end))
        divide(begin, cut, f"{name}0")
        divide(cut, end, f"{name}1")

    for part in range(0, count, 4):
        divide(part, min(count, part + 4), str(part))
    # Save number i is of storage i: what a block takes, its first save has too.
    saves = tuple(range(count + 1))
    return Profile(sizes=sizes, saves=saves, blocks=tuple(results), left_out={})


@settings(deadline=None, max_examples=60)
@given(data=st.data(), share=st.floats(0.2, 1.0))
def test_a_choice_holds_what_it_says_and_less_than_none(data: st.DataObject, share: float) -> None:
    profile = blocks_of(data)
    whole = occupied(profile, ()).peak
    budget = max(1, int(share * whole))
    blocks, held = choose(profile, budget)
    assert held == occupied(profile, blocks)
    assert all(one.call.end <= other.call.begin for one, other in itertools.pairwise(blocks))
    assert (not blocks) == (held.peak == whole)
    if held.peak <= budget:  # and each block is needed
        fewer = (occupied(profile, [each for each in blocks if each is not block]) for block in blocks)
        assert all(each.peak > budget for each in fewer)


def test_the_fewest_bytes_that_do_are_computed_again() -> None:
    blocks = {
        name: Block(name=name, call=ModuleCall(begin, end, (begin,)))
        for name, begin, end in [("a", 1, 3), ("b", 4, 7), ("c", 7, 9), ("bc", 4, 9)]
    }
    profile = Profile(sizes=(0, *[100] * 9), saves=tuple(range(10)), blocks=tuple(blocks.values()), left_out={})
    assert choose(profile, 900) == ((), (900, 900))
    assert choose(profile, 800)[0] == (blocks["a"],)
    assert choose(profile, 700)[0] == (blocks["b"],)
    assert choose(profile, 600)[0] == (blocks["a"], blocks["b"])
    assert choose(profile, 1) == ((blocks["a"], blocks["b"], blocks["c"]), (500, 500))


def test_what_is_held_is_counted_by_storage() -> None:
    # x -> [a b] -> [c]: saves of x (the network's input), a, b, c; the block [a b] takes a and hands b on.
    profile = Profile(
        sizes=(0, 100, 1000, 10), saves=(0, 1, 2, 1, 2, 3),
        blocks=(Block(name="ab", call=ModuleCall(1, 4, (1,))),), left_out={},
    )  # fmt: skip
    assert occupied(profile, ()) == (1110, 1110)
    # b is saved again behind the block, and a is its input: nothing is freed.
    assert occupied(profile, profile.blocks) == (1110, 1110)
    apart = Profile(sizes=profile.sizes, saves=(0, 1, 2, 1, 3), blocks=profile.blocks, left_out={})
    # Behind the block 10 bytes more are kept; within it 1000 come back, when those 10 are gone.
    assert occupied(apart, profile.blocks) == (110, 1100)


@pytest.mark.parametrize("name", ["segresnet", "own"])
def test_bytes_are_those_measured(name: str) -> None:
    network, image = built(name), image_of()
    full = plain_of(network, 1.0, image)
    peaks = []
    for share in (1.0, 0.0):
        report = recompute(network, image, max(1, int(share * full)))
        with HostBytes() as counted:
            loss = network(image).square().mean()
            kept = counted.live
            loss.backward()
        network.zero_grad()
        gc.collect()
        # Behind the network: its output twice, the square's input and the loss.
        assert 0 <= kept - report.kept <= 3 * image.numel() * 4 * 2
        assert counted.peak >= report.predicted
        peaks.append(counted.peak)
    assert peaks[-1] < peaks[0]


def test_the_counter_of_bytes_knows_views_and_what_was_there() -> None:
    there = torch.ones(1000)
    with HostBytes() as counted:
        there.view(10, 100)[2:].detach()
        one = there + 1
        assert counted.live == 4000
        part = one[:10]
        del one
        assert counted.live == 4000
        other = part.clone()
        del part
        assert (counted.live, counted.peak) == (40, 4040)
        del other
        assert counted.live == 0


def test_the_report_tells_whether_the_budget_is_met() -> None:
    network, image = built("unet"), image_of()
    full = plain_of(network, 1.0, image)
    enough = recompute(network, image, full)
    assert (enough.modules, enough.fits, enough.predicted) == ((), True, full)
    assert "nothing is recomputed" in str(enough)
    less = recompute(network, image, int(0.7 * full))
    assert less.fits
    assert less.predicted <= less.budget < less.before == full
    hopeless = recompute(network, image, 1)
    assert not hopeless.fits
    assert hopeless.predicted <= less.predicted
    assert "no choice fits" in str(hopeless)
    assert undo(network) == len(hopeless.modules)


def test_a_small_probe_stands_for_a_large_batch() -> None:
    network, image = built("unet"), image_of()
    full = plain_of(network, 1.0, image)
    report = recompute(network, image[:1], int(0.7 * full), batch_size=2)
    assert report.before == pytest.approx(full, rel=0.01)
    assert report.modules
    assert not recompute(network, image[:1], int(0.7 * full)).modules


def test_a_compiled_network_learns_the_same() -> None:
    plain, saving = built("unet instance"), built("unet instance")
    recompute(saving, image_of(), 1)
    wanted = next(train(plain))
    result = next(train(torch.compile(saving, backend="aot_eager")))  # type: ignore[arg-type]
    assert torch.allclose(result[0], wanted[0], atol=1e-6)
    for name, value in wanted[2].items():
        assert torch.allclose(result[2][f"_orig_mod.{name}"], value, atol=1e-5), name


def test_mistakes_are_told() -> None:
    network = built("unet")
    with pytest.raises(ValueError, match="compiled"):
        recompute(torch.compile(network), image_of(), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="budget_bytes=0"):
        recompute(network, image_of(), 0)
    with pytest.raises(ValueError, match=r"model\.nowhere: the network has no module"):
        recompute_modules(network, ["model.nowhere"])
