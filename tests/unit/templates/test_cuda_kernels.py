"""Bundled CUDA kernels: configs render, compile without spills, and wait for earlier kernels; one runs on the host."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from bundled import OPERATORS, RENDERER

from aot_tune.compile import toolchain_for
from aot_tune.compile.device_targets import CUDA_TARGETS, code_flags
from aot_tune.compile.nvcc import NvccToolchain
from aot_tune.plan.options import effort_limit
from aot_tune.render import Rendered, candidate_for
from aot_tune.spec import Config, Kernel, Operator, Target, all_of

pytestmark = pytest.mark.slow

TARGET = {t.name: t for t in CUDA_TARGETS}
HOPPER, BLACKWELL = TARGET["cuda-sm_90a"], TARGET["cuda-sm_100"]
ROWS = ("softmax", "rms_norm", "layer_norm", "silu_mul")
KERNELS = [(op, kernel) for op in OPERATORS.values() for kernel in op.kernels if kernel.backend == "nvcc"]
EARLY = ("cuda_rows", "cuda_rows_few", "cuda_flat", "cuda_wave", "cuda_peeled")
"""Row kernels whose blocks may start before earlier kernels have ended."""


def is_like(config: Config, wanted: Config) -> bool:
    return all(config[name] == value for name, value in wanted.items())


def render(op: Operator, kernel: Kernel, on: Target, config: Config, dtype: str) -> Rendered:
    candidate = candidate_for(op, kernel, config, on, None, {"T": dtype})
    return RENDERER.render(op, candidate, on)


@pytest.mark.parametrize("target", ["cuda-sm_80", "cuda-sm_90a", "cuda-sm_120"])
def test_configs_render(target: str) -> None:
    """The first and the last, and on Hopper the first in each dtype."""
    on = TARGET[target]
    for op, kernel in KERNELS:
        every = list(kernel.configs(on.facts))
        assert every or not kernel.generic
        dtypes = [c["T"] for c in op.dtype_choices(kernel)]
        chosen = [(c, dtypes[0]) for c in [*every[:1], *every[1:][-1:]]]
        chosen += [(every[0], d) for d in dtypes[1:] if every and on is HOPPER]
        for config, dtype in chosen:
            source = render(op, kernel, on, config, dtype).source
            assert 'extern "C"' in source
            if op.name in ROWS:
                early = kernel.name in EARLY and on.facts["capability"] >= 90 and not config.get("STREAM", False)
                assert ("return launch_early(" in source) == early, (op.name, kernel.name, config)


def test_what_to_try_first_exists() -> None:
    """On Hopper, which runs all configs of Blackwell, but tries few of those."""
    for op, kernel in KERNELS:
        configs = [*kernel.configs(HOPPER.facts), *kernel.configs(BLACKWELL.facts)]
        for wanted in kernel.order:
            assert any(is_like(c, wanted) for c in configs), (op.name, kernel.name, wanted)


def test_every_row_kernel_is_for_some_of_the_workload() -> None:
    for name in ROWS:
        op = OPERATORS[name]
        facts = [op.facts(one) for one in op.workload_for("cuda")]
        for kernel in (k for k in op.kernels if k.backend == "nvcc" and not k.generic):
            assert any(all_of((*kernel.requires, *kernel.worthwhile), one) for one in facts), (name, kernel.name)


def test_a_default_build_compiles_at_most_40_minutes_of_cutlass() -> None:
    """If all that follow another dtype were worth a try."""
    minutes = 0.0
    for op, kernel in KERNELS:
        if kernel.name.startswith("cutlass"):
            size, limit = len(list(kernel.configs(HOPPER.facts))), effort_limit("default", len(kernel.order))
            minutes += min(size, limit or size) * len(op.dtype_choices(kernel)) * kernel.compile_seconds / 60
    assert 26 < minutes <= 40


# One kernel of each template, and whether it waits for earlier kernels.
COMPILED = (
    ("gemm", "cuda_generic", False),
    ("gemm", "cuda_skinny", True),
    ("gemm", "cuda_mma", False),
    ("gemm", "cuda_simt", False),
    ("gemm", "cuda_one_row", True),
    ("gemm", "cuda_thin_kn", True),
    ("gemm", "cuda_tiles", True),
    ("gemm", "cuda_wgmma", True),
    ("gemm", "cuda_bf16x6", True),
    ("gemm", "cublaslt_f32_then_epilogue", True),
    ("batched_gemm", "cuda_mma_kn", False),
    ("layer_norm", "cuda_generic", False),
    ("softmax", "cuda_split", False),
    ("rms_norm", "cuda_rows", True),
    ("layer_norm", "cuda_rows_few", True),
    ("softmax", "cuda_flat", True),
    ("silu_mul", "cuda_wave", True),
    ("flash_attention", "cuda_few_queries", True),
    ("softmax", "cuda_peeled", True),
    ("silu_mul_quantize", "cuda_rows", True),
    ("rms_norm_quantize", "cuda_rows", True),
    ("gemm", "cutlass_tf32_halves", True),  # it makes f16 of f32; that stages fit is an assertion of its source
)


def compiled_config(op: Operator, kernel: Kernel) -> Config:
    """Of row kernels what takes most registers, of CUTLASS's the first in order, else one that may start early."""
    configs = [*kernel.configs(HOPPER.facts), *kernel.configs(BLACKWELL.facts)]
    if op.name in ROWS or kernel.name in EARLY:
        lasting = (c for c in configs if not c.get("STREAM", False))
        return max(lasting, key=lambda c: (c.get("VECTORS", 0), c.get("THREADS", 0)))
    if kernel.name.startswith("cutlass"):
        return next(c for c in configs if is_like(c, kernel.order[0]))
    return next((c for c in configs if c.get("EARLY") or c.get("AHEAD") or c.get("PDL")), configs[0])


