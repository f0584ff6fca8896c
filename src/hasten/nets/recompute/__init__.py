"""Activations thrown away in the forward pass and computed again in the backward pass, to fit a budget."""

from hasten.nets.recompute.apply import Report, recompute, recompute_modules, undo
from hasten.nets.recompute.measure import memory_curve

__all__ = ["Report", "memory_curve", "recompute", "recompute_modules", "undo"]
