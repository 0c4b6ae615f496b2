"""Generic Triton kernels: a code for each combination of optional tensors and attributes, and tensors of f8."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from cuda_project import FAKE, Made, build
from environments import environment, run

pytestmark = pytest.mark.usefixtures("needs_triton")

MASKED_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def masked(x, bias, out, columns, x_row, out_row, CAUSAL: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * x_row + at, mask=at < columns, other=0.0)
        if HAS_BIAS:
            value += tl.load(bias + at, mask=at < columns, other=0.0)
        if CAUSAL:
            value = tl.where(at <= row, value, 0.0)
        tl.store(out + row * out_row + at, value, mask=at < columns)
"""

MASKED = """
from aot_tune.spec import Attribute, Kernel, Operator, Tensor, TritonFunction, attribute, dims, present, problem, stride

M, N = dims("M N")


def reference(xp, call):
    raise AssertionError("nothing is measured")


function = TritonFunction(
    "masked/kernel.py:masked",
    {
        "columns": N,
        "x_row": stride("x", 0),
        "out_row": stride("out", 0),
        "CAUSAL": attribute("causal") == 1,
        "HAS_BIAS": present("bias"),
        "BLOCK": 256,
    },
    grid=(M,),
)
operator = Operator(
    name="masked",
    dims=("M", "N"),
    tensors=(Tensor("x", (M, N)), Tensor("bias", (N,), optional=True), Tensor("out", (M, N), output=True)),
    attributes=(Attribute("causal", ("no", "yes")),),
    legal=(stride("x", 1) == 1, stride("out", 1) == 1, stride("bias", 0) == 1),
    reference=reference,
    flops=M * N,
    workload=(problem(M=4, N=64),),
    kernels=(Kernel("generic", backend="triton", generic=True, triton=function, listed=({"num_warps": 4},)),),
)
"""

CASES = """
stub = ctypes.CDLL("libcuda.so.1")
stub.stub_log.restype = ctypes.c_char_p
x, out, bias = (OnGpu(np.zeros(shape, "f4")) for shape in ((4, 64), (4, 64), 64))
for round in range(2):
    for given, causal in ((None, "no"), (bias, "no"), (None, "yes"), (bias, "yes")):
        before = len(stub.stub_log())
        ops.masked(x, given, causal=causal, out=out)
        told = ops.explain("masked", x, given, causal=causal, out=out)
        print(told["variant"], stub.stub_log()[before:].decode().strip().replace("\\n", "; "))
"""

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


def made(folder: Path, targets: str, constraints: str, *, status: int | None = 0, link: bool = True) -> Made:
    """A build of both operators, where there is no GPU."""
    texts = {"masked": (MASKED, MASKED_KERNEL), "rescale": (RESCALE, RESCALE_KERNEL)}
    for name, (operator, kernel) in texts.items():
        (folder / "templates" / name).mkdir(parents=True)
        (folder / "templates" / name / "operator.py").write_text(operator.replace("CONSTRAINTS", constraints))
        (folder / "templates" / name / "kernel.py").write_text(kernel)
    roots = (folder / "templates",)
    return build(folder / "project", templates=roots, operators=(*texts,), status=status, link=link, TARGETS=targets)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made(tmp_path_factory.mktemp("generic"), "cuda-sm_80;cuda-sm_90a", NEWER)


def test_a_code_for_each_combination(library: Made, triton_driver: Path) -> None:
    found = library.variants("masked")
    assert len(found) == 4
    assert len({v["device"] for v in found.values()}) == 4
    assert all(v["generic"] for v in found.values())
    path = os.pathsep.join([str(library.folder), *(p for p in sys.path if p)])
    env = environment(PYTHONPATH=path, LD_LIBRARY_PATH=str(triton_driver))
    said = run([sys.executable, "-c", FAKE + CASES], env=env)
    first, again = (said.splitlines()[i : i + 4] for i in (0, 4))
    assert {line.split()[0] for line in first} == set(found)
    for line, same in zip(first, again, strict=True):
        name, _, log = line.partition(" ")
        assert log == "load ptx; masked 4,1,1 x 128"
        assert same == f"{name} masked 4,1,1 x 128"
    guards = [found[line.split()[0]]["requires"] for line in first]
    for wanted, requires in zip(((0, 0), (1, 0), (0, 1), (1, 1)), guards, strict=True):
        assert requires == [f"(present.bias == {wanted[0]})", f"(attribute.causal == {wanted[1]})"]


def test_f8_is_ptx_of_the_first_gpus_that_have_it(library: Made) -> None:
    targets = {v["dtypes"]["T"]: v["target"] for v in library.variants("rescale").values()}
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
    log = " ".join(made(tmp_path, targets, constraints, status=None, link=False).log.split())
    assert f"kernel '{kernel}': cuda-sm_80 cannot have Triton kernels with f8e4m3 tensors" in log
    assert "GPUs convert f8e4m3 in instructions from sm_89 on, and Triton has no code for older GPUs" in log
    assert f"leave cuda-sm_80 out of AOT_TUNE_TARGETS, or {remedy}" in log
    assert log.count("cannot have Triton kernels") == 1
    assert "compiled" not in log
