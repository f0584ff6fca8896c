"""`hasten profile`: where the time of a training's steps goes, by phase, transform, module, operation and kernel."""

from hasten.study.profile.tables import summarise

__all__ = ["summarise"]
