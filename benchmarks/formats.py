#!/usr/bin/env python3
"""Calls of operators on 8 bits, groups, pages and packed weights on a GPU: shapes that no build drew, and named ones.

    benchmarks/formats.py [--operators scaled_mm grouped_gemm ...] [--count 40] [--seconds 200] [--seed 1] [--rounds 5]
                          [--compiled 2] [--json FILE]

Shapes are drawn as a survey draws them, but they are other ones. Inputs are drawn as for verification. Results of calls
that are not too large are compared with the reference in float64 on the GPU, within the limits that verification has.
Then the library's dispatch, with given outputs, races with each of the operator's own baselines that takes the call,
and with a copy of as many bytes, by the driver or by a kernel, if memory limits the call. Some calls on rows also race
with a composition by torch.compile, and prompts of one length with dense attention. What must be cold has left the L2.
Calls are in CUDA graphs, and rounds have changing order.

Named calls, for which there are limits, and drawn ones take turns, and so do operators: `--seconds` cuts all evenly. A
process that dies or hangs is replaced, and the next one begins with the next call.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_tasks import Task
from stats import geometric_mean, markdown
from tasks import installed_operator
from unseen_shapes import COPIED, ratio, speed_over, turns

from aot_tune.compile import target_by_name
from aot_tune.database.checks import tuned_kernels
from aot_tune.spec import Problem, problem
from aot_tune.spec.regimes import regime_of
from aot_tune.spec.survey_shapes import survey_shapes

__all__ = ["COMPILED", "OPERATORS", "Item", "about", "items", "named", "tables"]

_MOST_FLOPS, _MOST_ELEMENTS = 2**37, 2**30
"""Of calls that are checked: FLOPs, and elements of inputs. Then a check takes a fraction of a second."""
_OF_MEMORY = 100
"""Memory limits calls of at most so many FLOPs for each byte."""
_SEED = 20
DEVICE = "cuda"
OPERATORS = ("scaled_mm", "quantize_rows", "rms_norm_quantize", "silu_mul_quantize", "grouped_gemm")
OPERATORS += ("grouped_gemm_masked", "grouped_scaled_mm", "grouped_scaled_mm_masked", "ragged_attention")
OPERATORS += ("paged_attention", "gptq_mm", "awq_mm", "nf4_mm", "int8_mm")
COMPILED = "torch.compile"
_WHOLE = 2**30
"""The group of rows that have one scale."""
_DEEPSEEK = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (18432, 7168), (4096, 7168), (7168, 2048))
_LLAMA = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
"""N and K of layers."""
_DEEP_GEMM = {(4, 8192): (1297, 1099), (8, 4096): (1288, 1093)}
_DEEP_GEMM_MASKED = {(1, 1024): (1233, 925), (2, 512): (1040, 916), (4, 256): (932, 815)}
"""TFLOPS that DeepGEMM publishes, by groups and rows of each: with N = 4096 and K = 7168, with 7168 and 2048."""

Row = dict[str, Any]
Run = Callable[[int], object]


@dataclass(frozen=True)
class Item:
    """A call to measure.

    Args:
        name, wanted: of a named shape, and what it should reach.
        values: of whole numbers on the device, such as offsets, in place of drawn ones.
        bytes, flops: of the call, if they are not those of drawn values.
        compiled: whether it races with torch.compile.
    """

    operator: str
    problem: Problem
    name: str = ""
    wanted: str = ""
    values: Mapping[str, Sequence[int]] = field(default_factory=dict)
    bytes: int = 0
    flops: int = 0
    compiled: bool = False


def items(operators: Sequence[str], count: int, seed: int, compiled: int, target: str = "cuda-sm_90a") -> list[Item]:
    """Named calls and drawn ones in turn, and operators in turn: a time limit cuts all of them evenly.

    Args:
        count: of shapes drawn for each choice of dtypes, as a survey draws them, but other ones.
        compiled: how many drawn calls of each operator on rows race with torch.compile.
    """
    drawn = []
    for name in operators:
        operator = installed_operator(name)
        kernels = tuned_kernels(operator, target_by_name(target))
        shapes = turns(survey_shapes(operator, "cuda", count, kernels, f" formats {seed}").values()) if count else []
        rows = name.endswith("quantize") or name == "quantize_rows"
        drawn.append([Item(name, p, compiled=rows and i < compiled) for i, p in enumerate(shapes)])
    known = named()
    return turns([turns([[i for i in known if i.operator == name] for name in operators]), turns(drawn)])


def named() -> list[Item]:
    """Calls for which there are limits."""
    found = [_scaled(1024, 18432, 7168, "block scales", "970 TFLOPS")]
    found += [_scaled(16, n, k, "16 rows, block scales", "2 x torch or 0.85 of a copy") for n, k in _DEEPSEEK]
    for name, d, present in (
        ("quantize_rows", 7168, ()),
        ("rms_norm_quantize", 7168, ("weight", "residual", "residual_out")),
        ("silu_mul_quantize", 14336, ()),
    ):
        for r, group in ((4096, 128), (16384, 128), (16384, _WHOLE)):
            wanted = "0.90 of a copy, 1.5 x torch.compile" if r == 4096 else "0.90 of a copy"
            shape = problem(R=r, D=d, GROUP=group, present=present)
            found.append(Item(name, shape, "64 MB on", wanted, compiled=r == 4096))
    for name in ("grouped_gemm", "grouped_gemm_masked", "grouped_scaled_mm", "grouped_scaled_mm_masked"):
        found += [_grouped(name, 8, m, 4096, 7168, "8 experts", "1.3 x the loop") for m in (128, 1024)]
    for operator, shapes in (
        ("grouped_scaled_mm", _DEEP_GEMM),
        ("grouped_scaled_mm_masked", _DEEP_GEMM_MASKED),
    ):
        for (e, m), figures in shapes.items():
            for (n, k), tflops in zip(((4096, 7168), (7168, 2048)), figures, strict=True):
                found.append(_grouped(operator, e, m, n, k, "DeepGEMM's", f"{tflops} TFLOPS"))
    found += [_paged(dtype, page) for dtype in ("bf16", "f8e4m3") for page in (16, 64)]
    found += [_ragged(b, s) for b, s in ((8, 1024), (4, 4096), (2, 16384))]
    found += [_one_row(name, n, k) for n, k in _LLAMA for name in ("gptq_mm", "awq_mm", "nf4_mm", "int8_mm")]
    return found


def _scaled(m: int, n: int, k: int, name: str, wanted: str) -> Item:
    order = dict.fromkeys(("b", "scale_a", "scale_b"), (1, 0))
    shape = problem(M=m, N=n, K=k, MA=m, KA=-(-k // 128), NB=-(-n // 128), order=order)
    return Item("scaled_mm", shape, name, wanted)


def _grouped(operator: str, e: int, m: int, n: int, k: int, name: str, wanted: str) -> Item:
    """With m rows of each expert."""
    masked, width = operator.endswith("masked"), 1 if "scaled" in operator else 2
    rows = {"C": m} if masked else {"M": e * m}
    return Item(
        operator,
        problem(E=e, **rows, N=n, K=k, order={"b": (0, 2, 1)}),
        name,
        wanted,
        values={"counts": [m] * e} if masked else {"ends": [m * (i + 1) for i in range(e)]},
        bytes=e * (width * (m * k + n * k) + 2 * m * n + (4 * m * k // 128 if width == 1 else 0)),
        flops=2 * e * m * n * k,
    )


def _paged(dtype: str, page: int, b: int = 16, keys: int = 16384, h: int = 32, hk: int = 8, d: int = 128) -> Item:
    """One query for each sequence, and `keys` keys."""
    w, width = keys // page, 2 if dtype == "bf16" else 1
    dtypes = {"T": "bf16", "C": dtype}
    return Item(
        "paged_attention",
        problem(B=b, M=b, H=h, HK=hk, P=b * w, W=w, PAGE=page, D=d, DV=d, dtypes=dtypes),
        "decode, 16 K keys, batch 16",
        "0.90 of a copy",
        values={"seq_lens": [keys] * b},
        bytes=2 * b * keys * hk * d * width + 2 * 2 * b * h * d,
        flops=4 * b * h * d * keys,
    )


def _ragged(b: int, s: int, h: int = 32, hk: int = 8, d: int = 128) -> Item:
    """Prompts of the same length."""
    offsets = [s * i for i in range(b + 1)]
    shape = problem(
        B=b, M=b * s, H=h, HK=hk, N=b * s, D=d, DV=d, attributes={"causal": "lower_right"}, dtypes={"T": "bf16"}
    )
    moved, flops = 2 * 2 * b * s * (h + hk) * d, 2 * b * h * d * s * (s + 1)
    values = {"cu_q": offsets, "cu_k": offsets}
    return Item("ragged_attention", shape, "prompts of one length", "0.95 x dense", values, moved, flops)


def _one_row(operator: str, n: int, k: int) -> Item:
    groups = {"nf4_mm": k // 64, "int8_mm": 1}.get(operator, k // 128)
    order = {"w": (1, 0)} if operator == "int8_mm" else {}
    shape = problem(M=1, N=n, K=k, G=groups, order=order, dtypes={"T": "bf16"})
    return Item(operator, shape, "one row", "" if operator == "int8_mm" else "3 x bf16")


def about(item: Item) -> Row:
    """What is known of a call before it is measured."""
    operator = installed_operator(item.operator)
    facts = operator.facts(item.problem)
    return {
        "operator": item.operator,
        "dtypes": " ".join(item.problem.dtypes.get(name, choices[0]) for name, choices in operator.dtypes.items()),
        "name": item.name,
        "wanted": item.wanted,
        "shape": item.problem.id,
        "regime": regime_of(operator, facts),
        "bytes": item.bytes or operator.compulsory_bytes(item.problem),
        "flops": item.flops or operator.flops.evaluate(facts),
    }


def measure(rounds: int, item: Item) -> Row:
    """The times of a call, in us by round, or what is wrong."""
    from gpu_calls import facts, ours
    from gpu_race import raced

    moved, flops = (about(item)[key] for key in ("bytes", "flops"))
    bench = Bench(item, flops)
    mine = ours(bench.arena, None)
    if wrong := bench.wrong(mine):
        return {"error": wrong}
    copied = moved if moved >= COPIED and flops <= _OF_MEMORY * moved else 0
    ways, sets = bench.ways(), bench.arena.sets
    row = raced(mine, sets, ways, rounds, always=ways if item.name else (COMPILED,), copied=copied)
    return {**row, "checked": bool(bench.truths), "sets": sets, **facts(bench.arena, None)}


class Bench:
    """The tensors of a call in enough sets, what its outputs should be, and other ways to compute it."""

    def __init__(self, item: Item, flops: int) -> None:
        import torch
        from gpu_race import Arena

        from aot_tune.bench.protocol.measurement_records import Check
        from aot_tune.bench.worker.cuda_truth import draw_inputs
        from aot_tune.bench.worker.inputs import layout

        self.item, general = item, installed_operator(item.operator)
        self.operator, self.device = general.concrete(item.problem.dtypes), torch.device(DEVICE)
        self.check = Check(problem=item.problem)
        self._storages = draw_inputs(self.operator, self.check, _SEED, self.device)
        for name, values in item.values.items():
            given = torch.tensor(list(values), dtype=torch.int32, device=self.device)
            self._storages[name] = given.view(torch.uint8)
        present = [self.operator.tensor(name) for name in self._storages]
        counts = {t: layout(self.operator, self.check, t).extent() for t in present}
        small = flops <= _MOST_FLOPS and sum(counts.values()) <= _MOST_ELEMENTS
        self.truths = self._truths() if small else {}
        self._written: dict[str, Any] = {}
        cold = not any(t.cold for t in general.tensors)
        self.arena = Arena(Task(item.operator, item.problem, "rows"), cold_inputs=cold, make=self._make)

    def _make(self, _operator: Any, _problem: Any, given: Any, number: int) -> Any:
        """A tensor of a set. Sets have the same values in other places, and NaN or -1 in outputs."""
        import torch

        from aot_tune.bench.worker.cuda_memory import tensor_of, torch_dtype
        from aot_tune.bench.worker.inputs import layout

        tensor = self.operator.tensor(given.name)
        strided, dtype = layout(self.operator, self.check, tensor), torch_dtype(tensor)
        if tensor.output:
            storage = torch.full((strided.extent() * dtype.itemsize,), 255, dtype=torch.uint8, device=self.device)
            if number == 0:
                self._written[tensor.name] = storage
        else:
            storage = self._storages[tensor.name] if number == 0 else self._storages[tensor.name].clone()
        return tensor_of(strided, storage, dtype)

    def _truths(self) -> dict[str, Any]:
        """What outputs should be, and how far off they may be. Limits are of other values, as verification has them."""
        from aot_tune.bench.worker.cuda_memory import Truths
        from aot_tune.bench.worker.cuda_truth import exact_values, write_limits
        from aot_tune.bench.worker.reference_results import read_limits

        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "limits"
            write_limits(self.operator, self.check, folder, _SEED, self.device)
            limits = read_limits(folder)
        exact = exact_values(self.operator, self.check, self._storages, self.device)
        return {n: Truths(self.operator.tensor(n), value, limits[n]) for n, value in exact.items()}

    def wrong(self, run: Run) -> str:
        """What is wrong with the results of the first set. Nothing, if they are not checked."""
        import torch

        for storage in self._written.values():
            storage.fill_(255)
        run(0)
        torch.cuda.synchronize()
        outputs = self.arena.outputs()
        faults = [truth.judge(outputs[name])[0] for name, truth in self.truths.items()]
        return "; ".join(fault for fault in faults if fault)

    def ways(self) -> dict[str, Run]:
        """The ways of torch."""
        given = self.item.problem
        ways = {b.name: self._baseline(b) for b in self.operator.baselines if b.supports(given)}
        if self.item.compiled:
            from gpu_calls import compiled

            ways[COMPILED] = _prepared(lambda: compiled(self.arena))
        if "cu_k" in self.item.values:
            ways |= {f"dense, {name}": self._dense(name) for name in ("CUDNN", "FLASH", "aot_tune")}
        return ways

    def _baseline(self, baseline: Any) -> Run:
        def prepare() -> Run:
            module: Any = importlib.import_module(baseline.requires)
            functions = [baseline.prepare(module, call) for call in self.arena.calls]
            for function in functions:  # what a first call brings to the host must be there before the capture
                function()
            run = lambda i: functions[i]()  # noqa: E731
            if not baseline.partial(self.item.problem) and (wrong := self.wrong(run)):
                raise ArithmeticError(wrong)
            return run

        return _prepared(prepare)

    def _dense(self, name: str) -> Run:
        """Attention of one batch of the same prompts: torch's with a backend, or this library's."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from aot_tune import ops

        count, causal = self.item.problem.dims["B"], self.item.problem.attributes.get("causal", "none")
        names = ("q", "k", "v", "out")
        given = [[getattr(c, n).unflatten(0, (count, -1)).transpose(1, 2) for n in names] for c in self.arena.calls]

        def library(i: int) -> object:
            q, k, v, out = given[i]
            return ops.flash_attention(q, k, v, causal=causal, out=out, stream=torch.cuda.current_stream().cuda_stream)

        def backend(i: int) -> object:
            q, k, v, _ = given[i]
            with sdpa_kernel(getattr(SDPBackend, f"{name}_ATTENTION")):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=causal != "none", enable_gqa=q.shape[1] != k.shape[1]
                )

        return library if name == "aot_tune" else backend


