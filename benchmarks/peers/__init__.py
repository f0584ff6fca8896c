"""The other ways to train, each written as its own project advises and run in its own process."""
