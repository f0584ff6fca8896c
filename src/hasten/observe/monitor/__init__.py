"""Monitoring of the machine while a run trains: samples, recordings, a live view and alerts."""

from hasten.observe.monitor.alerts import Alert
from hasten.observe.monitor.live import Monitor
from hasten.observe.monitor.recording import MonitorRecording, read_recording, recordings
from hasten.observe.monitor.sample import Gpu, Host, Sample

__all__ = ["Alert", "Gpu", "Host", "Monitor", "MonitorRecording", "Sample", "read_recording", "recordings"]