def _prepared(prepare: Callable[[], Run]) -> Run:
    """A way that the first call prepares."""
    prepared = functools.cache(prepare)

    def run(number: int) -> object:
        return prepared()(number)

    return run


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of drawn calls by operator and dtypes, and of named calls, in Markdown; then what went wrong."""
    drawn: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    notes: dict[str, list[str]] = {}
    for row in rows:
        if not row["name"]:
            drawn.setdefault((row["operator"], row["dtypes"]), []).append(row)
        for note in row.get("notes", ()):
            notes.setdefault(f"{row['operator']}: {note}", []).append(row["shape"])
    head = "operator|dtypes|shapes|failed|x best of torch|below 0.95|least|of a copy|x torch.compile"
    parts = [markdown(head.split("|"), 2, [[*key, *_summary(some)] for key, some in sorted(drawn.items())])]
    head = "operator|name|shape|us|TFLOPS|GB/s|x others|of a copy|wanted"
    parts.append(markdown(head.split("|"), 3, [_figures(row) for row in rows if row["name"]]))
    parts += [f"* {row['operator']} {row['shape']}: {row['error']}" for row in rows if "error" in row]
    return "\n\n".join([*parts, *(f"* {note} ({len(at)} x, as {at[0]})" for note, at in notes.items())])


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    timed = [row for row in rows if "us" in row]
    ratios = [(ratio(row)[0], row["shape"]) for row in timed if len(row["us"]) > 1]
    copies = [speed_over(row, row["copy"]) for row in timed if "copy" in row]
    compiled = [speed_over(row, row["us"][COMPILED]) for row in timed if COMPILED in row["us"]]
    means = [f"{geometric_mean(some):.2f}" if some else "" for some in ([r for r, _ in ratios], copies, compiled)]
    below = f"{sum(r < 0.95 for r, _ in ratios) / len(ratios):.0%}" if ratios else ""
    least = "{:.2f} {}".format(*min(ratios)) if ratios else ""
    return [len(timed), len(rows) - len(timed), means[0], below, least, *means[1:]]


def _figures(row: Mapping[str, Any]) -> list[Any]:
    start = [row["operator"], row["name"], row["shape"]]
    if "us" not in row:
        return [*start, "failed", "", "", "", "", row["wanted"]]
    us = statistics.median(row["us"]["ours"])
    others = "; ".join(f"{name} {speed_over(row, times):.2f}" for name, times in row["us"].items() if name != "ours")
    speeds = [f"{row['flops'] / us / 1e6:.0f}", f"{row['bytes'] / us / 1e3:.0f}"]
    copied = f"{speed_over(row, row['copy']):.2f}" if "copy" in row else ""
    return [*start, f"{us:.1f}", *speeds, others, copied, row["wanted"]]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--operators", nargs="+", default=list(OPERATORS), choices=list(OPERATORS))
    parser.add_argument("--count", type=int, default=40, help="of shapes for each choice of dtypes; 0: named ones only")
    parser.add_argument("--seconds", type=float, default=200.0, help="after which no more calls are begun")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiled", type=int, default=2, help="drawn calls on rows that race with torch.compile")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    import gpu_calls  # noqa: F401  with torch, once for all processes; nothing here may use the GPU
    from gpu_race import measured

    import aot_tune.bench.worker.cuda_truth  # noqa: F401
    from aot_tune import ops

    there = {o["name"]: o["variants"] for o in ops.manifest()["operators"]}
    targets = {v["target"] for variants in there.values() for v in variants if v["target"].startswith("cuda-sm_")}
    names, target = [n for n in given.operators if n in there], max(targets, default="cuda-sm_90a")
    calls = items(names, given.count, given.seed, given.compiled, target)
    rows: list[Row] = []
    try:
        for _, row in measured(calls, about, functools.partial(measure, given.rounds), end):
            rows.append(row)
            if given.json:
                given.json.write_text(json.dumps({"rows": rows}))
    finally:
        print(tables(rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
