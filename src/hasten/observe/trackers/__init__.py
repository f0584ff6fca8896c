"""Experiment trackers that receive a run's records in addition to metrics.jsonl, each in its own thread."""

from hasten.observe.trackers.tracking import Tracking, attach, check_trackers

__all__ = ["Tracking", "attach", "check_trackers"]
