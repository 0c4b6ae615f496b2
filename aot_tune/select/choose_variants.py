"""Which variants to keep: the fewest whose regret over the workload stays under a limit, within a byte budget."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

Costs = dict[str, dict[str, float]]
"""Problem id to candidate id to time in ns. A candidate that cannot serve a problem has no time there."""
PRESELECTED = 24
"""How many candidates are surveyed for each kind of calls, at most."""
SCOUTS = 48
"""How many candidates a few shapes choose these from, at most."""


def choose_variants(
    costs: Costs,
    *,
    limit: float,
    times: Costs | None = None,
    sizes: Mapping[str, int] | None = None,
    byte_budget: int | None = None,
    worst: float | None = None,
    most: int | None = None,
    weights: Mapping[str, float] | None = None,
    given: Sequence[str] = (),
) -> list[str]:
    """The ids of candidates to keep, in the order of their gain.

    It is greedy: it adds the candidate that removes most regret, until the weighted geometric mean is within `limit` of
    the best and no problem is more than `worst` off, or until `most` are kept. Then it drops candidates that later ones
    made needless. On a tie, the candidate wins that is faster by `times` on the problems where it was timed, then the
    smaller id. So the result does not depend on the order of the input.

    Args:
        costs: times in ns. Problems without any are ignored.
        limit: allowed mean regret, such as 0.01.
        times: in ns. `costs` treat times within the noise as equal, these do not; the default is the costs.
        sizes: bytes of each candidate's object.
        byte_budget: the most bytes that the kept objects may have together; None is no limit.
        worst: allowed regret on any problem; the default is three times `limit`.
        most: how many may be kept, even if regret is left; None is no limit.
        given: candidates that are kept in any case. They count towards no limit.
        weights: the weight of each problem's regret in the mean, 1 by default.
    """
    limits = math.log1p(limit), math.log1p(3 * limit if worst is None else worst)
    rows = {p: c for p, c in costs.items() if c}
    kept: list[str] = []
    shares = _shares(rows, weights or {})
    kept += [c for c in given if any(c in row for row in rows.values())]
    fixed = len(kept)
    state, pace = _State(rows, shares, kept), _paces(times or rows)
    while rows and not _good_enough(state.regrets, shares, limits) and (most is None or len(kept) < most + fixed):
        affordable = [c for c in sorted(state.by) if c not in kept and _fits([*kept, c], sizes, byte_budget)]
        best = min(affordable, key=lambda c: (state.after(c), pace.get(c, math.inf), c), default=None)
        if best is None or state.after(best) >= (state.total()[0], round(state.total()[1], 12)):
            break
        kept.append(best)
        state.add(best)
    for candidate in kept[fixed:]:
        rest = [c for c in kept if c != candidate]
        if rest and _good_enough(_State(rows, shares, rest).regrets, shares, limits):
            kept = rest
    return kept


def fewer(
    costs: Costs,
    kept: Sequence[str],
    fits: Callable[[Sequence[str]], bool],
    shares: Mapping[str, float],
    given: Collection[str],
) -> list[str]:
    """What remains of candidates when the least missed go until the rest fits. `given`, and what alone serves, stay."""
    rows = {p: row for p, row in costs.items() if not row.keys().isdisjoint(kept)}
    left, logs = list(kept), np.full((len(kept), len(rows)), np.inf)
    for column, row in enumerate(rows.values()):
        for place, candidate in enumerate(kept):
            if candidate in row:
                logs[place, column] = math.log(row[candidate])
    weights = np.array([shares[p] for p in rows])
    while not fits(left):
        first, second = np.partition(logs, 1, axis=0)[:2] if len(left) > 1 else (logs[0], np.full_like(logs[0], np.inf))
        missed = np.where(logs == first, (second - first) * weights, 0.0).sum(axis=1).tolist()
        able = [place for place, candidate in enumerate(left) if candidate not in given and missed[place] < math.inf]
        if not able:
            break
        place = min(able, key=lambda n: (round(missed[n], 12), left[n]))
        del left[place]
        logs = np.delete(logs, place, axis=0)
    return left


def preselect(
    costs: Costs, alike: Mapping[str, str], most: int = PRESELECTED, weights: Mapping[str, float] | None = None
) -> list[str]:
    """The ids of candidates to survey: those that leave no regret, in the order of their gain, then the next best.

    The next best have other tiles: `alike` says what nearly equal candidates have in common, and one of them is enough.
    `weights` are as in `choose_variants`.
    """
    chosen = choose_variants(costs, limit=0.0, worst=0.0, most=most, weights=weights)
    seen = {alike[c] for c in chosen if c in alike}
    paces = _paces({p: c for p, c in costs.items() if c})
    for candidate in sorted(paces, key=lambda c: (paces[c], c)):
        if len(chosen) < most and candidate not in chosen and alike.get(candidate, candidate) not in seen:
            chosen.append(candidate)
            seen.add(alike.get(candidate, candidate))
    return chosen


def scouts(costs: Costs, alike: Mapping[str, str], kernels: Mapping[str, str], most: int = SCOUTS) -> list[str]:
    """The ids of candidates to preselect from: those that leave no regret, then the next best of each kernel in turn.

    Times on a few problems, which differ between candidates, do not tell which kernel is good for others. `alike` is as
    in `preselect`. `kernels` has the kernel of each candidate.
    """
    rows = {p: c for p, c in costs.items() if c}
    chosen = choose_variants(rows, limit=0.0, worst=0.0, most=most // 2)
    seen = {alike[c] for c in chosen if c in alike}
    paces = _paces(rows)
    by_kernel: dict[str, list[str]] = {}
    for candidate in sorted(paces, key=lambda c: (paces[c], c)):
        if candidate not in chosen and alike.get(candidate, candidate) not in seen:
            seen.add(alike.get(candidate, candidate))
            by_kernel.setdefault(kernels[candidate], []).append(candidate)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*(by_kernel[k] for k in sorted(by_kernel))))
    return [*chosen, *(c for c in in_turn if c is not None)][:most]


def regret_by_number(costs: Costs, kept: Sequence[str]) -> tuple[float, ...]:
    """The geometric mean regret with only the first kept candidate, two, and so on, where anything serves."""
    rows = {p: c for p, c in costs.items() if c}
    state, regrets = _State(rows, _shares(rows, {})), []
    for candidate in kept:
        state.add(candidate)
        unserved, total = state.total()
        regrets.append(math.expm1(total / max(len(state.regrets) - unserved, 1)))
    return tuple(regrets)


def served_by_number(costs: Costs, kept: Sequence[str]) -> tuple[float, ...]:
    """The share of problems that the first of the kept candidates serves, the first two together, and so on."""
    rows = [row for row in costs.values() if row]
    return tuple(sum(not row.keys().isdisjoint(kept[: n + 1]) for row in rows) / len(rows) for n in range(len(kept)))


class _State:
    """The log regret of each problem with what is kept. `by`: of each candidate. `shares`: weights of mean 1."""

    def __init__(self, rows: Costs, shares: Mapping[str, float], kept: Sequence[str] = ()) -> None:
        self._shares = shares
        self.by: dict[str, dict[str, float]] = {}
        for problem, row in rows.items():
            best = min(row.values())
            for candidate, time in row.items():
                self.by.setdefault(candidate, {})[problem] = math.log(time / best)
        self.regrets = dict.fromkeys(rows, math.inf)
        self._total = self.total()
        for candidate in kept:
            self.add(candidate)

    def add(self, candidate: str) -> None:
        """Keep a candidate too."""
        for problem, regret in self.by[candidate].items():
            self.regrets[problem] = min(self.regrets[problem], regret)
        self._total = self.total()

    def total(self) -> tuple[int, float]:
        """The number of problems that nothing serves, and the summed regret of the others."""
        served = [r * self._shares[p] for p, r in self.regrets.items() if not math.isinf(r)]
        return len(self.regrets) - len(served), math.fsum(served)

    def after(self, candidate: str) -> tuple[int, float]:
        """The total if a candidate were kept too."""
        unserved, total = self._total
        for problem, regret in self.by[candidate].items():
            now = self.regrets[problem]
            if math.isinf(now):
                unserved, total = unserved - 1, total + regret * self._shares[problem]
            elif regret < now:
                total += (regret - now) * self._shares[problem]
        return unserved, round(total, 12)


def _paces(times: Costs) -> dict[str, float]:
    """By candidate, the mean of log(time / best time) over the problems on which it was timed."""
    logs: dict[str, list[float]] = {}
    for row in times.values():
        best = min(row.values(), default=math.inf)
        for candidate, time in row.items():
            logs.setdefault(candidate, []).append(math.log(time / best))
    return {candidate: round(math.fsum(values) / len(values), 12) for candidate, values in logs.items()}


def _shares(rows: Costs, weights: Mapping[str, float]) -> dict[str, float]:
    """The weights of the problems, scaled to mean 1. If all are equal, each is exactly 1."""
    by_problem = {p: weights.get(p, 1.0) for p in rows}
    most = max(by_problem.values(), default=1.0)  # dividing by it keeps the sum within a float's range
    total = math.fsum(w / most for w in by_problem.values())
    return {p: w / most * len(by_problem) / total for p, w in by_problem.items()}


def _good_enough(regrets: Mapping[str, float], shares: Mapping[str, float], limits: tuple[float, float]) -> bool:
    """Whether the log regrets are within the limits for their mean and for each."""
    mean = sum(r * shares[p] for p, r in regrets.items()) / len(regrets)
    return mean <= limits[0] and max(regrets.values()) <= limits[1]


def _fits(kept: list[str], sizes: Mapping[str, int] | None, budget: int | None) -> bool:
    return budget is None or sum((sizes or {}).get(c, 0) for c in kept) <= budget
