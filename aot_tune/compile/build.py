"""Compiles many candidates at a time, each distinct source once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import msgspec

from aot_tune.compile.cache import ObjectCache
from aot_tune.compile.records import Object
from aot_tune.compile.run import kill_running
from aot_tune.compile.toolchain import target_by_name
from aot_tune.errors import ToolchainError
from aot_tune.render import Rendered

__all__ = ["Progress", "compile_all"]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far `compile_all` is: `done` of `total` distinct objects, and the one that just came."""

    done: int
    total: int
    object: Object


def compile_all(
    cache: ObjectCache,
    rendereds: Iterable[Rendered],
    jobs: int,
    on_progress: Callable[[Progress], None] | None = None,
) -> dict[str, Object]:
    """Objects of rendered candidates by candidate id; equal sources for one target share an object.

    Args:
        jobs: compilers that run at a time.
        on_progress: called in this thread after each distinct object.

    Raises:
        ToolchainError: when the compiler cannot be started, or a candidate is of another backend than the cache.
    """
    distinct: dict[tuple[str, str], list[Rendered]] = {}
    for rendered in rendereds:
        candidate = rendered.candidate
        if candidate.backend != cache.toolchain.name:
            raise ToolchainError(
                f"candidate {candidate.label!r} is of backend {candidate.backend!r}",
                why=f"this cache compiles for {cache.toolchain.name!r}",
                fix="give each backend a cache of its own on the same root",
            )
        distinct.setdefault((rendered.source, candidate.target), []).append(rendered)
    cache.toolchain.identity()  # a missing compiler is one error, before anything is compiled
    made: dict[str, Object] = {}
    pool = ThreadPoolExecutor(max_workers=max(1, jobs))
    try:
        waiting: dict[Future[Object], list[Rendered]] = {
            pool.submit(cache.get, group[0], target_by_name(target)): group for (_, target), group in distinct.items()
        }
        done = 0
        while waiting:
            finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                result, done = future.result(), done + 1
                made |= {r.candidate.id: result for r in waiting.pop(future)}
                if on_progress is not None:
                    on_progress(Progress(done=done, total=len(distinct), object=result))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        kill_running()
        raise
    finally:
        pool.shutdown(wait=True)
    return made
