"""Experiment trackers that receive a run's records in addition to metrics.jsonl, each in its own thread."""

from hasten.observe.trackers.tracking import Tracking, check_trackers

__all__ = ["Tracking", "check_trackers"]
