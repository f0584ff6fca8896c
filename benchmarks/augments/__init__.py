"""The workloads of `benchmarks.augment`, the cases they are cut from, and the peers' ways to make their batches."""
