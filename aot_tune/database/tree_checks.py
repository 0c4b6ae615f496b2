"""Records against the operators of a tree: whether they are of it, and what of its workload they lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.compile import families_of, target_by_name, toolchain_for
from aot_tune.database.database_records import OperatorDatabase
from aot_tune.database.identity import operator_digest
from aot_tune.database.match_records import missing_problems
from aot_tune.render import Candidate, resolved
from aot_tune.spec import Kernel, Operator, Problem, Target
from aot_tune.spec.config_guards import may_serve
from aot_tune.support.errors import RenderError, SpecError, ToolchainError, did_you_mean

__all__ = [
    "Finding",
    "Render",
    "check_coverage",
    "check_record",
    "gone",
    "in_space",
    "other_sources",
    "without_problems",
]

Render = Callable[[Operator, Candidate], str]
"""The digest of what a candidate is rendered to; a SpecError where that cannot be told."""

_SHOWN = 2


@dataclass(frozen=True)
class Finding:
    """Something about a record, in words. A build stumbles over it where it is `wrong`; else it is good to know."""

    what: str
    fix: str = ""
    wrong: bool = True


def check_record(database: OperatorDatabase, operators: Mapping[str, Operator]) -> Iterator[Finding]:
    """What of a record is not of the tree: its operator, the operator's version, kernels, configs."""
    name = database.operator
    operator = operators.get(name)
    if operator is None:
        yield Finding(
            f"the tree has no operator {name!r}",
            f"name its template root with --templates, or remove the record; {did_you_mean(name, operators)}",
        )
        return
    contract = operator_digest(operator)
    if contract != database.contract:
        yield Finding(
            f"it is of another version of operator {operator.name!r}: of digest {database.contract[:12]}, which is "
            f"{contract[:12]} now",
            "declare the operator as it was recorded, or measure again and record: no build takes it as it is",
        )
    policy = policy_for(database.device.family, Policy()).digest
    if policy != database.policy_digest:
        yield Finding(
            f"it was measured under policy {database.policy_digest[:12]}, and builds measure under {policy[:12]} now",
            "on the device a build measures again; elsewhere the record decides as before",
            wrong=False,
        )
    lost = gone(database, operator)
    measured = {m.candidate for m in database.measurements if m.status == "ok"}
    kernels = Counter(
        c.candidate.kernel for c in database.candidates if lost.get(c.id) == "kernel" and c.id in measured
    )
    if kernels:
        yield Finding(
            f"{_counted(kernels)} are of kernels that the operator has no more", "aot-tune records prune drops them"
        )
    configs = Counter(c.candidate.kernel for c in database.candidates if lost.get(c.id) == "config")
    if configs:
        yield Finding(
            f"{_counted(configs)} are no configs of their kernels any more: they are not linked",
            "aot-tune records prune drops them",
            wrong=False,
        )


def check_coverage(databases: Sequence[OperatorDatabase], operators: Mapping[str, Operator]) -> Iterator[Finding]:
    """What of the workload no record has, for each operator and each target that any of the records is for.

    What one device's record lacks and another's has, a replay takes from that; it is no more than good to know. So is
    what is lacking for a target whose devices run a later one: records have of it what there was time for.
    """
    named = {t for d in databases for t in d.targets if _has_own(d, t)}
    targets = [t for name in sorted(named) if (t := _target(name)) is not None]
    for operator in operators.values():
        contract = operator_digest(operator)
        for target in targets:
            wanted = with_a_choice(operator, target)
            own = [d for d in databases if d.operator == operator.name and d.contract == contract]
            own = [d for d in own if target.name in d.targets]
            lacks = {d.device.slug: missing_problems(d, wanted, target.name) for d in own}
            least = min(lacks.values(), key=len, default=wanted)
            older = any(
                t.family == target.family and t.level > target.level and target.runs_on(t.level) for t in targets
            )
            if least and not (older and not own):
                where = "the records lack" if own else "no record has"
                yield Finding(
                    f"{operator.name} on {target.name}: {where} {_problems(least, wanted)}",
                    "" if older else "tune on the device and record; a replay fails for want of them",
                    wrong=not older,
                )
            for slug, missing in lacks.items():
                if len(missing) > len(least):
                    yield Finding(
                        f"{operator.name} on {target.name}: the record of {slug} lacks {_problems(missing, wanted)}, "
                        "which another's has",
                        wrong=False,
                    )


