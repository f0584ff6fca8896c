"""Parts of `python -m benchmarks.engine`: what each of them measures is a function of its own."""
