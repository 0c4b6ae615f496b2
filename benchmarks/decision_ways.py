"""Ways to decide among variants: each learns from surveyed times, and picks a variant for other shapes.

Those that expect a time for each variant share the rest: what a time is learned from, how near the best it matters, and
the margin in favour of the vendor's heuristic. Some are scikit-learn's, which this project does not depend on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from analytical import Device, fit_device
from numpy.typing import NDArray
from surveyed import SurveyedKind

from aot_tune.select import Costs
from aot_tune.select.decide import is_held_out, times_of
from aot_tune.select.learn_times import boost, learn_times, regress
from aot_tune.select.terms import columns_of
from aot_tune.select.time_model import LOG_UNIT, SHIFT, TimeModel

__all__ = ["WAYS", "Decider", "Lesson", "Sheet", "has_sklearn", "learn_way"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LATENCY, _RIDGE = 2.0**22, 256
"""A roofline without a device: bytes moved while a launch begins and ends, and FLOPs in the time of a byte."""
_ROUNDS = 200
"""Trees of an ensemble of scikit-learn's."""
_NODE = 20
"""Bytes of a node of such a tree: a term, a cut, two children."""
_TREE = 48
"""Bytes of one of ours, see runtime/expected.h."""


def has_sklearn() -> bool:
    """Whether scikit-learn is installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return False
    return True


class Sheet:
    """The terms of each variant on all problems of a kind, worked out once."""

    def __init__(self, kind: SurveyedKind) -> None:
        self.kind = kind
        self._place = {p: i for i, p in enumerate(kind.facts)}
        by_terms = {id(t): columns_of(t, list(kind.facts.values())) for t in kind.terms.values()}
        self._columns = {v: by_terms[id(t)] for v, t in kind.terms.items()}

    def columns(self, variant: str, problems: Sequence[str]) -> Integers:
        """A variant's terms [problem, term]."""
        found: Integers = self._columns[variant][[self._place[p] for p in problems]]
        return found

    def roofline(self, problems: Sequence[str]) -> Floats:
        """log2 of a time that any device's are about proportional to."""
        kind = self.kind
        return np.log2([kind.moved[p] + kind.done[p] / _RIDGE + _LATENCY for p in problems])

    def places(self, problems: Sequence[str]) -> Floats:
        """Where problems lie [problem, axis]: logarithms of dims, and a step for whatever else a call has."""
        facts = [self.kind.facts[p] for p in problems]
        flags = [n for n in facts[0] if n.startswith(("present.", "attribute."))]
        rows = [
            [math.log2(max(f[d], 1)) for d in self.kind.operator.dims] + [float(f[n] != 0) for n in flags]
            for f in facts
        ]
        return np.array(rows)


@dataclass(frozen=True)
class Lesson:
    """What may be learned: times on some problems, and which variants there are to choose from."""

    sheet: Sheet
    rows: Costs
    kept: tuple[str, ...]
    caution: float
    """A variant must be expected to be faster than the vendor's by so much of the error of that comparison."""

    def timed(self, variant: str, rows: Costs) -> tuple[list[str], Integers, Integers]:
        """The problems that a variant was timed on, log times and weights."""
        kind = self.sheet.kind
        _, logs, weights = times_of(variant, rows, kind.facts, kind.terms[variant])
        return [p for p in sorted(rows) if variant in rows[p]], logs, weights


class Decider(Protocol):
    """Picks variants; `operations` of one decision, about, and `bytes` of its tables."""

    operations: int
    bytes: int

    def pick(self, problems: Sequence[str], serving: Sequence[Sequence[str]]) -> list[str]:
        """For each problem one of the variants that serve it, of which there is one at least."""


class Expected(Protocol):
    """Expected log2 ns of one variant."""

    operations: int
    bytes: int

    def __call__(self, sheet: Sheet, problems: Sequence[str]) -> Floats:
        """On some problems."""


Learner = Callable[[Lesson, str, Costs], "Expected | None"]


@dataclass(frozen=True)
class Foretold:
    """An expectation by a function of the problems."""

    of: Callable[[Sheet, Sequence[str]], Floats]
    operations: int
    bytes: int

    def __call__(self, sheet: Sheet, problems: Sequence[str]) -> Floats:
        """On some problems."""
        return self.of(sheet, problems)


