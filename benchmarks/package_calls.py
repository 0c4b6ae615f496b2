"""Calls of a built library on a problem of its workload, and the same calls by other launchers: results and times."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from stats import Timing, markdown

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.inputs import draw
from aot_tune.spec import Operator, Problem, Tensor

__all__ = ["PackageCall", "Row", "compared", "loaded", "table", "text_of"]

Row = dict[str, Any]

_WORKSPACE = 64 << 20
_ROUNDS = 41
_GRAPH_US = 2000.0
_CALLS = (2, 200)
"""The fewest and the most calls in a graph."""
_OFF = {torch.float32: 1e-4}
_FURTHEST = 1e-2
"""How far two results may differ, in `_OFF` or for other dtypes: the norm of the difference over the norm."""
_FILLED = 101
"""What is in outputs of integers before a call; those of floats have NaN."""


def loaded(folder: Path) -> Any:
    """The module `ops` that a build left below a folder.

    Raises:
        SystemExit: when there is not exactly one.
    """
    found = sorted(folder.rglob("ops*.so"))
    if len(found) != 1:
        raise SystemExit(f"benchmarks: {folder} holds {len(found)} modules ops*.so, wanted one")
    loader = importlib.machinery.ExtensionFileLoader("ops", str(found[0]))
    spec = importlib.util.spec_from_file_location("ops", found[0], loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def text_of(problem: Problem) -> str:
    """The problem for a table."""
    parts = [*(f"{k}={v}" for k, v in problem.dims.items()), *(f"+{t}" for t in problem.present)]
    return " ".join([*parts, *(["strided"] if problem.strides else [])])


class PackageCall:
    """A problem of an operator: its tensors, and what a library does with them."""

    def __init__(self, operator: Operator, problem: Problem, device: str = "cuda") -> None:
        self.operator, self.problem = operator.concrete(problem.dtypes), problem
        present = [t for t in self.operator.tensors if self.operator.is_present(problem, t)]
        self.tensors = {t.name: self._made(t, device) for t in present}
        self.workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)
        changed = [t.name for t in self.operator.inputs if t.written and t.name in self.tensors]
        self._before = {name: self.tensors[name].clone() for name in changed}

    def _made(self, tensor: Tensor, device: str) -> Any:
        """A tensor with the values that the operator's author describes, and the problem's strides."""
        shape, strides = (of(self.problem, tensor) for of in (self.operator.shape, self.operator.strides))
        count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        dtype = getattr(torch, tensor.dtype.torch)
        if tensor.output:
            return torch.empty(count, dtype=dtype, device=device).as_strided(shape, strides)
        drawn = draw(self.operator, Check(problem=self.problem), tensor, count, 7)
        values = torch.from_numpy(drawn).to(device).to(dtype)
        return values.repeat(math.ceil(count / len(values)))[:count].as_strided(shape, strides)

    def ours(self, ops: Any) -> Callable[[], object]:
        """The library's function, with outputs and a workspace of ours."""
        function = getattr(ops, self.operator.name)
        given = {**self.tensors, **self.problem.attributes, "workspace": self.workspace}
        return lambda: function(**given)

    def served(self, ops: Any) -> dict[str, Any]:
        """The variant that serves the call, as the manifest has it."""
        given = {**self.tensors, **self.problem.attributes, "workspace": self.workspace}
        name = ops.explain(self.operator.name, **given)["variant"]
        (known,) = (o for o in ops.manifest()["operators"] if o["name"] == self.operator.name)
        return next(v for v in known["variants"] if v["name"] == name)

    def reset(self) -> None:
        """Restore what calls change in place, and spoil the other outputs."""
        for tensor in self.operator.outputs:
            if tensor.name in self._before:
                self.tensors[tensor.name].copy_(self._before[tensor.name])
            elif tensor.name in self.tensors:
                held = self.tensors[tensor.name]
                held.fill_(math.nan if held.is_floating_point() else _FILLED)

    def results(self, run: Callable[[], object]) -> dict[str, Any]:
        """What a call writes."""
        self.reset()
        run()
        return {t.name: self.tensors[t.name].clone() for t in self.operator.outputs if t.name in self.tensors}


