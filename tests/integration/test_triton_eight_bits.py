"""Triton kernels with tensors of f8: which targets have them, and what is said where none can."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_project import Made, build

pytestmark = pytest.mark.usefixtures("needs_triton")


RESCALE = """
from aot_tune.spec import Kernel, Operator, Parameter, Scalar, Tensor, TritonFunction
from aot_tune.spec import ceildiv, dims, problem, stride, target

(N,) = dims("N")


def blocks(meta):
    return (ceildiv(meta["N"], meta["BLOCK"]),)


operator = Operator(
    name="rescale",
    dims=("N",),
    tensors=(Tensor("x", (N,), "T"), Tensor("steps", (N,), "u16"), Tensor("y", (N,), "T", output=True)),
    dtypes={"T": ("bf16", "f8e5m2", "f8e4m3")},
    scalars=(Scalar("factor", "f32"), Scalar("doubles", "bool", False), Scalar("seed", "u64"), Scalar("add", "u8", 0)),
    reference=lambda xp, call: {"y": call.x * call.factor},
    legal=tuple(stride(name, 0) == 1 for name in ("x", "steps", "y")),
    flops=N,
    workload=(problem(N=4096),),
    kernels=(
        Kernel(
            "generic",
            generic=True,
            backend="triton",
            triton=TritonFunction("rescale/kernel.py:rescale", {"BLOCK": 256}, grid=blocks),
        ),
        Kernel(
            "tuned",
            backend="triton",
            parameters=(Parameter("BLOCK", (256,)),),
            constraints=CONSTRAINTS,
            triton=TritonFunction("rescale/kernel.py:rescale", {}, grid=blocks),
        ),
    ),
)
"""
RESCALE_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def rescale(x, steps, y, N, factor, doubles, seed, add, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    value = tl.load(x + at, mask=inside).to(tl.float32) * factor
    step = tl.load(steps + at, mask=inside).to(tl.float32)
    value = tl.where(doubles, 2 * value, value) + step * 0 + (seed % 2) * 0 + add
    tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)
"""
NEWER = '(target("capability") >= 89,)'


def made(folder: Path, targets: str, constraints: str, *, status: int | None = 0) -> Made:
    own = folder / "templates" / "rescale"
    own.mkdir(parents=True)
    (own / "operator.py").write_text(RESCALE.replace("CONSTRAINTS", constraints))
    (own / "kernel.py").write_text(RESCALE_KERNEL)
    roots = (own.parent,)
    return build(
        folder / "project", templates=roots, operators=("rescale",), status=status, link=False, TARGETS=targets
    )


def test_f8_is_ptx_of_the_first_gpus_that_have_it(tmp_path: Path) -> None:
    variants = made(tmp_path, "cuda-sm_80;cuda-sm_90a", NEWER).variants("rescale").values()
    targets = {v["dtypes"]["T"]: v["target"] for v in variants}
    assert targets == {"bf16": "cuda-ptx_80", "f8e5m2": "cuda-ptx_80", "f8e4m3": "cuda-ptx_89"}


@pytest.mark.parametrize(
    ("targets", "constraints", "kernel", "remedy"),
    [
        ("cuda-sm_80;cuda-sm_90a", "()", "tuned", 'give it the constraint target("capability") >= 89'),
        ("cuda-sm_80", NEWER, "generic", "write the generic kernel as a CUDA template, which has code for such GPUs"),
    ],
)
def test_targets_without_instructions_are_refused_by_name(
    tmp_path: Path, targets: str, constraints: str, kernel: str, remedy: str
) -> None:
    log = " ".join(made(tmp_path, targets, constraints, status=None).log.split())
    assert f"kernel '{kernel}': cuda-sm_80 cannot have Triton kernels with f8e4m3 tensors" in log
    assert "GPUs convert f8e4m3 in instructions from sm_89 on, and Triton has no code for older GPUs" in log
    assert f"leave cuda-sm_80 out of AOT_TUNE_TARGETS, or {remedy}" in log
    assert log.count("cannot have Triton kernels") == 1
    assert "compiled" not in log
