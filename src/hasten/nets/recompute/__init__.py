"""Activation checkpointing within a memory budget."""

from hasten.nets.recompute.apply import RecomputeReport, recompute, recompute_modules, undo
from hasten.nets.recompute.measure import memory_curve

__all__ = ["RecomputeReport", "memory_curve", "recompute", "recompute_modules", "undo"]
