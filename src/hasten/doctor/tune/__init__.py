"""A measured search for the fastest settings of a run on this machine."""

from hasten.doctor.tune.page import Tuned
from hasten.doctor.tune.run import tune

__all__ = ["Tuned", "tune"]
