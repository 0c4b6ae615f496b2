"""What is found out once for all devices of one model: references, and verdicts on objects by odd problems."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from aot_tune.bench.host.odd_problems import checks_for
from aot_tune.bench.host.worker_process import DiedError
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Check, Policy, Prepared, digest_of
from aot_tune.spec import Expr, Operator
from aot_tune.support.errors import WorkerError

T = TypeVar("T")


def _never() -> bool:
    return False


class Once(Generic[T]):
    """Values by name. The first thread that asks makes the value, and the others wait for it.

    A value may fail, or may not be worth keeping. Then the next thread that asks or waits makes it itself. But once it
    is `over`, waiting threads raise instead. Otherwise each of them would begin again what was ended.
    """

    def __init__(self, keep: Callable[[T], bool] = lambda _value: True, over: Callable[[], bool] = _never) -> None:
        self._lock, self._keep, self._over = threading.Lock(), keep, over
        self._made: dict[str, T] = {}
        self._making: dict[str, threading.Event] = {}

    def get(self, name: str, make: Callable[[], T]) -> T:
        """The value of that name. Raises WorkerError when it is over, and the awaited value was not made."""
        other: threading.Event | None = None
        while True:
            with self._lock:
                if name in self._made:
                    return self._made[name]
                if other is not None and self._over():
                    raise WorkerError(
                        "the work of another device was ended before its result was there",
                        why="the build or its budget ended",
                    )
                other = self._making.get(name)
                if other is None:
                    mine = self._making[name] = threading.Event()
                    break
            other.wait()
        try:
            value = make()
            if self._keep(value):
                with self._lock:
                    self._made[name] = value
            return value
        finally:
            with self._lock:
                del self._making[name]
            mine.set()

    def has(self, name: str) -> bool:
        with self._lock:
            return name in self._made

    def made(self, name: str) -> T | None:
        with self._lock:
            return self._made.get(name)

    def put(self, name: str, value: T) -> None:
        with self._lock:
            self._made.setdefault(name, value)

    def making(self, name: str) -> bool:
        """Whether a thread is making it now."""
        with self._lock:
            return name in self._making


class Checks:
    """Odd problems by operator and by what kernels require: fitting them takes a while, and many require the same."""

    def __init__(self) -> None:
        self._made = Once[list[Check]]()

    def of(self, operator: Operator, requires: Sequence[Expr], policy: Policy, on_host: bool) -> list[Check]:
        name = "\n".join((operator.folder, policy.digest, str(on_host), *(r.key() for r in requires)))
        return self._made.get(name, lambda: checks_for(operator, requires, policy, on_host=on_host))


@dataclass(frozen=True)
class Odd:
    """The odd problems of an object. There are none if the verdict on its `suite` is known already."""

    suite: str
    problems: Sequence[Prepared] = ()


class Findings:
    """What benches on devices of one model share. Each bench is in a thread of its own.

    Args:
        folder: where references go. The workers of all benches can read it.
        prefix: of the references' names, to tell them from others in a worker.
        over: whether the benches are being ended.
        checks: those that are known already.

    `repeated` are objects whose calls were repeated, and whether their bits were the same.
    """

    def __init__(
        self, folder: Path, prefix: str = "", over: Callable[[], bool] = _never, checks: Checks | None = None
    ) -> None:
        self.folder, self.prefix, self.over = folder, prefix, over
        self.checks = checks or Checks()
        self.references = Once[Prepared](over=over)
        self.verdicts = Once[messages.Reply](lambda reply: isinstance(reply, messages.Checked), over)
        self._lock = threading.Lock()
        self._strikes: dict[str, tuple[int, DiedError]] = {}
        self._begun: dict[str, int] = {}
        self.repeated: dict[str, bool] = {}

    @staticmethod
    def suite(operator_folder: str, digest: str, requires: Sequence[Expr]) -> str:
        """The name of the verdict on an object: what comes of it on the odd problems that its guards let through."""
        return digest_of([operator_folder, digest, [r.key() for r in requires]])

    def choose(self, suites: Iterable[str]) -> int:
        """Which of the calling thread's objects to try next, by their verdicts on odd problems.

        It is the first whose verdict is known, or that no other thread has begun. It then counts as begun by this
        thread. If none is, it is the first of all.
        """
        me = threading.get_ident()
        with self._lock:
            for position, suite in enumerate(suites):
                if self.verdicts.has(suite) or self._begun.setdefault(suite, me) == me:
                    return position
        return 0

    def struck(self, digest: str, most: int) -> DiedError | None:
        """How an object killed a worker, if it has killed as many workers as it may."""
        with self._lock:
            count, death = self._strikes.get(digest, (0, DiedError("ok", "")))
        return death if count >= most else None

    def strike(self, digest: str, death: DiedError) -> None:
        """Count a worker that an object has killed."""
        with self._lock:
            self._strikes[digest] = (self._strikes.get(digest, (0, death))[0] + 1, death)
