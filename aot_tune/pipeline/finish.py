"""From evidence to files: select per operator and target, then hand the variants to link and the story to report."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from aot_tune.bench import Device, Measurement
from aot_tune.errors import NoSurvivorError
from aot_tune.link import DecisionNode, LibrarySpec, LinkedVariant, OperatorTable, TargetTable, generate
from aot_tune.pipeline.evidence import Entry, Evidence, is_baseline, spread, tie_band
from aot_tune.pipeline.session import Session
from aot_tune.report import Failure, OperatorReport, ProblemRow, Report, VariantRow
from aot_tune.select import Costs, Selection, rank, select
from aot_tune.spec import Facts, Operator, all_of

__all__ = ["Chosen", "choose", "finish"]


class Chosen:
    """A target's selection beside the evidence that it was made from."""

    def __init__(self, evidence: Evidence, selection: Selection, costs: Costs) -> None:
        self.evidence, self.selection, self.costs = evidence, selection, costs


def choose(session: Session, evidence: Evidence) -> Chosen:
    """Select the variants of one operator on one target.

    Raises:
        NoSurvivorError: when nothing but failures was measured and the options do not allow the generic variant alone.
    """
    costs = evidence.costs()
    operator = evidence.operator
    if not costs and evidence.measurements and session.options.no_survivor == "fail":
        raise NoSurvivorError(
            f"operator {operator.name!r} on {evidence.target.name}: no candidate survived",
            why="\n       ".join(f"{f.candidate}: {f.status}: {f.reason}" for f in _failures(evidence)[:20]),
            fix="mend the kernels, or ship the generic variant alone with AOT_TUNE_NO_SURVIVOR=generic",
        )
    if not costs and evidence.measurements:
        evidence.note = "no candidate survived; the generic variant is all there is"
    facts = {p.id: operator.facts(p) for p in operator.workload}
    sizes = {i: e.object.resources.get("text", 0) for i, e in evidence.entries.items() if e.object}
    return Chosen(evidence, select(costs, facts, lambda c, f: _serves(evidence, c, f), sizes=sizes), costs)


def _serves(evidence: Evidence, candidate: str, facts: Facts) -> bool:
    return all_of(evidence.entries[candidate].requires, facts)


