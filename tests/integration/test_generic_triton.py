"""A generic Triton kernel whose constants follow optional tensors and attributes: a code for each combination."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_project import FAKE, Made, build
from environments import environment, run

KERNELS = """
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
    "kernels.py:masked",
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


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("masked")
    (folder / "templates" / "masked").mkdir(parents=True)
    (folder / "templates" / "kernels.py").write_text(KERNELS)
    (folder / "templates" / "masked" / "operator.py").write_text(MASKED)
    return build(
        folder / "project",
        templates=(folder / "templates",),
        operators=("masked",),
        MODE="generic",
        TARGETS="cuda-sm_90a",
    )


@pytest.mark.usefixtures("needs_triton")
def test_a_generic_triton_kernel_has_a_code_for_each_combination(masked: Made, tmp_path: Path) -> None:
    found = masked.variants("masked")
    assert len(found) == 4
    assert len({v["device"] for v in found.values()}) == 4
    assert all(v["generic"] for v in found.values())
    source = Path(__file__).with_name("triton_driver.cpp")
    flags = ["-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["g++", *flags, source, "-o", tmp_path / "libcuda.so.1"], check=True)
    path = os.pathsep.join([str(masked.folder), *(p for p in sys.path if p)])
    said = run([sys.executable, "-c", FAKE + CASES], env=environment(PYTHONPATH=path, LD_LIBRARY_PATH=str(tmp_path)))
    first, again = (said.splitlines()[i : i + 4] for i in (0, 4))
    assert {line.split()[0] for line in first} == set(found)
    for line, same in zip(first, again, strict=True):
        name, _, log = line.partition(" ")
        assert log == "load ptx; masked 4,1,1 x 128"
        assert same == f"{name} masked 4,1,1 x 128"
    guards = [found[line.split()[0]]["requires"] for line in first]
    for wanted, requires in zip(((0, 0), (1, 0), (0, 1), (1, 1)), guards, strict=True):
        assert requires == [f"(present.bias == {wanted[0]})", f"(attribute.causal == {wanted[1]})"]
