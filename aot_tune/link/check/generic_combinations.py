"""Whether generic variants of some dtypes answer each combination of optional tensors and attributes exactly once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aot_tune.link.library_records import LinkedVariant
from aot_tune.spec import Operator, all_of
from aot_tune.spec.call_combinations import legal_combinations, values_of_fact

__all__ = ["not_answered_once"]

_MOST = 1 << 14


def not_answered_once(operator: Operator, generics: Sequence[LinkedVariant]) -> str:
    """What is wrong with generic variants of the same devices and dtypes: a combination that several answer, or none.

    Empty if nothing is wrong. What `legal` excludes needs no answer.
    """
    guards = {v.name: tuple(g for g in v.requires if not _of_dtypes(g.facts())) for v in generics}
    facts = sorted({fact for several in guards.values() for g in several for fact in g.facts()})
    values = [values_of_fact(operator, fact) for fact in facts]
    if math.prod(map(len, values)) > _MOST:
        return f"their guards have too many combinations of {', '.join(facts)}"
    for call in legal_combinations(operator, facts, values):
        answering = [name for name, several in guards.items() if all_of(several, call)]
        if len(answering) != 1:
            shown = f" with {', '.join(f'{fact}={value}' for fact, value in call.items())}" if call else ""
            return f"of calls{shown}, {len(answering)} of them answer: {answering}"
    return ""


def _of_dtypes(facts: frozenset[str]) -> bool:
    return all(fact.startswith("dtype.") for fact in facts)
