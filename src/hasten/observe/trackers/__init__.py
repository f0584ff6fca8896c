"""Experiment trackers that a run's records are sent to beside metrics.jsonl, each in a thread of its own."""

from hasten.observe.trackers.check import check_trackers
from hasten.observe.trackers.tracking import Tracking, attach

__all__ = ["Tracking", "attach", "check_trackers"]
