"""Times calls on one GPU: processes that are replaced, cold buffers, CUDA graphs, rounds in which all have a turn."""

from __future__ import annotations

import math
import multiprocessing
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
from gpu_tasks import Task
from tasks import installed_operator

from aot_tune.bench.protocol.measurement_records import Check
from aot_tune.bench.worker.inputs import call_of
from aot_tune.spec import Call, Operator, Problem, Tensor

__all__ = ["Arena", "Contender", "copy_of", "copy_speed", "empty_kernel", "measured", "race", "raced"]

Run = Callable[[int], object]
"""Computes with one set of buffers, by number, on the current stream. Only torch may allocate."""

Make = Callable[[Operator, Problem, Tensor, int], Any]
Row = dict[str, Any]
Item = TypeVar("Item")

_NODES = 20
_COLD = 4
"""Buffers that must be cold take this many times the L2 together."""
_NEAR = 1.25
"""A way that takes this many times as long as the fastest one needs no rounds."""
_MOST = 512
_TWICE = 2 << 30
"""Calls on more bytes than this have only one set: at most a few percent of it can still be in the L2."""
_GRAPH_US = 5000.0
"""A graph has as many calls as fill this time, at most 20."""
_LONG_US = 10000.0
"""Calls that take longer have three rounds: their times differ little."""
_MOST_CACHED = 2**36
"""torch keeps at most so many bytes for the next call."""
PATIENCE, _GRACE = 60.0, 2.0
"""Seconds after which a process that tells nothing is ended, and that it has for its own end."""
_OVER = -1
_FORK = multiprocessing.get_context("fork")


class Arena:
    """Buffers of a task: enough sets that what must be cold has left the L2 before it is used again.

    Weights are always cold, and so are all tensors of a call that the L2 cannot hold. Smaller tensors stay there, as
    activations do. Kernels were chosen in the same way. With `cold_inputs`, all inputs of a small call are cold, as far
    as 512 sets suffice, and its outputs stay. `make` makes a tensor of a set; without it, values are random.
    """

    def __init__(self, task: Task, *, cold_inputs: bool = False, make: Make | None = None) -> None:
        self.task, self.operator = task, installed_operator(task.operator)
        make = make or _tensor
        operator, problem = self.operator, task.problem
        present = [t for t in operator.tensors if operator.is_present(problem, t)]
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        cold = [t for t in present if t.cold]
        whole = sum(_bytes(operator, problem, t) for t in present) > cache
        if whole:
            cold = present
        elif cold_inputs:
            cold = [t for t in present if not t.output]
        moved = sum(_bytes(operator, problem, t) for t in cold)
        least = 2 if whole and moved <= _TWICE else 1
        self.sets = min(_MOST, max(least, math.ceil(_COLD * cache / moved))) if moved else 1
        self._buffers = {
            t.name: [make(operator, problem, t, i) for i in range(self.sets if t in cold else 1)] for t in present
        }
        self.calls = [self._call(i) for i in range(self.sets)]

    def _call(self, number: int) -> Call:
        tensors = {name: found[number % len(found)] for name, found in self._buffers.items()}
        return call_of(self.operator, Check(problem=self.task.problem), tensors)

    def outputs(self) -> dict[str, Any]:
        """The outputs of the first set."""
        return {t.name: self._buffers[t.name][0] for t in self.operator.outputs if t.name in self._buffers}


def _bytes(operator: Operator, problem: Problem, tensor: Tensor) -> int:
    return math.prod(operator.shape(problem, tensor)) * operator.dtype(problem, tensor).itemsize


