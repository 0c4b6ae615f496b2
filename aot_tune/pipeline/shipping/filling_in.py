"""Variants that fill in or stand in: kept for calls that no measured variant takes, they may be unmeasured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Chosen, Evidence, Proposal
from aot_tune.pipeline.scheduling.like_device import transferred
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.wanted_kernels import kernels_for
from aot_tune.render import candidate_for
from aot_tune.select import Selection
from aot_tune.spec import Problem, all_of


def stand_in(session: Session, evidences: Sequence[Evidence]) -> None:
    """For each choice of dtypes without a time, let one candidate stand in for all of its problems.

    `evidences` are those of an operator by target. On the target for older CPUs, the chosen config is the most like the
    one that won most of these problems on this machine's own target. Where a device is measured here, it is the first
    one that was not reached in time. It is verified like every kept variant. Without it the generic variant would serve
    these calls, at least ten times as slow.
    """
    if session.plan.may_measure and session.options.mode in ("auto", "tune"):
        for evidence in evidences:
            if not (evidence.brief or evidence.left_out) and session.device_for(evidence.target) is not None:
                keep_unreached(evidence, partial(_first_that_fits, session, evidence))
    older = next((e for e in evidences if e.brief and not e.left_out), None)
    tuned = next((e for e in reversed(evidences) if e.target.on_host and not e.brief and not e.left_out), None)
    if older is None or tuned is None or not tuned.measurements:
        return
    likely = transferred(session, tuned, older.target)
    for dtypes, problems in _unreached(older).items():
        able = [p for p in likely if tuple(p.variant.candidate.dtypes.values()) == dtypes and not _is_out(older, p)]
        best = max(able, key=lambda p: _served(older, p, problems), default=None)
        if best is not None and _served(older, best, problems):
            if best.variant.id not in older.variants:
                older.try_too([best])
            older.stand_in(best.variant.id)


def _first_that_fits(session: Session, evidence: Evidence, variants: Iterable[Variant]) -> Variant | None:
    """The first of some candidates of an operator that compiles and hardly spills."""
    (made,) = session.first_that_fit({"": ([v] for v in variants)}, "not reached in time", [evidence])[""]
    return made if made.compiled else None


def keep_unreached(evidence: Evidence, first_of: Callable[[Iterable[Variant]], Variant | None]) -> None:
    """For each choice of dtypes without a time, let the first candidate stand in that serves most of its problems.

    Compiled ones come first. On a CPU, where compiling takes the time that a budget lacks, there are no others.
    `first_of` gives the first of some that can stand in.
    """
    able = [
        v
        for v in evidence.variants.values()
        if not (v.candidate.generic or evidence.is_vendors(v) or evidence.failed(v.id))
        and (v.compiled or not evidence.target.on_host)
    ]
    for problems in _unreached(evidence).values():
        served = {v.id: sum(evidence.meant_for(v, p) for p in problems) for v in able}
        serving = sorted((v for v in able if served[v.id]), key=lambda v: (-served[v.id], not v.compiled))
        if serving and (first := first_of(serving)) is not None:
            evidence.stand_in(first.id)


def _is_out(evidence: Evidence, proposal: Proposal) -> bool:
    return proposal.variant.id in evidence.variants and evidence.failed(proposal.variant.id)


def _unreached(evidence: Evidence) -> dict[tuple[str, ...], list[Problem]]:
    """For each choice of dtypes, its problems, if only generic variants were timed on them."""
    operator = evidence.operator
    timed = {p for p, row in evidence.times().items() if any(not evidence.variants[c].candidate.generic for c in row)}
    kinds: dict[tuple[str, ...], list[Problem]] = {}
    for problem in evidence.workload:
        kinds.setdefault(tuple(problem.dtypes.get(v, c[0]) for v, c in operator.dtypes.items()), []).append(problem)
    return {dtypes: problems for dtypes, problems in kinds.items() if timed.isdisjoint(p.id for p in problems)}


def _served(evidence: Evidence, proposal: Proposal, problems: Sequence[Problem]) -> int:
    """How many of the problems a candidate serves, among those that it is tried on: its model won them."""
    name = proposal.variant.id
    only = evidence.only.get(name) if name in evidence.variants else proposal.only
    wanted = [p for p in problems if only is None or p.id in only]
    return sum(all_of(proposal.variant.requires, evidence.operator.facts(p)) for p in wanted)


def with_filling_in(session: Session, evidence: Evidence, selection: Selection) -> Selection:
    """A selection that also keeps the variants that fill in or stand in.

    Those that are not candidates yet become candidates. Those that failed are left out. If nothing was chosen, nothing
    fills in, unless something stands in.
    """
    standing = [evidence.variants[c] for c in evidence.variants if c in evidence.standing_in]
    filling = any(k.fills_in for k in evidence.operator.kernels)
    if not standing and not (selection.kept and filling):
        return selection
    variants = [*(_filling_in(session, evidence) if filling else ()), *standing]
    evidence.try_too(map(Proposal, variants))
    working = [e.candidate.id for e in variants if not evidence.failed(e.candidate.id)]
    return dataclasses.replace(selection, kept=tuple(dict.fromkeys([*selection.kept, *working])))


def without_wrong(chosen: Mapping[str, Sequence[Chosen]], wrong: Collection[str]) -> dict[str, list[Chosen]]:
    """What was chosen, without some candidates. No decision mentions these: they are only kept to fill in."""
    by_name = {}
    for name, members in chosen.items():
        kept = [tuple(c for c in member.selection.kept if c not in wrong) for member in members]
        selections = [dataclasses.replace(member.selection, kept=k) for member, k in zip(members, kept, strict=True)]
        by_name[name] = [dataclasses.replace(o, selection=s) for o, s in zip(members, selections, strict=True)]
    return by_name


def _filling_in(session: Session, evidence: Evidence) -> list[Variant]:
    """The first config of each kernel that fills in, in all dtypes that it serves."""
    operator, target, variants = evidence.operator, evidence.target, list[Variant]()
    for kernel in kernels_for(session, operator, target):
        config = next(kernel.configs(target.facts), None) if kernel.fills_in else None
        if config is None:
            continue
        for dtypes in operator.dtype_choices(kernel):
            candidate = candidate_for(operator, kernel, config, target, dtypes=dtypes)
            variant = evidence.variants.get(candidate.id)
            variants.append(variant or session.rendered(operator, candidate, target))
    return variants
