"""Earlier measurements: comparisons stored in the cache folder, so that a second search repeats none."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hasten.cache.key import digest
from hasten.observe.rundir import write_json
from hasten.study.tune.search import ArmResult, Ceiling, Cost, Kind, Measure, SearchStage
from hasten.study.tune.setting import Setting

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StoredMeasurements:
    """Comparisons of one machine, network, shape and torch version (see `about`), in one file."""

    path: Path
    about: dict[str, Any]
    """Written into the file for people; the file's name has its digest."""
    results: dict[str, ArmResult] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """Other measurements by name."""
    asked: int = 0
    """Comparisons that had to be measured."""
    answered: int = 0
    """Comparisons that were stored."""

    @classmethod
    def open(cls, folder: Path, about: dict[str, Any], *, fresh: bool) -> StoredMeasurements:
        """fresh: ignore the file's content; new measurements replace it."""
        path = folder / f"tune-{digest(about)}.json"
        measured, facts = ({}, {}) if fresh else _read(path)
        return cls(path, about, measured, facts)

    def measure(self, measure: Measure) -> Measure:
        """Wrap `measure` to skip stored comparisons. Unclear ones, and those of a busy machine, are not stored."""

        def ask(kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float) -> Mapping[Setting, ArmResult]:
            keys = {arm: _key(kind, base, arm) for arm in arms}
            missing = [arm for arm in arms if keys[arm] not in self.results]
            self.asked += len(missing)
            self.answered += len(arms) - len(missing)
            results = {arm: self.results[keys[arm]] for arm in arms if arm not in missing}
            fresh = measure(kind, base, missing, seconds) if missing else {}
            sound = {keys[arm]: one for arm, one in fresh.items() if one.outcome != "unclear" and not one.busy}
            if sound:
                self.results |= sound
                self._write()
            results |= fresh
            return {arm: results[arm] for arm in arms if arm in results}

        return ask

    def cost(self, cost: Cost) -> Cost:
        """`cost` of the comparisons that are not stored."""

        def known(kind: Kind, base: Setting, arms: Sequence[Setting]) -> float:
            missing = [arm for arm in arms if _key(kind, base, arm) not in self.results]
            return cost(kind, base, missing) if missing else 0.0

        return known

    def ceiling(self, ceiling: Ceiling) -> Ceiling:
        """`ceiling`, unless it is stored."""

        def known(stage: SearchStage, base: Setting) -> tuple[float, str] | None:
            name = f"ceiling-{digest([stage.name, base.values])}"
            if name in self.facts:
                most, why = self.facts[name]
                return float(most), str(why)
            arms = [base.having(change) for change in stage.changes]
            if all(arm == base or _key(stage.kind, base, arm) in self.results for arm in arms):
                return None
            limit = ceiling(stage, base)
            if limit is not None:
                self.keep(name, list(limit))
            return limit

        return known

    def keep(self, name: str, fact: Any) -> None:
        """fact: as in JSON."""
        self.facts[name] = fact
        self._write()

    def _write(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, {"about": self.about, "facts": self.facts, "found": self.results})
        except OSError as error:
            message = "what was measured can't be kept (%s); set cache.dir to a folder that can be written"
            log.warning(f"%s: {message}", self.path, error)


def _key(kind: Kind, base: Setting, arm: Setting) -> str:
    return digest([kind, base.values, arm.values])


def _read(path: Path) -> tuple[dict[str, ArmResult], dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): ArmResult(**one) for key, one in content["found"].items()}, dict(content["facts"])
    except FileNotFoundError:
        return {}, {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: can't be used (%s) and is measured again", path, error)
        return {}, {}
