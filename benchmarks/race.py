"""Worker processes, one for each library, and rounds between them. Only one computes at any time."""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from stats import Timing

__all__ = ["Entry", "Fleet", "WrongResultError"]

Entry = tuple[str, str, str]
"""A worker's name, the key of what it prepared, and the way to compute it."""

_TOLERANCE = 2e-4
"""Results of two libraries may differ by this share of the largest magnitude."""


class WrongResultError(Exception):
    """Libraries disagree, so their times mean nothing."""


class Worker:
    """A process that answers requests."""

    def __init__(self, library: str, threads: int, forced: str = "") -> None:
        """`forced` is the value of AOT_TUNE_FORCE in the process."""
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        argv = [sys.executable, str(Path(__file__).with_name("worker.py")), library, str(threads)]
        pipe = subprocess.PIPE
        # OpenBLAS then spins for 2^22 cycles after a call, not for 2^26. That is still far longer than between two
        # calls.
        counts |= {"OMP_DYNAMIC": "false", "OPENBLAS_THREAD_TIMEOUT": "22"}
        environment = {**os.environ, **counts, **({"AOT_TUNE_FORCE": forced} if forced else {})}
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=environment)
        self._name = library

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request without waiting."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The answer to the oldest request.

        Raises:
            SystemExit: when the worker failed or died.
        """
        reply = self.reply()
        if "error" in reply:
            raise SystemExit(f"benchmarks: the worker of {self._name} fails: {reply['error']}")
        return reply

    def reply(self) -> dict[str, Any]:
        """The same, or the `error` of a worker that is still alive.

        Raises:
            SystemExit: when the worker died.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"benchmarks: the worker of {self._name} died with status {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Fleet:
    """The workers of a run; a context manager that ends them."""

    def __init__(
        self,
        workers: Mapping[str, str],
        *,
        threads: int,
        rounds: int,
        budget_ms: float,
        limit_s: float,
        forced: Mapping[str, str] | None = None,
    ):
        """`workers` maps names to libraries, `forced` names to the variant that is forced there.

        A turn takes about `budget_ms`. A race of slow calls ends after about `limit_s`.
        """
        own = forced or {}
        self._workers = {name: Worker(library, threads, own.get(name, "")) for name, library in workers.items()}
        self._rounds, self._budget, self._limit = rounds, budget_ms * 1e6, limit_s
        self._random = random.Random(0)
        self.drop(self._workers)  # they answer when all imports are done

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._workers.values():
            worker.close()

    def ask(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request to one worker, while all others wait."""
        self._workers[name].send(request)
        return self._workers[name].receive()

    def prepare(
        self, requests: Mapping[str, Mapping[str, Any]], may_refuse: Collection[str] = ()
    ) -> dict[str, dict[str, Any]]:
        """Let several workers prepare the same thing at once (nothing is timed yet), and compare their results.

        Workers in `may_refuse` that fail are left out.


        Raises:
            WrongResultError: when two results differ.
        """
        for name, request in requests.items():
            self._workers[name].send({"do": "prepare", **request})
        told = {n: self._workers[n].reply() if n in may_refuse else self._workers[n].receive() for n in requests}
        replies = {name: reply for name, reply in told.items() if "error" not in reply}
        _compare({f"{n}: {w}": told["results"] for n, r in replies.items() for w, told in r["ways"].items()})
        return replies

    def race(self, entries: Sequence[Entry], far: float = math.inf) -> list[Timing]:
        """Rounds in which every entry has one turn, in an order that changes from round to round.

        There is at least one round, then as many as the limit allows. What takes `far` times the least in the first
        round has that one alone, but for the first entry.
        """
        taken: dict[Entry, list[float]] = {entry: [] for entry in entries}
        begin = time.monotonic()
        for done in range(self._rounds):
            spent = time.monotonic() - begin
            if done >= 1 and spent * (done + 1) / done > self._limit:
                break
            least = min((min(rounds) for rounds in taken.values() if rounds), default=math.inf)
            order = [e for e in entries if e == entries[0] or min(taken[e], default=0.0) < far * least]
            self._random.shuffle(order)
            for entry in order:
                name, key, way = entry
                request = {"do": "time", "key": key, "way": way, "budget_ns": self._budget}
                taken[entry].append(statistics.median(self.ask(name, request)["samples"]))
        return [Timing(entry[2], tuple(taken[entry])) for entry in entries]

    def drop(self, names: Iterable[str]) -> None:
        """Free what was prepared."""
        for name in names:
            self.ask(name, {"do": "drop"})


def _compare(results: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    first, *others = results.items()
    for output, wanted in first[1].items():
        size = max(abs(v) for v in wanted)
        for name, found in others:
            off = max(abs(f - w) for f, w in zip(found[output], wanted, strict=True))
            if not off <= _TOLERANCE * size:
                raise WrongResultError(f"{first[0]} and {name} differ by {off:g} in {output!r} (largest {size:g})")
