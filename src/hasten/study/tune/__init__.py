"""A measured search for the fastest settings of a run on this machine."""

from hasten.study.tune.page import Tuned
from hasten.study.tune.run import tune

__all__ = ["Tuned", "tune"]
