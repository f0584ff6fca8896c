"""Run as a script, which Lightning starts again for its second rank: DATA OUT [SETTING ...]."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hasten.lightning import HastenCallback, HastenDataModule
from tests.lightning.parts import TINY, Small, trainer


def main(data: str, out: str, *settings: str) -> None:
    small = Small()
    callback = HastenCallback(Path(out) / "run", monitor_every=0.1)
    runner = trainer(max_epochs=2, devices=2, strategy="ddp", callbacks=[callback])
    runner.fit(small, datamodule=HastenDataModule(data, [*TINY, *settings]))
    results = {"seen": small.seen, "validated": small.validated[: len(small.validated) // 2]}
    (Path(out) / f"rank-{runner.global_rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
