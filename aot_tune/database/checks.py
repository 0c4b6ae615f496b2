"""Checks records against the operators of a tree: whether they fit, and what of the workload they lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Policy, is_baseline
from aot_tune.compile import families_of, target_by_name, toolchain_for
from aot_tune.database.identity import operator_digest
from aot_tune.database.match import missing_problems
from aot_tune.database.records import OperatorDatabase
from aot_tune.render import Candidate, resolved
from aot_tune.spec import Kernel, Operator, Problem, Target
from aot_tune.spec.calls import is_taken
from aot_tune.spec.survey_shapes import Kind, kind_of, survey_shapes
from aot_tune.support.errors import RenderError, SpecError, ToolchainError, did_you_mean

Render = Callable[[Operator, Candidate], str]
"""Gives the digest of a candidate's rendered source. Raises SpecError if it cannot be told."""

_SHOWN = 2
_SANITIZE = "build with AOT_TUNE_SANITIZE=winners on the device, and record"
_COMPLETE = "builds on the device measure these anew: tune there with AOT_TUNE_SURVEY, and record"


@dataclass(frozen=True)
class Finding:
    """Something about a record, in words. If it is `wrong`, a build fails over it. Otherwise it is good to know."""

    what: str
    fix: str = ""
    wrong: bool = True


def check_record(database: OperatorDatabase, operators: Mapping[str, Operator]) -> Iterator[Finding]:
    """What in a record does not fit the tree: its operator, the operator's version, kernels, configs."""
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
            f"it is of another version of operator {operator.name!r}: its digest is {database.contract[:12]}, but "
            f"{contract[:12]} now",
            "declare the operator as it was recorded, or measure and record again: no build uses this record as it is",
        )
    policy = family(database.device.family).policy(Policy()).digest
    if policy != database.policy_digest:
        yield Finding(
            f"it was measured under policy {database.policy_digest[:12]}, but builds now measure under {policy[:12]}",
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
            f"{_counted(kernels)} are of kernels that the operator no longer has", "aot-tune records prune drops them"
        )
    configs = Counter(c.candidate.kernel for c in database.candidates if lost.get(c.id) == "config")
    if configs:
        yield Finding(
            f"{_counted(configs)} are no longer configs of their kernels, so they are not linked",
            "aot-tune records prune drops them",
            wrong=False,
        )


def check_coverage(databases: Sequence[OperatorDatabase], operators: Mapping[str, Operator]) -> Iterator[Finding]:
    """Problems of the workload that no record has, by operator, for each target that any of the records is for.

    If one device's record lacks a problem and another's has it, a replay takes it from there. So this is only good to
    know. The same holds for a target if devices of a later target run it too: its records have what there was time for.
    """
    named = {t for d in databases for t in d.targets if _has_own(d, t)}
    targets = [t for name in sorted(named) if (t := _target(name)) is not None]
    for operator in operators.values():
        contract = operator_digest(operator)
        for target in targets:
            wanted = with_a_choice(operator, target)
            of_operator = [d for d in databases if d.operator == operator.name and d.contract == contract]
            of_operator = [d for d in of_operator if target.name in d.targets]
            lacks = {d.device.slug: missing_problems(d, wanted, target.name) for d in of_operator}
            least = min(lacks.values(), key=len, default=wanted)
            older = any(t.level > target.level and t.meets(target) for t in targets)
            if least and not (older and not of_operator):
                where = "the records lack" if of_operator else "no record has"
                yield Finding(
                    f"{operator.name} on {target.name}: {where} {_problems(least, wanted)}",
                    "" if older else "tune on the device and record; without them, a replay fails",
                    wrong=not older,
                )
            for slug, missing in lacks.items():
                if len(missing) > len(least):
                    yield Finding(
                        f"{operator.name} on {target.name}: the record of {slug} lacks {_problems(missing, wanted)}, "
                        "which another record has",
                        wrong=False,
                    )


def check_settled(database: OperatorDatabase, operator: Operator, shapes: int) -> Iterator[Finding]:
    """What a build on the record's own device would measure anew: problems without a race, shapes without a survey.

    Args:
        shapes: how many of each kind of calls a survey has. On a CPU it has what fits into its time, so none is due.
    """
    settled = {m.problem.key for m in database.measurements if m.final and not is_baseline(m.candidate)}
    beside = {m.problem.key for m in database.measurements if m.final and is_baseline(m.candidate)}
    named = (t for name in database.targets if _has_own(database, name) and (t := _target(name)) is not None)
    best = max(named, key=lambda t: (t.level, t.name), default=None)
    wanted = [] if best is None else with_a_choice(operator, best)
    raced = settled & beside if database.baselines else settled
    if unraced := [p for p in wanted if p.key not in raced]:
        yield Finding(f"it has no race on {_problems(unraced, wanted)}", _COMPLETE, wrong=False)
    if not family(database.device.family).on_host and best is not None:
        drawn = survey_shapes(operator, best.family, shapes, tuned_kernels(operator, best))
        open_kinds, in_survey = _with_rivals(database, operator, best), {s.problem.key for s in database.survey}
        every = [*wanted, *(p for group in drawn.values() for p in group)]
        surveyed = [p for p in every if kind_of(operator, operator.facts(p)) in open_kinds]
        if unknown := [p for p in surveyed if p.key not in in_survey]:
            yield Finding(f"its survey lacks {_problems(unknown, surveyed, 'shapes')}", _COMPLETE, wrong=False)


