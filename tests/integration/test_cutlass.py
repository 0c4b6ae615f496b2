"""CUTLASS's kernels compile and fit the registers and shared memory of Hopper. Half a minute on two cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot_tune.compile import target_by_name, toolchain_for
from aot_tune.compile.nvcc import NvccToolchain
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec.load_operators import bundled_templates, load_operator

HOPPER = target_by_name("cuda-sm_90a")


@pytest.mark.usefixtures("needs_nvcc")
def test_it_compiles_without_spills(tmp_path: Path) -> None:
    """A kernel that makes f16 of f32. That the stages fit shared memory is an assertion of the source."""
    chain = toolchain_for("nvcc")
    assert isinstance(chain, NvccToolchain)
    if chain.cutlass() is None:
        pytest.skip("no CUTLASS headers: install the wheel nvidia-cutlass")
    op = load_operator(bundled_templates() / "gemm")
    found = op.kernel("cutlass_tf32_halves")
    row = found.order[0]
    config = next(c for c in found.configs(HOPPER.facts) if all(c[n] == v for n, v in row.items()))
    rendered = Renderer([bundled_templates()]).render(
        op, candidate_for(op, found, config, HOPPER, None, {"T": "f32"}), HOPPER
    )
    made = chain.compile(rendered.source, HOPPER, tmp_path / "candidate.o", 600.0)
    assert made.status == "ok", made.log
    assert made.resources["spill_bytes"] == 0
