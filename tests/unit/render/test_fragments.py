"""Formulas in C++, in its vectors, and in CUDA C++ on the host: what they give is what the reference gives."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import formula_bounds
import pytest
from formulas import BATCHES, CALLS, FUNCTIONS, PHASES, TEMPLATES, FormulaCall, operator_of
from hypothesis import given, settings
from nvcc_sources import MISSING
from places import SHARED
from precompiled import include

from aot_tune.compile.cuda.nvcc import TOOLCHAIN as NVCC
from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.spec import Formula, Operator, Target
from aot_tune.spec import elementwise as el
from aot_tune.spec.load_operators import bundled_templates

CPU = Target(name="cpu-x86-64", family="cpu", level=1, facts={"vector_bytes": 16, "registers": 16})
GPU = Target(name="cuda-sm_80", family="cuda", level=80, facts={"capability": 80})
HOST = SHARED / "cuda_rows_on_host"
FLAGS = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fno-gnu-unique", "-fno-strict-aliasing", "-pthread"]


def render(op: Operator) -> Rendered:
    kernel = op.kernel("each")
    target = GPU if kernel.backend == "nvcc" else CPU
    candidate = candidate_for(op, kernel, dict(kernel.listed[0]), target)
    return Renderer([TEMPLATES, bundled_templates()]).render(op, candidate, target)


def build(folder: Path, rendered: Rendered, *flags: str) -> Path:
    """Compile a rendered kernel with the host's compiler."""
    source, library = folder / f"{rendered.digest}.cpp", folder / f"{rendered.digest}.so"
    source.write_text(rendered.source)
    done = subprocess.run(["g++", *FLAGS, *flags, source, "-o", library], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return library


def check(folder: Path, op: Operator, batch: list[Formula], *flags: str) -> None:
    rendered = render(op)
    library = build(folder, rendered, *flags)
    for call in (FormulaCall(**c) for c in CALLS):
        for formula, got in zip(batch, call.run(library, rendered.symbol, op), strict=True):
            assert not formula_bounds.off(got, formula, call)


@settings(max_examples=40, deadline=None, phases=PHASES)
@given(BATCHES)
def test_the_reference_gives_what_a_formula_says(batch: list[Formula]) -> None:
    op = operator_of(batch)
    for call in (FormulaCall(**c) for c in CALLS):
        for dtype in ("float64", "float32"):
            for formula, got in zip(batch, call.reference(op, dtype), strict=True):
                assert not formula_bounds.off(got, formula, call)


@pytest.mark.parametrize(("lanes", "math_functions"), [(1, False), (1, True), (4, False), (4, True), (16, True)])
def test_cpp(lanes: int, math_functions: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cpp")

    @settings(max_examples=6, deadline=None, phases=PHASES)
    @given(BATCHES)
    def holds(batch: list[Formula]) -> None:
        check(folder, operator_of(batch, LANES=lanes, MATH=math_functions), batch)

    holds()


def test_cuda_on_the_host(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cuda")
    flags = include(folder, HOST / "cuda_runtime.h", [*FLAGS, "-I", str(HOST)])[len(FLAGS) :]

    @settings(max_examples=6, deadline=None, phases=PHASES)
    @given(BATCHES)
    def holds(batch: list[Formula]) -> None:
        check(folder, operator_of(batch, "each.cu.j2"), batch, *flags)

    holds()


@pytest.mark.skipif(MISSING != "", reason=MISSING)
def test_nvcc_takes_every_operation(tmp_path: Path) -> None:
    x, i = el.value(), el.index("i")
    functions = [getattr(el, name)(x) for name in FUNCTIONS]
    others = [
        el.cast(el.cast(x, "bf16"), "f16") + el.cast(el.cast(x, "i32") % 3 - i // 2, "f32"),
        el.where(el.present("maybe") & ~el.element("flags", "j"), el.element("maybe", "j"), -math.inf) + x,
        el.element("turned", "j", "i") + el.element("rows", "i") + el.element("table", i - 1) + x,
        el.where(el.choice("mode", "relu") | (el.element("whole", "i", "j") > 2), abs(x), math.nan),
        el.minimum(x, el.scalar("alpha")) * el.maximum(x, el.scalar("shift")),
    ]
    rendered = render(operator_of([*functions, *others], "each.cu.j2"))
    outcome = NVCC.compile(rendered.source, GPU, tmp_path / "candidate.o", timeout=300)
    assert outcome.status == "ok", outcome.log
    assert "warning" not in outcome.log