@dataclass(frozen=True)
class ByTimes:
    """Picks what is expected to be fastest."""

    sheet: Sheet
    expected: Mapping[str, Expected]
    cautions: Mapping[str, float]
    shared: int = 0

    @property
    def operations(self) -> int:
        """Of all variants that are kept."""
        return sum(e.operations for e in self.expected.values())

    @property
    def bytes(self) -> int:
        """Of all tables."""
        return self.shared + sum(e.bytes for e in self.expected.values())

    def pick(self, problems: Sequence[str], serving: Sequence[Sequence[str]]) -> list[str]:
        """For each problem one of the variants that serve it."""
        place = {v: i for i, v in enumerate(self.expected)}
        times = np.array([e(self.sheet, problems) + self.cautions.get(v, 0.0) for v, e in self.expected.items()])
        found = []
        for number, variants in enumerate(serving):
            known = [v for v in variants if v in place] or [""]
            found.append(min(known, key=lambda v: (times[place[v], number], v)) if known[0] else variants[0])
        return found


@dataclass(frozen=True)
class InOrder:
    """Picks the first of an order that serves, or what a function says is best."""

    order: tuple[str, ...]
    operations: int = 0
    bytes: int = 0
    chosen: Callable[[Sequence[str]], list[Sequence[str]]] | None = None

    def pick(self, problems: Sequence[str], serving: Sequence[Sequence[str]]) -> list[str]:
        """For each problem one of the variants that serve it."""
        orders = self.chosen(problems) if self.chosen is not None else [self.order] * len(problems)
        return [
            next((v for v in (*order, *self.order) if v in variants), variants[0])
            for order, variants in zip(orders, serving, strict=True)
        ]


def by_times(learner: Learner, shared: Callable[[Lesson], int] = lambda _: 0) -> Callable[[Lesson], Decider]:
    """A way that expects a time of each variant; how far it is off is seen on a fifth that it does not learn from."""

    def learn(lesson: Lesson) -> Decider:
        cautions = _cautions(learner, lesson) if lesson.caution else {}
        expected = {v: learner(lesson, v, lesson.rows) for v in lesson.kept}
        return ByTimes(lesson.sheet, {v: e for v, e in expected.items() if e is not None}, cautions, shared(lesson))

    return learn


def _cautions(learner: Learner, lesson: Lesson) -> dict[str, float]:
    """How far the difference of each variant's expected time from the vendor's is off, times the caution."""
    learned = {p: row for p, row in lesson.rows.items() if not is_held_out(p)}
    aside = {p: row for p, row in lesson.rows.items() if is_held_out(p)}
    vendors = [v for v in lesson.kept if v in lesson.sheet.kind.vendor]
    off: dict[str, dict[str, float]] = {}
    for variant in lesson.kept:
        problems = [p for p in sorted(aside) if variant in aside[p]]
        expected = learner(lesson, variant, learned) if problems else None
        if expected is not None:
            logs = [math.log2(aside[p][variant]) for p in problems]
            off[variant] = dict(zip(problems, (expected(lesson.sheet, problems) - logs).tolist(), strict=True))
    vendor = off.get(vendors[0], {}) if vendors else {}
    found = {}
    for variant, own in off.items():
        beside = [own[p] - vendor[p] for p in own if p in vendor]
        if variant not in vendors and beside:
            found[variant] = lesson.caution * math.sqrt(sum(b * b for b in beside) / len(beside))
    return found


def ours(lesson: Lesson, variant: str, rows: Costs) -> Expected | None:
    """As shipped: a ridge regression and trees on what it leaves, in integers."""
    problems, logs, weights = lesson.timed(variant, rows)
    model = learn_times(lesson.sheet.columns(variant, problems), logs, weights, lesson.sheet.kind.sizes)
    if model is None:
        return None

    def of(sheet: Sheet, asked: Sequence[str]) -> Floats:
        return model.expected(sheet.columns(variant, asked)) / LOG_UNIT

    return Foretold(of, *_size_of(len(model.terms), len(model.trees)))


def _size_of(terms: int, trees: int) -> tuple[int, int]:
    """Operations, and bytes of tables."""
    return 2 * terms + 4 * trees, 8 * terms + _TREE * trees


