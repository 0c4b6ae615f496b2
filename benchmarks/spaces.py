"""Recorded tuning spaces: every config of a kernel with its measured time, in the format of Kernel Tuner's cache."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aot_tune.spec import ConfigValue

__all__ = ["RecordedSpace", "best_so_far", "find_spaces", "read_space"]

Key = tuple[ConfigValue, ...]


@dataclass(frozen=True)
class RecordedSpace:
    """A space whose every config was measured.

    `costs` are times in the file's unit (ms), infinite for configs that failed. `times` are the single repetitions of
    each config, as far as they were recorded.
    """

    name: str
    parameters: tuple[str, ...]
    costs: Mapping[Key, float]
    times: Mapping[Key, tuple[float, ...]]

    @property
    def configs(self) -> list[dict[str, ConfigValue]]:
        """All configs, in the order of the file."""
        return [dict(zip(self.parameters, key, strict=True)) for key in self.costs]

    @cached_property
    def best(self) -> float:
        """The least cost."""
        return min(self.costs.values())

    def cost(self, config: Mapping[str, ConfigValue]) -> float:
        """The recorded cost of a config.

        Raises:
            KeyError: when the config is not in the space.
        """
        return self.costs[tuple(config[p] for p in self.parameters)]


def find_spaces(paths: Iterable[Path]) -> list[Path]:
    """The cache files among the paths, and those directly in folders among them, by name.

    Raises:
        FileNotFoundError: when a path does not exist, or a folder has no cache file.
    """
    found: list[Path] = []
    for path in paths:
        inside = (
            sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz"))) if path.is_dir() else [path]
        )
        if not inside or not path.exists():
            raise FileNotFoundError(
                f"{path}: no recorded space is there; give a .json or .json.gz file, or their folder"
            )
        found += inside
    return found


def read_space(path: Path) -> RecordedSpace:
    """Read a cache file of a finished or unfinished run.

    Raises:
        ValueError: when it is not such a file, or no config in it has a time.
    """
    data = parse(path)
    try:
        names = tuple(data["tune_params_keys"])
        records = list(data["cache"].values())
        costs = {tuple(r[n] for n in names): _cost(r["time"]) for r in records}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a cache file of Kernel Tuner: {error!r}") from error
    if not any(math.isfinite(c) for c in costs.values()):
        raise ValueError(f"{path}: no config has a time")
    times = {tuple(r[n] for n in names): tuple(map(float, r["times"])) for r in records if _listed(r.get("times"))}
    return RecordedSpace(path.name.removesuffix(".gz").removesuffix(".json"), names, costs, times)


def parse(path: Path) -> dict[str, Any]:
    """The JSON object of a cache file. The file of an unfinished run is closed where it stops."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        try:
            found = json.loads(text.rstrip().rstrip(",") + "}}")
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: not JSON, finished or not: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: not a JSON object")
    return found


def _cost(time: object) -> float:
    """A time. If the value is not a time, such as the reason of a failure, infinity."""
    if isinstance(time, bool) or not isinstance(time, int | float) or not time > 0:
        return math.inf
    return float(time)


def _listed(times: object) -> bool:
    return isinstance(times, list) and bool(times) and all(isinstance(t, int | float) for t in times)


def best_so_far(space: RecordedSpace, costs: Sequence[float]) -> list[float]:
    """After each try, the best cost in the space as a share of the best cost so far, from 0 to 1."""
    found: list[float] = []
    best = math.inf
    for cost in costs:
        best = min(best, cost)
        found.append(space.best / best)
    return found
