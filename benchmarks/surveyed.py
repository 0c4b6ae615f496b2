"""Surveys for comparing decisions: a file of times on shapes, or the survey in a record."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot_tune.compile import target_by_name
from aot_tune.database import OperatorDatabase, load_databases
from aot_tune.select import Costs, Terms, terms_of
from aot_tune.spec import ConfigValue, Facts, Operator, Problem, Tiling, problem
from aot_tune.spec.load_operators import bundled_templates, load_operator
from aot_tune.spec.survey_shapes import kind_of

__all__ = ["SurveyedKind", "read_record", "read_surveys"]

_OFTEN_ENOUGH = 5
"""Shapes of a file are judged if more variants ran on them than this: those beyond its few-row variants' limits."""
_PROCESSORS = 132
"""Multiprocessors of the device that a file's times are from. A record states its own."""


@dataclass(frozen=True)
class SurveyedKind:
    """Times of variants on surveyed shapes of one kind of calls.

    Args:
        costs: ns by problem id and variant. A missing variant cannot serve the shape, or is not meant for it.
        tuned: the same for problems of the workload. They are learned from and never judged.
        facts: the facts of all these problems.
        moved, done: bytes and FLOPs of each problem.
        terms, tilings: those of each variant.
        vendor: variants that choose by a vendor's own heuristic.
        other: ns of what users would call otherwise, if the survey has it.
    """

    name: str
    operator: Operator
    processors: int
    costs: Costs
    facts: Mapping[str, Facts]
    moved: Mapping[str, int]
    done: Mapping[str, int]
    terms: Mapping[str, Terms]
    tilings: Mapping[str, Tiling | None]
    vendor: frozenset[str]
    tuned: Costs = field(default_factory=dict)
    other: Mapping[str, float] = field(default_factory=dict)

    @property
    def sizes(self) -> int:
        """How many terms describe the size of a call."""
        return len(self.operator.dims) + 1


def read_surveys(path: Path) -> list[SurveyedKind]:
    """The kinds of calls with times in a survey's file, or in a folder of records.

    Raises:
        ValueError: when there is no survey.
    """
    if path.is_dir():
        found = [kind for database in load_databases(path) if database.survey for kind in read_record(database)]
        if not found:
            raise ValueError(f"{path}: no record with a survey; aot-tune record exports one of a build that made it")
        return found
    return [_read_file(path)]


def read_record(database: OperatorDatabase) -> list[SurveyedKind]:
    """The kinds of calls that were surveyed, without candidates that failed or are for single problems."""
    operator = load_operator(bundled_templates() / database.operator)
    processors = int(str(database.device.identity.get("sm_count", database.device.identity.get("threads", 1))))
    failed = {m.candidate for m in database.measurements if m.status not in ("ok", "skipped")}
    usable = {c.id: c.candidate for c in database.candidates if c.id not in failed and not c.candidate.generic}
    vendor = set()
    for name, candidate in list(usable.items()):
        kernel = operator.kernel(candidate.kernel)
        if kernel.algorithms is not None:
            if kernel.has(candidate.config, target_by_name(candidate.target).facts):
                vendor.add(name)
            else:
                del usable[name]
    rows = {s.problem.id: {c: t for c, t in s.ns.items() if c in usable} for s in database.survey}
    problems = {s.problem.id: s.problem for s in database.survey}
    tuned: Costs = {}
    for m in database.measurements:
        if m.candidate in usable and m.status == "ok" and m.ns is not None and m.problem.id not in rows:
            tuned.setdefault(m.problem.id, {})[m.candidate] = m.ns
            problems[m.problem.id] = m.problem
    of = {p: kind_of(operator, operator.facts(one)) for p, one in problems.items()}
    tilings = {name: operator.kernel(c.kernel).tiling(c.config) for name, c in usable.items()}
    found = []
    for kind in sorted({of[p] for p in rows}):
        own = {p: row for p, row in sorted(rows.items()) if row and of[p] == kind}
        beside = {p: row for p, row in sorted(tuned.items()) if of[p] == kind}
        name = _name(operator, problems[next(iter(own))])
        found.append(_kind(name, operator, processors, own, beside, problems, tilings, frozenset(vendor)))
    return found


