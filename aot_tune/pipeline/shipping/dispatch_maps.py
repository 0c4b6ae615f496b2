"""What a report shows of dispatch: maps of its choices over two dims, surveyed shapes, and what each variant adds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from aot_tune.pipeline.evidence import Chosen, Evidence, guards_of, worth_of
from aot_tune.pipeline.naming import variant_name
from aot_tune.report.report_records import DispatchMap, RegretCurve, SurveyPoint
from aot_tune.select import all_picked
from aot_tune.select.decide import is_held_out
from aot_tune.spec import Facts, Operator, Problem, all_of
from aot_tune.spec.calls import extents_exist
from aot_tune.spec.workload import Kind, kind_of, range_of

__all__ = ["curves_of", "kind_text", "maps_of", "points_of"]

_STEPS = 20
"""How many extents of a dim a map has."""
_DIMS = 3
"""Maps show pairs of this many dims: those that vary most among calls."""
_GENERIC = "generic"
"""The name of what serves if nothing else does."""
_WHOLE = ((256, 64), (32, 8))
"""From the first extent on, extents are multiples of the second, as in most calls."""


def kind_text(operator: Operator, kind: Kind) -> str:
    """A kind of calls in the form that people write: `T=bf16 math=ieee`."""
    choices = {f"dtype.{v}": names for v, names in operator.dtypes.items()}
    choices |= {f"attribute.{a.name}": a.choices for a in operator.attributes}
    return " ".join(f"{fact.partition('.')[2]}={choices[fact][value]}" for fact, value in kind)


def curves_of(one: Chosen) -> tuple[RegretCurve, ...]:
    """For each kind of calls, how much the variants that are kept for it are worth."""
    evidence, selection = one.evidence, one.selection
    return tuple(
        RegretCurve(
            kind=kind_text(evidence.operator, kind),
            variants=tuple(_name(evidence, c) for c in selection.order.get(kind, ())[: len(curve)]),
            regret=tuple(round(regret, 5) for regret in curve),
            served=tuple(round(share, 5) for share in selection.served.get(kind, ())),
        )
        for kind, curve in selection.curves.items()
    )


def points_of(one: Chosen) -> tuple[SurveyPoint, ...]:
    """The surveyed shapes. Those by which dispatch was judged have the regret of a decision that does not know them."""
    evidence, selection = one.evidence, one.selection
    operator, costs = evidence.operator, evidence.surveyed.costs(evidence.failed)
    tuned = {p.id for p in evidence.workload if p.id in one.costs}  # a survey times these too
    problems = {name: evidence.surveyed.problems[name] for name in sorted(costs) if name not in tuned}
    facts = {name: operator.facts(problem) for name, problem in problems.items()}
    picks = _picked(one, facts)
    judged = selection.judged.regret if selection.judged is not None else selection.held_out
    found = []
    for name, problem in problems.items():
        row, pick = costs[name], picks[name]
        best = min(row, key=lambda c: (row[c], c))
        regret = row[pick] / row[best] - 1 if pick in row else None
        regret = judged.get(name, regret)
        found.append(
            SurveyPoint(
                problem=name,
                kind=kind_text(operator, kind_of(operator, facts[name])),
                dims=dict(problem.dims),
                best=_name(evidence, best),
                ns=row[best],
                picked=_name(evidence, pick),
                regret=None if regret is None else round(regret, 5),
                held_out=selection.judged is not None and is_held_out(name),
            )
        )
    return tuple(found)


def maps_of(one: Chosen) -> tuple[DispatchMap, ...]:
    """For each kind of calls in the workload, what dispatch picks over each pair of the dims that vary most.

    The other dims have their most frequent extents. All else is as in the plainest problem of the kind.
    """
    operator = one.evidence.operator
    kinds: dict[Kind, list[Problem]] = {}
    for problem in one.evidence.workload:
        if problem.id in one.costs:
            kinds.setdefault(kind_of(operator, operator.facts(problem)), []).append(problem)
    varied = {kind: list(problems) for kind, problems in kinds.items()}
    for problem in one.evidence.surveyed.problems.values():
        varied.get(kind_of(operator, operator.facts(problem)), []).append(problem)
    return tuple(
        _map(one, kind, problems, pair) for kind, problems in sorted(kinds.items()) for pair in _pairs(varied[kind])
    )


def _pairs(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """The dims of maps, as x and y. If only one dim varies among problems and surveyed shapes, y is empty."""
    spans = {d: _span([p.dims[d] for p in problems]) for d in problems[0].dims}
    varying = sorted((d for d, span in spans.items() if span > 1), key=lambda d: -spans[d])[:_DIMS]
    ordered = [d for d in problems[0].dims if d in varying]
    if len(ordered) == 1:
        return [(ordered[0], "")]
    return [(x, y) for y, x in itertools.combinations(ordered, 2)]


def _span(extents: Sequence[int]) -> float:
    return max(extents) / max(min(extents), 1)


def _map(one: Chosen, kind: Kind, problems: Sequence[Problem], pair: tuple[str, str]) -> DispatchMap:
    operator, (x, y) = one.evidence.operator, pair
    plainest = min(problems, key=lambda p: (len(p.id.split()), p.id))
    usual = {d: Counter(p.dims[d] for p in problems).most_common(1)[0][0] for d in plainest.dims}
    xs = _extents(range_of(operator, x, problems))
    ys = _extents(range_of(operator, y, problems)) if y else (0,)
    exist = extents_exist(operator)
    calls: dict[str, Facts] = {}
    places: dict[tuple[int, int], str] = {}
    for j, i in itertools.product(range(len(ys)), range(len(xs))):
        own = {**usual, x: xs[i], **({y: ys[j]} if y else {})}
        call = msgspec.structs.replace(plainest, dims=own, strides={})
        facts = operator.facts(call)
        if all_of((*exist, *operator.legal, *operator.expected), facts):
            calls[call.id], places[j, i] = facts, call.id
    picks = {name: _name(one.evidence, pick) for name, pick in _picked(one, calls).items()}
    variants = tuple(dict.fromkeys(picks.values()))
    index = {name: i for i, name in enumerate(variants)}
    return DispatchMap(
        kind=kind_text(operator, kind),
        x=x,
        y=y,
        at={d: n for d, n in usual.items() if d not in pair},
        xs=xs,
        ys=ys,
        variants=variants,
        picks=tuple(
            tuple(index[picks[places[j, i]]] if (j, i) in places else -1 for i in range(len(xs)))
            for j in range(len(ys))
        ),
    )


def _extents(between: tuple[int, int]) -> tuple[int, ...]:
    """Distinct extents between two, evenly spread on a logarithmic scale."""
    least, most = max(between[0], 1), max(between[1], 1)
    found = []
    for i in range(_STEPS):
        value = least * (most / least) ** (i / (_STEPS - 1))
        step = next((whole for limit, whole in _WHOLE if value >= limit), 1)
        found.append(min(max(round(value / step) * step, least), most))
    return tuple(sorted(set(found)))


def _picked(one: Chosen, calls: Mapping[str, Facts]) -> dict[str, str | None]:
    return all_picked(one.selection, calls, guards_of(one.evidence), worth_of(one.evidence))


def _name(evidence: Evidence, candidate: str | None) -> str:
    return _GENERIC if candidate is None else variant_name(evidence.entries[candidate])
