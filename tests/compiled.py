"""Benches with one operator and compiled candidates of it."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aot_tune.bench.host.bench import Bench
from aot_tune.bench.host.odd_problems import derived_checks
from aot_tune.bench.protocol.measurement_records import Measurement, Prepared
from aot_tune.compile import Object, Variant
from aot_tune.render import Rendered
from aot_tune.spec import problem
from aot_tune.spec.load_operators import load_operator

PRELUDE = """
#include <cstddef>
#include <cstdint>
struct DLTensor {
  void* data; struct { int32_t type, id; } device; int32_t ndim; struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides; uint64_t byte_offset;
};
#define EXPORT extern "C" __attribute__((visibility("default")))
"""
"""How a candidate in C++ begins."""


def linked_variant(candidate: Any, path: Path, symbol: str, code: str, requires: Any = ()) -> Variant:
    """A variant as the bench takes it: a candidate with an id, and its shared object with the digest `code`."""
    rendered = Rendered(candidate=candidate, source="", digest="", symbol=symbol, lines=(), requires=tuple(requires))
    made = Object(key="", path="", digest=code, symbol=symbol, source="", target="", status="ok")
    return Variant(rendered=rendered, object=made, shared=str(path.resolve()))


class Bed:
    """A bench, its operator, and candidates by the names of their sources; `lines` are what the bench says."""

    def __init__(
        self, bench: Bench, folder: Path, objects: Callable[[str], Path], lines: list[str] | None = None
    ) -> None:
        self.bench, self.folder, self.objects = bench, folder, objects
        self.operator, self.lines = load_operator(folder), [] if lines is None else lines

    def on(self, folder: Path) -> Bed:
        """The same bench with the operator in another folder."""
        return Bed(self.bench, folder, self.objects, self.lines)

    def prepare(self, **dims: int) -> Prepared:
        """A problem of the operator's, 16 x 256 without extents."""
        return self.bench.prepare(self.operator, problem(**(dims or {"R": 16, "D": 256})))

    def entry(self, name: str) -> Variant:
        path = self.objects(name)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return linked_variant(SimpleNamespace(id=name), path, "candidate", digest)

    def screen(self, name: str, prepared: Prepared | None = None, **options: Any) -> Measurement:
        return self.bench.screen(prepared or self.prepare(), self.entry(name), **options)

    def refuse(self, name: str, status: str, told: str, *, tune_checks: bool = True, **dims: int) -> None:
        """Screen a bad candidate, which must come to a status with such words, and after it a good one."""
        measured = self.screen(name, self.prepare(**dims), tune_checks=tune_checks)
        assert (name, measured.status) == (name, status), measured.reason
        assert re.search(told, measured.reason), (name, measured.reason)
        assert not measured.screen or status in ("oom", "suspicious") or "timed calls" in measured.reason, name
        assert self.screen("good").status == "ok", name

    def race(self, *names: str, **dims: int) -> dict[str, Measurement]:
        """What a race of candidates and baselines found, by their names."""
        return {m.candidate: m for m in self.bench.race(self.prepare(**dims), [self.entry(n) for n in names])}

    def survey(self, *names: str, **dims: int) -> list[Measurement]:
        """Survey candidates on a problem, that of `prepare`."""
        on = problem(**(dims or {"R": 16, "D": 256}))
        return self.bench.survey(self.operator, on, [self.entry(name) for name in names])


class CompiledBed:
    """Candidates of one operator on the CPU."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench, self.folder, self.operator = bench, folder, load_operator(folder)

    def build(self, source: str, symbol: str = "candidate", machine: Sequence[str] = ()) -> Any:
        """A candidate's shared object; `machine` are flags that say what the CPU has."""
        digest = hashlib.sha256(source.encode()).hexdigest()
        path = self.bench.findings.folder.parent / f"{digest[:16]}.so"
        if not path.exists():
            path.with_suffix(".cpp").write_text(source)
            flags = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fopenmp", *machine]
            subprocess.run(["g++", *flags, "-o", path, path.with_suffix(".cpp")], check=True, timeout=120)
        return SimpleNamespace(path=path, symbol=symbol, digest=digest, candidate=SimpleNamespace(id=digest[:12]))

    def on_integers(self, one: Any, requires: Any = ()) -> Measurement:
        """Verify on nothing but small integers."""
        check = next(c for c in derived_checks(self.operator, requires) if c.integers)
        prepared = self.bench.prepare(self.operator, check)
        return self.bench.verify(
            prepared, linked_variant(one.candidate, one.path, one.symbol, one.digest, requires), tune_checks=False
        )

    def wholly(self, one: Any, requires: Any = ()) -> Measurement:
        """Verify as every candidate is."""
        prepared = self.bench.prepare(self.operator, self.operator.workload_for("cpu")[0])
        return self.bench.verify(prepared, linked_variant(one.candidate, one.path, one.symbol, one.digest, requires))
