"""The trials of `python -m benchmarks.trials`: what each gives `hasten`, and how the answer is judged."""
