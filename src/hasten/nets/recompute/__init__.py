"""Activation checkpointing within a memory budget."""

from hasten.nets.recompute.apply import Report, recompute, recompute_modules, undo
from hasten.nets.recompute.measure import memory_curve

__all__ = ["Report", "memory_curve", "recompute", "recompute_modules", "undo"]
