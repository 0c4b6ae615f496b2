"""examples/cuda_author: its sources compile as they are declared, and what runs without a GPU is right."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from authors import OnHost, rendered
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


@pytest.mark.parametrize(("height", "width", "size", "rows"), [(9, 70, 3, 1), (40, 33, 7, 8)])
def test_the_convolution_is_right(height: int, width: int, size: int, rows: int, tmp_path: Path) -> None:
    values = np.random.default_rng(1)
    operator, made = rendered(TEMPLATES / "convolution", "tiled", "cuda-sm_90a", ROWS=rows)
    image, weights = (values.standard_normal(s).astype(np.float32) for s in ((height, width), (size, size)))
    out = np.full((height - size + 1, width - size + 1), np.nan, np.float32)
    assert OnHost(tmp_path / "host", made)((image, weights, out)) == 0
    call = SimpleNamespace(image=image.astype(np.float64), filter=weights.astype(np.float64))
    np.testing.assert_allclose(out, operator.reference(np, call)["out"], rtol=1e-5, atol=1e-5)
