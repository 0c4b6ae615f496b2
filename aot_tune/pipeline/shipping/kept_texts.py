"""Writes the texts of kept variants that people read: their sources, and what compilers make of these."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aot_tune.compile import Toolchain, Variant, target_by_name, toolchain_for
from aot_tune.pipeline.session import Session
from aot_tune.support.storage import scratch_folder

__all__ = ["keep_texts"]

_SECONDS = 600.0


def keep_texts(session: Session, entries: Iterable[Variant]) -> None:
    """Write the texts of entries below the folder that AOT_TUNE_KEEP names, if it is set.

    Their paths are `<library>/<operator>/<variant>.<ending>`. The compilers run once more for them.
    """
    if not session.options.keep:
        return
    top = Path(session.options.keep) / session.plan.name
    wanted = {e.candidate.id: e for e in entries if e.compiled}
    with ThreadPoolExecutor(max(1, session.jobs_of("nvcc").count)) as threads:
        try:
            count = sum(threads.map(lambda entry: _keep(session, top, entry), wanted.values()))
        except OSError as error:  # this must not end a build
            session.progress.line(f"AOT_TUNE_KEEP: NOTHING KEPT below {top}: {error.strerror}")
            return
    session.progress.line(f"kept {count} files of {len(wanted)} variants below {top} (AOT_TUNE_KEEP)")


def _keep(session: Session, top: Path, entry: Variant) -> int:
    """Write the texts of an entry. Returns how many files these are."""
    candidate = entry.candidate
    folder, name = top / candidate.operator, entry.name
    folder.mkdir(parents=True, exist_ok=True)
    chain: Toolchain = toolchain_for(candidate.backend, session.environment)
    with scratch_folder() as scratch:
        target, rendered = target_by_name(candidate.target), entry.rendered
        texts = chain.texts(rendered.source, target, Path(scratch), _SECONDS, rendered.compile)
    texts = {"cu" if candidate.backend == "nvcc" else "cpp": entry.rendered.source.encode(), **texts}
    for ending, text in texts.items():
        temporary = folder / f".{name}.{ending}.{os.getpid()}"
        temporary.write_bytes(text)
        temporary.replace(folder / f"{name}.{ending}")
    return len(texts)
