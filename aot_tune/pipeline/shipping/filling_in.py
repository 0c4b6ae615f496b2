"""Variants that fill in: they are kept for calls that no measured variant takes, and may be unmeasured themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Chosen, Evidence, Proposal
from aot_tune.pipeline.session import Session
from aot_tune.render import candidate_for
from aot_tune.select import Selection
from aot_tune.select.tree import Node

__all__ = ["with_filling_in", "without_wrong"]


def with_filling_in(session: Session, evidence: Evidence, selection: Selection) -> Selection:
    """A selection that also keeps the variants that fill in or stand in.

    Those that are not candidates yet become candidates. Those that failed are left out. If nothing was chosen, there is
    no decision to add them to, unless something stands in: then the decision has no choice.
    """
    standing = [evidence.entries[c] for c in evidence.entries if c in evidence.standing_in]
    filling = any(k.fills_in for k in evidence.operator.kernels)
    if not standing and not (selection.kept and filling):
        return selection
    if not selection.kept:
        selection = dataclasses.replace(selection, nodes=(Node(),))
    entries = [*(_filling_in(session, evidence) if filling else ()), *standing]
    evidence.try_too(map(Proposal, entries))
    found = [e.candidate.id for e in entries if not evidence.failed(e.candidate.id)]
    return dataclasses.replace(selection, kept=tuple(dict.fromkeys([*selection.kept, *found])))


def without_wrong(chosen: Mapping[str, Sequence[Chosen]], wrong: Collection[str]) -> dict[str, list[Chosen]]:
    """What was chosen, without some candidates. No decision mentions these: they are only kept to fill in."""
    found = {}
    for name, members in chosen.items():
        kept = [tuple(c for c in one.selection.kept if c not in wrong) for one in members]
        selections = [dataclasses.replace(one.selection, kept=k) for one, k in zip(members, kept, strict=True)]
        found[name] = [dataclasses.replace(o, selection=s) for o, s in zip(members, selections, strict=True)]
    return found


def _filling_in(session: Session, evidence: Evidence) -> list[Variant]:
    """The first config of each kernel that fills in, in all dtypes that it serves."""
    operator, target, found = evidence.operator, evidence.target, list[Variant]()
    for kernel in session.kernels_for(operator, target):
        config = next(kernel.configs(target.facts), None) if kernel.fills_in else None
        if config is None:
            continue
        for dtypes in operator.dtype_choices(kernel):
            candidate = candidate_for(operator, kernel, config, target, dtypes=dtypes)
            known = evidence.entries.get(candidate.id)
            found.append(known or session.rendered(operator, candidate, target))
    return found