def _tensor(operator: Operator, problem: Problem, tensor: Tensor, number: int) -> Any:
    """A tensor of random values (NaN for outputs) with the problem's strides.

    Its address is a multiple of 512 bytes, or just of the problem's alignment if that is stated.
    """
    shape, strides = operator.shape(problem, tensor), operator.strides(problem, tensor)
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    skipped = problem.alignment.get(tensor.name, 0) // operator.dtype(problem, tensor).itemsize
    flat = torch.empty(count + skipped, dtype=getattr(torch, operator.dtype(problem, tensor).torch), device="cuda")
    generator = torch.Generator("cuda").manual_seed(sum(map(ord, tensor.name)) + 1000 * number)
    if tensor.output:
        flat.fill_(math.nan)
    elif tensor.values.kind == "normal":
        flat.normal_(0.0, tensor.values.high, generator=generator)
    else:
        flat.uniform_(tensor.values.low, tensor.values.high, generator=generator)
    return flat.as_strided(shape, strides, skipped)


class Contender:
    """One way to compute a task, captured as a graph of 20 calls, or fewer long ones, that uses the sets in order."""

    def __init__(self, name: str, run: Run, sets: int) -> None:
        self.name = name
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # do lazy set-up before the capture
            for number in range(3):
                run(number % sets)
        torch.cuda.synchronize()
        least = max(1, min(_NODES, round(_GRAPH_US / _once(run))))
        self.nodes = math.ceil(least / sets) * sets
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for number in range(self.nodes):
                run(number % sets)
        self.expected = self.time(1)

    def time(self, replays: int, warm: bool = True) -> float:
        """Microseconds per call, as a mean over the graph.

        If `warm`, an untimed replay comes first. While it runs, the host queues the others, so queueing is not part of
        any time.
        """
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if warm:
            self._graph.replay()
        start.record()
        for _ in range(replays):
            self._graph.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1000.0 / (replays * self.nodes)


def _once(run: Run) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run(0)
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1000.0


def _fastest(ways: Mapping[str, Run], sets: int, always: Collection[str]) -> tuple[list[Contender], list[str]]:
    able: list[Contender] = []
    notes, least = [], math.inf
    for name, run in ways.items():
        try:
            run(0)
            us = _once(run)
            least = min(least, us)
            if name in always or us <= max(_NEAR * least, _GRAPH_US):
                able.append(Contender(name, run, sets))
        except Exception as error:  # a way that does not take the call
            torch.cuda.synchronize()  # after an error that stays this raises
            notes.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    least = min((c.expected for c in able), default=0.0)
    return [c for c in able if c.name in always or c.expected <= _NEAR * least], notes


def raced(
    run: Run, sets: int, ways: Mapping[str, Run], rounds: int, always: Collection[str] = (), copied: int = 0
) -> Row:
    """A call against the ways that take it, without those that are far from the fastest one and not in `always`.

    Returns:
        `us`, in which the call is `ours`, and `notes` on ways that do not take it; and if bytes are to be `copied`,
        these `bytes` and the times of the faster `copy`.
    """
    ours = Contender("ours", run, sets)
    others, notes = _fastest(ways, sets, always)
    copies = [Contender(f"copy {i}", *copy_of(copied, bool(i))) for i in range(2 if copied else 0)]
    us = race([ours, *others, *copies], rounds if ours.expected <= _LONG_US else min(rounds, 3))
    times = [us.pop(copy.name) for copy in copies]
    return {"us": us, "notes": notes} | ({"bytes": copied, "copy": min(times, key=statistics.median)} if times else {})


def race(contenders: Sequence[Contender], rounds: int, turn_us: float = 2000.0) -> dict[str, list[float]]:
    """Microseconds per call of each round. In a round, every contender has one turn, in a new order.

    A turn is as many replays as fill `turn_us`, at least one. If it is short, an untimed replay comes first.
    """
    generator = random.Random(0)
    taken: dict[str, list[float]] = {c.name: [] for c in contenders}
    for _ in range(rounds):
        order = list(contenders)
        generator.shuffle(order)
        for contender in order:
            replay = contender.expected * contender.nodes
            replays = max(1, min(64, round(turn_us / replay)))
            taken[contender.name].append(contender.time(replays, warm=replay < turn_us))
    return taken


