"""CUDA examples: kernels of packages, unmodified, are read, compiled and linked; an author's sources compile."""

import os
import subprocess
from pathlib import Path

import pytest
from authors import rendered
from nvcc_sources import MISSING
from places import ROOT

from aot_tune.compile.diagnostics import first_error
from aot_tune.compile.nvcc import NvccToolchain
from aot_tune.compile.object_files import symbols_of, why_unlinkable
from aot_tune.compile.toolchain import target_by_name
from aot_tune.render import Renderer, candidate_for, candidates_for
from aot_tune.spec.load_operators import load_operator

EXAMPLE = Path(os.environ.get("AOT_TUNE_TEST_CUDA_PACKAGES") or ROOT / "examples" / "cuda_packages")
KERNELS = {"layer_norm/generic": "exllamav2", "rms_norm/generic": "flashinfer", "hadamard/threads": "sglang"}
"""A kernel of each package that CI fetches: one that is missing there is a fault."""
HERE = all((EXAMPLE / "packages" / name).is_dir() for name in KERNELS.values())


def test_nothing_of_a_package_is_committed() -> None:
    command = ["git", "ls-files", "--", "examples/cuda_packages/packages"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.skipif(not (HERE or os.environ.get("CI")), reason="cmake -P examples/cuda_packages/packages.cmake")
@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_of_each_package_compiles_and_links(tmp_path: Path, name: str) -> None:
    """Without symbols of the package's other sources, and without code that runs when a library is loaded."""
    operator, _, kernel = name.partition("/")
    op = load_operator(EXAMPLE / "templates" / operator)
    target = target_by_name("cuda-ptx_80" if kernel == "generic" else "cuda-sm_90a")
    config = next(op.kernel(kernel).configs(target.facts))
    candidate = (
        candidate_for(op, op.kernel(kernel), config, target)
        if kernel == "generic"
        else next(candidates_for(op, op.kernel(kernel), config, target))
    )
    made = Renderer([EXAMPLE / "templates"]).render(op, candidate, target)
    done = NvccToolchain().compile(made.source, target, tmp_path / "object.o", 540, made.compile)
    assert done.status == "ok", first_error(done.log, made.lines)
    data = (tmp_path / "object.o").read_bytes()
    assert symbols_of(data).defined == {f"{made.symbol}_{function}" for function in ("launch", "workspace", "preload")}
    assert why_unlinkable(data, made.symbol, target.name) is None
    NvccToolchain().link_shared([tmp_path / "object.o"], tmp_path / "object.so")


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
    done = NvccToolchain().compile(made.source, target_by_name(target), tmp_path / "o.o", 120, made.compile)
    assert done.status == "ok", first_error(done.log, made.lines)
    assert done.resources["spill_bytes"] == 0
