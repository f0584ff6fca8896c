"""Monitoring of the machine while a run trains: samples, recordings, a live view and alerts."""

from hasten.observe.monitor.alerts import Alert
from hasten.observe.monitor.live import Monitor
from hasten.observe.monitor.recording import Gpu, Host, MonitorRecording, Sample, read_recording, recordings

__all__ = ["Alert", "Gpu", "Host", "Monitor", "MonitorRecording", "Sample", "read_recording", "recordings"]
