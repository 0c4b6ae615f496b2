"""Compiles many candidates at a time, and says how many compilers that takes."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec

from aot_tune.compile.object_cache import ObjectCache
from aot_tune.compile.toolchain import MEMORY_PER_COMPILE, Object, target_by_name
from aot_tune.render import Rendered
from aot_tune.support.errors import OptionError, ToolchainError
from aot_tune.support.limits import free_memory, usable_cores
from aot_tune.support.run_program import kill_running

Task = Callable[[], None]
_VARIABLES = ("AOT_TUNE_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL", "MAX_JOBS")


class CompileProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far compiling is: `done` of `total` objects, and the last object with its candidate's id."""

    done: int
    total: int
    candidate: str
    object: Object


@dataclass(frozen=True)
class Batch:
    """Candidates of one backend, in the order in which they are started, and how many of its compilers may run."""

    cache: ObjectCache
    rendereds: Sequence[Rendered]
    jobs: Jobs


def compile_all(
    cache: ObjectCache,
    rendereds: Iterable[Rendered],
    jobs: int,
    on_progress: Callable[[CompileProgress], None] | None = None,
) -> dict[str, Object]:
    """Objects of rendered candidates of one backend by candidate id; see `compile_batches`.

    Args:
        jobs: how many compilers run at a time.
    """
    return compile_batches([Batch(cache, tuple(rendereds), Jobs(count=max(1, jobs), reason=""))], on_progress)


def compile_batches(
    batches: Sequence[Batch],
    on_progress: Callable[[CompileProgress], None] | None = None,
    then: Callable[[str, Object], Task | None] = lambda *_: None,
) -> dict[str, Object]:
    """Objects of rendered candidates by candidate id.

    The backends share the cores. So quick candidates are ready while those of a slow backend still compile. Objects in
    a cache need no core: they are there at once.

    Args:
        on_progress: called in this thread after each object.
        then: says what is still to be done with a candidate's object before `on_progress`, or None for nothing. It is
            called in this thread or in a compiler's. The task runs in the thread of its compiler. For an object from
            the cache, it runs in a separate thread.

    Raises:
        ToolchainError: when a compiler cannot be started, or when a candidate is of another backend than its cache.
    """
    wanted = [(batch, rendered) for batch in batches for rendered in _once(batch)]
    objects: dict[str, Object] = {}
    with _Compilers(batches, then) as compilers:
        for done, (candidate, result) in enumerate(_made(wanted, compilers), 1):
            objects[candidate] = result
            if on_progress is not None:
                on_progress(CompileProgress(done=done, total=len(wanted), candidate=candidate, object=result))
    return objects


class _Compilers:
    """A thread pool for each backend, and one for what is left to do with objects from a cache. A context manager.

    The threads end when it is left. If an error leaves it, they end at once, with what they run.
    """

    def __init__(self, batches: Sequence[Batch], then: Callable[[str, Object], Task | None]) -> None:
        for batch in batches:
            batch.cache.toolchain.identity()  # a missing compiler is one error, before anything is compiled
        self.then = then
        self._elsewhere = {id(e): e for b in batches if (e := b.cache.elsewhere) is not None}
        most = max((b.jobs.count for b in batches), default=1)
        self._room = Room(most, min((b.jobs.free for b in batches if b.jobs.free is not None), default=None))
        self._pools = {b.cache.toolchain.name: ThreadPoolExecutor(b.jobs.count) for b in batches}
        self._beside = ThreadPoolExecutor(most)

    def compile(self, batch: Batch, rendered: Rendered) -> Future[Object]:
        """Compile in a thread of the backend, as soon as there is room for one more compiler."""
        return self._pools[batch.cache.toolchain.name].submit(self._compile, batch, rendered)

    def complete(self, compiled: Object, task: Task | None) -> Future[Object]:
        """Do what is left with an object, without waiting for compilers, which may take long."""
        return self._beside.submit(_complete, compiled, task)

    def _compile(self, batch: Batch, rendered: Rendered) -> Object:
        with self._room.of(batch.jobs.memory):
            compiled = batch.cache.get(rendered, target_by_name(rendered.candidate.target))
            return _complete(compiled, self.then(rendered.candidate.id, compiled))

    def __enter__(self) -> _Compilers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pools = (*self._pools.values(), self._beside)
        if kind is not None:
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)
            kill_running()
            for machines in self._elsewhere.values():
                machines.end_compiles()
        for pool in pools:
            pool.shutdown(wait=True)


