"""Guards: what each config requires, which calls some config serves, and that no guard has facts of a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import triton_launch as tl
from small_operators import make_operator

from aot_tune.plan.preflight import idle_kernels
from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import (
    Buffer,
    Kernel,
    Operator,
    Parameter,
    Target,
    Tensor,
    TritonFunction,
    dims,
    integers,
    parameter,
    problem,
    stride,
    target,
)
from aot_tune.spec.kernel import requires_of, worthwhile_of
from aot_tune.support.errors import AotTuneError, RenderError, SpecError

M, N = dims("M N")
V = parameter("VEC")
TARGET = Target(name="cpu-x86-64-v3", family="cpu", level=3)


def kernel(**given: Any) -> Kernel:
    return Kernel("vectors", "scale/v.cpp.j2", parameters=(Parameter("VEC", (1, 4, 8)),), **given)


def operator(*kernels: Kernel) -> Operator:
    return make_operator(*kernels, workload=(problem(M=3, N=12),))


def keys(expressions: tuple[Any, ...]) -> list[str]:
    return [e.key() for e in expressions]


def test_each_config_has_guards_of_its_own() -> None:
    one = kernel(requires=(N % V == 0, stride("x", 1) == 1), worthwhile=(N >= 2 * V,))
    assert keys(requires_of(one, {"VEC": 4})) == ["((N % 4) == 0)", "(stride.x.1 == 1)"]
    assert keys(worthwhile_of(one, {"VEC": 8})) == ["(N >= 16)"]


def test_a_kernel_that_no_problem_is_for_in_any_config_is_told() -> None:
    assert idle_kernels([operator(kernel(requires=(N % V == 0,)))], [TARGET]) == []
    (line,) = idle_kernels([operator(kernel(requires=(N % (5 * V) == 0,)))], [TARGET])
    assert "kernel scale/vectors is tried on no problem: it requires ((N % (5 * parameter.VEC)) == 0)" in line


@pytest.mark.parametrize("where", ["requires", "worthwhile"])
def test_an_unknown_parameter_is_told_with_the_nearest(where: str) -> None:
    told = r"kernel 'vectors': .*N % parameter.VECT.* uses the unknown parameter 'VECT'\n  fix: did you mean 'VEC'"
    with pytest.raises(SpecError, match=told):
        operator(kernel(**{where: (N % parameter("VECT") == 0,)}))
    with pytest.raises(SpecError, match="unknown parameter 'VEC'\n  fix: declare it among"):
        operator(Kernel("bare", "k.j2", **{where: (N % V == 0,)}))


def test_a_divisor_of_0_in_some_config_is_told() -> None:
    bad = Kernel("k", "k.j2", parameters=(Parameter("VEC", (0,)),), requires=(N % V == 0,))
    with pytest.raises(SpecError, match=r"kernel 'k': requires or worthwhile: division by zero in \(N % 0\)"):
        operator(bad)


def test_a_guard_over_fractions_is_told() -> None:
    bad = Kernel("k", "k.j2", parameters=(Parameter("SCALE", (0.5, 2.0)),), requires=(N % parameter("SCALE") == 0,))
    told = r"uses the parameter 'SCALE', which is 0\.5\n  why: guards and sizes are computed in whole numbers"
    with pytest.raises(SpecError, match=told):
        operator(bad)


COUNT = target("multiprocessors")
GPU = Target(name="cuda-sm_90a", family="cuda", level=90)


def gpu_kernel(**given: Any) -> Kernel:
    return Kernel("k", "k.cu.j2", backend="nvcc", parameters=(Parameter("P", (1, 2)),), **given)


BAD: dict[str, Callable[[], object]] = {
    "constraint": lambda: gpu_kernel(constraints=(COUNT > 8,)),
    "tile": lambda: gpu_kernel(tile={"M": COUNT}),
    "split": lambda: gpu_kernel(tile={"M": 64}, split=COUNT),
    "requires": lambda: make_operator(gpu_kernel(requires=(M > COUNT,))),
    "worthwhile": lambda: make_operator(gpu_kernel(worthwhile=(M > COUNT,))),
    "scratch": lambda: make_operator(gpu_kernel(stages=("a", "b"), scratch=M * COUNT)),
    "legal": lambda: make_operator(legal=(M > COUNT,)),
    "flops": lambda: make_operator(flops=M * COUNT),
    "shape": lambda: make_operator(tensors=(Tensor("x", (M, N)), Tensor("out", (M, COUNT), output=True))),
    "values": lambda: make_operator(
        tensors=(Tensor("x", (M, N), "i32", values=integers(0, COUNT)), Tensor("out", (M, N), output=True))
    ),
}


@pytest.mark.parametrize("place", BAD)
def test_what_no_launch_works_out_cannot_have_it(place: str) -> None:
    with pytest.raises(
        SpecError, match=r'uses device\("multiprocessors"\)\n  why: a target is an arch.*\n  fix: use dev'
    ):
        BAD[place]()


def test_launches_have_it_in_grids_arguments_and_buffers() -> None:
    """Beside facts of the call, as persistent kernels need it."""
    function = TritonFunction(
        "scale.py:scale_kernel",
        {"blocks": COUNT, "memory": Buffer("f32", COUNT * 4), "each": M // COUNT},
        grid=(COUNT,),
    )
    source = tl.rendered(tl.operator(function, tl.parameters("x out blocks memory each"))).source
    asked = "launcher::multiprocessors(call::aot_kernel, aot_device)"
    assert f"grid.x = {asked};" in source
    assert f"aot_count_memory = ({asked} * INT64_C(4));" in source
    assert source.count(asked) == 4


@pytest.mark.parametrize("where", ["constexpr", "option"])
def test_what_is_compiled_in_cannot_have_it(where: str) -> None:
    options = {"num_warps": COUNT} if where == "option" else {}
    function = TritonFunction("scale.py:scale_kernel", {"BLOCKS": COUNT}, grid=(1,), options=options)
    op = tl.operator(function, tl.parameters("x out BLOCKS!" if where == "constexpr" else "x out BLOCKS"))
    told = r'depends on the device, by device\("multiprocessors"\)(.|\n)*ordinary argument'
    with pytest.raises(AotTuneError, match=told):
        candidate_for(op, op.kernel("triton"), {}, tl.SM_90A, op.workload[0])


def test_templates_are_told_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "scale").mkdir()
    (tmp_path / "scale" / "generic.cu.j2").write_text("{{ prelude() }}\n{{ target.multiprocessors }}\n")
    op = make_operator(kernels=(Kernel("generic", "scale/generic.cu.j2", generic=True),))
    with pytest.raises(RenderError, match=r"generic.cu.j2:2: target.multiprocessors is no number(.|\n)*launch.cuh.j2"):
        Renderer([tmp_path]).render(op, candidate_for(op, op.kernels[0], {}, GPU), GPU)
