"""The network file of the page docs/how-to/own-network.md trains, as its reader would write it down."""

from __future__ import annotations

from pathlib import Path

from hasten.config.load import load_run
from hasten.phantoms.organs import write_phantoms
from hasten.prediction.predict import predict
from hasten.training.choose.budget import make_plan
from hasten.training.run import train
from tests.docs.reading import DOCS, blocks


def test_the_file_of_the_page_trains_and_predicts(tmp_path: Path) -> None:
    [code] = [block.text for block in blocks(DOCS / "how-to/own-network.md") if block.language == "python"]
    (tmp_path / "nets.py").write_text(code)
    source = write_phantoms(tmp_path / "set", num_cases=4, shape=(16, 24, 24))
    overrides = [
        f"data.source={source}", f"cache.dir={tmp_path / 'cache'}", f"network.name={tmp_path / 'nets.py'}:Net",
        "network.args={width: 4}", "train.device=cpu", "train.steps=2", "train.validate_every=2",
        "sample.patch=[16, 16, 16]", "sample.compile=false", "train.compile=false", "train.precision=fp32",
        "train.channels_last=false",
    ]  # fmt: skip
    config = load_run(None, overrides)
    plan = make_plan(config)
    assert plan["decisions"]["network.divisor"]["value"] == (2, 2, 2)
    assert plan["network"]["parameters"] > 0
    assert plan["network"]["forward_flops"] > 0
    assert train(config, tmp_path / "run")["steps"] == 2
    image = sorted((source / "imagesTr").glob("*.nii.gz"))[0]
    assert predict(tmp_path / "run", image, tmp_path / "masks", device="cpu")
