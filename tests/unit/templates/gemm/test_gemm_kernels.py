"""CUDA kernels of gemm and batched_gemm: they compile without spills, and are right when run on the host."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from gemm_on_host import (
    HOPPER,
    OPERATORS,
    TARGET,
    build_for_host,
    by_columns,
    by_rows,
    config_like,
    render,
    run_check,
)
from ptx import compiled

from aot_tune.spec import Config, Kernel, all_of, problem

pytestmark = pytest.mark.slow

ALWAYS_EARLY = ("cuda_wgmma", "cuda_bf16x6")
OURS = [(op, kernel) for op in OPERATORS.values() for kernel in op.kernels if kernel.name.startswith("cuda_")]


def early_config(kernel: Kernel) -> Config | None:
    """The first config for Hopper whose blocks may start before earlier kernels have ended."""
    if kernel.name.startswith(ALWAYS_EARLY):
        return next(iter(kernel.configs(HOPPER.facts)))
    tried = (*kernel.order, *kernel.configs(HOPPER.facts))
    return next((c for c in tried if c.get("EARLY") or c.get("AHEAD") or c.get("PDL")), None)


# Whether kernels of gemm are for Hopper, where they are not for all GPUs.
WHERE = {
    "cuda_gemv_short": (False,),
    "cuda_skinny_short": (False,),
    "cuda_mma": (False,),
    "cuda_mma_kn": (False,),
    "cuda_thin_gemv": (False,),
    "cuda_mma_ragged": (True,),
    "cuda_mma_kn_ragged": (True,),
    "cuda_wgmma": (True,),
    "cuda_wgmma_128": (True,),
    "cuda_wgmma_tf32": (True,),
    "cuda_wgmma_tf32_128": (True,),
    "cuda_bf16x6": (True,),
    "cuda_bf16x6_thin": (True,),
}


@pytest.mark.parametrize("target", ["cuda-sm_80", "cuda-sm_90a", "cuda-sm_120"])
def test_configs_to_try_first_exist_and_render(target: str) -> None:
    for op, kernel in OURS:
        configs = list(itertools.islice(kernel.configs(TARGET[target].facts), 25 if target == HOPPER.name else 1))
        assert len(configs) <= 24
        wanted_here = (target == HOPPER.name) in WHERE.get(kernel.name, (True, False)) or op.name != "gemm"
        assert bool(configs) == wanted_here, kernel.name
        for wanted in kernel.order if target == HOPPER.name else ():
            config_like(kernel, HOPPER, wanted)
        for dtypes in op.dtype_choices(kernel) if configs else ():
            source = render(op, kernel, TARGET[target], configs[0], dtypes["T"]).source
            assert 'extern "C"' in source


@pytest.mark.parametrize("kernel", ["cuda_mma_ragged", "cuda_mma_kn_ragged"])
def test_ragged_kernels_are_worth_it_where_tma_is_not_possible(kernel: str) -> None:
    op = OPERATORS["gemm"]
    found = op.kernel(kernel)
    order = {} if "_kn" in kernel else {"b": (1, 0)}

    def tried(n: int = 512, k: int = 512, **given: Any) -> bool:
        facts = op.facts(problem(M=512, N=n, K=k, order=order, dtypes={"T": "bf16"}, **given))
        return all_of((*found.requires, *found.worthwhile), facts)

    assert not tried()
    whole = [p for p in op.workload_for("cuda") if p.dims["N"] % 8 == p.dims["K"] % 8 == 0]
    assert not any(tried(p.dims["N"], p.dims["K"]) for p in whole)
    assert tried(alignment={"out": 8})
    assert tried(strides={"out": (516, 1)})
    assert tried(k=500, strides={"a": (504, 1), "b": (512, 1) if "_kn" in kernel else (1, 504)})
    assert tried(n=500, strides={"b": (504, 1)} if "_kn" in kernel else {})


# One kernel of each template.
COMPILED = (
    ("gemm", "cuda_generic"),
    ("gemm", "cuda_skinny"),
    ("gemm", "cuda_mma"),
    ("gemm", "cuda_simt"),
    ("gemm", "cuda_direct_gemv"),
    ("gemm", "cuda_wgmma"),
    ("gemm", "cuda_bf16x6"),
    ("batched_gemm", "cuda_mma_kn"),
)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("operator", "name"), COMPILED)
def test_kernels_compile_for_hopper_without_spills(operator: str, name: str, tmp_path: Path) -> None:
    """Those that wait for earlier kernels read nothing as what nobody writes: the assembler moves such loads ahead."""
    op, kernel = OPERATORS[operator], OPERATORS[operator].kernel(name)
    early = early_config(kernel)
    config = early or (kernel.order[0] if kernel.order else {})
    source = render(op, kernel, HOPPER, config, op.dtype_choices(kernel)[-1]["T"]).source
    assert ("wait_for_earlier_kernels();\n" in source) == (early is not None)
    ptx, _ = compiled(source, tmp_path)
    waiting = [e for e in ptx.split(".entry ")[1:] if "griddepcontrol.wait" in e]
    assert bool(waiting) == (early is not None)
    assert not [step for entry in waiting for step in re.findall(r"ld\.global[\w.:]*\.nc[\w.:]*", entry)]


# -- on the host -----------------------------------------------------------------------------------------------------


EDGES = ((70, 90, 333), (5, 7, 16))
CASES: tuple[tuple[str, str, str, Config, tuple[tuple[int, int, int], ...]], ...] = (
    ("gemm", "cuda_skinny_short", "f16", {"MROWS": 16, "NT": 2, "SPLIT": 2}, ((16, 200, 520), (11, 65, 777))),
    ("gemm", "cuda_direct_gemv", "bf16", {"WARPS": 4, "NT": 1, "EARLY": True}, ((1, 200, 520), (20, 9, 64))),
    ("gemm", "cuda_mma_kn_ragged", "bf16", {"BM": 64, "BN": 64, "SPLIT": 1}, EDGES),
    ("gemm", "cuda_tf32", "f32", {"BM": 64, "BN": 64, "SPLIT": 4, "REDUCE": "cluster"}, EDGES),
    ("batched_gemm", "cuda_simt_kn", "f32", {"BM": 64, "BN": 64}, EDGES),
)


@pytest.mark.parametrize(("operator", "name", "dtype", "wanted", "shapes"), CASES)
def test_kernels_are_right_on_the_host(
    operator: str, name: str, dtype: str, wanted: Config, shapes: tuple[tuple[int, int, int], ...], tmp_path: Path
) -> None:
    op = OPERATORS[operator]
    program = build_for_host(tmp_path, render(op, op.kernel(name), HOPPER, wanted, dtype))
    batch = 2 if operator == "batched_gemm" else 1
    for shape in shapes:
        strides = by_rows(*shape) if "_kn" in name else by_columns(*shape)
        assert run_check(program, batch, shape, strides, epilogue=batch == 1) == ""


def test_a_generic_kernel_takes_any_strides_on_the_host(tmp_path: Path) -> None:
    op = OPERATORS["batched_gemm"]
    program = build_for_host(tmp_path, render(op, op.kernel("cuda_generic"), HOPPER, {}, "bf16"))
    for shape, strides in (
        ((3, 70, 33), (33, 1, 1, 33, 70, 1)),
        ((65, 130, 40), (1, 65, 130, 1, 1, 65)),
        ((5, 6, 9), (0, 2, -6, -1, -6, -1)),  # broadcast and reversed
        ((5, 6, 0), (1, 1, 6, 1, 6, 1)),
    ):
        assert run_check(program, 2, shape, strides, epilogue=False) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    wait_copies<STAGES - 2>();\n    __syncthreads();", "    wait_copies<STAGES - 2>();"),
        ("  arrive_at_cluster();\n  wait_for_cluster();\n  const float", "  const float"),
    ],
)
def test_the_host_notices_faults(old: str, new: str, tmp_path: Path) -> None:
    def change(source: str) -> str:
        assert source.count(old) == 1
        return source.replace(old, new)

    op = OPERATORS["gemm"]
    wanted: Config = {"BM": 64, "BN": 64, "SPLIT": 2, "REDUCE": "cluster"}
    program = build_for_host(tmp_path, render(op, op.kernel("cuda_mma"), HOPPER, wanted, "bf16"), change)
    assert run_check(program, 1, (70, 90, 777), by_columns(70, 90, 777), epilogue=True) != ""