def faults(ptx: str, ahead: bool = False) -> list[str]:
    """What is wrong with the order of instructions; kernels for any call are launched after all others have ended.

    Kernels that are `ahead` let the next one start before they wait: it waits, too.
    """
    found = []
    for entry in ptx.split(".entry ")[1:]:
        name = entry.partition("(")[0]
        if "_any" in name:
            continue
        steps = re.findall(r"griddepcontrol\.\w+|(?:ld|st)\.global[\w.:]*", entry)
        first = ["griddepcontrol.launch_dependents"] * ahead + ["griddepcontrol.wait"]
        if steps[: len(first)] != first or steps.count("griddepcontrol.launch_dependents") != 1:
            found.append(f"{name} begins with {steps[:2]}")
        found += [f"{name} has {step}" for step in steps if ".nc" in step]
    return found


def compiled(source: str, folder: Path) -> tuple[str, str]:
    """The PTX, and what the assembler said; there was no warning and no spill."""
    (folder / "candidate.cu").write_text(source)
    command = ["nvcc", "-std=c++17", "-O3", *code_flags(HOPPER), "-Xptxas", "-v", "-diag-suppress", "177", "-keep"]
    if "cutlass/" in source:
        chain = toolchain_for("nvcc")
        assert isinstance(chain, NvccToolchain)
        if chain.cutlass() is None:
            pytest.skip("no CUTLASS headers: install the wheel nvidia-cutlass")
        command += ["-isystem", str(chain.cutlass())]
    done = subprocess.run([*command, "-cubin", "candidate.cu"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    assert done.stderr.count("spill stores") == done.stderr.count(" 0 bytes spill stores") > 0, done.stderr
    return (folder / "candidate.ptx").read_text(), done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("operator", "name", "waits"), COMPILED)
def test_kernels_compile_without_spills_and_wait_before_they_read(
    operator: str, name: str, waits: bool, tmp_path: Path
) -> None:
    """Those that wait read nothing as what nobody writes: the assembler moves such loads ahead."""
    op, kernel = OPERATORS[operator], OPERATORS[operator].kernel(name)
    config = compiled_config(op, kernel)
    dtypes = [choice["T"] for choice in op.dtype_choices(kernel)]
    source = render(op, kernel, HOPPER, config, "f16" if "f16" in dtypes else dtypes[-1]).source
    ptx, said = compiled(source, tmp_path)
    if name == "cuda_thin_kn":  # an array whose elements are not known lies in memory without counting as a spill
        assert said.count("0 bytes stack frame") == said.count("stack frame") > 0, said
    waiting = [e for e in ptx.split(".entry ")[1:] if "griddepcontrol.wait" in e]
    assert bool(waiting) == waits
    assert not [step for entry in waiting for step in re.findall(r"ld\.global[\w.:]*\.nc[\w.:]*", entry)]
    if "epilogue" in name:  # of a product that is there only then
        assert not [entry for entry in waiting if "ld.global" in entry.partition("griddepcontrol.wait")[0]]
    if name in EARLY:
        assert not faults(ptx, "AHEAD" in config)
        assert faults(ptx.replace("griddepcontrol.wait;", ""), "AHEAD" in config)


# -- on the host: one kernel -------------------------------------------------------------------------------------------
