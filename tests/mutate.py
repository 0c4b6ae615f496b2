#!/usr/bin/env python3
"""Switches off one guard after the other, and tells which of them no test misses.

    tests/mutate.py [--seconds 5400] [--workers 2] [--seed 0] [--skip 0] [FOLDER ...]

A guard is an `if` whose body is no more than a `raise`, `return`, `continue` or `break`. It is switched off by a
condition that is never true, in a copy of the tree, and the tests that import its module are run there: those of
`tests/unit`, `tests/faults` and `tests/integration`, the module's own first, until one fails. A file of tests that
fail without the change too is said and left out. What survives is printed at the end, with its place. By default the
guards are those of the bench, the database, the choice and the checks of what was linked; they come in an order of the
seed until the time is up; --skip goes on behind so many that were tried before. The exit status is 1 where one
survived.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, local

sys.path.insert(0, str(Path(__file__).parent))
from environments import ROOT, front_end

FOLDERS = ("aot_tune/bench", "aot_tune/database", "aot_tune/select", "aot_tune/link/check")
ENOUGH = 30.0
"""Seconds more than twice what the tests take without the change: who takes longer waits for what never comes."""
MOST_FILES = 8
THROUGH_PROCESSES = (
    "tests/faults/test_bench_candidates.py",
    "tests/faults/test_bench_process_state.py",
    "tests/unit/bench/worker/cuda/test_worker_session.py",
)


@dataclass(frozen=True)
class Guard:
    """A guard: its file below the tree, its line, and the place of its condition in the source."""

    path: str
    line: int
    begin: int
    end: int
    text: str


def guards_of(path: Path, source: str) -> Iterator[Guard]:
    """The guards of a module."""
    starts = [0]
    for row in source.encode().split(b"\n"):
        starts.append(starts[-1] + len(row) + 1)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.If) or not all(
            isinstance(s, (ast.Raise, ast.Return, ast.Continue, ast.Break)) for s in node.body
        ):
            continue
        test = node.test
        assert test.end_lineno is not None
        assert test.end_col_offset is not None
        begin, end = starts[test.lineno - 1] + test.col_offset, starts[test.end_lineno - 1] + test.end_col_offset
        yield Guard(str(path), node.lineno, begin, end, ast.unparse(test)[:90])


def without(guard: Guard, source: bytes) -> bytes:
    """The module with a guard whose condition is evaluated and never true."""
    condition = source[guard.begin : guard.end]
    return source[: guard.begin] + b"((" + condition + b") and False)" + source[guard.end :]


def tests_of(tree: Path, path: str) -> list[str]:
    """The test files that import a module, those of its own name first, then the small ones."""
    module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    names = "|".join([name, *_exported(tree, package, module)])
    wanted = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import (\([^)]*|[^\n]*)\b({names})\b")
    found = []
    for file in sorted((tree / "tests").glob("[fiu]*/**/test_*.py")):
        own = file.stem == f"test_{name}" or file.stem.startswith(f"test_{name}_")
        if own or wanted.search(file.read_text(encoding="utf-8")):
            found.append((not own, file.stat().st_size, str(file.relative_to(tree))))
    if path.startswith("aot_tune/bench"):  # which tests reach through processes
        found += [(True, 1 << 30, file) for file in THROUGH_PROCESSES if "cuda" in path or "cuda" not in file]
    return [file for _, _, file in sorted(found)][:MOST_FILES]


def _exported(tree: Path, package: str, module: str) -> list[str]:
    """What a package hands on of a module."""
    file = tree / package.replace(".", "/") / "__init__.py"
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if file.exists() else ()
    return [a.name for n in nodes if isinstance(n, ast.ImportFrom) and n.module == module for a in n.names]


def fails(tree: Path, test: str, seconds: float) -> bool:
    """Whether a test of a file fails, or they do not end in some seconds."""
    argv = [str(front_end()), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", test]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(argv, cwd=tree, env=env, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)


class Undisturbed:
    """What the tests of each file take without a change, found out once for each; None where they fail as it is."""

    def __init__(self) -> None:
        self._taken: dict[str, float | None] = {}
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    def seconds(self, tree: Path, test: str) -> float | None:
        """Of a file, in a tree without a change."""
        with self._locks[test]:
            if test not in self._taken:
                self._taken[test] = self._try(tree, test) or self._try(tree, test)  # some are to be alone and are not
                if self._taken[test] is None:
                    print(f"left out: {test} fails without a change too", flush=True)
            return self._taken[test]

    @staticmethod
    def _try(tree: Path, test: str) -> float | None:
        began = time.monotonic()
        return None if fails(tree, test, 600) else time.monotonic() - began


def run(guards: Sequence[Guard], workers: int, limit: float, scratch: Path) -> tuple[list[Guard], int]:
    """The guards that nobody missed, and how many were tried in the time."""
    until, trees, own = time.monotonic() + limit, iter(range(workers)), local()
    undisturbed = Undisturbed()

    def one(guard: Guard) -> bool | None:
        if time.monotonic() > until:
            return None
        if not hasattr(own, "tree"):
            own.tree = scratch / f"tree{next(trees)}"
            skipped = shutil.ignore_patterns(".git", "__pycache__", "build", "wheelhouse", ".*_cache")
            shutil.copytree(ROOT, own.tree, ignore=skipped)
        tree: Path = own.tree
        file = tree / guard.path
        before = file.read_bytes()
        after, noticed = without(guard, before), False
        tests = tests_of(tree, guard.path)
        for test in tests:
            seconds = undisturbed.seconds(tree, test)
            if seconds is None:
                continue
            file.write_bytes(after)
            try:
                noticed = fails(tree, test, ENOUGH + 2 * seconds)
            finally:
                file.write_bytes(before)
            if noticed:
                break
        told = "seen    " if noticed else "SURVIVES" if tests else "UNTESTED"
        print(f"{told} {guard.path}:{guard.line}: {guard.text}", flush=True)
        return noticed

    with ThreadPoolExecutor(workers) as threads:
        answers = list(threads.map(one, guards))
    tried = sum(a is not None for a in answers)
    return [g for g, a in zip(guards, answers, strict=True) if a is False], tried


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folders", nargs="*", default=FOLDERS, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=5400.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0)
    given = parser.parse_args()
    guards: list[Guard] = []
    for folder in given.folders:
        place = ROOT / folder
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            guards += guards_of(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    random.Random(given.seed).shuffle(guards)
    guards = guards[given.skip :]
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        survivors, tried = run(guards, given.workers, given.seconds, Path(scratch))
    print(f"\n{tried} of {len(guards)} guards tried, {len(survivors)} survive")
    for guard in sorted(survivors, key=lambda g: (g.path, g.line)):
        print(f"{guard.path}:{guard.line}: {guard.text}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
