"""Draw samples a second over the share of the cases that memory holds: `... curve RESULTS.json FIGURE.svg`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt

SETTINGS = {"svg.hashsalt": "hasten", "font.size": 10}


def draw(results: Path, figure: Path) -> None:
    """Medians with the smallest and largest value of each share, training and the feed alone."""
    result = json.loads(results.read_text())["results"]
    with plt.rc_context(SETTINGS):
        axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")[1]
        for one, (kind, title) in zip(axes, (("train", "training"), ("feed", "the feed alone")), strict=True):
            pattern = re.compile(rf"budget/{kind}_(\d\.\d+)_samples_per_s")
            rows = sorted((float(match[1]), row) for name, row in result.items() if (match := pattern.fullmatch(name)))
            shares, medians = [share for share, _ in rows], [row["median"] for _, row in rows]
            low = [row["median"] - row["min"] for _, row in rows]
            high = [row["max"] - row["median"] for _, row in rows]
            one.errorbar(shares, medians, (low, high), marker="o", markersize=4, capsize=3, color="#1f5fa8")
            one.set(title=title, xlabel="share of the cases in memory", ylabel="samples/s", ylim=(0, None))
            one.spines[["top", "right"]].set_visible(False)
            one.grid(axis="y", alpha=0.3)
        plt.savefig(figure, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
