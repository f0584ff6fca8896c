"""Training on a SLURM cluster: the jobs' scripts, handing them in, and what became of them."""
