"""Train on a data set and segment its images: python train_in_ten_lines.py SOURCE OUT [section.field=value ...]"""

import sys
from pathlib import Path

import hasten

source, out = Path(sys.argv[1]), Path(sys.argv[2])
config = hasten.load_run(overrides=[f"data.source={source}", *sys.argv[3:]])
summary = hasten.train(config, out / "run")
print(f"Dice {summary['best']['value']:.3f} after {summary['seconds']['total']:.0f} s")
hasten.predict(out / "run", source / "imagesTr", out / "labels")
hasten.write_report([out / "run"], out / "report.html")