def off_by(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """How far results differ, as a multiple of what is allowed; 0 if they are the same."""
    worst = 0.0
    for name, value in found.items():
        if not torch.equal(value, wanted[name]):
            got, want = value.float(), wanted[name].float()
            off = float((got - want).norm() / want.norm().clamp_min(1e-30)) / _OFF.get(value.dtype, _FURTHEST)
            worst = max(worst, off if math.isfinite(off) else math.inf)
    return worst


def recorded(call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
    """A graph of many calls."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def played(graph: torch.cuda.CUDAGraph, calls: int) -> float:
    """Microseconds per call in a graph."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000 / calls


def turns(graphs: Sequence[torch.cuda.CUDAGraph], calls: int) -> list[list[float]]:
    """Microseconds per call of each graph in each round. In each round, another graph is first."""
    times: list[list[float]] = [[] for _ in graphs]
    for turn in range(_ROUNDS):
        for number in range(len(graphs)):
            which = (turn + number) % len(graphs)
            times[which].append(played(graphs[which], calls))
    return times


def compared(call: PackageCall, ops: Any, others: Mapping[str, Callable[[], object]], unchecked: str = "") -> Row:
    """Microseconds per call of the library and of the other ways, and the paired medians of ours against each.

    All but the way `unchecked`, which makes outputs of its own, must give the library's results.

    Raises:
        ValueError: when results differ.
    """
    ours = call.ours(ops)
    mine = call.results(ours)
    row: Row = {}
    for name, run in others.items():
        if name != unchecked:
            off = off_by(call.results(run), mine)
            row[f"{name}_same"] = off == 0
            if not off <= 1:
                raise ValueError(f"results of `{name}` differ by {off:.3g} times what is allowed")
    del mine
    call.reset()
    ways = {"library": ours, **others}
    expected = {name: played(recorded(run, 4), 4) for name, run in ways.items()}
    fewest, most = _CALLS
    count = min(most, max(fewest, round(_GRAPH_US / min(expected.values()))))
    graphs = [recorded(run, count) for run in ways.values()]
    for graph in graphs * 2:
        graph.replay()
    times = dict(zip(ways, turns(graphs, count), strict=True))
    row |= {"calls": count, **{f"{name}_us": statistics.median(taken) for name, taken in times.items()}}
    for name in others:
        pairs = list(zip(times["library"], times[name], strict=True))
        ratios = Timing(name, tuple(a / b for a, b in pairs))
        row |= {f"{name}_ratio": ratios.median, f"{name}_spread": ratios.spread}
        row[f"{name}_more_us"] = statistics.median(a - b for a, b in pairs)
    return row


def _cell(row: Row, key: str, form: str) -> str:
    return format(row[key], form) if key in row else ""


def table(rows: list[Row], third: str) -> str:
    """The rows as Markdown. `third` is a way that only some rows have."""
    head = ["operator", "problem", "variant", "target", "library us", "own us", "ratio", "more us", f"{third} us", ""]
    lines = []
    for row in rows:
        ratio = f"{row['own_ratio']:.3f} ± {row['own_spread']:.3f}" if "own_ratio" in row else ""
        note = row.get("error") or row.get("note") or ("" if row.get("own_same", True) else "not the same bits")
        name = row.get("variant", "") + (" (forced)" if row.get("forced") else "")
        cells = [row["operator"], row["problem"], name, row.get("target", "")]
        cells += [_cell(row, "library_us", ".2f"), _cell(row, "own_us", ".2f"), ratio]
        cells += [_cell(row, "own_more_us", "+.2f"), _cell(row, f"{third}_us", ".2f")]
        lines.append([*cells, " ".join(str(note).split()).replace("|", "\\|")[:300]])
    return markdown(head, 4, lines)
