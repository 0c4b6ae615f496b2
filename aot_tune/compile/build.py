"""Compiles many candidates at a time, each distinct source once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import msgspec

from aot_tune.compile.cache import ObjectCache
from aot_tune.compile.jobs import Jobs, Room
from aot_tune.compile.records import Object
from aot_tune.compile.run import kill_running
from aot_tune.compile.toolchain import target_by_name
from aot_tune.errors import ToolchainError
from aot_tune.render import Rendered

__all__ = ["Batch", "Progress", "compile_all", "compile_batches"]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far compiling is: `done` of `total` distinct objects, and the one that just came."""

    done: int
    total: int
    object: Object


@dataclass(frozen=True)
class Batch:
    """Candidates of one backend, in the order in which they are begun, and how many of its compilers may run."""

    cache: ObjectCache
    rendereds: Sequence[Rendered]
    jobs: Jobs


def compile_all(
    cache: ObjectCache,
    rendereds: Iterable[Rendered],
    jobs: int,
    on_progress: Callable[[Progress], None] | None = None,
) -> dict[str, Object]:
    """Objects of rendered candidates of one backend by candidate id; see `compile_batches`.

    Args:
        jobs: compilers that run at a time.
    """
    return compile_batches([Batch(cache, tuple(rendereds), Jobs(count=max(1, jobs), reason=""))], on_progress)


def compile_batches(
    batches: Sequence[Batch], on_progress: Callable[[Progress], None] | None = None
) -> dict[str, Object]:
    """Objects of rendered candidates by candidate id; equal sources for one target share an object.

    The backends share the cores, so that what is quick to compile is ready while a slow one's candidates take long.

    Args:
        on_progress: called in this thread after each distinct object.

    Raises:
        ToolchainError: when a compiler cannot be started, or a candidate is of another backend than its cache.
    """
    groups = [(batch, group) for batch in batches for group in _distinct(batch)]
    for batch in batches:
        batch.cache.toolchain.identity()  # a missing compiler is one error, before anything is compiled
    room = Room(
        max((b.jobs.count for b in batches), default=1),
        min((b.jobs.free for b in batches if b.jobs.free is not None), default=None),
    )
    pools = {b.cache.toolchain.name: ThreadPoolExecutor(max_workers=b.jobs.count) for b in batches}
    made: dict[str, Object] = {}
    try:
        waiting = {pools[b.cache.toolchain.name].submit(_compile, b, g[0], room): g for b, g in groups}
        for done, (future, group) in enumerate(_finished(waiting), 1):
            result = future.result()
            made |= {r.candidate.id: result for r in group}
            if on_progress is not None:
                on_progress(Progress(done=done, total=len(groups), object=result))
    except BaseException:
        for pool in pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        kill_running()
        raise
    finally:
        for pool in pools.values():
            pool.shutdown(wait=True)
    return made


def _distinct(batch: Batch) -> list[list[Rendered]]:
    """A batch's candidates, those together that share an object."""
    found: dict[tuple[str, str], list[Rendered]] = {}
    for rendered in batch.rendereds:
        candidate = rendered.candidate
        if candidate.backend != batch.cache.toolchain.name:
            raise ToolchainError(
                f"candidate {candidate.label!r} is of backend {candidate.backend!r}",
                why=f"this cache compiles for {batch.cache.toolchain.name!r}",
                fix="give each backend a cache of its own on the same root",
            )
        found.setdefault((rendered.source, candidate.target), []).append(rendered)
    return list(found.values())


def _compile(batch: Batch, rendered: Rendered, room: Room) -> Object:
    with room.of(batch.jobs.memory):
        return batch.cache.get(rendered, target_by_name(rendered.candidate.target))


def _finished(
    waiting: dict[Future[Object], list[Rendered]],
) -> Iterator[tuple[Future[Object], list[Rendered]]]:
    """Futures with what they are for, as they get done."""
    while waiting:
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            yield future, waiting.pop(future)
