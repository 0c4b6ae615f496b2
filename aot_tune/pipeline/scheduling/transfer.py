"""Which candidates of a target to try first, by what won: on another target, or on a like device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from aot_tune.pipeline.session import Session
from aot_tune.render import Candidate, candidate_for
from aot_tune.select import Costs
from aot_tune.spec import Config, ConfigValue, Kernel, Operator, Target
from aot_tune.support.digests import canonical_digest
from aot_tune.support.errors import SpecError

__all__ = ["Models", "like_winners", "most_alike", "winners"]

Models = dict[str, tuple[Candidate, set[str]]]
"""Candidates by id, each with the ids of the problems that it won, or that its model won."""


def winners(costs: Costs, near: float, each: int) -> Iterator[tuple[str, set[str]]]:
    """Candidates with the ids of the problems that each won: it is within the factor `near` of the best there.

    First come the fewest that together won all problems. If `each` is not 0, the best of each problem come next, then
    the fewest others until so many of the winners of each problem are there.
    """
    won: dict[str, set[str]] = {}
    for problem, row in costs.items():
        limit = near * min(row.values(), default=0.0)
        for candidate, time in row.items():
            if time <= limit:
                won.setdefault(candidate, set()).add(problem)
    rivals = Counter(problem for own in won.values() for problem in own)
    found = Counter[str]()

    def fewest(count: int) -> Iterator[tuple[str, set[str]]]:
        while won and (left := {p for p in costs if found[p] < min(count, rivals[p])}):
            yield take(min(won, key=lambda c: (-len(won[c] & left), c)))

    def take(candidate: str) -> tuple[str, set[str]]:
        found.update(won[candidate])
        return candidate, won.pop(candidate)

    yield from fewest(1)
    if each:
        best = dict.fromkeys(min(row, key=lambda c: (row[c], c)) for row in costs.values() if row)
        yield from (take(c) for c in best if c in won)
        yield from fewest(each)


def like_winners(
    session: Session,
    operator: Operator,
    target: Target,
    costs: Costs,
    candidates: Mapping[str, Candidate],
    *,
    near: float,
    each: int,
    guesses: int = 0,
) -> Models:
    """Candidates for a target that are most like those which won by `costs`, each for the problems that its model won.

    After them come `guesses` first guesses of the author of each kernel that won. A kernel without a config for the
    target is left out. `near` and `each` are as in `winners`.
    """
    spaces = {k.name: (k, space) for k in session.kernels_for(operator, target) if (space := _space(k, target))}
    made: Models = {}

    def add(kernel: Kernel, config: dict[str, ConfigValue], like: Candidate, problems: Collection[str]) -> None:
        candidate = candidate_for(operator, kernel, config, target, dtypes=dict(like.dtypes))
        made.setdefault(candidate.id, (candidate, set()))[1].update(problems)

    own = {p: _of_kernels(row, candidates, spaces) for p, row in costs.items()}
    together: dict[str, tuple[Candidate, set[str]]] = {}
    for name, won in winners({p: row for p, row in own.items() if row}, near, each):
        one = candidates[name]
        kernel, space = spaces[one.kernel]
        add(kernel, most_alike(kernel, space, one.config), one, won)
        together.setdefault(canonical_digest([one.kernel, one.dtypes]), (one, set()))[1].update(won)
    for one, problems in together.values():
        kernel, space = spaces[one.kernel]
        for config in _guesses(kernel, space)[:guesses]:
            add(kernel, config, one, problems)
    return made


def _of_kernels(
    row: Mapping[str, float], candidates: Mapping[str, Candidate], kernels: Collection[str]
) -> dict[str, float]:
    return {c: t for c, t in row.items() if candidates[c].kernel in kernels and not candidates[c].generic}


def _space(kernel: Kernel, target: Target) -> list[dict[str, ConfigValue]]:
    """The configs of a kernel for a target, without those that pin dims. The kernel may not be meant for the target."""
    try:
        return [c for c in kernel.configs(target.facts) if not any(c.get(p) for p in kernel.pins)]
    except SpecError:  # its constraints allow none
        return []


def _guesses(kernel: Kernel, space: Sequence[dict[str, ConfigValue]]) -> list[dict[str, ConfigValue]]:
    """The first guesses of a kernel's author that are in a space."""
    matched = (next((c for c in space if all(c[k] == v for k, v in guess.items())), None) for guess in kernel.order)
    return [c for c in matched if c is not None]


def most_alike(kernel: Kernel, space: Sequence[dict[str, ConfigValue]], config: Config) -> dict[str, ConfigValue]:
    """The first config of a space that differs from another in the fewest parameters, and by the least in these."""
    places = {p.name: {v: i for i, v in enumerate(_in_order(p.values))} for p in kernel.parameters}

    def distance(other: Config) -> tuple[int, int]:
        steps = [abs(places[n][other[n]] - places[n][v]) for n, v in config.items() if v in places.get(n, {})]
        return sum(s > 0 for s in steps), sum(steps)

    return min(space, key=distance)


def _in_order(values: Sequence[ConfigValue]) -> list[ConfigValue]:
    """Numbers by size, names in the order of declaration."""
    named = any(isinstance(v, str) for v in values)
    return sorted(values, key=lambda v: 0 if isinstance(v, str) or named else v)
