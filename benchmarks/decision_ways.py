"""Ways to decide among variants. Each learns from surveyed times, and picks a variant for other shapes.

Some are scikit-learn's, which this project does not depend on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from analytical import Device, fit_device
from decision_basis import (
    ByTimes,
    Decider,
    Expected,
    Floats,
    Foretold,
    InOrder,
    Integers,
    Learner,
    Lesson,
    Sheet,
    by_times,
    each,
)

from aot_tune.select import Costs
from aot_tune.select.learn_times import Times, boost, learn_times
from aot_tune.select.regression import moments_of, slopes_of
from aot_tune.select.time_model import LOG_UNIT, SHIFT, TimeModel

__all__ = ["WAYS", "has_sklearn", "learn_way"]

_PULL = 0.5
"""Strength of the pull of a single variant's slopes towards 0, as a number of calls."""
_TREES = 30
"""Number of our trees, if they are for one variant only."""
_ROUNDS = 200
"""Number of trees in an ensemble of scikit-learn."""
_NODE = 20
"""Bytes of a node of such a tree: a term, a cut, and two children."""
_TREE = 48
"""Bytes of one of our trees, see runtime/expected.h."""


def has_sklearn() -> bool:
    """Whether scikit-learn is installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return False
    return True


def ours(lesson: Lesson, rows: Costs) -> dict[str, Expected]:
    """As shipped: common slopes, a ridge regression, and trees on the rest, all in integers."""
    models = learn_times({v: lesson.timed(v, rows) for v in lesson.kept})
    return {v: _of_model(v, model) for v, model in models.items()}


def _of_model(variant: str, model: TimeModel) -> Foretold:
    def of(sheet: Sheet, asked: Sequence[str]) -> Floats:
        return model.expected(sheet.columns(variant, asked)) / LOG_UNIT

    return Foretold(of, *_size_of(len(model.terms), len(model.trees)))


def _size_of(terms: int, trees: int) -> tuple[int, int]:
    """Number of operations, and bytes of tables."""
    return 2 * terms + 4 * trees, 8 * terms + _TREE * trees


def ridge(_: Sheet, variant: str, times: Times) -> Expected | None:
    """A ridge regression for each variant by itself."""
    moments = moments_of(times.columns, times.logs, times.weights)
    slopes = slopes_of(moments, _PULL)
    base = moments.base(slopes)

    def of(sheet: Sheet, asked: Sequence[str]) -> Floats:
        found: Floats = (sheet.columns(variant, asked) @ slopes + base) / LOG_UNIT
        return found

    return Foretold(of, *_size_of(len(slopes), 0))


def ridge_and_trees(sheet: Sheet, variant: str, times: Times) -> Expected | None:
    """The same, with our trees on the rest. This shipped before variants learned together."""
    line = ridge(sheet, variant, times)
    assert line is not None
    left = times.logs - np.rint(LOG_UNIT * line(sheet, times.problems)).astype(np.int64)
    trees = _trees(variant, times, left, 0)
    if trees is None:
        return line
    return Foretold(
        lambda s, ps: line(s, ps) + trees(s, ps), line.operations + trees.operations, line.bytes + trees.bytes
    )


def trees_alone(sheet: Sheet, variant: str, times: Times) -> Expected | None:
    """Only our trees, on the time over the roofline."""
    left = np.rint(times.logs - LOG_UNIT * sheet.roofline(times.problems)).astype(np.int64)
    mean = int((left * times.weights).sum() // times.weights.sum())
    trees = _trees(variant, times, left - mean, mean)
    if trees is None:
        return None
    return Foretold(lambda s, ps: trees(s, ps) + s.roofline(ps), trees.operations, trees.bytes)


def _trees(variant: str, times: Times, left: Integers, mean: int) -> Expected | None:
    found = boost(times.columns, left, times.weights, _TREES)
    count = times.columns.shape[1]
    model = TimeModel(terms=tuple(range(count)), weights=(0,) * count, base=mean << SHIFT, trees=tuple(found))
    return replace(_of_model(variant, model), bytes=_TREE * len(found)) if found else None


def neighbours(count: int) -> Learner:
    """The mean of the nearest problems, weighted by nearness, of the time over the roofline."""

    def learn(sheet: Sheet, _: str, times: Times) -> Expected | None:
        known = sheet.places(times.problems)
        left = times.logs / LOG_UNIT - sheet.roofline(times.problems)

        def of(sheet: Sheet, asked: Sequence[str]) -> Floats:
            distances = np.sqrt(((sheet.places(asked)[:, None] - known[None]) ** 2).sum(axis=2))
            nearest = np.argsort(distances, axis=1, kind="stable")[:, :count]
            shares = 1 / (np.take_along_axis(distances, nearest, axis=1) + 0.05)
            found: Floats = (shares * left[nearest]).sum(axis=1) / shares.sum(axis=1) + sheet.roofline(asked)
            return found

        return Foretold(of, 3 * known.size, 4 * len(times.logs))

    return each(learn)


def ensemble(make: Callable[[], Any], nodes: Callable[[Any], tuple[int, int]]) -> Learner:
    """Trees of scikit-learn on our terms, for the time over the roofline. `nodes` gives their number and depth."""

    def learn(sheet: Sheet, variant: str, times: Times) -> Expected | None:
        fitted = make()
        left = times.logs / LOG_UNIT - sheet.roofline(times.problems)
        fitted.fit(times.columns, left, sample_weight=times.weights)
        many, deep = nodes(fitted)

        def of(sheet: Sheet, asked: Sequence[str]) -> Floats:
            found: Floats = fitted.predict(sheet.columns(variant, asked)) + sheet.roofline(asked)
            return found

        return Foretold(of, deep, _NODE * many)

    return each(learn)


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
    """A decision tree (CART) over facts that picks a variant directly: the one that was best where the tree learned."""
    from sklearn.tree import DecisionTreeClassifier

    kept = set(lesson.kept)
    rows = {p: {v: t for v, t in row.items() if v in kept} for p, row in sorted(lesson.rows.items())}
    rows = {p: row for p, row in rows.items() if row}
    best = [min(row, key=lambda v: (row[v], v)) for row in rows.values()]
    # Picking a variant that is nearly as fast costs little. So a problem's weight is the loss of its median variant.
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
    """Blocks, waves and steps, with a few constants of the device that are fitted to all times together.

    If `scaled`, each variant has a factor, the median of its times over the model's, because kernels use a device
    differently well.
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
    """The same variant wherever it serves, else the next best."""
    return InOrder(_by_mean(lesson))


def _by_mean(lesson: Lesson) -> tuple[str, ...]:
    """Variants by their mean log regret. A problem that a variant does not serve counts as half as fast as the best."""
    lost: dict[str, float] = dict.fromkeys(lesson.kept, 0.0)
    for row in lesson.rows.values():
        best = min(row.values())
        for variant in lost:
            lost[variant] += min(math.log(row.get(variant, 2 * best) / best), math.log(4))
    return tuple(sorted(lost, key=lambda v: (lost[v], v)))


def _survey_bytes(lesson: Lesson) -> int:
    """Bytes of the dims of all shapes, among which neighbours are searched."""
    return 4 * len(lesson.rows) * len(lesson.sheet.kind.operator.dims)


WAYS: dict[str, tuple[Callable[[Lesson], Decider], bool]] = {
    "ours": (by_times(ours), False),
    "each alone": (by_times(each(ridge_and_trees)), False),
    "ridge alone": (by_times(each(ridge)), False),
    "trees alone": (by_times(each(trees_alone)), False),
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
"""Ways by name, each with whether it needs scikit-learn."""


def learn_way(name: str, lesson: Lesson) -> Decider:
    """Learn what a way needs."""
    return WAYS[name][0](lesson)
