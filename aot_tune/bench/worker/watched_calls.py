"""A process that makes calls of variants under a sanitizer: `python -m aot_tune.bench.worker.watched_calls JOB`.

JOB is the file of a `WatchedJob`. Results were verified before, so nothing looks at them. Before each problem, a line
says where the process is: `@`, the number of the variant, and the place. `@ alone N` says that threads shared no call
of a variant. `@ done` is the last line. What a sanitizer reports follows the line of the problem.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import sys
from pathlib import Path

import msgspec

from aot_tune.bench.devices.family import family
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.messages import WatchedCalls, WatchedJob
from aot_tune.bench.worker import sandbox
from aot_tune.bench.worker.engine import Engine
from aot_tune.bench.worker.loaded_objects import Loaded, RefusedError, load
from aot_tune.bench.worker.problem_state import ProblemState
from aot_tune.bench.worker.verification import Caller, WorkspaceError
from aot_tune.spec.load_operators import load_operator


def main(arguments: list[str]) -> int:
    """Make all calls; returns the exit status."""
    job = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=WatchedJob)
    kind = family(job.device.family)
    if kind.on_host:  # a GPU's sanitizer has connections to this process
        sandbox.restrict([Path(job.scratch), Path("/dev/null"), *kind.writable()])
    module = importlib.import_module(f"aot_tune.bench.worker.{job.device.family}_engine")
    engine: Engine = module.make_engine(job.policy, "candidate", job.device)
    engine.watch()
    with engine.acting(messages.Ping()):
        for number, variant in enumerate(job.variants):
            _make(engine, number, variant, shared=job.shared)
    _say("@ done")
    return 0


def _make(engine: Engine, number: int, variant: WatchedCalls, *, shared: bool) -> None:
    """A variant's calls, in every placement. If they are to be `shared`, larger problems follow until one is."""
    _say(f"@{number} load")
    loaded = load(Path(variant.path), variant.symbol)
    operator = load_operator(Path(variant.operator_folder))
    teams = ctypes.c_int.in_dll(loaded._library, "aot_tune_teams") if shared else ctypes.c_int()
    try:
        if not engine.on_host:
            loaded.preload()
        for place, check in enumerate(itertools.chain(variant.checks, variant.larger)):
            if place >= len(variant.checks) and teams.value:
                break
            _say(f"@{number} {check.place}")
            _call(engine, loaded, ProblemState(engine, operator, check, Path()))
        if shared and not teams.value:
            _say(f"@ alone {number}")
    finally:
        loaded.close()


def _call(engine: Engine, loaded: Loaded, state: ProblemState) -> None:
    for placement in state.placements():
        try:
            caller = Caller(engine, loaded, [state.at(placement)])  # it holds the workspace
            caller.call()
        except (RefusedError, WorkspaceError):  # another variant serves the problem
            return
        engine.check()


def _say(line: str) -> None:
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