def ridge(lesson: Lesson, variant: str, rows: Costs) -> Expected | None:
    """The regression alone."""
    problems, logs, weights = lesson.timed(variant, rows)
    if not problems:
        return None
    slopes, base = regress(lesson.sheet.columns(variant, problems), logs, weights)

    def of(sheet: Sheet, asked: Sequence[str]) -> Floats:
        found: Floats = (sheet.columns(variant, asked) @ slopes + base) / LOG_UNIT
        return found

    return Foretold(of, *_size_of(len(slopes), 0))


def trees(lesson: Lesson, variant: str, rows: Costs) -> Expected | None:
    """The trees alone, of the time over the roofline."""
    problems, logs, weights = lesson.timed(variant, rows)
    if not problems:
        return None
    left = np.rint(logs - LOG_UNIT * lesson.sheet.roofline(problems)).astype(np.int64)
    mean = int((left * weights).sum() // weights.sum())
    found = boost(lesson.sheet.columns(variant, problems), left - mean, weights)
    if not found:
        return None
    terms = len(lesson.sheet.kind.terms[variant].terms)
    model = TimeModel(terms=tuple(range(terms)), weights=(0,) * terms, base=mean << SHIFT, trees=tuple(found))

    def of(sheet: Sheet, asked: Sequence[str]) -> Floats:
        left = model.expected(sheet.columns(variant, asked)) / LOG_UNIT
        return left + sheet.roofline(asked)

    return Foretold(of, *_size_of(0, len(found)))


def neighbours(count: int) -> Learner:
    """The mean of the nearest, nearer ones counting more: of the time over the roofline."""

    def learn(lesson: Lesson, variant: str, rows: Costs) -> Expected | None:
        problems, logs, _ = lesson.timed(variant, rows)
        if not problems:
            return None
        known = lesson.sheet.places(problems)
        left = logs / LOG_UNIT - lesson.sheet.roofline(problems)

        def of(sheet: Sheet, asked: Sequence[str]) -> Floats:
            distances = np.sqrt(((sheet.places(asked)[:, None] - known[None]) ** 2).sum(axis=2))
            nearest = np.argsort(distances, axis=1, kind="stable")[:, :count]
            shares = 1 / (np.take_along_axis(distances, nearest, axis=1) + 0.05)
            found: Floats = (shares * left[nearest]).sum(axis=1) / shares.sum(axis=1) + sheet.roofline(asked)
            return found

        return Foretold(of, 3 * known.size, 4 * len(problems))

    return learn


def ensemble(make: Callable[[], Any], nodes: Callable[[Any], tuple[int, int]]) -> Learner:
    """Trees of scikit-learn's over our terms, of the time over the roofline; `nodes` tells how many, and the depth."""

    def learn(lesson: Lesson, variant: str, rows: Costs) -> Expected | None:
        problems, logs, weights = lesson.timed(variant, rows)
        if len(problems) < 2:
            return None
        fitted = make()
        left = logs / LOG_UNIT - lesson.sheet.roofline(problems)
        fitted.fit(lesson.sheet.columns(variant, problems), left, sample_weight=weights)
        many, deep = nodes(fitted)

        def of(sheet: Sheet, asked: Sequence[str]) -> Floats:
            found: Floats = fitted.predict(sheet.columns(variant, asked)) + sheet.roofline(asked)
            return found

        return Foretold(of, deep, _NODE * many)

    return learn


def _extra() -> Any:
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(_ROUNDS, min_samples_leaf=2, max_features=0.5, random_state=0)


def _boosting() -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(
        n_estimators=_ROUNDS, learning_rate=0.1, max_depth=3, subsample=0.7, max_features=0.5, random_state=0
    )


def _forest_size(fitted: Any) -> tuple[int, int]:
    found = [t[0] if isinstance(t, np.ndarray) else t for t in fitted.estimators_]
    return sum(t.tree_.node_count for t in found), sum(t.get_depth() for t in found)


def picking_tree(lesson: Lesson) -> Decider:
    """A decision tree (CART) over facts that says at once which variant: that which was best where it was learned."""
    from sklearn.tree import DecisionTreeClassifier

    kept = set(lesson.kept)
    rows = {p: {v: t for v, t in row.items() if v in kept} for p, row in sorted(lesson.rows.items())}
    rows = {p: row for p, row in rows.items() if row}
    best = [min(row, key=lambda v: (row[v], v)) for row in rows.values()]
    # What is nearly as fast is no loss: a problem counts for what the middle one of its variants would lose.
    weights = [math.log(sorted(row.values())[len(row) // 2] / min(row.values())) + 0.01 for row in rows.values()]
    names = list(next(iter(lesson.sheet.kind.facts.values())))

    def told(problems: Sequence[str]) -> Floats:
        return np.array([[lesson.sheet.kind.facts[p][n] for n in names] for p in problems], dtype=np.float64)

    fitted = DecisionTreeClassifier(min_samples_leaf=3, random_state=0)
    fitted.fit(told(list(rows)), best, sample_weight=weights)

    def chosen(problems: Sequence[str]) -> list[Sequence[str]]:
        shares = fitted.predict_proba(told(problems))
        return [[str(fitted.classes_[i]) for i in np.argsort(-row, kind="stable")] for row in shares]

    order = _by_mean(lesson)
    return InOrder(order, int(fitted.get_depth()), _NODE * int(fitted.tree_.node_count), chosen)


def analytical(scaled: bool) -> Callable[[Lesson], Decider]:
    """Blocks, waves and steps with a few constants of the device, which are fitted to all times together.

    `scaled` by how many times as long each variant takes in the middle: kernels use a device more or less well.
    """

    def learn(lesson: Lesson) -> Decider:
        kind = lesson.sheet.kind
        kept = {p: {v: t for v, t in row.items() if v in lesson.kept} for p, row in lesson.rows.items()}
        device = fit_device(kind, kept)
        factors = dict.fromkeys(lesson.kept, 0.0)
        for variant in lesson.kept if scaled else ():
            problems = [p for p in kept if variant in kept[p]]
            if problems:
                logs = np.log2([kept[p][variant] for p in problems])
                factors[variant] = float(np.median(logs - device.log_times(kind, variant, problems)))

        def of(variant: str) -> Expected:
            def told(sheet: Sheet, problems: Sequence[str]) -> Floats:
                return device.log_times(sheet.kind, variant, problems) + factors[variant]

            return Foretold(told, Device.OPERATIONS, 8 * scaled)

        return ByTimes(lesson.sheet, {v: of(v) for v in lesson.kept}, {}, Device.BYTES)

    return learn


def vendor_alone(lesson: Lesson) -> Decider:
    """The vendor's heuristic wherever it serves."""
    vendors = sorted(v for v in lesson.kept if v in lesson.sheet.kind.vendor)
    return InOrder((*vendors, *(v for v in _by_mean(lesson) if v not in vendors)))


def single(lesson: Lesson) -> Decider:
    """The same variant wherever it serves, then the next best."""
    return InOrder(_by_mean(lesson))


def _by_mean(lesson: Lesson) -> tuple[str, ...]:
    """Variants by their mean log regret; where one does not serve counts as half as fast as the best."""
    lost: dict[str, float] = dict.fromkeys(lesson.kept, 0.0)
    for row in lesson.rows.values():
        best = min(row.values())
        for variant in lost:
            lost[variant] += min(math.log(row.get(variant, 2 * best) / best), math.log(4))
    return tuple(sorted(lost, key=lambda v: (lost[v], v)))


def _survey_bytes(lesson: Lesson) -> int:
    """Of the dims of all shapes, which neighbours are sought among."""
    return 4 * len(lesson.rows) * len(lesson.sheet.kind.operator.dims)


WAYS: dict[str, tuple[Callable[[Lesson], Decider], bool]] = {
    "ours": (by_times(ours), False),
    "ridge alone": (by_times(ridge), False),
    "trees alone": (by_times(trees), False),
    "1 neighbour": (by_times(neighbours(1), _survey_bytes), False),
    "3 neighbours": (by_times(neighbours(3), _survey_bytes), False),
    "8 neighbours": (by_times(neighbours(8), _survey_bytes), False),
    "gradient boosting": (by_times(ensemble(_boosting, _forest_size)), True),
    "extra trees": (by_times(ensemble(_extra, _forest_size)), True),
    "a tree that picks": (picking_tree, True),
    "analytical": (analytical(scaled=False), False),
    "scaled analytical": (analytical(scaled=True), False),
    "the vendor alone": (vendor_alone, False),
    "one variant": (single, False),
}
"""Ways by name, and whether they need scikit-learn."""


def learn_way(name: str, lesson: Lesson) -> Decider:
    """Learn what a way needs to know."""
    return WAYS[name][0](lesson)
