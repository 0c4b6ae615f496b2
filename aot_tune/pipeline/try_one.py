"""Runs one candidate again by itself: what `aot-tune try` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol.measurement_records import Check, Device
from aot_tune.compile import Variant
from aot_tune.pipeline.evidence import Evidence
from aot_tune.pipeline.measuring.lazy_bench import LazyBench
from aot_tune.pipeline.scheduling.vendor_candidates import vendor_variants
from aot_tune.pipeline.session import Session, session_of
from aot_tune.pipeline.shipping.finish import keep_texts
from aot_tune.pipeline.wanted_kernels import kernels_for
from aot_tune.plan.compile_settings import PLAIN, CompileSettings
from aot_tune.plan.library_plan import Request
from aot_tune.render import candidates_for
from aot_tune.report.report_text import format_resources, format_time
from aot_tune.spec import Operator, Target, all_of
from aot_tune.spec.load_operators import bundled_templates, operator_folders, roots_with_bundled
from aot_tune.spec.workload import problem_named
from aot_tune.support.errors import BuildError, OptionError, ToolchainError, did_you_mean
from aot_tune.support.progress import Progress


class TriedProblem(msgspec.Struct, frozen=True, kw_only=True):
    """How a candidate did on a problem or check. `error` is in shares of the tolerance, `ns` has baselines too."""

    problem: str
    status: str
    reason: str = ""
    error: float | None = None
    bitwise: bool | None = None
    ns: dict[str, float] = {}


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that was tried by itself. `status` and `reason` are of its compilation."""

    operator: str
    candidate: str
    label: str
    target: str
    object: str
    resources: dict[str, int]
    status: str
    reason: str
    problems: tuple[TriedProblem, ...]
    schema: int = 1

    @property
    def well(self) -> bool:
        """Whether it was compiled, and right wherever it ran."""
        return self.object != "" and all(problem.status == "ok" for problem in self.problems)


def try_candidate(
    operator: str,
    name: str,
    *,
    templates: Sequence[str] = (),
    target: str = "",
    problem: str = "",
    source: Path | None = None,
    compiled_with: CompileSettings = PLAIN,
    tell: Callable[[str], None] = print,
    progress: Progress | None = None,
) -> Tried:
    """Compile, verify and time one candidate, and tell the results as they come.

    Args:
        operator: its operator.
        name: the kernel and the first digits of the id, as in reports: `packed_3fa2b1c9`.
        templates: template roots; the bundled ones if empty.
        target: what it is compiled for; by default the best target of this machine.
        problem: a problem's id, or a check as a message names it; by default all of the workload that it serves.
        source: a file to which the rendered source is written.
        compiled_with: how sources are compiled, as CMake would say it.
        tell: takes lines on the results.
        progress: prints all other lines.

    Raises:
        AotTuneError: when there is no such candidate or problem, or no device for it.
    """
    bundled = [folder.name for folder in operator_folders([bundled_templates()])]
    if not templates and operator not in bundled:
        raise OptionError(
            f"there is no bundled operator {operator!r}",
            fix=f"name the template root of its project with --templates, or {did_you_mean(operator, bundled)}",
        )
    request = Request(
        name="once",
        prefix="once",
        header="once.h",
        templates=roots_with_bundled(templates),
        options={
            "AOT_TUNE_OPERATORS": operator,
            "AOT_TUNE_MODE": "auto",
            "AOT_TUNE_FILTER": "*",
            "AOT_TUNE_TARGETS": target or "native",
        },
        compile=compiled_with,
    )
    with session_of(request, progress or Progress()) as session:
        loaded = session.operators[operator]
        wanted, device, variant = _find(session, loaded, name)
        if source is not None:
            source = source.expanduser()
            _write(source, variant.rendered.source)
            tell(f"source    {source}")
        variant = _compiled(session, loaded, variant, tell)
        keep_texts(session, [variant])
        if device is None:
            raise BuildError(
                f"there is no device for {wanted.name} here",
                why="a candidate runs only on a device that it is compiled for",
                fix="try it on such a machine; `aot-tune doctor` shows what is here",
            )
        outcomes = _run(session, loaded, wanted, device, variant, problem, tell) if variant.compiled else []
        return Tried(
            operator=operator,
            candidate=name,
            label=variant.candidate.label,
            target=wanted.name,
            object=variant.made.digest if variant.compiled else "",
            resources=dict(variant.made.resources) if variant.compiled else {},
            status=variant.made.status,
            reason="" if variant.compiled else variant.made.error,
            problems=tuple(outcomes),
        )


