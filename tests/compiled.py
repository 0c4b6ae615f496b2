"""Candidates of one operator, compiled from a source and verified on the CPU."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aot_tune.bench import Bench, Measurement
from aot_tune.bench.checks import derived_checks
from aot_tune.library import load_operator

__all__ = ["CompiledBed"]


class CompiledBed:
    """Candidates of one operator on the CPU."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench, self.folder, self.operator = bench, folder, load_operator(folder)

    def build(self, source: str, symbol: str = "candidate") -> Any:
        """A candidate's shared object."""
        digest = hashlib.sha256(source.encode()).hexdigest()
        path = self.bench.findings.folder.parent / f"{digest[:16]}.so"
        if not path.exists():
            path.with_suffix(".cpp").write_text(source)
            flags = ["-std=c++17", "-O2", "-w", "-shared", "-fPIC", "-fopenmp"]
            subprocess.run(["g++", *flags, "-o", path, path.with_suffix(".cpp")], check=True, timeout=120)
        return SimpleNamespace(path=path, symbol=symbol, digest=digest, candidate=SimpleNamespace(id=digest[:12]))

    def on_integers(self, one: Any, requires: Any = ()) -> Measurement:
        """Verify on nothing but small integers."""
        check = next(c for c in derived_checks(self.operator, requires) if c.integers)
        prepared = self.bench.prepare(self.folder, self.operator, check)
        return self.bench.verify(prepared, one.path, one.symbol, one.candidate, one.digest, requires, tune_checks=False)

    def wholly(self, one: Any, requires: Any = ()) -> Measurement:
        """Verify as every candidate is."""
        prepared = self.bench.prepare(self.folder, self.operator, self.operator.workload_for("cpu")[0])
        return self.bench.verify(prepared, one.path, one.symbol, one.candidate, one.digest, requires)