def with_a_choice(operator: Operator, target: Target) -> list[Problem]:
    """Problems of the workload on which a kernel may be tried that is kept by its times: those a record must have.

    A Triton function counts without being read, as it may be for the target.
    """
    kernels = [k for k in operator.kernels if not (k.generic or k.fills_in) and _is_for(k, target)]
    found = []
    for problem in operator.workload_for(target.family):
        facts = operator.facts(problem)
        given = {v: problem.dtypes.get(v, choices[0]) for v, choices in operator.dtypes.items()}
        if any(given in operator.dtype_choices(k) and may_serve(k, facts, worthwhile=True) for k in kernels):
            found.append(problem)
    return found


def in_space(operator: Operator, candidate: Candidate) -> bool:
    """Whether a candidate's config is one of its kernel's; what a vendor's library lists is known to that alone."""
    return _has(operator, candidate, target_by_name(candidate.target))


def _has(operator: Operator, candidate: Candidate, target: Target) -> bool:
    kernel = resolved(operator.kernel(candidate.kernel), target.name)
    if not kernel.parameters or kernel.algorithms is not None:
        return True
    return kernel.has(candidate.config, target.facts)


def gone(database: OperatorDatabase, operator: Operator) -> dict[str, str]:
    """Candidates that the operator gives no more, by id: `kernel` where that is gone, else `config`.

    Configs that a vendor's library or a function's autotuner lists are not known here, and count as there.
    """
    kernels = {k.name for k in operator.kernels}
    targets = {name: _target(name) for name in {c.candidate.target for c in database.candidates}}
    found = {}
    for record in database.candidates:
        if record.candidate.kernel not in kernels:
            found[record.id] = "kernel"
            continue
        target = targets[record.candidate.target]
        try:
            if target is None or not _has(operator, record.candidate, target):
                found[record.id] = "config"
        except SpecError:  # a function that was not read for the target: it cannot be told
            continue
    return found


def other_sources(database: OperatorDatabase, operator: Operator, render: Render) -> tuple[dict[str, str], list[str]]:
    """Candidates by id that are rendered to another source than the recorded one, with its digest, and unknown ones.

    The digest is empty for what cannot be rendered any more. Those that the operator gives no more are left out.
    """
    lost, found, unknown = gone(database, operator), {}, []
    for record in database.candidates:
        if record.id in lost:
            continue
        try:
            source = render(operator, record.candidate)
        except RenderError:  # a template that has other configs than it had
            source = ""
        except SpecError:
            unknown.append(record.id)
            continue
        if source != record.source:
            found[record.id] = source
    return found, unknown


def without_problems(database: OperatorDatabase) -> OperatorDatabase:
    """The record less the problems on which nothing is measured but baselines."""
    known = {c.id for c in database.candidates}
    kept = {m.problem.id for m in database.measurements if m.candidate in known}
    return msgspec.structs.replace(
        database,
        problems=tuple(p for p in database.problems if p.id in kept),
        measurements=tuple(m for m in database.measurements if m.problem.id in kept),
    )


def _is_for(kernel: Kernel, target: Target) -> bool:
    if target.family not in families_of(toolchain_for(kernel.backend)):
        return False
    try:
        return next(resolved(kernel, target.name).configs(target.facts), None) is not None
    except SpecError:
        return True


def _has_own(database: OperatorDatabase, target: str) -> bool:
    return any(c.candidate.target == target and not c.candidate.generic for c in database.candidates)


def _target(name: str) -> Target | None:
    try:
        return target_by_name(name)
    except ToolchainError:
        return None


def _counted(kernels: Mapping[str, int]) -> str:
    listed = ", ".join(f"{count} of {name}" for name, count in sorted(kernels.items()))
    return f"{sum(kernels.values())} candidates ({listed})"


def _problems(missing: Sequence[Problem], wanted: Iterable[Problem]) -> str:
    shown = ", ".join(f"'{p.id}'" for p in missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
    return f"{len(missing)} of {len(list(wanted))} problems of the workload: {shown}"
