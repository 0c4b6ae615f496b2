"""Kernels of HIP C++ become a library where hipcc is installed, called through a stand-in of the HIP runtime.

Nothing here ran on a card.
"""

import os
import shutil
import sys
from pathlib import Path

import pytest
import stand_ins
from cuda_project import FAKE, build
from environments import environment, run

from aot_tune.compile import target_by_name, toolchain_for
from aot_tune.support.errors import ToolchainError

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("HIPCC", "hipcc")) is None, reason="no hipcc: install it, or set HIPCC"
)

OPERATOR = """
from aot_tune.spec import Kernel, Operator, Scalar, Tensor, dims, problem

(N,) = dims("N")


def reference(xp, call):
    return {"y": call.x * call.factor}


operator = Operator(
    name="scale",
    dims=("N",),
    tensors=(Tensor("x", (N,), "T"), Tensor("y", (N,), "T", output=True)),
    scalars=(Scalar("factor", "f32"),),
    dtypes={"T": ("f32", "bf16")},
    reference=reference,
    flops=N,
    workload={"hip": (problem(N=4096),)},
    kernels=(Kernel("generic_hip", "scale/scale.hip.j2", generic=True),),
)
"""
TEMPLATE = """
{{ prelude() }}
namespace {
__constant__ int kept[4] = {1, 2, 3, 4};

__global__ void scale(Arguments args) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < {{ dim("N") }}) { {{ store("y", ["i"], load("x", ["i"]) ~ " * args.factor * kept[0]") }} }
}
}  // namespace

{{ no_workspace() }}

{{ kernel_signature("preload") }} {
  hipFuncAttributes attributes;
  return hipFuncGetAttributes(&attributes, reinterpret_cast<const void*>(scale));
}

{{ kernel_signature("launch") }} {
  const Arguments args = {{ pack() }};
  if ({{ dim("N") }} == 0) return 0;
  scale<<<static_cast<unsigned>(({{ dim("N") }} + 255) / 256), 256, 64, static_cast<hipStream_t>(stream)>>>(args);
  return hipGetLastError();
}
"""

CALLS = """
stub = ctypes.CDLL("libamdhip64.so")
stub.stub_log.restype = ctypes.c_char_p
print("before", [s for s in stub.stub_log().decode().splitlines() if s.startswith("register")])
x, y = np.ones(1000, np.float32), np.ones(1000, np.float32)
for _ in range(2):
    ops.scale(OnDevice(x, (10, 0)), factor=3.0, y=OnDevice(y, (10, 0)), stream=7)
for line in stub.stub_log().decode().splitlines():
    if line.startswith(("register", "_Z")):
        print(line)
print(ops.explain("scale", N=1000, device="rocm:0")["target"])
"""


def test_hip_cpp_is_compiled_and_linked_and_refused_for_measuring(tmp_path: Path) -> None:
    templates = tmp_path / "templates"
    (templates / "scale").mkdir(parents=True)
    (templates / "scale" / "operator.py").write_text(OPERATOR)
    (templates / "scale" / "scale.hip.j2").write_text(TEMPLATE)
    given = {"templates": (templates,), "operators": ("scale",), "TARGETS": "hip-gfx90a"}
    made = build(tmp_path / "project", **given)
    assert "note: hip targets: nothing is measured on AMD's devices" in made.log
    found = made.variants("scale", "hip-gfx90a")
    assert {v["dtypes"]["T"] for v in found.values()} == {"f32", "bf16"}
    assert not [n for n in made.needed() if "hip" in n]
    made.run("assert 'amdhip' not in open('/proc/self/maps').read()")
    driver = stand_ins.build(tmp_path / "driver", "libamdhip64.so").parent
    env = environment(
        PYTHONPATH=os.pathsep.join([str(made.folder), *filter(None, sys.path)]),
        LD_LIBRARY_PATH=str(driver),
        FAKE_ARCHITECTURES="gfx90a:sramecc+:xnack-",
    )
    before, *said, target = run([sys.executable, "-c", FAKE + CALLS], env=env).strip().splitlines()
    assert before == "before []"  # the runtime is told at the first launch
    assert [line for line in said if "hipv4" in line] == ["register hipv4-amdgcn-amd-amdhsa--gfx90a"]
    launched = [line for line in said if line.startswith("_Z")]
    assert len(launched) == 2
    assert "scale" in launched[0]
    assert launched[0].endswith(" 4 x 256 shared 64 on 0 stream 7 first 1")
    assert target == "hip-gfx90a"
    chain = toolchain_for("hipcc")
    with pytest.raises(ToolchainError, match="nothing is measured on AMD's devices"):
        chain.link_shared([], tmp_path / "candidate.so")
    assert str(tmp_path).encode() not in made.library.read_bytes()
    target = target_by_name("hip-gfx90a")
    wrong = chain.compile("#include <hip/hip_runtime.h>\nwrong", target, tmp_path / "object.o", 60)
    assert (wrong.status, wrong.lasting) == ("compile-failed", True)  # so it is compiled once
    assert "candidate.cpp:2:1: error" in wrong.log
    assert any(name.endswith("hip/hip_runtime.h") for name in wrong.includes)
