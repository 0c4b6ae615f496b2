"""What the benches of a pool share: files, linked candidates, and what one device found out for all."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from aot_tune.bench.host.findings import Findings
from aot_tune.compile import Object, toolchain_for
from aot_tune.compile.toolchain import NO_OPTIONS
from aot_tune.pipeline.session import Session
from aot_tune.spec import CompileOptions
from aot_tune.support.storage import check_loadable, scratch_folder

__all__ = ["BenchFiles"]


class BenchFiles:
    """A context manager whose files are removed at its end. Any thread may use it.

    `benches` is how many share it. When `over` says so, no bench waits for another's findings any more.
    """

    def __init__(self, session: Session, benches: int = 1, over: Callable[[], bool] = lambda: False) -> None:
        self.benches, self._over = benches, over
        self._session, self._stack, self._lock = session, ExitStack(), threading.Lock()
        self._folder: Path | None = None
        self._findings: Findings | None = None
        self._linked: dict[str, Path] = {}
        self._numbers = itertools.count()

    def __enter__(self) -> BenchFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @property
    def findings(self) -> Findings:
        """What one device found out for all."""
        folder = self.folder()
        with self._lock:
            if self._findings is None:
                self._findings = Findings(folder / "references", over=self._over, checks=self._session.checks)
            return self._findings

    def folder(self) -> Path:
        """A folder for files that all benches can read. It is removed at the end."""
        with self._lock:
            if self._folder is None:
                self._folder = Path(self._stack.enter_context(scratch_folder())).resolve()
            return self._folder

    def own_folder(self) -> Path:
        """A new folder inside it for one bench."""
        return self.folder() / f"bench-{next(self._numbers)}"

    def is_linked(self, made: Object) -> bool:
        """Whether an object has been linked for the benchmark."""
        with self._lock:
            return made.digest in self._linked

    def link(self, backend: str, made: Object, options: CompileOptions = NO_OPTIONS) -> Path:
        """Link a backend's object for the benchmark, once. Several threads may ask at the same time.

        `options` name the author's libraries that it needs.

        Raises:
            ToolchainError: when the object does not link.
            WorkerError: when workers could not load it from its folder.
        """
        with self._lock:
            known = self._linked.get(made.digest)
        if known is not None:
            return known
        folder = self.folder()
        check_loadable(folder)  # else every candidate would fail, and the failures would be stored
        path = folder / f"{made.digest[:24]}-{threading.get_ident()}.so"
        toolchain = toolchain_for(backend, self._session.environment)
        toolchain.link_shared([Path(made.path)], path, toolchain.libraries(options))
        with self._lock:
            return self._linked.setdefault(made.digest, path)