def _with_rivals(database: OperatorDatabase, operator: Operator, target: Target) -> set[Kind]:
    """The kinds of calls with times of several configs that any call may use: others need no survey."""
    free: dict[str, tuple[object, ...]] = {}
    for one in database.candidates:
        candidate, kernel = one.candidate, operator.kernel(one.candidate.kernel)
        bound = kernel.algorithms is not None and not kernel.has(candidate.config, target.facts)
        if not (candidate.generic or bound):
            free[candidate.id] = candidate.kernel, *sorted(candidate.config.items())
    timed: dict[Kind, set[tuple[object, ...]]] = {}
    for m in database.measurements:
        if m.candidate in free:
            timed.setdefault(kind_of(operator, operator.facts(m.problem)), set()).add(free[m.candidate])
    return {kind for kind, configs in timed.items() if len(configs) > 1}


def check_sanitized(database: OperatorDatabase) -> Iterator[Finding]:
    """Whether no candidate ran under sanitizers. A build asks only those that it keeps."""
    if not any(c.sanitized for c in database.candidates):
        yield Finding("no candidate has a verdict of sanitizers", _SANITIZE, wrong=False)


def with_a_choice(operator: Operator, target: Target) -> list[Problem]:
    """Problems of the workload for which a record must exist: only times can tell whether a kernel is kept for them."""
    kernels = tuned_kernels(operator, target)
    return [p for p in operator.workload_for(target.family) if is_taken(operator, p, kernels, worthwhile=True)]


def tuned_kernels(operator: Operator, target: Target) -> list[Kernel]:
    """Kernels with configs for a target whose times decide; a Triton function counts without being read."""
    return [k for k in operator.kernels if not (k.generic or k.fills_in) and _is_for(k, target)]


def in_space(operator: Operator, candidate: Candidate) -> bool:
    """Whether a candidate's config is one of its kernel's. Only a vendor's library knows the configs that it lists."""
    return _has(operator, candidate, target_by_name(candidate.target))


def _has(operator: Operator, candidate: Candidate, target: Target) -> bool:
    kernel = resolved(operator.kernel(candidate.kernel), target.name)
    if not kernel.parameters or kernel.algorithms is not None:
        return True
    return kernel.has(candidate.config, target.facts)


def gone(database: OperatorDatabase, operator: Operator) -> dict[str, str]:
    """Candidates that the operator no longer gives, by id: `kernel` if the kernel is gone, or else `config`.

    Configs that a vendor's library or a function's autotuner lists are not known here. They count as present.
    """
    kernels = {k.name for k in operator.kernels}
    targets = {name: _target(name) for name in {c.candidate.target for c in database.candidates}}
    reasons = {}
    for record in database.candidates:
        if record.candidate.kernel not in kernels:
            reasons[record.id] = "kernel"
            continue
        target = targets[record.candidate.target]
        try:
            if target is None or not _has(operator, record.candidate, target):
                reasons[record.id] = "config"
        except SpecError:  # a function was not read for the target, so this is unknown
            continue
    return reasons


def other_sources(database: OperatorDatabase, operator: Operator, render: Render) -> tuple[dict[str, str], list[str]]:
    """Two things: candidates whose rendered source now differs from the recorded one, and candidates that are unknown.

    The first are ids with the new digest, which is empty if the candidate can no longer be rendered. Candidates that
    the operator no longer gives are left out.
    """
    lost, sources, unknown = gone(database, operator), {}, []
    for record in database.candidates:
        if record.id in lost:
            continue
        try:
            source = render(operator, record.candidate)
        except RenderError:  # the template now has other configs
            source = ""
        except SpecError:
            unknown.append(record.id)
            continue
        if source != record.source:
            sources[record.id] = source
    return sources, unknown


def without_problems(database: OperatorDatabase) -> OperatorDatabase:
    """The record without problems on which only baselines were measured."""
    candidates = {c.id for c in database.candidates}
    kept = {m.problem.id for m in database.measurements if m.candidate in candidates}
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


def _problems(missing: Sequence[Problem], wanted: Iterable[Problem], what: str = "problems of the workload") -> str:
    shown = ", ".join(f"'{p.id}'" for p in missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
    return f"{len(missing)} of {len(list(wanted))} {what}: {shown}"
