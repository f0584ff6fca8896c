"""Somebody else's training script, run unchanged and watched from outside: where its time goes, and what to do."""

from hasten.doctor.script.doctor import diagnose_script
from hasten.doctor.script.launch import ScriptRun, run_script

__all__ = ["ScriptRun", "diagnose_script", "run_script"]
