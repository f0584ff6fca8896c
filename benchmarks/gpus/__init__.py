"""The parts of `benchmarks.gpu`."""
