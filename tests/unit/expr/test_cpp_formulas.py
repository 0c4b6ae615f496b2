"""Formulas in C++, in its vectors, and in CUDA C++ on the host: what they give is what the reference gives."""

import math
from pathlib import Path

import numpy as np
import pytest
from formulas import CALLS, FUNCTIONS, TEMPLATES, FormulaCall, on_batches, operator_of
from host_compiler import CUDA, shared_object
from host_kernels import CpuKernel
from nvcc_sources import MISSING

from aot_tune.compile import toolchains
from aot_tune.render import Rendered, Renderer, candidate_for
from aot_tune.spec import Epilogue, Formula, Kernel, Operator, Scalar, Target, Tensor, dims, problem
from aot_tune.spec import elementwise as el
from aot_tune.spec.load_operators import bundled_templates

(N,) = dims("N")
CPU = Target(name="cpu-x86-64", family="cpu", level=1, facts={"vector_bytes": 16, "registers": 16})
RENDERER = Renderer([TEMPLATES, bundled_templates()])
GPU = Target(name="cuda-sm_80", family="cuda", level=80, facts={"capability": 80})


def render(op: Operator) -> Rendered:
    kernel = op.kernel("each")
    target = GPU if kernel.backend == "nvcc" else CPU
    candidate = candidate_for(op, kernel, dict(kernel.listed[0]), target)
    return RENDERER.render(op, candidate, target)


def check(folder: Path, op: Operator, *flags: str) -> None:
    """Compile the kernel with the host's compiler, and hold its calls against the reference."""
    rendered = render(op)
    source = folder / f"{rendered.digest}.cpp"
    source.write_text(rendered.source)
    library = shared_object(source, *flags)
    for call in (FormulaCall(**c) for c in CALLS):
        call.check(op, call.run(library, rendered.symbol, op))


@pytest.mark.parametrize(("lanes", "math_functions"), [(1, False), (16, True)])
def test_cpp(lanes: int, math_functions: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cpp")

    @on_batches(2)
    def holds(batch: list[Formula]) -> None:
        check(folder, operator_of(batch, LANES=lanes, MATH=math_functions))

    holds()


def test_cuda_on_the_host(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cuda")

    @on_batches(2)
    def holds(batch: list[Formula]) -> None:
        check(folder, operator_of(batch, "each.cu.j2"), *CUDA)

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
    outcome = toolchains()["nvcc"].compile(rendered.source, GPU, tmp_path / "candidate.o", timeout=300)
    assert outcome.status == "ok", outcome.log
    assert "warning" not in outcome.log


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
    kernel = CpuKernel(tmp_path, op, "generic", renderer=Renderer([tmp_path]))
    x, out = np.array([-300.0, 0.0, 1.0, 1e-9, 3.0]), np.zeros(5)
    assert kernel({"third": 1 / 3}, x=x, out=out) == 0
    assert np.allclose(out, np.exp(x) / 3 + 1e-17, rtol=1e-15, atol=0)
