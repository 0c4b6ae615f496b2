"""From evidence to files: select for each operator and target, then give variants to link and the story to report."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import msgspec

from aot_tune import __version__
from aot_tune.bench.devices.family import family
from aot_tune.bench.devices.roofline import Peaks
from aot_tune.bench.protocol.measurement_records import UNCAPTURED, Device
from aot_tune.compile import Toolchain, Variant, target_by_name, toolchain_for
from aot_tune.link import ExpectedTime, LibrarySpec, OperatorTable, RegimeCalls, TargetTable, generate
from aot_tune.pipeline.evidence import Chosen, Evidence, guards_of, worth_of
from aot_tune.pipeline.failures import crash_hint
from aot_tune.pipeline.known_times import processors_of
from aot_tune.pipeline.session import Session
from aot_tune.pipeline.shipping.filling_in import with_filling_in
from aot_tune.pipeline.shipping.story import Rooflines, failures_of, generic_only, kind_text, tell, timed_calls
from aot_tune.plan.options import Options
from aot_tune.render import assumes_less
from aot_tune.report.report_records import DeviceRow, DroppedCandidate, MemoryPeak, OperatorReport, Report
from aot_tune.report.report_text import DECIDES, counted, policy_lines
from aot_tune.report.verdict import MACHINE_BUSY
from aot_tune.select import NEAREST, SURVEYED, Cell, ChoiceLimits, Costs, Rule, Selection, Survey, select, terms_of
from aot_tune.select.decide import MEAN_LIMIT, P95_LIMIT
from aot_tune.spec import Expr, Operator, Problem
from aot_tune.spec.regimes import OTHER, regime_of, regimes_of
from aot_tune.spec.survey_shapes import kind_of
from aot_tune.support.errors import BuildError, NoSurvivorError
from aot_tune.support.limits import group_peak, peaks
from aot_tune.support.storage import scratch_folder, write_changed

_MOST_BUSY = 0.25
"""A remark tells of other programs if they used the cores in a larger share of the races."""
MORE_SHAPES = "tune on the device with more shapes (AOT_TUNE_SURVEY), or add kernels that are good there"
"""What to do where the decision loses too much."""
_SECONDS = 600.0
_FACTS = ("cores", "threads", "caches", "sm_count", "memory_gib", "driver")
"""What a report says of a device."""


def keep_texts(session: Session, variants: Iterable[Variant]) -> list[str]:
    """Write variants' texts below the folder AOT_TUNE_KEEP, if set: `<library>/<operator>/<variant>.<ending>`.

    Returns the files, below that folder.
    """
    if not session.options.keep:
        return []
    top = Path(session.options.keep) / session.plan.name
    wanted = {e.candidate.id: e for e in variants if e.compiled}
    with ThreadPoolExecutor(max(1, session.jobs_of("nvcc").count)) as threads:
        try:
            files = [f for kept in threads.map(lambda v: _keep(session, top, v), wanted.values()) for f in kept]
        except OSError as error:  # this must not end a build
            session.progress.line(f"AOT_TUNE_KEEP: NOTHING KEPT below {top}: {error.strerror}")
            return []
    session.progress.line(f"kept {len(files)} files of {len(wanted)} variants below {top} (AOT_TUNE_KEEP)")
    return sorted(files)


def _keep(session: Session, top: Path, variant: Variant) -> list[str]:
    """Write the texts of a variant. Returns the files."""
    candidate = variant.candidate
    folder, name = top / candidate.operator, variant.name
    folder.mkdir(parents=True, exist_ok=True)
    chain: Toolchain = toolchain_for(candidate.backend, session.environment)
    with scratch_folder() as scratch:
        target, rendered = target_by_name(candidate.target), variant.rendered
        texts = chain.texts(rendered.source, target, Path(scratch), _SECONDS, rendered.compile)
    texts = {"cu" if candidate.backend == "nvcc" else "cpp": variant.rendered.source.encode(), **texts}
    for ending, text in texts.items():
        temporary = folder / f".{name}.{ending}.{os.getpid()}"
        temporary.write_bytes(text)
        temporary.replace(folder / f"{name}.{ending}")
    return [str(Path(top.name, candidate.operator, f"{name}.{ending}")) for ending in texts]


def _debuggable(session: Session, variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """The variants with code for debuggers, if AOT_TUNE_DEBUG asks for it. What has no such code stays as it is."""
    if not session.options.debug:
        return tuple(variants)
    with ThreadPoolExecutor(max(1, session.jobs_of("nvcc").count)) as threads:
        return tuple(threads.map(partial(_debuggable_one, session), variants))


def _debuggable_one(session: Session, variant: Variant) -> Variant:
    rendered, own = variant.rendered, variant.rendered.compile
    flags = toolchain_for(variant.candidate.backend, session.environment).debugging
    if not flags:
        return variant
    options = replace(own, options=(*own.options, *flags))
    source = f"#undef NDEBUG\n{session.renderer.with_places(rendered)}"
    rendered = msgspec.structs.replace(rendered, source=source, compile=options)
    made = session.cache(variant.candidate.backend).get(rendered, variant.target)
    if made.status != "ok":
        session.progress.line(f"NOTE AOT_TUNE_DEBUG: {variant.candidate.label} stays optimised: {made.error}")
        return variant
    return msgspec.structs.replace(variant, rendered=rendered, object=made)


def choose(session: Session, evidence: Evidence) -> Chosen:
    """Select the variants of one operator on one target.

    Raises:
        NoSurvivorError: when only the generic candidate is left and the options do not allow to ship it alone.
        BuildError: when the decision loses more than it may, in a strict build.
    """
    operator = evidence.operator
    others = [c for c, e in evidence.variants.items() if not e.candidate.generic and not evidence.fills_in(e)]
    survived = not others or not all(evidence.failed(c) for c in others)
    if not survived and session.options.no_survivor == "fail" and not evidence.brief:
        failures = failures_of(evidence)
        alone = "ship only the generic variant with AOT_TUNE_NO_SURVIVOR=generic"
        works = [not evidence.failed(e.candidate.id) for e in evidence.variants.values() if e.candidate.generic]
        raise NoSurvivorError(
            f"operator {operator.name!r} on {evidence.target.name}: no candidate survived",
            why="\n       ".join(_told(failures[:20])),
            fix="correct the kernels"
            + crash_hint(f.status for f in failures)
            + (f", or {alone}" if all(works) else ""),
        )
    if not survived:
        evidence.nothing_survived()
        session.progress.line(f"NOTE {operator.name} on {evidence.target.name}: {evidence.note}")
    costs, selection = selected(evidence, session.options)
    if session.options.strict and (lines := told_losses(evidence, selection)):
        raise BuildError(
            f"operator {operator.name!r} on {evidence.target.name}: calls that nobody measured lose more than they "
            "may, judged by surveyed shapes that were kept aside",
            why="\n       ".join(lines),
            fix=f"{MORE_SHAPES}, or set AOT_TUNE_STRICT=0",
        )
    return Chosen(evidence, with_filling_in(session, evidence, selection), costs)


def selected(evidence: Evidence, options: Options | None = None) -> tuple[Costs, Selection]:
    """The selection of an operator's variants on one target, and the costs that it is based on."""
    operator, costs, times = evidence.operator, evidence.choice_costs(), evidence.times()
    if evidence.brief or evidence.standing_in:
        reached = {p: row for p, row in times.items() if any(not evidence.variants[c].candidate.generic for c in row)}
        costs, times = {p: row for p, row in costs.items() if p in reached}, reached
    facts = {p.id: operator.facts(p) for p in evidence.workload}
    sizes = {i: e.text_bytes for i, e in evidence.variants.items() if e.object}
    survey = _survey_of(evidence)
    drawn = not survey.costs.keys() <= costs.keys()
    selection = select(
        costs,
        facts,
        guards_of(evidence),
        times=times,
        sizes=sizes,
        plainer=_least_assuming(evidence),
        survey=survey,
        limits=None if options is None else _limits(options, surveyed=drawn),
        kind_of=partial(kind_of, operator),
        regimes=regimes_of(operator),
        bound=frozenset(c for c, e in evidence.variants.items() if evidence.is_bound(e)),
        generic=frozenset(c for c, e in evidence.variants.items() if e.candidate.generic),
        weights=evidence.weights,
    )
    return costs, selection


