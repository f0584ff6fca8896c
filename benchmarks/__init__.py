"""One script a claim, run from the repository root as `python -m benchmarks.NAME`."""
