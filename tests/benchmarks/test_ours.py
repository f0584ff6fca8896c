"""Hasten's arms against the peers they are compared with: network, prepared voxels, form of the batches, Dice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.ours import train as ours
from benchmarks.ours.feed import hasten_feed
from benchmarks.ours.fill import hasten_fill
from benchmarks.peers.common import Record, case_dice, list_cases, mean_dice, network, read_split
from benchmarks.rescore import rescored, turned


def test_dice_is_the_peers() -> None:
    from hasten.engine.metric import dice_of, overlap_counts

    generator = torch.Generator().manual_seed(0)
    prediction = torch.randint(0, 3, (4, 6, 5, 4), generator=generator)
    label = torch.randint(0, 3, (4, 6, 5, 4), generator=generator)
    label[1][label[1] == 2] = 0  # a class that one case lacks
    prediction[2] = 0
    counts = torch.stack([overlap_counts(p, t, 3) for p, t in zip(prediction, label, strict=True)])
    mine = dice_of(counts, ["a", "b"])
    mean, per_class = mean_dice([case_dice(p, t, 3) for p, t in zip(prediction, label, strict=True)])
    assert mine.mean == pytest.approx(mean, abs=1e-12)
    assert list(mine.per_class.values()) == pytest.approx(per_class, abs=1e-12)


def test_fill(boxes: Path, ct_boxes: Path, tmp_path: Path) -> None:
    found = hasten_fill(boxes, "mr", None, tmp_path / "mr")
    assert found["cases"] == 4
    assert found["bytes"] >= 4 * 30 * 34 * 28 * 3  # fp16 image and uint8 label
    found = hasten_fill(ct_boxes, "ct", (1.5, 1.5, 1.5), tmp_path / "ct")
    assert found["seconds"] > 0


def test_prepared_voxels_are_the_peers(boxes: Path, tmp_path: Path) -> None:
    from monai.transforms import Compose

    from benchmarks.ours.fill import prepare_config
    from benchmarks.peers.common import deterministic
    from hasten.cache.build import get_arena
    from hasten.cases.sources import load_case_set
    from hasten.config.schema import CacheConfig

    arena = get_arena(load_case_set(boxes), prepare_config("mr", None), CacheConfig(dir=str(tmp_path)))
    rows, _ = list_cases(boxes)
    chain = Compose(deterministic("mr"))
    for row in rows:
        [number] = arena.index((row["id"],))
        theirs = chain(row)
        image, label = (np.asarray(theirs[key])[0].transpose(2, 1, 0) for key in ("image", "label"))
        np.testing.assert_allclose(arena.image(number)[0].float().numpy(), image, atol=5e-3)  # stored as fp16
        np.testing.assert_array_equal(arena.label(number).numpy(), label)


def test_feed_goes_on_where_it_stopped(boxes: Path) -> None:
    ids = [row["id"] for row in list_cases(boxes)[0]][:3]

    def made() -> list[torch.Tensor]:
        feed = hasten_feed(boxes, ids, (16, 24, 32), 4, 0, compile=False, device="cpu")
        return [image.clone() for steps in (2, 1) for image, _ in feed(steps)]

    batches = made()
    assert [batch.shape for batch in batches] == [(4, 1, 16, 24, 32)] * 3
    assert all(not torch.equal(batches[0], other) for other in batches[1:])
    assert all(torch.equal(a, b) for a, b in zip(batches, made(), strict=True))


def test_kernels_are_turned_with_the_axes() -> None:
    torch.manual_seed(0)
    theirs, mine = network(2).eval(), network(2).eval()
    mine.load_state_dict({name: turned(value) for name, value in theirs.state_dict().items()})
    image = torch.randn(1, 1, 16, 24, 32)
    with torch.no_grad():
        expected = theirs(image).permute(0, 1, 4, 3, 2)
        torch.testing.assert_close(mine(image.permute(0, 1, 4, 3, 2).contiguous()), expected, atol=1e-4, rtol=1e-4)


def test_settings_say_what_the_peers_do(ct_boxes: Path, tmp_path: Path) -> None:
    from hasten.config.load import load_run

    flags = ["--data", str(ct_boxes), "--out", "x", "--kind", "ct", "--patch", "8", "16", "24", "--target", "0.9"]
    given = ours.arguments([*flags, "--seed", "3", "train.steps=7", "train.target=0.5"])
    rows, _ = list_cases(ct_boxes)
    parts = read_split(rows, None)
    config = load_run(None, ours.settings(given, rows, parts))
    assert config.data.split.validation == tuple(row["id"] for row in parts["validation"])
    assert (config.prepare.intensity, config.prepare.window) == ("window", (-57.0, 164.0))
    assert config.prepare.spacing == (2.0, 1.5, 1.5)
    assert config.sample.patch == (8, 16, 24)
    assert (config.train.seed, config.train.steps, config.train.target) == (3, 7, 0.5)  # what is given last wins
    some = {**parts, "train": parts["train"][:1]}
    with pytest.raises(ValueError, match="leaves out cases"):
        ours.settings(given, rows, some)


def test_a_run_of_ours_reads_as_an_arm(boxes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HASTEN_CACHE", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))  # the arm sets them for its whole process
    out, weights = tmp_path / "result.json", tmp_path / "best.pt"
    flags = ["--kind", "mr", "--patch", "24", "24", "24", "--amp", "off", "--threads", "1", "--workers", "1"]
    flags += ["--max-seconds", "86400"]  # from the start of the process, which has run other tests
    settings = ["train.steps=4", "train.validate_every=2", "train.channels_last=false", "train.compile=false",
                "sample.batch_size=2", "sample.compile=false"]  # fmt: skip
    threads = torch.get_num_threads()
    ours.main(["--data", str(boxes), "--out", str(out), "--target", "1", "--weights", str(weights), *flags, *settings])
    torch.set_num_threads(threads)
    result = json.loads(out.read_text())
    assert (result["arm"], result["steps"], result["stopped"]) == ("hasten", 4, "schedule")
    assert [point["step"] for point in result["curve"]] == [2, 4]
    assert result["cases"] == {"train": 3, "validation": 1}
    assert result["settings"]["settled"]["sample.batch_size"] == 2
    assert set(Record("x", ours.arguments(["--data", "d", "--out", "o"]), "").seconds) <= set(result["seconds"])
    state = torch.load(weights, weights_only=True)
    assert {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in network(3).state_dict().items()
    }
    # In the files' own voxels, which here are the prepared ones.
    dice = rescored(boxes, flags, weights, depth_first=True)
    best = max(point["dice"] for point in result["curve"])
    assert dice == pytest.approx(best, abs=0.02)
