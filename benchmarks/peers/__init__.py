"""The other ways to feed patches, each written as its own project advises."""
