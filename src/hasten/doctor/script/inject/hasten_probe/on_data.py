"""DataLoaders: where they are made, how long their consumer waits, and what a batch costs in the main process."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data import _utils as utils
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .on_rounds import begin_pass, ends_early
from .on_tensors import keep_batch
from .session import Session
from .sites import caller, nearest

_FRAMEWORKS = ("accelerate", "lightning", "pytorch_lightning")


def install(session: Session) -> None:
    patched: set[type] = {DataLoader}

    def make(session: Session, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _note(session, self, _made_for(session, self) or nearest())
        # A subclass may wait for its batches in a generator of its own, such as MONAI's ThreadDataLoader.
        for kind in type(self).__mro__:
            if "__iter__" in vars(kind) and kind not in patched and issubclass(kind, DataLoader):
                patched.add(kind)
                session.around(kind, "__iter__", functools.partial(_iterate, True))

    session.around(DataLoader, "__init__", make)
    session.around(DataLoader, "__iter__", functools.partial(_iterate, False))
    session.around(_BaseDataLoaderIter, "__next__", _next)
    session.around(utils.fetch._MapDatasetFetcher, "__init__", _make_fetcher)


def _made_for(session: Session, loader: Any) -> str:
    """Site of the script's own loader that a framework makes this one of; "" if it is the script's own."""
    if not str(caller().f_globals.get("__name__", "")).startswith(_FRAMEWORKS):
        return ""
    earlier = ((facts["ref"](), facts["site"]) for facts in session.all_loaders)
    return next((site for one, site in earlier if one is not None and one.dataset is loader.dataset), "")


def _note(session: Session, loader: Any, site: str) -> None:
    existing = session.loader_facts.get(id(loader))
    if existing is not None and existing["ref"]() is loader:
        return  # The constructor of a subclass came here before.
    kind = [type(loader.dataset).__qualname__, _length(loader.dataset), getattr(loader, "batch_size", None)]
    # One made at the same line, of such a data set, replaces one that is gone or was iterated: epochs may build theirs.
    alike = [each for each in session.all_loaders if (each["site"], each["kind"]) == (site, kind)]
    earlier = ((each, None if each["passes"] else each["ref"]()) for each in alike)
    facts = next((each for each, one in earlier if one is None or one.dataset is loader.dataset), None)
    if facts is None:
        facts = {
            "site": site,
            "kind": kind,
            "own_thread": False,
            "passes": [],  # the step at which each began, and the seconds until its first batch
            **dict.fromkeys(("made", "batches", "wait_s", "fetches", "items_s", "collate_s", "training"), 0),
        }
        session.all_loaders.append(facts)
    facts["made"] += 1
    facts["ref"] = weakref.ref(loader)
    session.loader_facts[id(loader)] = facts


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except Exception:  # an iterable data set may have none
        return None


def settings(loader: Any) -> dict[str, Any]:
    """Settings of the loader as they are at the end: some frameworks set them after the constructor."""
    names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "batch_size")
    return {"length": _length(loader), **{name: getattr(loader, name, None) for name in names}}


def _iterate(own_thread: bool, session: Session, original: Callable[..., Any], self: Any) -> Any:
    facts = session.loader_facts.get(id(self))
    if facts is None:
        return original(self)
    facts["settings"] = settings(self)
    begin_pass(session, facts)
    session.line.push("wait")
    start = time.perf_counter()
    try:
        iterator = original(self)
    finally:
        facts["passes"][-1]["start_s"] = time.perf_counter() - start
        session.line.pop()
    if own_thread:
        facts["own_thread"] = True
        return _Timed(session, iterator, id(self))
    iterator._hasten_loader = id(self)
    return iterator


def _next(session: Session, original: Callable[..., Any], self: Any) -> Any:
    return wait_for(session, getattr(self, "_hasten_loader", None), lambda: original(self))


class _Timed:
    """An iterator whose consumer's wait is timed."""

    def __init__(self, session: Session, inner: Iterator[Any], loader: int) -> None:
        self._session = session
        self._inner = inner
        self._loader = loader

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Any:
        if not self._session.live():
            return next(self._inner)
        return wait_for(self._session, self._loader, lambda: next(self._inner))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def wait_for(session: Session, loader: int | None, take: Callable[[], Any]) -> Any:
    line = session.line
    nested = line.stack[-1] == "wait"
    facts = session.loader_facts.get(loader) if loader is not None else None
    if not nested and facts is not None:
        if ends_early(session, facts):
            raise StopIteration
        facts["passes"][-1]["batches"] += 1
    line.push("wait")
    start, cpu = time.perf_counter(), time.thread_time()
    try:
        batch = take()
    finally:
        elapsed = time.perf_counter() - start
        line.pop()
        if not nested:
            session.cpu["wait_cpu"] = session.cpu.get("wait_cpu", 0.0) + time.thread_time() - cpu
    if nested:
        return batch
    if len(line.stack) == 1:
        line.relabel("sample")
    if facts is not None:
        if facts["passes"][-1]["batches"] == 1:
            facts["passes"][-1]["start_s"] += elapsed
        else:
            facts["wait_s"] += elapsed
            facts["batches"] += 1
        session.last_loader, session.taken = loader, True
    session.batches += 1
    session.sent_batch.clear()
    keep_batch(session, batch, facts["site"] if facts is not None else "")
    return batch


def _make_fetcher(session: Session, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    """Time items and collate, where the main process itself loads."""
    original(self, *args, **kwargs)
    collate, fetch, collate_s = self.collate_fn, self.fetch, 0.0

    def timed_collate(data: Any) -> Any:
        nonlocal collate_s
        start = time.perf_counter()
        try:
            return collate(data)
        finally:
            collate_s += time.perf_counter() - start

    def timed_fetch(indices: Any) -> Any:
        start, before = time.perf_counter(), collate_s
        batch = fetch(indices)
        facts = session.loader_facts.get(session.last_loader or -1)
        if session.live() and facts is not None and session.validating is None:
            facts["fetches"] += 1
            facts["collate_s"] += collate_s - before
            facts["items_s"] += time.perf_counter() - start - (collate_s - before)
        return batch

    self.collate_fn, self.fetch = timed_collate, timed_fetch