def told_losses(evidence: Evidence, selection: Selection) -> list[str]:
    """In words, the regimes of calls in which the decision loses more than it may."""
    lines = []
    for kind, regime in selection.losing:
        rule = selection.rules[kind, regime]
        where = ", ".join(filter(None, (kind_text(evidence.operator, kind), f"regime {regime!r}")))
        judged, (worst, problem) = rule.judged, rule.judged.worst
        lines.append(
            f"{where}: {DECIDES[rule.by]} loses {judged.mean:.1%} in the mean of {len(judged.regret)} held-out shapes "
            f"and {judged.percentile(0.95):.1%} at p95, the most {worst:.1%} on '{problem}'; {MEAN_LIMIT:.0%} and "
            f"{P95_LIMIT:.0%} are the limits"
        )
    return lines


def _limits(options: Options, *, surveyed: bool) -> ChoiceLimits:
    """The limits of a choice: from the options, or else the defaults."""
    limits = SURVEYED if surveyed else ChoiceLimits()
    return ChoiceLimits(
        regret=limits.regret if options.max_regret is None else options.max_regret,
        worst=limits.worst,
        variants=options.max_variants or limits.variants,
        together=None if options.max_variants else limits.together,
        bytes=options.max_bytes,
    )


def _survey_of(evidence: Evidence) -> Survey:
    """What was surveyed, and the terms for expected times."""
    costs, operator = evidence.surveyed.costs(evidence.failed), evidence.operator
    candidates = {c for row in costs.values() for c in row}
    variants = [evidence.variants[c] for c in candidates]
    tilings = {e.candidate.id: operator.kernel(e.candidate.kernel).tiling(e.candidate.config) for e in variants}
    return Survey(
        costs=costs,
        facts={name: operator.facts(evidence.surveyed.problems[name]) for name in costs},
        terms=terms_of(operator, tilings, evidence.surveyed.processors) if tilings else {},
        worth=worth_of(evidence),
        vendor=frozenset(e.candidate.id for e in variants if evidence.leaves_choice(e)),
    )


