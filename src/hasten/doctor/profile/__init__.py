"""`hasten profile`: where the time of a training's steps goes, by phase, transform, module, operation and kernel."""

from hasten.doctor.profile.tables import summarise

__all__ = ["summarise"]
