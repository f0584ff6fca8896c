"""Ways to do a task, each a module that runs as a process: `python -m benchmarks.ladder.arms.NAME --task T ...`."""
