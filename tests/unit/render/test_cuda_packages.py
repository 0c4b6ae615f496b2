"""examples/cuda_packages: kernels of packages, unmodified, are read, compiled and linked; some run on the host."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from nvcc_sources import MISSING
from places import ROOT

from aot_tune.compile.cuda.nvcc import TOOLCHAIN
from aot_tune.compile.diagnostics import first_error
from aot_tune.compile.toolchain import target_by_name
from aot_tune.link.elf import initialiser_count, symbols_of
from aot_tune.render import Candidate, Renderer, candidate_for, candidates_for
from aot_tune.spec import Kernel, Operator, Target
from aot_tune.spec.load_operators import load_operator, operator_folders

EXAMPLE = Path(os.environ.get("AOT_TUNE_TEST_CUDA_PACKAGES") or ROOT / "examples" / "cuda_packages")
TEMPLATES = EXAMPLE / "templates"
FETCHED = EXAMPLE / "packages"
WANTED = re.findall(
    r"^fetch_package\(\n  (\S+)\n  \S+\n  ([0-9a-f]{64})", (EXAMPLE / "packages.cmake").read_text(), re.M
)
ABSENT = [name for name, digest in WANTED if not (FETCHED / f"{name}.{digest}").is_file()]
FETCH = f"{', '.join(ABSENT)} not here: cmake -P examples/cuda_packages/packages.cmake"
needs_all = pytest.mark.skipif(bool(ABSENT), reason=FETCH)
IN_CI = ("layer_norm/generic", "rms_norm/generic", "hadamard/threads")
"""A kernel of each package that CI fetches, exllamav2, flashinfer and sglang: one that is missing there is a fault."""
IOSTREAM = "_ZNSt8ios_base4InitC1Ev"  # its initialiser is allowed, as that of CUDA's kernels

KERNELS = {
    **{f"{name}/generic": 1 for name in ("layer_norm", "merge_states", "rms_norm", "rope", "softmax")},
    **{f"{name}/generic": 1 for name in ("causal_conv", "embedding", "hadamard", "quantize_rows", "selective_scan")},
    **{f"{name}/generic": 1 for name in ("add_rms_norm", "rope_in_place", "silu_and_mul")},
    "rope_in_place/threads": 5,
    "causal_conv/threads": 4,
    "embedding/vectors": 4,
    "hadamard/threads": 4,
    "quantize_rows/threads": 3,
    "selective_scan/threads": 9,
    "silu_and_mul/vectors": 4,
}
"""Each kernel with the number of its configs."""


@cache
def load(name: str) -> Operator:
    """An operator, which needs the sources of its package alone."""
    return load_operator(TEMPLATES / name)


def parts(name: str) -> tuple[Operator, Kernel, Target]:
    operator, _, kernel = name.partition("/")
    declared = load(operator).kernel(kernel)
    return load(operator), declared, target_by_name("cuda-ptx_80" if declared.generic else "cuda-sm_90a")


def candidates(name: str) -> Iterator[Candidate]:
    """All candidates of a kernel, in the workload's dtype."""
    op, kernel, target = parts(name)
    for config in kernel.configs(target.facts):
        yield (
            candidate_for(op, kernel, config, target)
            if kernel.generic
            else next(candidates_for(op, kernel, config, target))
        )


@needs_all
def test_all_kernels_are_here() -> None:
    assert {
        f"{op.name}/{kernel.name}"
        for folder in operator_folders([TEMPLATES])
        for op in (load(folder.name),)
        for kernel in op.kernels
    } == set(KERNELS)
    assert {name: len(list(candidates(name))) for name in KERNELS} == KERNELS


def test_nothing_of_a_package_is_committed() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--", "examples/cuda_packages/packages"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout == ""


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[] if k in IN_CI and os.environ.get("CI") else needs_all) for k in KERNELS]
)
def test_each_kernel_compiles_and_links(tmp_path: Path, name: str) -> None:
    """Without symbols of the package's other sources, and without code that runs when a library is loaded."""
    op, _, target = parts(name)
    made = Renderer([TEMPLATES]).render(op, next(candidates(name)), target)
    done = TOOLCHAIN.compile(made.source, target, tmp_path / "object.o", 540, made.compile)
    assert done.status == "ok", first_error(done.log, made.lines)
    symbols = symbols_of((tmp_path / "object.o").read_bytes())
    assert symbols.defined == {f"{made.symbol}_{function}" for function in ("launch", "workspace", "preload")}
    assert initialiser_count((tmp_path / "object.o").read_bytes()) <= 1 + (IOSTREAM in symbols.used)
    TOOLCHAIN.link_shared([tmp_path / "object.o"], tmp_path / "object.so")
