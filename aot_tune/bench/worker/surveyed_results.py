"""Results on problems without a reference. The first candidate's results are what the others are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aot_tune.bench.worker.comparison import agree

__all__ = ["SurveyedOutput", "SurveyedResults"]


class SurveyedOutput(NamedTuple):
    """A copy of an output's values, in a dtype that holds their differences, and its own dtype's epsilon, if any."""

    values: Any
    epsilon: float | None


class SurveyedResults:
    """The first candidate's results on the problem at hand."""

    def __init__(self) -> None:
        self._key, self._kept = "", dict[str, SurveyedOutput]()

    def compare(self, key: str, outputs: Mapping[str, SurveyedOutput], *, first: bool) -> str:
        """What is wrong with results on a problem, or empty. The `first` results are kept."""
        if first:
            self._key, self._kept = key, dict(outputs)
        if self._key != key:
            raise KeyError(f"no candidate was surveyed first on {key}")
        faults = (agree(n, o.values, self._kept[n].values, o.epsilon) for n, o in outputs.items())
        return next(filter(None, faults), "")
