"""The decision where no times are expected: a call gets what was fastest on the nearest measured problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aot_tune.select.terms import UNIT, log2_of
from aot_tune.spec import Facts
from aot_tune.spec.tensors import stride_class

Integers = NDArray[np.int64]


@dataclass(frozen=True, order=True)
class Form:
    """What tells calls apart, but not alignment and size of strides. `classes`: of strides; -1: an absent tensor."""

    dims: tuple[int, ...]
    classes: tuple[int, ...]
    attributes: tuple[int, ...]
    dtypes: tuple[int, ...]


def form_of(facts: Facts) -> Form:
    """The form of a call. The facts of all calls of an operator are in one order."""
    strides: dict[str, list[int]] = {}
    for fact, value in facts.items():
        kind, _, rest = fact.partition(".")
        if kind == "present":
            strides[rest] = []
        elif kind == "stride":
            strides.setdefault(rest.partition(".")[0], []).append(value)
    return Form(
        dims=tuple(value for fact, value in facts.items() if "." not in fact),
        classes=tuple(stride_class(own) if facts.get(f"present.{t}", 1) else -1 for t, own in strides.items()),
        attributes=tuple(value for fact, value in facts.items() if fact.startswith("attribute.")),
        dtypes=tuple(value for fact, value in facts.items() if fact.startswith("dtype.")),
    )


def without_equals(facts: Mapping[str, Facts], problems: Iterable[str]) -> tuple[str, ...]:
    """The problems in the order of their forms. Of equal forms, only the first."""
    by_form: dict[Form, str] = {}
    for problem in problems:
        by_form.setdefault(form_of(facts[problem]), problem)
    return tuple(by_form[form] for form in sorted(by_form))


@dataclass(frozen=True)
class Nearest:
    """Measured problems, in the order of their forms, and the candidates of each one, the fastest first.

    A problem tells something of a call if one of its candidates, beside the `generic` ones, serves the call, and no
    generic one is faster there. But a generic one may be the fastest of all.
    """

    problems: tuple[str, ...]
    forms: tuple[Form, ...]
    candidates: tuple[tuple[str, ...], ...]
    generic: frozenset[str] = frozenset()

    def tried(
        self,
        form: Form,
        serves: Callable[[str], bool],
        meant: Callable[[str], bool],
        left: Sequence[bool] | None = None,
    ) -> Iterator[str]:
        """The candidates to try on a form, best first: those `meant` for it, then all. `left`: which problems count."""
        for able in (lambda c: serves(c) and meant(c), serves):
            yield from filter(able, self.ranked(form, able, left))

    def ranked(self, form: Form, serves: Callable[[str], bool], left: Sequence[bool] | None = None) -> tuple[str, ...]:
        """The candidates of the nearest problem that tells something (on a tie, the lesser form), or none."""
        if not self.problems:
            return ()
        for row in np.argsort(self._distances(form), kind="stable").tolist():
            if (left is None or left[row]) and self._tells(self.candidates[row], serves):
                return self.candidates[row]
        return ()

    def _tells(self, candidates: Sequence[str], serves: Callable[[str], bool]) -> bool:
        others = candidates if candidates[0] not in self.generic else [c for c in candidates if c not in self.generic]
        return next((c not in self.generic for c in others if serves(c)), False)

    @property
    def by_problem(self) -> Mapping[str, tuple[str, ...]]:
        """The candidates of each problem, the fastest first."""
        return dict(zip(self.problems, self.candidates, strict=True))

    def _distances(self, form: Form) -> Integers:
        """The squares of the logarithms of factors between extents, with a factor of 2 for each other difference."""
        logs, others = self._rows
        factors = logs - _logs([form])
        differ = others != _others([form])
        distances: Integers = (factors * factors).sum(axis=1) + UNIT * UNIT * differ.sum(axis=1)
        return distances

    @cached_property
    def _rows(self) -> tuple[Integers, Integers]:
        return _logs(self.forms), _others(self.forms)


def _logs(forms: Sequence[Form]) -> Integers:
    """log2 of extents [form, dim]."""
    extents = np.array([form.dims for form in forms], dtype=np.float64).reshape(len(forms), -1)
    return log2_of(extents)


def _others(forms: Sequence[Form]) -> Integers:
    values = [(*form.classes, *form.attributes, *form.dtypes) for form in forms]
    return np.array(values, dtype=np.int64).reshape(len(forms), -1)
