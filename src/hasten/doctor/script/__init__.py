"""Somebody else's training script, run unchanged and watched from outside: where its time goes, and what to do."""

from hasten.doctor.script.doctor import doctor_script
from hasten.doctor.script.launch import ScriptRun, run_script

__all__ = ["ScriptRun", "doctor_script", "run_script"]
