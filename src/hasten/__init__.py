"""Hasten: train biomedical image segmentation networks in the least wall-clock time, and show where the time went."""

__version__ = "0.1.0"