def _name(operator: Operator, one: Problem) -> str:
    """The operator, dtypes and modes that a kind's problems have in common."""
    dtypes = [one.dtypes.get(name, choices[0]) for name, choices in operator.dtypes.items()]
    modes = [one.attributes[a.name] for a in operator.attributes if a.mode and a.name in one.attributes]
    return " ".join([operator.name, *dtypes, *modes])


def _kind(
    name: str,
    operator: Operator,
    processors: int,
    costs: Costs,
    tuned: Costs,
    problems: Mapping[str, Problem],
    tilings: Mapping[str, Tiling | None],
    vendor: frozenset[str],
    other: Mapping[str, float] | None = None,
) -> SurveyedKind:
    surveyed = sorted({c for row in costs.values() for c in row})
    known: dict[str, Terms] = {}
    terms = {}
    for variant in surveyed:
        key = repr(tilings[variant])
        known[key] = known.get(key) or terms_of(operator, tilings[variant], processors)
        terms[variant] = known[key]
    among = set(surveyed)
    beside = {p: {c: t for c, t in row.items() if c in among} for p, row in tuned.items()}
    facts = {p: operator.facts(problems[p]) for p in (*costs, *beside)}
    return SurveyedKind(
        name=name,
        operator=operator,
        processors=processors,
        costs=costs,
        facts=facts,
        moved={p: operator.compulsory_bytes(problems[p]) for p in facts},
        done={p: operator.flops.evaluate(f) if operator.flops is not None else 0 for p, f in facts.items()},
        terms=terms,
        tilings={v: tilings[v] for v in surveyed},
        vendor=vendor & among,
        tuned={p: row for p, row in beside.items() if row},
        other=other or {},
    )


def _read_file(path: Path) -> SurveyedKind:
    """A file of times in microseconds by variant, for products of one dtype with b stored by columns."""
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        told = json.load(file)
    if not isinstance(told, dict) or not {"shapes", "times", "variants", "torch"} <= told.keys():
        raise ValueError(f"{path}: no survey: it has no shapes, times, variants and torch")
    operator = load_operator(bundled_templates() / "gemm")
    dtype = str(told["variants"][next(iter(told["variants"]))]).split()[1]
    shapes = [problem(M=m, N=n, K=k, order={"b": (1, 0)}, dtypes={"T": dtype}) for m, n, k in told["shapes"]]
    costs: Costs = {p.id: {} for p in shapes}
    for variant, times in told["times"].items():
        for p, time in zip(shapes, times, strict=True):
            if time is not None:
                costs[p.id][variant] = 1000.0 * time
    costs = {p: row for p, row in costs.items() if len(row) > _OFTEN_ENOUGH}
    configs = {variant: _config(text) for variant, text in told["variants"].items()}
    return _kind(
        f"{path.name.split('.')[0]}",
        operator,
        _PROCESSORS,
        costs,
        {},
        {p.id: p for p in shapes},
        {v: _tiling(operator, *config) for v, config in configs.items()},
        frozenset(v for v, (_, config) in configs.items() if config.get("ALGO") == -1),
        {p.id: 1000.0 * t for p, t in zip(shapes, told["torch"], strict=True)},
    )


def _config(text: str) -> tuple[str, dict[str, ConfigValue]]:
    """Kernel and config of a variant's label, such as `cuda_wgmma bf16 GROUPS=1 WIDTH=32 SPLIT=2`."""
    kernel, *words = text.split()
    pairs: Sequence[tuple[str, ...]] = [tuple(w.split("=")) for w in words if w.count("=") == 1 and ":=" not in w]
    return kernel, {n: int(v) if v.lstrip("-").isdigit() else v for n, v in pairs if n[0].isupper() or "_" in n}


def _tiling(operator: Operator, kernel: str, config: Mapping[str, ConfigValue]) -> Tiling | None:
    """The tile, if the kernel still exists and declares one."""
    declared = {k.name: k for k in operator.kernels}.get(kernel)
    if declared is None:
        return None
    names = {p.name for p in declared.parameters}
    return declared.tiling({n: v for n, v in config.items() if n in names})
