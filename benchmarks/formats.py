#!/usr/bin/env python3
"""Calls of operators on 8 bits, groups, pages and packed weights on a GPU: shapes that no build drew, and named ones.

    benchmarks/formats.py [--operators scaled_mm grouped_gemm ...] [--count 40] [--seconds 200] [--seed 1] [--rounds 5]
                          [--compiled 3] [--json FILE]

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
import importlib
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from formats_shapes import COMPILED, OPERATORS, Item, dtypes_of, items, tables

__all__ = ["measure", "run"]

_MOST_FLOPS, _MOST_ELEMENTS = 2**37, 2**30
"""Of calls that are checked: FLOPs, and elements of inputs. Then a check takes a fraction of a second."""
_OF_MEMORY = 100
"""Memory limits calls of at most so many FLOPs for each byte."""
_COPIED = 8 * 10**6
_LONG_US = 10000.0
"""Calls that take longer have three rounds: their times differ little."""
_NEAR = 1.25
"""Ways of torch that take longer than the fastest by more than this need no rounds, unless the call has a name."""
_MOST_CACHED = 2**36
"""torch keeps at most so many bytes for the next call."""
_PATIENCE = 60.0
"""Seconds after which a process that tells nothing is ended."""
_GRACE = 2.0
"""Seconds that a process has for its end."""
_OVER = -1
_SEED = 20
DEVICE = "cuda"
_FORK = multiprocessing.get_context("fork")

Row = dict[str, Any]
Run = Callable[[int], object]


def measure(item: Item, rounds: int) -> Row:
    """The times of a call, in us by round, or what went wrong."""
    from gpu_calls import facts, ours
    from gpu_race import Contender, copy_by_kernel, copy_of, race
    from gpu_tasks import installed_operator

    from aot_tune.spec.regimes import regime_of

    operator = installed_operator(item.operator)
    told = operator.facts(item.problem)
    flops, moved = item.flops or operator.flops.evaluate(told), item.bytes or operator.compulsory_bytes(item.problem)
    row: Row = {
        "operator": item.operator,
        "dtypes": dtypes_of(operator, item.problem),
        "name": item.name,
        "wanted": item.wanted,
        "shape": item.problem.id,
        "regime": regime_of(operator, told),
        "bytes": moved,
        "flops": flops,
    }
    try:
        bench = Bench(item, flops, moved)
        mine = ours(bench.arena, None)
        if wrong := bench.wrong(mine):
            return {**row, "error": wrong}
        contenders = [Contender("ours", mine, bench.arena.sets)]
        others, notes = bench.others()
        copies = []
        if moved >= _COPIED and flops <= _OF_MEMORY * moved:
            copies = [Contender("copy", *copy_of(moved)), Contender("copy by a kernel", *copy_by_kernel(moved))]
        few = contenders[0].expected > _LONG_US
        us = race([*contenders, *others, *copies], min(rounds, 3) if few else rounds)
        copied = [us.pop(c.name) for c in copies]
        of = {"copy": min(copied, key=statistics.median)} if copied else {}
        checked = {"checked": bool(bench.truths), "sets": bench.arena.sets}
        return {**row, "us": us, **of, "notes": notes, **checked, **facts(bench.arena, None)}
    except Exception as error:
        return {**row, "error": f"{type(error).__name__}: {str(error)[:200]}", "raised": True}


class Bench:
    """The tensors of a call in enough sets, what its outputs should be, and other ways to compute it."""

    def __init__(self, item: Item, flops: int, moved: int) -> None:
        import torch
        from gpu_race import Arena
        from gpu_tasks import Task, installed_operator

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
        task = Task(item.operator, item.problem, "rows", "", "", moved, flops, known=False)
        cold = not any(t.cold for t in general.tensors)
        self.arena = Arena(task, cold_inputs=cold, make=self._make)

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

    def others(self) -> tuple[list[Any], list[str]]:
        """Ways of torch, ready to race, and why others are not."""
        import torch
        from gpu_race import Contender

        able, notes = [], []
        for name, prepare in self._ways().items():
            try:
                run, checked = prepare()
                if checked and (wrong := self.wrong(run)):
                    notes.append(f"{name} is wrong: {wrong[:200]}")
                    continue
                able.append(Contender(name, run, self.arena.sets))
            except Exception as error:  # a way that does not take the call
                notes.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
                torch.cuda.synchronize()  # after an error that stays this raises
        least = min((c.expected for c in able), default=0.0)
        if not self.item.name:
            able = [c for c in able if c.name == COMPILED or c.expected <= _NEAR * least]
        return able, notes

    def _ways(self) -> dict[str, Callable[[], tuple[Run, bool]]]:
        """Functions that prepare the ways of torch, and say whether their results are to be checked."""
        given = self.item.problem
        ways = {b.name: lambda b=b: self._baseline(b) for b in self.operator.baselines if b.supports(given)}
        if self.item.compiled:
            ways[COMPILED] = lambda: (self._compiled(), False)
        if "cu_k" in self.item.values:
            ways |= {f"dense, {n}": lambda n=n: (self._dense(n), False) for n in ("CUDNN", "FLASH", "aot_tune")}
        return ways

    def _baseline(self, baseline: Any) -> tuple[Run, bool]:
        module: Any = importlib.import_module(baseline.requires)
        functions = [baseline.prepare(module, call) for call in self.arena.calls]
        for function in functions:  # what a first call brings to the host must be there before the capture
            function()
        return lambda i: functions[i](), not baseline.partial(self.item.problem)

    def _compiled(self) -> Run:
        """Of tensors that torch makes itself, with all of its tuning, without its own graphs."""
        import torch

        calls = self.arena.calls
        names = [t.name for t in self.operator.inputs if getattr(calls[0], t.name) is not None]
        torch.compiler.reset()
        function = _composition(names, calls[0], self.item.problem.dims["GROUP"])
        made = torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
        given = [[getattr(call, name) for name in names] for call in calls]
        return lambda i: made(*given[i])

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


def _composition(names: Sequence[str], call: Any, group: int) -> Callable[..., Any]:
    """What users of torch write for an operator on rows. It takes the named tensors."""
    import torch

    f = torch.nn.functional
    rows, width = call.out.shape
    group, dtype, least = min(group, width), call.out.dtype, call.min_amax
    beyond, most = -width % group, 127.0 if dtype == torch.int8 else 448.0
    written = getattr(call, "residual_out", None) is not None
    powers, eps = call.scales == "powers_of_two", getattr(call, "eps", 0.0)

    def quantized(y: Any) -> tuple[Any, Any]:
        parts = (f.pad(y, (0, beyond)) if beyond else y).reshape(rows, -1, group)
        scale = parts.abs().amax(-1, keepdim=True).clamp(min=least) / most
        scale = scale.log2().ceil().exp2() if powers else scale
        parts = parts / scale
        parts = (parts.round() if dtype == torch.int8 else parts).clamp(-most, most)
        return parts.reshape(rows, -1)[:, :width].to(dtype), scale[..., 0]

    def composed(*tensors: Any) -> Any:
        given = dict(zip(names, tensors, strict=True))
        if "gate" in given:
            return quantized(f.silu(given["gate"].float()) * given["up"].float())
        total = given["x"].float()
        if "residual" in given:
            total = total + given["residual"].float()
        if not eps:
            return quantized(total)
        weight = given["weight"].float() if "weight" in given else None
        result = quantized(f.rms_norm(total, (width,), weight, eps))
        return (*result, total.to(given["x"].dtype)) if written else result

    return composed


def run(several: Sequence[Item], rounds: int, end: float, kept: Callable[[Row], None]) -> None:
    """Measure in a process that is replaced when it dies. After `end` no call is begun. `kept` gets each row."""
    first, in_vain = 0, 0
    while first < len(several) and time.monotonic() < end and in_vain < 3:
        reader, writer = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_work, args=(writer, several[first:], rounds, end))
        process.start()
        writer.close()
        begun, done, over = -1, 0, False
        with suppress(EOFError, OSError):
            while not over and reader.poll(_PATIENCE):
                begun, row = reader.recv()
                over = begun == _OVER
                if row is not None:
                    kept(row)
                    done = begun + 1
        process.join(0 if over else _GRACE)
        status = process.exitcode
        process.kill()
        process.join()
        if over:
            return
        print(f"a process ended with {status}", file=sys.stderr, flush=True)
        if begun >= done:
            kept(_lost(several[first + begun], status))
            done = begun + 1
        in_vain = 0 if done else in_vain + 1
        first += done


def _lost(item: Item, status: int | None) -> Row:
    from gpu_tasks import installed_operator

    dtypes = dtypes_of(installed_operator(item.operator), item.problem)
    row = {"operator": item.operator, "dtypes": dtypes, "name": item.name, "wanted": item.wanted}
    return {**row, "shape": item.problem.id, "error": f"the process hung or died: {status}"}


def _work(writer: Any, several: Sequence[Item], rounds: int, end: float) -> None:
    import torch

    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")  # torch's backends tell why they do not take a call
    raised = 0
    for number, item in enumerate(several):
        if time.monotonic() >= end:
            break
        writer.send((number, None))
        row = measure(item, rounds)
        writer.send((number, row))
        raised = raised + 1 if "raised" in row else 0
        if raised:
            torch.cuda.synchronize()  # after an error that stays this ends the process
        if raised > 2:  # something else may have stayed
            sys.exit(3)
        if torch.cuda.memory_reserved() > _MOST_CACHED:
            torch.cuda.empty_cache()
    writer.send((_OVER, None))


def _target(manifest: Mapping[str, Any]) -> str:
    found = {v["target"] for o in manifest["operators"] for v in o["variants"] if v["target"].startswith("cuda-sm_")}
    return max(found, default="cuda-sm_90a")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--operators", nargs="+", default=list(OPERATORS), choices=list(OPERATORS))
    parser.add_argument("--count", type=int, default=40, help="of shapes for each choice of dtypes; 0: named ones only")
    parser.add_argument("--seconds", type=float, default=200.0, help="after which no more calls are begun")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiled", type=int, default=3, help="drawn calls on rows that race with torch.compile")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    import gpu_calls  # noqa: F401  with torch, once for all processes; nothing here may use the GPU

    import aot_tune.bench.worker.cuda_truth  # noqa: F401
    from aot_tune import ops

    manifest = ops.manifest()
    there = {o["name"] for o in manifest["operators"]}
    several = items(
        [n for n in given.operators if n in there], given.count, given.seed, given.compiled, _target(manifest)
    )
    rows: list[Row] = []

    def kept(row: Row) -> None:
        rows.append(row)
        if given.json:
            given.json.write_text(json.dumps({"rows": rows}))

    try:
        run(several, given.rounds, end, kept)
    finally:
        print(tables(rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