def copy_of(moved: int, by_kernel: bool = False) -> tuple[Run, int]:
    """A copy that reads and writes `moved` bytes together, and the number of its sets of buffers.

    Copies of over 100 MB by the driver are slower on an H200 than those by a kernel that reads 16 bytes at a time.
    """
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(1, math.ceil(_COLD * cache / moved))
    sources = [torch.zeros(max(moved // 8, 16), dtype=torch.int32, device="cuda").random_() for _ in range(sets)]
    sinks = [torch.empty_like(s) for s in sources]
    if by_kernel:
        return lambda i: torch.bitwise_not(sources[i % sets], out=sinks[i % sets]), sets
    return lambda i: sinks[i % sets].copy_(sources[i % sets]), sets


def copy_speed() -> float:
    """Bytes per second, read and written together, of the fastest of copies of 64 MiB to 1 GiB."""
    speeds = []
    for moved in (1 << 27, 1 << 29, 1 << 31):  # on an H200 1 GiB ran at 2.77 TB/s, less at 4.0 to 4.3
        contender = Contender("copy", *copy_of(moved))
        times = sorted(contender.time(1) for _ in range(9))
        speeds.append(moved / (times[4] * 1e-6))
    return max(speeds)


def empty_kernel() -> tuple[Run, str]:
    """A launch that does nothing, and what it is."""
    compiler: Mapping[str, Any] = vars(torch.cuda)
    if "_compile_kernel" in compiler:
        try:
            kernel = compiler["_compile_kernel"]('extern "C" __global__ void nothing() {}', "nothing")
            kernel((1, 1, 1), (32, 1, 1), ())
            torch.cuda.synchronize()
        except Exception as error:  # such as a torch without its run-time compiler
            print(f"no kernel could be compiled by torch: {error}", flush=True)
        else:
            return lambda _: kernel((1, 1, 1), (32, 1, 1), ()), "an empty kernel"
    return lambda _: torch.cuda._sleep(0), "torch.cuda._sleep(0)"


def measured(
    items: Sequence[Item], about: Callable[[Item], Row], measure: Callable[[Item], Row], end: float
) -> Iterator[tuple[Item, Row]]:
    """Items with their rows, from a process that is replaced when it dies or hangs. After `end` no item is begun.

    A row has what is known `about` the item, and what is measured, or an `error`.
    """
    first, in_vain = 0, 0
    while first < len(items) and time.monotonic() < end and in_vain < 3:
        reader, writer = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_work, args=(writer, items[first:], measure, end))
        process.start()
        writer.close()
        begun, done, over = -1, 0, False
        with suppress(EOFError, OSError):
            while not over and reader.poll(PATIENCE):
                begun, row = reader.recv()
                over = begun == _OVER
                if row is not None:
                    yield items[first + begun], {**about(items[first + begun]), **row}
                    done = begun + 1
        process.join(0 if over else _GRACE)
        status = process.exitcode
        process.kill()
        process.join()
        if over:
            return
        print(f"a process ended with {status}", file=sys.stderr, flush=True)
        if begun >= done:
            item = items[first + begun]
            yield item, {**about(item), "error": f"the process hung or died: {status}"}
            done = begun + 1
        in_vain = 0 if done else in_vain + 1
        first += done


def _work(writer: Any, items: Sequence[Item], measure: Callable[[Item], Row], end: float) -> None:
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")  # torch's backends tell why they do not take a call
    raised = 0
    for number, item in enumerate(items):
        if time.monotonic() >= end:
            break
        writer.send((number, None))
        try:
            row, raised = measure(item), 0
        except Exception as error:
            row, raised = {"error": f"{type(error).__name__}: {str(error)[:200]}"}, raised + 1
        writer.send((number, row))
        if raised:
            torch.cuda.synchronize()  # after an error that stays this ends the process
        if raised > 2:  # something else may have stayed
            sys.exit(3)
        if torch.cuda.memory_reserved() > _MOST_CACHED:
            torch.cuda.empty_cache()
    writer.send((_OVER, None))