def _made(wanted: Sequence[tuple[Batch, Rendered]], compilers: _Compilers) -> Iterator[tuple[str, Object]]:
    """Ids of candidates with their objects, as they get ready. Objects in a cache are looked up here, in one thread."""
    done: queue.SimpleQueue[tuple[str, Future[Object]]] = queue.SimpleQueue()
    makers: dict[tuple[str, str], Mapping[str, object]] = {}
    running = 0
    for batch, rendered in wanted:
        target, name = target_by_name(rendered.candidate.target), rendered.candidate.id
        at = batch.cache.toolchain.name, target.name
        if at not in makers:
            makers[at] = batch.cache.maker(target)
        cached = batch.cache.find(rendered, target, makers[at])
        task = compilers.then(name, cached) if cached is not None else None
        if cached is not None and task is None:
            yield name, cached
        else:
            begun = compilers.compile(batch, rendered) if cached is None else compilers.complete(cached, task)
            begun.add_done_callback(partial(_put, done, name))
            running += 1
        while not done.empty():
            ready, future = done.get()
            running -= 1
            yield ready, future.result()
    for _ in range(running):
        ready, future = done.get()
        yield ready, future.result()


def _put(done: queue.SimpleQueue[tuple[str, Future[Object]]], candidate: str, future: Future[Object]) -> None:
    done.put((candidate, future))


def _complete(compiled: Object, task: Task | None) -> Object:
    if task is not None:
        task()
    return compiled


def _once(batch: Batch) -> list[Rendered]:
    """A batch's candidates, each once."""
    by_id: dict[str, Rendered] = {}
    for rendered in batch.rendereds:
        candidate = rendered.candidate
        if candidate.backend != batch.cache.toolchain.name:
            raise ToolchainError(
                f"candidate {candidate.label!r} is of backend {candidate.backend!r}",
                why=f"this cache compiles for {batch.cache.toolchain.name!r}",
                fix="give each backend a cache of its own on the same root",
            )
        by_id.setdefault(candidate.id, rendered)
    return list(by_id.values())


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """A number of compilers, and one line that says where it came from and how to change it.

    `memory` is what one compiler may need, and `free` what all may take together, in bytes. `free` is None if somebody
    set the number.
    """

    count: int
    reason: str
    memory: int = MEMORY_PER_COMPILE
    free: int | None = None


class Room:
    """The cores and memory that compilers of several backends share.

    Args:
        count: how many compilers run at a time.
        free: bytes that they may take together. None is no limit.
    """

    def __init__(self, count: int, free: int | None = None) -> None:
        self._count, self._free = count, math.inf if free is None else free
        self._running = self._used = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def of(self, memory: int) -> Iterator[None]:
        """Wait for room for one more compiler that may need `memory` bytes. If none runs, there always is."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._running == 0 or (self._running < self._count and self._used + memory <= self._free)
            )
            self._running, self._used = self._running + 1, self._used + memory
        try:
            yield
        finally:
            with self._changed:
                self._running, self._used = self._running - 1, self._used - memory
                self._changed.notify_all()


def parallel_compiles(environ: Mapping[str, str], *, root: Path = Path("/"), memory: int = MEMORY_PER_COMPILE) -> Jobs:
    """The first of AOT_TUNE_JOBS, CMAKE_BUILD_PARALLEL_LEVEL and MAX_JOBS, or else what cores and memory allow.

    Args:
        root: where /proc and /sys are read.
        memory: bytes that one compiler may need, as `Toolchain.memory_per_job` says.

    Raises:
        OptionError: when one of the variables is not a positive integer.
    """
    for name in _VARIABLES:
        text = environ.get(name, "")
        if text:
            if not text.isdecimal() or int(text) < 1:
                raise OptionError(f"{name}={text!r} is not a positive integer", fix=f"set {name} to 1 or more")
            return Jobs(count=int(text), reason=f"{text} compilers at a time ({name})", memory=memory)
    cores = usable_cores(root)
    available = free_memory(root)
    free = cores * memory if available is None else available
    count = max(1, min(cores, free // memory))
    each = f", {memory / 2**30:.1f} GiB each" if count < cores else ""
    reason = f"{count} compilers at a time ({cores} cores, {free / 2**30:.1f} GiB free{each}; AOT_TUNE_JOBS changes it)"
    return Jobs(count=count, reason=reason, memory=memory, free=free)
