"""The sources of examples/cuda_author compile as they are declared; each build holds them against the references."""

from __future__ import annotations

from pathlib import Path

import pytest
from authors import rendered
from nvcc_sources import MISSING
from places import ROOT

from aot_tune.compile.diagnostics import first_error
from aot_tune.compile.nvcc import TOOLCHAIN
from aot_tune.compile.toolchain import target_by_name
from aot_tune.spec.load_operators import load_operator

TEMPLATES = ROOT / "examples" / "cuda_author" / "templates"
OPERATORS = sorted(p.name for p in TEMPLATES.iterdir())


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "generic"), [*((n, False) for n in OPERATORS), ("gemv", True)])
def test_sources_compile(name: str, generic: bool, tmp_path: Path) -> None:
    """For a kernel that is tuned; one that is generic is the same source with other macros."""
    kernel = next(k for k in load_operator(TEMPLATES / name).kernels if k.generic == generic)
    target = "cuda-ptx_80" if generic else "cuda-sm_90a"
    _, made = rendered(TEMPLATES / name, kernel.name, target)
    done = TOOLCHAIN.compile(made.source, target_by_name(target), tmp_path / "o.o", 120, made.compile)
    assert done.status == "ok", first_error(done.log, made.lines)
    assert done.resources["spill_bytes"] == 0
