"""Files that hold a model and the state of its training."""
