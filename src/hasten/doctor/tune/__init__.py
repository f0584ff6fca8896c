"""A measured search for the fastest settings of a run on this machine."""

from hasten.doctor.tune.run import Tuned, tune

__all__ = ["Tuned", "tune"]
