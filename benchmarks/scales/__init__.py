"""Parts of the benchmark of training on several workers."""