def _least_assuming(evidence: Evidence) -> dict[str, str]:
    """For each candidate with assumptions, the candidate that assumes least and is the same otherwise."""
    plainer = {}
    assuming = [e.candidate for e in evidence.variants.values() if evidence.operator.kernel(e.candidate.kernel).triton]
    for candidate in assuming:
        others = (other for other in assuming if assumes_less(other, candidate))
        least = min(others, key=lambda c: (sum(not n.endswith(".bits") for n in c.pins), c.id), default=None)
        if least is not None:
            plainer[candidate.id] = least.id
    return plainer


def _told(failures: Sequence[DroppedCandidate]) -> list[str]:
    """Each failure with the command that tries it again. A reason is told only once."""
    lines, seen = [], set[tuple[str, str]]()
    for failure in failures:
        reason = failure.status, failure.reason
        if reason in seen:
            lines.append(f"{failure.candidate}: the same; again: {failure.again}")
        else:
            seen.add(reason)
            lines.append(f"{failure.candidate}: {failure.status}: {failure.reason}\n         again: {failure.again}")
    return lines


def finish(
    session: Session,
    directory: Path,
    chosen: Mapping[str, Sequence[Chosen]],
    generics: Mapping[str, Sequence[Variant]],
    kept: Sequence[str] = (),
) -> Report:
    """Write the library's sources, objects and manifest, and the report, into `directory`. `kept`: see `keep_texts`."""
    tables = []
    reports: list[OperatorReport] = []
    devices = {d.digest: d for d in (*session.devices, *(r.device for r in session.databases))}
    members = [member for several in chosen.values() for member in several]
    peaks = Peaks(devices, (call for m in members for call in timed_calls(m.evidence)))
    for name, operator in session.operators.items():
        table, reported = _operator(operator, list(chosen.get(name, ())), generics[name], devices, peaks)
        tables.append(replace(table, variants=_debuggable(session, table.variants)))
        codes = {v.name: v.code for m in chosen.get(name, ()) for v in m.evidence.variants.values()}
        codes |= {g.name: g.code for g in generics[name]}
        reports += [_with_verdicts(session, r, codes) for r in reported]
    used = _measured_on(devices, chosen)
    measuring = tuple(policy_lines(f, session.policy(f)) for f in session.plan.families)
    spec = LibrarySpec(
        operators=tuple(tables),
        name=session.plan.name,
        prefix=session.plan.prefix,
        header=session.plan.header,
        output=session.plan.output,
        module=session.plan.module,
        mode=session.options.mode,
        devices=tuple({"name": d.name, **d.identity} for d in used),
        policy={f: msgspec.to_builtins(session.policy(f)) for f in session.plan.families},
        tools={f"{b}.{k}": v for b, identity in session.plan.toolchains.items() for k, v in identity.items()},
        xla_ffi=session.options.xla_ffi != "",
    )
    generate(spec, directory, lambda variant: session.read_object(variant.rendered, variant.made))
    report = Report(
        library=session.plan.name,
        mode=session.options.mode,
        targets=session.plan.targets,
        devices=tuple(d.name for d in used),
        toolchains={b: i.get("version", "") for b, i in session.plan.toolchains.items()},
        policy="; ".join(lines[0] for lines in measuring),
        measuring=measuring,
        workload=tuple(session.plan.workload.told()),
        operators=tuple(reports),
        spent=session.time.rows(),
        memory=_peaks() if session.time.rows() else (),
        units=_units(chosen),
        machine=tuple(_device_row(d, members) for d in used),
        made=datetime.now(timezone.utc).isoformat(" ", "minutes") if session.time.rows() else "",
        version=__version__,
        kept=tuple(kept),
        notes=(
            *_remarks(session),
            *sorted({f"{r.operator}: {r.note}" for r in reports if r.note}),
            *_losses(chosen),
            *_busy(chosen),
        ),
    )
    write_changed(directory / "report.json", msgspec.json.format(msgspec.json.encode(report), indent=1))
    return report


