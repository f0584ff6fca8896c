from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from hasten.config.load import load_run
from hasten.config.resume_rules import RUN_RULES, changes_of, describe, flat, rule_of, with_settled
from hasten.config.schema import RunConfig


def test_every_setting_has_a_rule_and_every_rule_a_setting() -> None:
    names = set(flat(RunConfig()))
    used = {next(pattern for pattern in RUN_RULES if fnmatchcase(name, pattern)) for name in names}
    assert used == set(RUN_RULES)
    # Of a section whose fields differ, a new field must not fall under a pattern unseen.
    assert not {"train.*", "*"} & set(RUN_RULES)
    with pytest.raises(KeyError):
        rule_of("train.new", RUN_RULES)


def test_what_can_and_cannot_change() -> None:
    before = load_run(None, ["data.source=a", "network.channels=[4,8]", "train.steps=9"])
    assert changes_of(before, before, RUN_RULES) == {}
    free = ["train.steps=12", "sample.batch_size=3", "loss.name=dice", "train.budget=5", "train.precision=bf16"]
    free += ["augment.preset=nnunet", "augment.override={Gamma.prob: 0.2}"]
    free += ["cache.home=ram", "infer.overlap=0.25", "observe.trackers=[]", "train.ema=0", "prepare.num_threads=2"]
    for override in free:
        name = override.partition("=")[0]
        config = load_run(None, ["data.source=a", "network.channels=[4,8]", "train.steps=9", override])
        changes = changes_of(before, config, RUN_RULES)
        assert list(changes) == [name]
        assert describe(name, *changes[name], RUN_RULES).startswith(f"{name} changes from ")
    fixed = ["data.source=b", "data.split.fold=2", "prepare.dtype=float32", "network.norm=batch", "train.optimizer=sgd"]
    fixed += ["train.seed=1", "train.precision=fp16", "train.weight_decay=0.5"]
    fixed += ["network.weights=other.pt", "train.freeze=[a.*]", "train.lr_scale={a: 0.1}"]
    for override in fixed:
        config = load_run(None, ["data.source=a", "network.channels=[4,8]", "train.steps=9", override])
        with pytest.raises(ValueError, match=f"^{override.partition('=')[0]}=.*: can't change .*resumed"):
            changes_of(before, config, RUN_RULES)


def test_what_is_left_open_stays_as_the_run_has_it() -> None:
    before = load_run(None, ["network.channels=[4,8]", "train.learning_rate=0.1", "train.target=0.9"])
    config = with_settled(before, load_run(None, ["train.learning_rate=0.2"]), RUN_RULES)
    assert config.network.channels == (4, 8)
    # null is a value of its own here: there is no target any more.
    assert changes_of(before, config, RUN_RULES) == {"train.learning_rate": (0.1, 0.2), "train.target": (0.9, None)}
    assert with_settled(before, RunConfig(), RUN_RULES).train == replace(before.train, target=None)


def test_no_signature_is_shown() -> None:
    before = load_run(None, ["data.source=https://me:pass@host/a.json?sig=secret"])
    with pytest.raises(ValueError, match=r"^data\.source=https://host/b: .* has https://host/a\.json") as raised:
        changes_of(before, load_run(None, ["data.source=https://host/b?sig=other"]), RUN_RULES)
    assert not {"secret", "other", "pass"} & set(str(raised.value).replace("=", " ").split())
