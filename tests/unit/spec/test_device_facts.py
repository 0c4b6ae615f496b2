"""The number of multiprocessors: a fact of devices, which launches have, and nothing that is compiled or dispatched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import triton_launch as tl
from small_operators import make_operator

from aot_tune.render import Renderer, candidate_for
from aot_tune.spec import (
    Buffer,
    Kernel,
    Parameter,
    Target,
    Tensor,
    TritonFunction,
    dims,
    integers,
    target,
)
from aot_tune.support.errors import AotTuneError, RenderError, SpecError

M, N = dims("M N")
COUNT = target("multiprocessors")
GPU = Target(name="cuda-sm_90a", family="cuda", level=90)


def kernel(**given: Any) -> Kernel:
    return Kernel("k", "k.cu.j2", backend="nvcc", parameters=(Parameter("P", (1, 2)),), **given)


BAD: dict[str, Callable[[], object]] = {
    "constraint": lambda: kernel(constraints=(COUNT > 8,)),
    "tile": lambda: kernel(tile={"M": COUNT}),
    "split": lambda: kernel(tile={"M": 64}, split=COUNT),
    "requires": lambda: make_operator(kernel(requires=(M > COUNT,))),
    "worthwhile": lambda: make_operator(kernel(worthwhile=(M > COUNT,))),
    "scratch": lambda: make_operator(kernel(stages=("a", "b"), scratch=M * COUNT)),
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
