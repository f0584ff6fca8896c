"""Activation checkpointing within a memory budget."""

from hasten.nets.recompute.apply import RecomputeReport, recompute, recompute_modules, undo

__all__ = ["RecomputeReport", "recompute", "recompute_modules", "undo"]
