"""Augmentation: batches a second of whole chains against MONAI, TorchIO and batchgeneratorsv2 on the same two cores.

Peers run per sample in two worker processes, as their users run them; Hasten makes the batch in the process that asks
for it. All cut from the same volumes in memory, with the same probabilities and ranges; what could not be matched is
said in each arm (`benchmarks/augments`). Seconds a batch in the steady state, arms in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.augments.memory import peak_bytes
from benchmarks.augments.pace import seconds_a_batch
from benchmarks.harness import Claim, arguments, busy_machine, finish, interleave, median_ratio

Arm = Callable[[], Iterator[Any]]
Results = dict[str, list[float]]


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        str(__doc__).splitlines()[0], argv,
        rounds={"type": int, "help": "rounds of every part; default 5, quick 2"},
        parts={"nargs": "+", "choices": tuple(PARTS), "default": list(PARTS)},
    )  # fmt: skip
    rounds = given.rounds or (2 if given.quick else 5)
    others = busy_machine()
    results: Results = {}
    claims: list[Claim] = []
    details: dict[str, Any] = {}
    for name in given.parts:
        result, own, message = PARTS[name](rounds, given.quick)
        results.update(result)
        claims.extend(own)
        details[name] = message
        print(f"{name}: done", flush=True)
    bench = "augment" if set(given.parts) == set(PARTS) else f"augment_{'_'.join(given.parts)}"
    settings = {"about": __doc__, "rounds": rounds, "parts": details}
    finish(bench, claims, results, given.out, given.quick, settings=settings, others_before=others)


def _compare(name: str, arms: dict[str, Arm], rounds: int, batches: dict[str, int]) -> tuple[Results, list[Claim]]:
    timed = {f"{name}/{arm}_s": partial(seconds_a_batch, make, batches.get(arm, 6), 2) for arm, make in arms.items()}
    results = interleave(timed, rounds)
    peers = [arm for arm in results if "/hasten" not in arm]
    fastest = min(peers, key=lambda arm: sorted(results[arm])[len(results[arm]) // 2])
    who = fastest.split("/")[1].removesuffix("_s")
    claims = [
        Claim.at_least(
            f"{name}: the fastest peer ({who}) takes this many times Hasten's seconds a batch, eager",
            median_ratio(results[fastest], results[f"{name}/hasten_eager_s"]), 2,
        )
    ]  # fmt: skip
    return results, claims


def _nnunet(rounds: int, quick: bool) -> tuple[Results, list[Claim], Any]:
    from benchmarks.augments import batchgenerators_arm, monai_arm, own_arm, torchio_arm
    from benchmarks.augments.patches import Nnunet, volumes

    work = Nnunet(side=32, batch=2) if quick else Nnunet()
    cases = volumes(6, (work.source + 16,) * 3)
    program = own_arm.nnunet(cases, work)
    arms: dict[str, Arm] = {
        "batchgeneratorsv2": partial(batchgenerators_arm.nnunet, cases, work),
        "monai": partial(monai_arm.nnunet, cases, work),
        "torchio": partial(torchio_arm.nnunet, cases, work),
        "hasten_eager": partial(own_arm.stream, program),
    }
    few = 2 if quick else 6
    results, claims = _compare(
        "nnunet", arms, rounds, {arm: 20 if "hasten" in arm and not quick else few for arm in arms}
    )
    whole = sum(value.nbytes for value in program(0).values())
    shares = [(peak_bytes(partial(program, step)) - whole) / whole for step in range(8)]
    results["nnunet/extra_memory_over_batch"] = shares
    text = "nnunet: largest memory beside the batch, over the batch"
    claims.append(Claim.at_most(text, max(shares), 3))
    return results, claims, {"work": str(work)}


def _chains(rounds: int, quick: bool) -> tuple[Results, list[Claim], Any]:
    from benchmarks.augments import monai_arm, own_arm
    from benchmarks.augments.patches import Brats, Spleen, volumes

    side = 32 if quick else 96
    spleen, brats = Spleen(side=side), Brats(side=side)
    results: Results = {}
    claims: list[Claim] = []
    for name, work, channels in (("spleen", spleen, 1), ("brats", brats, 4)):
        cases = volumes(6, (side * 3 // 2,) * 3, channels)
        maker = getattr(own_arm, name)
        arms: dict[str, Arm] = {
            "monai": partial(getattr(monai_arm, name), cases, work),
            "monai_threads": partial(getattr(monai_arm, name), cases, work, loader="threads"),
            "hasten_eager": partial(own_arm.stream, maker(cases, work)),
        }
        result, own = _compare(name, arms, rounds, dict.fromkeys(arms, 4 if quick else 20))
        results |= result
        claims += own
    return results, claims, {"spleen": str(spleen), "brats": str(brats)}


def _tiles(rounds: int, quick: bool) -> tuple[Results, list[Claim], Any]:
    from benchmarks.augments import colour_arm, own_arm
    from benchmarks.augments.patches import Tiles, tiles

    work = Tiles(side=64, batch=8) if quick else Tiles()
    images = tiles(2 * work.batch, work.side)
    jitter = "torchvision" if colour_arm.has_torchvision() else "stand-in with torchvision's definition"
    arms: dict[str, Arm] = {
        "monai": partial(colour_arm.tiles, images, work),
        "hasten_eager": partial(own_arm.stream, own_arm.tiles(images, work)),
    }
    results, claims = _compare("tiles", arms, rounds, dict.fromkeys(arms, 2 if quick else 6))
    return results, claims, {"work": str(work), "jitter": jitter}


PARTS: dict[str, Callable[[int, bool], tuple[Results, list[Claim], Any]]] = {
    "nnunet": _nnunet, "chains": _chains, "tiles": _tiles,
}  # fmt: skip


if __name__ == "__main__":
    main()
