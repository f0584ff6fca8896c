"""`hasten doctor` without an argument: what of this machine and its versions holds a training back."""
