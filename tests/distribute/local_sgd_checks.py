"""One of two ranks that train by local SGD, and what it saw."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn

from hasten.config.schema import DistributeConfig
from hasten.distribute.local_sgd import LocalSgd
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import World
from tests.contracts.states import compare, everyones, same_on_all
from tests.contracts.strategies import Case, Trainee, batch, reference

ADAM = Case(optimizer="adamw", rate=0.01)


def made(world: World, every: int, case: Case = ADAM, **options: Any) -> Trainee:
    return Trainee(case, LocalSgd(world, DistributeConfig(average_every=every)), **options)


def weights(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def simulated(ranks: int, every: int, steps: int) -> list[dict[str, Tensor]]:
    """The weights of each rank as the method is written down, by one process that plays all of them."""

    class Share(Strategy):
        splits_batch = True

    players = [Trainee(ADAM, Share(World(rank=rank, size=ranks), DistributeConfig())) for rank in range(ranks)]
    first = copy.deepcopy(players[0].network.state_dict())
    for player in players:
        player.network.load_state_dict(first)
    copies: list[dict[str, Tensor]] = []
    for done in range(1, steps + 1):
        for player in players:
            player.run(1, done - 1)
        if done % every == 0:
            copies = [weights(player.network) for player in players]
        if copies and done % every == every - 1:
            for player, then in zip(players, copies, strict=True):
                for name, value in player.network.named_parameters():
                    mean = sum(other[name] for other in copies) / ranks
                    with torch.no_grad():
                        value.copy_(mean + (value - then[name]))
            copies = []
    return [weights(player.network) for player in players]


def method(world: World) -> dict[str, Any]:
    """Seven and eight steps, the latter with a mean just taken up, against the simulation."""
    results = {}
    for steps in (7, 8):
        trainee = made(world, 3).run(steps)
        everyone = everyones(weights(trainee.network))
        results[str(steps)] = compare(everyone, simulated(world.size, 3, steps))
        results[f"{steps} agree"] = same_on_all(weights(trainee.network))
        trainee.strategy.close()
    alone = everyones(weights(made(world, 1000).run(8).network))
    results["spread"] = compare(everyone[0], everyone[1]) / compare(alone[0], alone[1])
    return results


def messages(world: World) -> dict[str, list[str]]:
    """Of each of eight steps: what was begun and waited for, with a mean every 3 steps and every step."""
    results = {}
    plain = distributed.all_reduce
    for every in (3, 1):
        log: list[list[str]] = []

        class Watched:
            def __init__(self, work: Any, log: list[list[str]]) -> None:
                self.work, self.log = work, log

            def wait(self) -> None:
                self.log[-1].append("wait")
                self.work.wait()

        def listened(tensor: Tensor, *args: Any, log: list[list[str]] = log, **options: Any) -> Any:
            log[-1].append("begin" if options.get("async_op") else "sum")
            work = plain(tensor, *args, **options)
            return work if work is None else Watched(work, log)

        trainee = made(world, every)
        distributed.all_reduce = listened
        try:
            for index in range(8):
                log.append([])
                trainee.run(1, index)
        finally:
            distributed.all_reduce = plain
        trainee.strategy.close()
        results[str(every)] = [" ".join(each) for each in log]
    return results


def validated(world: World) -> dict[str, Any]:
    """`whole` at every step, with means under way, and a training without it."""
    quiet = made(world, 3).run(8)
    looking = made(world, 3)
    agreed, means = [], []
    for index in range(8):
        looking.run(1, index)
        mine = [weights(looking.network), weights(looking.update.average)]  # type: ignore[arg-type]
        whole = looking.whole()
        agreed.append(same_on_all(whole))
        everyone = everyones(mine)
        for number, module in enumerate(whole):
            mean = {name: sum(one[number][name] for one in everyone) / world.size for name in mine[number]}
            means.append(compare({name: module[name] for name in mean}, mean))
    same = compare(weights(looking.network), weights(quiet.network)) == 0
    for trainee in (quiet, looking):
        trainee.strategy.close()
    return {"agreed": all(agreed), "means": max(means), "training is the same": same}


def saved(world: World, case: Case, every: int, steps: int) -> dict[str, Any]:
    """A checkpoint after some steps, the run that goes on from it, and one that takes it up."""
    trainee = made(world, every, case).run(steps)
    before = everyones(copy.deepcopy(trainee.optimizer.state_dict()["state"]))
    buffers = everyones({name: value.clone() for name, value in trainee.network.named_buffers()})
    state = copy.deepcopy(trainee.state(steps))
    states = everyones(state)
    results = {"agree": same_on_all([state["network"], state["average"], state["optimizer"]])}
    results["live"] = compare(dict(trainee.network.state_dict()), state["network"]) == 0
    mean = {
        number: {name: _expected([one[number][name] for one in before]) for name in entry}
        for number, entry in before[0].items()
    }
    results["moments"] = compare(state["optimizer"]["state"], mean)
    results["apart"] = compare(before[1], before[0])
    if buffers[0]:
        wanted = {name: _expected([one[name] for one in buffers]) for name in buffers[0]}
        results["buffers"] = compare({name: state["network"][name] for name in wanted}, wanted)
    resumed = made(world, every, case)
    # As from one file.
    at = resumed.restore(states[0])
    resumed.run(5, at)
    trainee.run(5, steps)
    ends = [copy.deepcopy([one.network.state_dict(), one.optimizer.state_dict()]) for one in (trainee, resumed)]
    results["resumed"] = compare(ends[1], ends[0])
    alone = reference(case)
    alone.restore(states[0])
    results["single"] = compare(dict(alone.network.state_dict()), state["network"])
    for one in (trainee, resumed):
        one.strategy.close()
    return results


def _expected(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Tensor) and first.ndim and first.is_floating_point():
        return torch.stack(values).mean(0)
    return first


def channels_last(world: World) -> dict[str, Any]:
    trainee = made(world, 2, channels_last=True).run(5)
    trainee.state(5)
    banks = [weight for weight in trainee.network.parameters() if weight.ndim == 4 and min(weight.shape) > 1]
    plain = made(world, 2).run(5)
    plain.state(5)
    return {
        "kept": all(weight.is_contiguous(memory_format=torch.channels_last) for weight in banks),
        "difference": compare(dict(trainee.network.state_dict()), dict(plain.network.state_dict())),
    }


def findings(world: World) -> dict[str, Any]:
    """On one of the ranks of a joined world."""
    assert batch(0, torch.float32)[0].shape[0] % world.size == 0
    checks: dict[str, Callable[[], Any]] = {
        "method": lambda: method(world),
        "messages": lambda: messages(world),
        "validated": lambda: validated(world),
        "saved": lambda: saved(world, ADAM, 3, 4),
        "saved_batch_norm": lambda: saved(world, Case(norm="batch", momentum=0.9), 4, 2),
        "saved_lookahead": lambda: saved(world, Case(optimizer="adamw", rate=0.01, lookahead=2), 3, 3),
        "channels_last": lambda: channels_last(world),
    }
    return {name: check() for name, check in checks.items()}
