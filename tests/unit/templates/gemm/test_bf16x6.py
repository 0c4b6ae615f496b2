"""Products of floats by three bf16 each: when they are taken, and that they fit. Whether they are right a GPU says."""

from __future__ import annotations

from pathlib import Path

import pytest
from gemm_on_host import HOPPER, OPERATORS, TARGET, compile_for_hopper, render, stages_of

from aot_tune.spec import Kernel, all_of, problem

pytestmark = pytest.mark.slow

GEMM = OPERATORS["gemm"]
KERNELS = [k for k in GEMM.kernels if k.template == "gemm/cuda/wgmma/bf16x6.cu.j2"]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_it_is_taken_for_ieee_alone(kernel: Kernel) -> None:
    for math, taken in (("ieee", True), ("tf32", False)):
        call = problem(M=64, N=512, K=512, dtypes={"T": "f32"}, order={"b": (1, 0)}, attributes={"math": math})
        assert all_of(kernel.requires, GEMM.facts(call)) == taken


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_every_config_fits(kernel: Kernel, tmp_path: Path) -> None:
    """Into shared memory and registers, that many blocks at a time; elsewhere there is none."""
    configs = list(kernel.configs(HOPPER.facts))
    assert len(configs) == len(kernel.order)
    assert not any(list(kernel.configs(t.facts)) for name, t in TARGET.items() if name != HOPPER.name)
    for config in configs:
        width, rows = int(config["WIDTH"]), 64 * int(config["GROUPS"])
        source = render(GEMM, kernel, HOPPER, config, "f32")
        stages = stages_of(source)
        shared = stages * (rows + width) * 256 + 6 * width * 128 + (2 * stages + 5) * 8
        assert (shared + 1024) * int(config["BLOCKS"]) <= HOPPER.facts["shared_bytes"] + 1024, config
        assert 2 <= stages <= 16, config
        compile_for_hopper(tmp_path, source)  # with its assertions on registers and sums
