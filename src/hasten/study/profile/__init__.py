"""`hasten profile`: where the time of a training's steps goes, by phase, transform, module, operation and kernel."""

from hasten.study.profile.summary import summarise

__all__ = ["summarise"]
