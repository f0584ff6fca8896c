"""Training: plan, compose, choose, step, loop, checkpoints."""