def _with_verdicts(session: Session, part: OperatorReport, codes: Mapping[str, str]) -> OperatorReport:
    """A report whose variants have the verdicts of sanitizers. `codes` are of variants by name."""
    if not session.verdicts:
        return part
    verdicts = [session.verdicts.get(codes[row.name], {}) for row in part.variants]
    rows = (msgspec.structs.replace(row, sanitized=v) for row, v in zip(part.variants, verdicts, strict=True))
    return msgspec.structs.replace(part, variants=tuple(rows))


def _peaks() -> tuple[MemoryPeak, ...]:
    """The most memory of all together, where a control group tells, and of one process of each kind."""
    whole = {"the control group as a whole": peak} if (peak := group_peak()) else {}
    return tuple(MemoryPeak(what=what, bytes=size) for what, size in (whole | peaks()).items())


def _remarks(session: Session) -> list[str]:
    """Remarks on the whole library."""
    backends = session.options.exclude_backends
    left_out = [f"without kernels of {', '.join(backends)} (AOT_TUNE_EXCLUDE_BACKENDS)"] if backends else []
    left_out += session.too_large
    left_out += ["its kernels are not optimised (AOT_TUNE_DEBUG)"] if session.options.debug else []
    return left_out + [text for f in session.plan.families if (text := family(f).caution)]