def _write(path: Path, source: str) -> None:
    """Write a rendered source. Its folder is made if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")


def _find(session: Session, operator: Operator, name: str) -> tuple[Target, Device | None, Variant]:
    for target in session.targets:
        device = session.device_for(target)
        for variant in _variants(session, operator, target, device, name):
            if variant.name == name:
                return target, device, variant
    raise BuildError(
        f"operator {operator.name!r} has no candidate {name!r} for {' or '.join(session.plan.targets)}",
        why="a name stands for a kernel's config, target, dtypes and the dims that are constants in it",
        fix="take the name from the report of a build of this source, and its --target",
    )


def _variants(
    session: Session, operator: Operator, target: Target, device: Device | None, name: str
) -> Iterator[Variant]:
    """The candidates of a target that may have the name."""
    kernel_name = name.rpartition("_")[0]
    yield from session.generic_variants(operator, target)
    for kernel in kernels_for(session, operator, target):
        if kernel.name != kernel_name:
            continue
        if kernel.algorithms is not None and not kernel.listed:  # only the device's library tells these
            if device is not None:
                yield from vendor_variants(session, operator, target, device)
            continue
        for config in kernel.configs(target.facts):
            for candidate in candidates_for(operator, kernel, config, target):
                if candidate.name == name:
                    yield session.rendered(operator, candidate, target)


def _compiled(session: Session, operator: Operator, variant: Variant, tell: Callable[[str], None]) -> Variant:
    """Compile a candidate and tell the outcome."""
    name = variant.name
    tell(f"candidate {operator.name}: {name} ({variant.candidate.label}) for {variant.candidate.target}")
    (variant,) = session.compile([variant], name)
    if variant.compiled:
        tell(f"object    {variant.made.digest}")
        tell(f"resources {format_resources(variant.made.resources)}")
    else:
        tell(f"status    {variant.made.status}: {variant.made.error}")
    return variant


def _run(
    session: Session,
    operator: Operator,
    target: Target,
    device: Device,
    variant: Variant,
    problem: str,
    tell: Callable[[str], None],
) -> list[TriedProblem]:
    name = variant.name
    evidence = Evidence(operator, target, {variant.candidate.id: variant})
    if ", " in problem:
        checks = [_check_named(session, operator, device, variant, problem.replace("'", ""))]
    elif problem:
        checks = [Check(problem=problem_named(operator, problem))]
    else:
        checks = [Check(problem=p) for p in evidence.workload if evidence.meant_for(variant, p)]
    served = [c for c in checks if all_of(variant.requires, operator.facts(c.problem))]
    if not served:
        raise BuildError(
            f"{name} does not serve {problem!r}" if problem else f"{name} serves no problem of the workload",
            why="its code assumes something that does not hold there",
            fix="name a problem that it serves with --problem, such as one of the report's",
        )
    with LazyBench(session, device) as lazy:
        return [_one(lazy, operator, variant, c, tell, odd=c.problem in evidence.workload) for c in served]


def _check_named(session: Session, operator: Operator, device: Device, variant: Variant, name: str) -> Check:
    """The check of a candidate that a message names."""
    policy, on_host = session.policy(device.family), family(device.family).on_host
    checks = session.checks.of(operator, variant.requires, policy, on_host)
    by_name = {check.name: check for check in checks}
    if name not in by_name:
        raise OptionError(f"{name!r} is no check of {variant.name}", fix=did_you_mean(name, list(by_name)))
    return by_name[name]


def _one(
    lazy: LazyBench, operator: Operator, variant: Variant, check: Check, tell: Callable[[str], None], *, odd: bool
) -> TriedProblem:
    """Screen a candidate on a problem, odd ones too, and race baselines; a check of other values is only verified."""
    bench = lazy.get()
    tell(f"problem   {check.name}")
    try:
        linked = lazy.linked(variant)
    except ToolchainError as error:
        tell(f"status    failed: {error}")
        return TriedProblem(problem=check.name, status="failed", reason=str(error))
    prepared = bench.prepare(operator, check)
    timed = check == Check(problem=check.problem)
    times = dict[str, float]()
    measurement = (bench.screen if timed else bench.verify)(prepared, linked, tune_checks=odd and timed)
    if timed and measurement.status == "ok":
        for raced in bench.race(prepared, [linked]):
            if raced.candidate == variant.candidate.id and raced.status != "ok":
                measurement = raced
            elif raced.ns is not None:
                who = variant.name if raced.candidate == variant.candidate.id else raced.candidate
                times[who] = raced.ns
                tell(f"time      {format_time(raced.ns)} {who}")
    tell(f"status    {measurement.status}{f': {measurement.reason}' if measurement.reason else ''}")
    if measurement.error is not None:
        tell(f"error     {measurement.error:.3g} of the tolerance")
    if measurement.bitwise is not None:
        tell(f"bits      {'the same' if measurement.bitwise else 'different'} in a second run")
    return TriedProblem(
        problem=check.name,
        status=measurement.status,
        reason=measurement.reason,
        error=measurement.error,
        bitwise=measurement.bitwise,
        ns=times,
    )
