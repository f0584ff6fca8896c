"""A `View` drawn for a terminal."""

from __future__ import annotations

from shlex import quote

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hasten.files import printable
from hasten.observe.monitor.alerts import seconds, sentences
from hasten.observe.monitor.sample import Gpu, Host, Sample
from hasten.observe.monitor.watch import View

_STATES = {
    "waiting": ("nothing written yet", "cyan"),
    "running": ("running", "green"),
    "silent": ("no news", "red"),
    "ended": ("ended without a summary", "red"),
    "finished": ("finished", "green"),
    "target_reached": ("target reached", "green"),
    "time_up": ("time is up", "yellow"),
    "interrupted": ("interrupted", "yellow"),
}


def frame(view: View) -> RenderableType:
    """Everything that is known, most important first; what is not known is left out."""
    parts: list[RenderableType] = [_title(view)]
    parts += [Text(line) for line in (_progress(view), _score(view), _speed(view)) if line]
    if view.ranks:
        parts += [_ranks(view.ranks), Text(_host(view.ranks[min(view.ranks)].host))]
    parts += [Text(f"! {text}", style="yellow") for text in sentences(view.alerts)]
    parts += [Text(printable(note), style="dim") for note in view.notes]
    return Group(*parts)


def _title(view: View) -> Text:
    words, color = _STATES.get(view.state, (view.state, "yellow"))
    if view.silent_s is not None:
        news = f"no news for {seconds(view.silent_s)}"
        words = news if view.state == "silent" else f"{words}, {news}"
    title = Text.assemble((printable(view.name), "bold"), "  ", (words, color))
    if view.time_s is not None:
        title.append(f"  {seconds(view.time_s)}")
    if view.state == "silent":
        folder = printable(quote(str(view.folder)))
        title.append(f"\nkilled or stuck; if killed, resume with: hasten train --resume --out {folder}")
    return title


def _progress(view: View) -> str:
    if view.steps is None:
        return ""
    share = f"/{view.total} ({100 * view.steps / view.total:.0f}%)" if view.total else ""
    remaining = f", {seconds(view.left_s)} left at this pace" if view.left_s is not None else ""
    return f"step {view.steps}{share}{remaining}"


def _score(view: View) -> str:
    parts = [f"loss {view.loss:.4f}"] if view.loss is not None else []
    if view.score is not None and view.best is not None:
        at = f" at step {view.best_step}" if view.best_step is not None else ""
        goal = f", target {view.target:.4f}" if view.target is not None else ""
        parts.append(f"{view.metric} {view.score:.4f} (best {view.best:.4f}{at}{goal})")
    return "  ".join(parts)


def _speed(view: View) -> str:
    parts = [f"{view.samples_per_s:.1f} samples/s"] if view.samples_per_s is not None else []
    if view.wait_share is not None:
        parts.append(f"waiting for data {100 * view.wait_share:.1f}%")
    return "  ".join(parts)


def _ranks(ranks: dict[int, Sample]) -> Table:
    """One row for each rank and GPU; columns that nobody fills are left out."""
    rows: list[dict[str, str]] = []
    for rank, sample in ranks.items():
        rss = None if sample.host.rss is None else sample.host.rss / 1024
        first = {"rank": str(rank), "step": _text(sample.step, "d"), "a step": _step(sample.step_s)}
        first["memory (RSS)"] = _text(rss, ".2f", " GiB")
        gpus = [_gpu(gpu) for gpu in sample.gpus] or [{}]
        rows += [{**first, **gpus[0]}, *({"rank": str(rank), **gpu} for gpu in gpus[1:])]
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if any(row.get(name) for row in rows)]
    for name in names:
        table.add_column(name, justify="right", no_wrap=name != "throttled")
    for row in rows:
        table.add_row(*(row.get(name, "") for name in names))
    return table


def _gpu(gpu: Gpu) -> dict[str, str]:
    memory = f"{gpu.used / 1024:.1f}/{gpu.total / 1024:.0f} GiB" if gpu.used is not None and gpu.total else ""
    return {
        "GPU": str(gpu.index),
        "busy": _text(gpu.util, ".0f", "%"),
        "tensor": _text(gpu.tensor, ".0f", "%"),
        "GPU memory": memory,
        "power": _text(gpu.power_w, ".0f", " W"),
        "clock": _text(gpu.sm_mhz, ".0f", " MHz"),
        "heat": _text(gpu.temperature_c, ".0f", " °C"),
        "throttled": ", ".join(gpu.throttle or ()),
    }


def _host(host: Host) -> str:
    parts = []
    if host.cpu is not None:
        own_cores = f" ({host.own_cores:.1f} cores by this process)" if host.own_cores is not None else ""
        parts.append(f"CPU {host.cpu:.0f}%{own_cores}")
    if host.ram_used is not None and host.ram_total:
        parts.append(f"RAM {host.ram_used / 1024:.1f} of {host.ram_total / 1024:.1f} GiB")
    rates = (("disk", host.disk_read, host.disk_write), ("network", host.net_in, host.net_out))
    for name, inward, outward in rates:
        if inward is not None and outward is not None:
            parts.append(f"{name} {inward / 1e6:.1f} in, {outward / 1e6:.1f} out MB/s")
    return "  ".join(parts)


def _step(value: float | None) -> str:
    if value is None:
        return ""
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"


def _text(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