def finish(
    session: Session, directory: Path, chosen: Mapping[str, Sequence[Chosen]], generics: Mapping[str, Entry]
) -> Report:
    """Write the library's sources, objects and manifest, and the report, into `directory`."""
    tables = []
    reports: list[OperatorReport] = []
    for name, loaded in session.operators.items():
        table, reported = _operator(loaded.operator, list(chosen.get(name, ())), generics[name])
        tables.append(table)
        reports += reported
    used = _measured_on(session, chosen)
    spec = LibrarySpec(
        operators=tuple(tables),
        name=session.plan.name,
        prefix=session.plan.prefix,
        header=session.plan.header,
        module=session.plan.module,
        mode=session.options.mode,
        devices=tuple({"name": d.name, **d.identity} for d in used),
        policy=msgspec.to_builtins(session.policy),
        tools={f"{b}.{k}": v for b, identity in session.plan.toolchains.items() for k, v in identity.items()},
    )
    generate(spec, directory)
    report = Report(
        library=session.plan.name,
        mode=session.options.mode,
        targets=session.plan.targets,
        devices=tuple(d.name for d in used),
        toolchains={b: i.get("version", "") for b, i in session.plan.toolchains.items()},
        policy=f"version {session.policy.version}, digest {session.policy.digest[:12]}",
        operators=tuple(reports),
        notes=tuple(sorted({f"{r.operator}: {r.note}" for r in reports if r.note})),
    )
    (directory / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return report


def _measured_on(session: Session, chosen: Mapping[str, Sequence[Chosen]]) -> list[Device]:
    """The devices that the measurements behind a library are from, by slug."""
    known = {d.digest: d for d in (*session.devices, *(r.device for r in session.databases))}
    digests = {
        m.device
        for found in chosen.values()
        for one in found
        for row in one.evidence.measurements.values()
        for m in row.values()
    }
    return sorted((known[d] for d in digests if d in known), key=lambda d: d.slug)


def _operator(
    operator: Operator, chosen: list[Chosen], generic: Entry
) -> tuple[OperatorTable, list[OperatorReport]]:
    variants: list[LinkedVariant] = [_variant(generic, level=0)]
    index = {generic.candidate.id: 0}
    tables: list[TargetTable] = []
    reports: list[OperatorReport] = []
    for one in chosen:
        evidence, selection = one.evidence, one.selection
        for candidate in selection.kept:
            if candidate not in index:
                index[candidate] = len(variants)
                variants.append(_variant(evidence.entries[candidate], evidence.target.level))
        if selection.nodes:
            nodes = tuple(
                DecisionNode(
                    fact=n.fact,
                    threshold=n.threshold,
                    below=n.below,
                    above=n.above,
                    leaf=tuple(index[c] for c in n.ranked if index[c] != 0),
                )
                for n in selection.nodes
            )
            tuned = tuple(p for p in operator.workload if p.id in one.costs)
            tables.append(
                TargetTable(target=evidence.target.name, level=evidence.target.level, nodes=nodes, tuned=tuned)
            )
        reports.append(_report(one, generic))
    if not chosen:
        row = VariantRow(
            name=variants[0].name, label=generic.candidate.label, target=generic.candidate.target,
            bytes=_bytes(generic), wins=0, rebuilt=False,
        )
        reports.append(
            OperatorReport(
                operator=operator.name, target=generic.candidate.target, tried=0, statuses={}, problems=(),
                variants=(row,), failures=(), mean_regret=0.0, held_out_regret=None,
            )
        )
    return OperatorTable(operator=operator, variants=tuple(variants), tables=tuple(tables)), reports


def variant_name(entry: Entry) -> str:
    """The name of a candidate for people: its kernel and the beginning of its id."""
    return f"{entry.candidate.kernel}_{entry.candidate.id[:8]}"


def _variant(entry: Entry, level: int) -> LinkedVariant:
    assert entry.object is not None
    return LinkedVariant(
        name=variant_name(entry),
        symbol=entry.rendered.symbol,
        kernel=entry.candidate.kernel,
        target=entry.candidate.target,
        level=level,
        config=entry.candidate.config,
        requires=() if entry.candidate.generic else entry.requires,
        object_path=entry.object.path,
        object_digest=entry.object.digest,
        generic=entry.candidate.generic,
        rebuilt=entry.rebuilt,
    )


def _bytes(entry: Entry) -> int:
    return entry.object.resources.get("text", 0) if entry.object is not None else 0


def _report(one: Chosen, generic: Entry) -> OperatorReport:
    evidence, selection = one.evidence, one.selection
    rows = tuple(_row(one, p.id) for p in evidence.operator.workload if p.id in one.costs)
    wins = Counter(row.picked for row in rows)
    kept = [evidence.entries[c] for c in selection.kept]
    if generic.candidate.id not in selection.kept:
        kept.append(generic)
    regrets = list(selection.regret.values())
    held_out = list(selection.held_out.values())
    return OperatorReport(
        operator=evidence.operator.name,
        target=evidence.target.name,
        tried=len(evidence.entries),
        statuses=dict(sorted(Counter(_worst(evidence, e) for e in evidence.entries.values()).items())),
        problems=rows,
        variants=tuple(
            VariantRow(
                name=variant_name(e), label=e.candidate.label, target=e.candidate.target, bytes=_bytes(e),
                wins=wins[variant_name(e)], rebuilt=e.rebuilt,
            )
            for e in kept
        ),
        failures=tuple(_failures(evidence)),
        mean_regret=statistics.fmean(regrets) if regrets else 0.0,
        held_out_regret=statistics.fmean(held_out) if held_out else None,
        note=evidence.note,
    )


def _row(one: Chosen, problem_id: str) -> ProblemRow:
    evidence = one.evidence
    problem = next(p for p in evidence.operator.workload if p.id == problem_id)
    facts = evidence.operator.facts(problem)
    measured = evidence.measurements[problem_id]
    costs = {c: m.ns for c, m in measured.items() if c in one.costs[problem_id] and m.ns is not None}
    best = min(costs, key=lambda c: (costs[c], c))
    picked = next((c for c in rank(one.selection.nodes, facts) if _serves(evidence, c, facts)), None)
    name = variant_name(evidence.entries[picked]) if picked else "generic"
    runner_up = sorted(costs.values())[1] if len(costs) > 1 else float("inf")
    ns = costs[best]
    return ProblemRow(
        problem=problem_id,
        winner=variant_name(evidence.entries[best]),
        ns=ns,
        spread=spread(measured[best]),
        picked=name,
        regret=one.selection.regret.get(problem_id, 0.0),
        tie=runner_up <= ns * (1 + tie_band(measured[best])),
        baselines={
            c.removeprefix("baseline:"): m.ns for c, m in sorted(measured.items()) if is_baseline(c) and m.ns is not None
        },
        flops=evidence.operator.flops.evaluate(facts),
        bytes=evidence.operator.compulsory_bytes(problem),
    )


def _measurements_of(evidence: Evidence, entry: Entry) -> list[Measurement]:
    return [row[entry.candidate.id] for row in evidence.measurements.values() if entry.candidate.id in row]


def _worst(evidence: Evidence, entry: Entry) -> str:
    """The first status of a candidate that is not ok."""
    if entry.object is None:
        return "not-compiled"
    if not entry.compiled:
        return entry.object.status
    statuses = [m.status for m in _measurements_of(evidence, entry)]
    return next((s for s in statuses if s != "ok"), "ok" if statuses else "not-tried")


def _failures(evidence: Evidence) -> list[Failure]:
    found: list[Failure] = []
    for entry in evidence.entries.values():
        label = entry.candidate.label
        if entry.object is not None and not entry.compiled:
            found.append(Failure(candidate=label, status=entry.object.status, reason=entry.object.error, count=1))
        bad = [m for m in _measurements_of(evidence, entry) if m.status != "ok"]
        for status in sorted({m.status for m in bad}):
            same = [m for m in bad if m.status == status]
            found.append(Failure(candidate=label, status=status, reason=same[0].reason, count=len(same)))
    return found