def tell_losses(session: Session, chosen: Mapping[str, Sequence[Chosen]]) -> None:
    """Say in one line in how many regimes the decision loses more than it may. The report has them one by one."""
    losing = {name: sum(len(m.selection.losing) for m in members) for name, members in chosen.items()}
    if count := sum(losing.values()):
        names = ", ".join(f"{name} ({number})" for name, number in losing.items() if number)
        session.progress.line(
            f"NOTE calls that nobody measured may be slow in {counted(count, 'regime')}: {names}; `aot-tune report` "
            f"says where, {MORE_SHAPES}"
        )


def _losses(chosen: Mapping[str, Sequence[Chosen]]) -> list[str]:
    """Remarks on regimes in which the decision loses more than it may."""
    every = [(m.evidence, told_losses(m.evidence, m.selection)) for members in chosen.values() for m in members]
    return [f"{e.operator.name} on {e.target.name}: {line}; {MORE_SHAPES}" for e, lines in every for line in lines]


def _busy(chosen: Mapping[str, Sequence[Chosen]]) -> list[str]:
    """A remark on other programs that used the device while candidates raced, and on times that they have spoiled."""
    every = [m for members in chosen.values() for member in members for m in member.evidence.made()]
    races = {(m.race, m.problem.id): m.seen for m in every if m.final and m.seen is not None}
    busy = [seen for seen in races.values() if seen.disturbed]
    spoiled = len({(m.device, m.problem.key) for m in every if m.spoiled})
    cores = max((seen.load for seen in busy), default=0.0)
    remarks = (
        [f"times on {counted(spoiled, 'problem')} are spoiled and not recorded: measure them again"] if spoiled else []
    )
    if len(busy) > _MOST_BUSY * len(races):
        up_to = f"up to {cores:.1f} cores" if cores else "the device"
        remarks.insert(0, f"other programs used {up_to} in {len(busy)} of {counted(len(races), 'race')}")
    return [f"{MACHINE_BUSY}: {'; '.join(remarks)}"] if remarks else []


def _measured_on(devices: Mapping[str, Device], chosen: Mapping[str, Sequence[Chosen]]) -> list[Device]:
    """The devices that the library's measurements are from, by slug. `devices` has devices by digest."""
    digests = {m.device for members in chosen.values() for member in members for m in member.evidence.made()}
    return sorted((devices[d] for d in digests if d in devices), key=lambda d: d.slug)


def _device_row(device: Device, chosen: Iterable[Chosen]) -> DeviceRow:
    made = (m for member in chosen for m in member.evidence.made() if m.device == device.digest)
    races = {(m.race, m.problem.id): m.seen for m in made if m.seen is not None}.values()
    return DeviceRow(
        name=device.name,
        facts={name: str(device.identity[name]) for name in _FACTS if name in device.identity},
        load=statistics.median(s.load for s in races) if races else 0.0,
        busy=sum(s.disturbed for s in races),
        races=len(races),
    )


def _units(chosen: Mapping[str, Sequence[Chosen]]) -> tuple[str, ...]:
    made = (m for members in chosen.values() for member in members for m in member.evidence.made())
    return tuple(sorted({m.seen.unit for m in made if m.seen is not None and m.seen.unit}))


