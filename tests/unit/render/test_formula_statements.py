"""Formulas in C++, in its vectors, and in CUDA C++ on the host: what they give is what the reference gives."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import formula_bounds
import numpy as np
import pytest
from cpu_kernels import CpuKernel
from formulas import CALLS, FUNCTIONS, TEMPLATES, FormulaCall, on_batches, operator_of
from nvcc_sources import MISSING
from precompiled import include
from rows_on_host import FLAGS, HOST

from aot_tune.compile.cuda.nvcc import TOOLCHAIN as NVCC
from aot_tune.compile.cxx import TOOLCHAIN as CXX
from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.spec import Epilogue, Formula, Kernel, Operator, Scalar, Target, Tensor, dims, problem
from aot_tune.spec import elementwise as el
from aot_tune.spec.load_operators import bundled_templates

(N,) = dims("N")
CPU = Target(name="cpu-x86-64", family="cpu", level=1, facts={"vector_bytes": 16, "registers": 16})
GPU = Target(name="cuda-sm_80", family="cuda", level=80, facts={"capability": 80})


def render(op: Operator) -> Rendered:
    kernel = op.kernel("each")
    target = GPU if kernel.backend == "nvcc" else CPU
    candidate = candidate_for(op, kernel, dict(kernel.listed[0]), target)
    return Renderer([TEMPLATES, bundled_templates()]).render(op, candidate, target)


def built(folder: Path, op: Operator, *flags: str) -> Callable[[FormulaCall], Any]:
    """A function that makes calls of the compiled kernel."""
    rendered = render(op)
    library = build(folder, rendered, *flags)
    return lambda call: call.run(library, rendered.symbol, op)


def build(folder: Path, rendered: Rendered, *flags: str) -> Path:
    """Compile a rendered kernel with the host's compiler."""
    source, library = folder / f"{rendered.digest}.cpp", folder / f"{rendered.digest}.so"
    source.write_text(rendered.source)
    command = ["g++", *FLAGS, *flags, "-shared", source, "-o", library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return library


def check(folder: Path, op: Operator, batch: list[Formula], *flags: str) -> None:
    run = built(folder, op, *flags)
    for call in (FormulaCall(**c) for c in CALLS):
        for formula, got in zip(batch, run(call), strict=True):
            assert not formula_bounds.off(got, formula, call)


@on_batches(15)
def test_the_reference_gives_what_a_formula_says(batch: list[Formula]) -> None:
    op = operator_of(batch)
    for call in (FormulaCall(**c) for c in CALLS):
        for dtype in ("float64", "float32"):
            for formula, got in zip(batch, call.reference(op, dtype), strict=True):
                assert not formula_bounds.off(got, formula, call)


@pytest.mark.parametrize(("lanes", "math_functions"), [(1, False), (16, True)])
def test_cpp(lanes: int, math_functions: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cpp")

    @on_batches(2)
    def holds(batch: list[Formula]) -> None:
        check(folder, operator_of(batch, LANES=lanes, MATH=math_functions), batch)

    holds()


@pytest.fixture(scope="module")
def host_flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """With which CUDA C++ is compiled for the host."""
    folder = tmp_path_factory.mktemp("header")
    return include(folder, HOST / "cuda_runtime.h", [*FLAGS, "-I", str(HOST)])[len(FLAGS) :]


def test_cuda_on_the_host(host_flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cuda")

    @on_batches(2)
    def holds(batch: list[Formula]) -> None:
        check(folder, operator_of(batch, "each.cu.j2"), batch, *host_flags)

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


def statements_of(op: Operator) -> str:
    """What the kernel computes with, without what is included."""
    return render(op).source.partition("_launch(")[2]


def test_vectors_where_all_functions_have_them() -> None:
    x, j = el.value(), el.index("j")
    vectors = [x * el.tanh(x) + el.element("columns", "j") + el.element("rows", "i"), el.where(x > 0, x, -x)]
    single = [el.log(x), x + j, el.floor(x), el.cast(x, "bf16"), x + el.element("whole", "i", "j"),
              x + el.element("x", "i", j // 2), el.where(el.element("flags", "j"), x, 0.0)]  # fmt: skip
    one_by_one = "++aot_f0_l) {"
    for formula in vectors:
        text = statements_of(operator_of([formula], LANES=8))
        assert "const vf<8> aot_f0_" in text
        assert one_by_one not in text
    for formula in single:
        text = statements_of(operator_of([formula], LANES=8))
        assert one_by_one in text
        assert "const vf<8> aot_" not in text
    assert one_by_one in statements_of(operator_of([el.tanh(x)], LANES=8, MATH=False))
    assert one_by_one not in statements_of(operator_of([x / (2 + x)], LANES=8, MATH=False))


def test_what_is_the_same_in_all_lanes_beside_what_is_not(tmp_path: Path) -> None:
    x, one, row = el.value(), el.scalar("alpha"), el.element("rows", "i")
    chosen, high = el.choice("mode", "relu"), x > 0.5
    formulas = [
        el.where(chosen & high, x, one),
        el.where(high | ~chosen, row, x),
        el.where(~high & (el.index("i") > 2), one, row) + x,
        el.where(chosen, el.where(high, one, row), x * 2),
        el.where(one > row, x, el.element("maybe", "j")),
        el.where(one < x, el.minimum(one, x), el.maximum(x, row)) - el.element("maybe", "j"),
        el.exp(-one) * el.tanh(row) / (1 + el.erf(x)) + abs(x) + el.cast(el.index("i") * 2, "f32"),
        el.log(abs(one)) + el.floor(row) + el.relu(x) - el.gelu_tanh(x) * el.cast(row, "bf16"),
    ]
    op = operator_of(formulas, LANES=16)
    assert statements_of(op).count("++aot_") == 2  # but for elements in steps, none is on its own
    check(tmp_path, op, formulas)


def test_formulas_of_one_kernel_have_nothing_in_common(tmp_path: Path) -> None:
    """Each has its own names in its own scope: in any order and company, it gives what it gives alone."""
    x = el.value()
    formulas = [el.exp(x) + el.element("columns", "j"), el.element("columns", "j") - el.exp(x), x * x]
    call = FormulaCall(**CALLS[0])
    together, backwards, alone = (
        built(tmp_path, operator_of(f))(call) for f in (formulas, formulas[::-1], formulas[1:2])
    )
    assert np.array_equal(together, backwards[::-1], equal_nan=True)
    assert np.array_equal(together[1], alone[0], equal_nan=True)
    text = statements_of(operator_of(formulas))
    blocks = re.findall(r"\{ const \w+ aot_f(\d)_\d+ = (.*?)v = aot_f(\d)_\d+; \}", text)
    assert [(first, last) for first, _, last in blocks] == [("0", "0"), ("1", "1"), ("2", "2")]
    for number, body, _ in blocks:
        assert set(re.findall(r"aot_(f\d)_", body)) <= {f"f{number}"}


def test_floats_of_64_bits(tmp_path: Path) -> None:
    op = Operator(
        name="formulas",
        dims=("N",),
        tensors=(Tensor("x", (N,), "f64"), Tensor("out", (N,), "f64", output=True)),
        scalars=(Scalar("third", "f64"),),
        epilogue=Epilogue("out", expression=el.exp(el.value()) * el.scalar("third") + 1e-17),
        reference=lambda xp, call: {"out": call.epilogue(call.x)},
        flops=N,
        workload=(problem(N=5),),
        kernels=(Kernel("generic", "k.cpp.j2", generic=True),),
    )
    body = 'for (int64_t i = 0; i < {{ dim("N") }}; ++i) {{ store_output("out", ["i"], load("x", ["i"])) }}'
    text = "{{ prelude() }}{{ no_workspace() }}{{ kernel_signature('launch') }} { %s return 0; }"
    (tmp_path / "k.cpp.j2").write_text(text % body)
    native = CXX.native()[0]
    kernel = CpuKernel(tmp_path, [tmp_path], op, "generic", native)
    x, out = np.array([-300.0, 0.0, 1.0, 1e-9, 3.0]), np.zeros(5)
    assert kernel({"third": 1 / 3}, x=x, out=out) == 0
    assert np.allclose(out, np.exp(x) / 3 + 1e-17, rtol=1e-15, atol=0)