def _operator(
    operator: Operator, chosen: list[Chosen], generics: Sequence[Variant], devices: Mapping[str, Device], peaks: Peaks
) -> tuple[OperatorTable, list[OperatorReport]]:
    variants, shares, worth = list(generics), dict[str, Mapping[str, object]](), dict[str, tuple[Expr, ...]]()
    index = {g.candidate.id: i for i, g in enumerate(generics)}
    tables: list[TargetTable] = []
    reports: list[OperatorReport] = []
    for member in chosen:
        evidence, selection = member.evidence, member.selection
        rooflines = Rooflines(evidence, peaks)
        for candidate in selection.kept:
            if candidate not in index:
                index[candidate] = len(variants)
                variants.append(evidence.variants[candidate])
                worth[variants[-1].name] = worth_of(evidence)(candidate)
                best = rooflines.best_of(candidate)
                shares[variants[-1].name] = best._asdict() if best is not None else {}
        if selection.kept:
            tables.append(_table(member, index, devices))
        beside = [g for g in generics if target_by_name(g.candidate.target).meets(evidence.target)]
        reports.append(tell(member, beside, peaks))
    if not chosen:
        reports += generic_only(operator.name, generics)
    made = [m for member in chosen for m in member.evidence.made()]
    varying = {m.candidate for m in made if m.bitwise is False}
    uncaptured = {m.candidate for m in made if m.status == "ok" and m.reason.startswith(UNCAPTURED)}
    table = OperatorTable(
        operator=operator,
        variants=tuple(variants),
        tables=tuple(tables),
        rooflines=shares,
        worth=worth,
        varying=frozenset(v.name for v in variants if v.candidate.id in varying),
        uncaptured=frozenset(v.name for v in variants if v.candidate.id in uncaptured),
    )
    return table, reports


def _table(chosen: Chosen, index: Mapping[str, int], devices: Mapping[str, Device]) -> TargetTable:
    """How calls are decided for one target. `index` has the places of variants, `devices` has devices by digest."""
    evidence, selection, target = chosen.evidence, chosen.selection, chosen.evidence.target
    tuned = tuple(p for p in evidence.workload if p.id in chosen.costs)
    near = selection.nearest.by_problem if selection.nearest is not None else {}
    surveyed = tuple(
        (shape, tuple(index[c] for c in near[name]))
        for name, shape in evidence.surveyed.problems.items()
        if name in near and name not in chosen.costs
    )
    processors = {processors_of(devices[d]) for d in {m.device for m in evidence.made()} if d in devices}
    return TargetTable(
        target=target.name,
        level=target.level,
        last=target.last,
        rest=tuple(index[c] for c in selection.rest),
        tuned=tuned,
        exact=tuple(tuple(index[c] for c in selection.exact.get(p.id, ())) for p in tuned),
        expected=tuple(
            ExpectedTime(
                variant=index[e.candidate],
                terms=e.terms,
                model=e.model,
                facts=e.kind,
                regimes=e.regimes,
                vendor=e.vendor,
            )
            for e in selection.expected
        ),
        surveyed=surveyed,
        filling_in=tuple(index[c] for c in selection.kept if evidence.fills_in(evidence.variants[c])),
        regimes=_regimes(evidence, tuned, selection.rules),
        alone=tuple(
            tuple(index[c] for c, m in evidence.measurements.get(p.id, {}).items() if c in index and m.threads == 1)
            for p in tuned
        ),
        # with records of several devices, no number would be right
        processors=next(iter(processors)) if len(processors) == 1 else 0,
    )


def _regimes(evidence: Evidence, tuned: Sequence[Problem], rules: Mapping[Cell, Rule]) -> tuple[RegimeCalls, ...]:
    """For each kind of calls and regime, the extents of measured problems and surveyed shapes, and the rule."""
    operator, times = evidence.operator, evidence.surveyed.times
    groups: dict[Cell, list[Problem]] = {}
    for problem in (*tuned, *(p for name, p in evidence.surveyed.problems.items() if times.get(name))):
        facts = operator.facts(problem)
        groups.setdefault((kind_of(operator, facts), regime_of(operator, facts)), []).append(problem)
    names = [*(name for name, _ in regimes_of(operator)), OTHER]
    kinds = sorted({kind for kind, _ in (*groups, *rules)})
    return tuple(
        RegimeCalls(
            facts=kind,
            regime=name,
            dims={d: (min(p.dims[d] for p in group), max(p.dims[d] for p in group)) for d in operator.dims}
            if (group := groups.get((kind, name)))
            else {},
            rule=rules.get((kind, name), Rule(NEAREST)),
        )
        for kind in kinds
        for name in names
    )
