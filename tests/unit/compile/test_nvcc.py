"""The CUDA toolchain with a real nvcc: objects, their symbols, resources and places, and linking. No GPU is needed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nvcc_sources import API, MISSING, compiled, source
from processes import program

from aot_tune.compile import target_by_name
from aot_tune.compile.nvcc import NvccToolchain
from aot_tune.compile.object_files import symbols_of
from aot_tune.spec import CompileOptions

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One source for three targets, not compressed, so that what they hold can be seen."""
    top, chain = tmp_path_factory.mktemp("objects"), NvccToolchain({**os.environ, "NVCC_APPEND_FLAGS": "--no-compress"})
    names = {"cuda-sm_80": "f_80", "cuda-sm_90a": "f_90a", "cuda-ptx_80": "f_ptx"}
    return {t: compiled(source(name), t, top / t, chain)[0] for t, name in names.items()}


def architectures(path: Path) -> list[int]:
    """The architectures of the machine code in an object: cubins are ELF files of machine 190."""
    data, found, at = path.read_bytes(), [], 1
    while (at := data.find(b"\x7fELF", at)) >= 0:
        if int.from_bytes(data[at + 18 : at + 20], "little") == 190:
            found.append(at)
        at += 4
    return found


def test_another_host_compiler_is_another_toolchain_but_not_for_device_code(tmp_path: Path) -> None:
    """tests/integration/test_cuda.py holds that the device code is the same."""
    other = program(tmp_path / "g++", 'exec g++ "$@" -O1')
    chains = [NvccToolchain(), NvccToolchain({**os.environ, "CXX": str(other)})]
    assert len({str(chain.identity()) for chain in chains}) == 2
    assert len({str(chain.device_identity(chain.identity())) for chain in chains}) == 1


def test_only_the_baseline_holds_ptx(objects: dict[str, Path]) -> None:
    for target, path in objects.items():
        data = path.read_bytes()
        assert (b".target sm_80" in data) == (target == "cuda-ptx_80")
        assert len(architectures(path)) == 1
        assert str(path.parent.parent).encode() not in data
        assert b"tmpxft" not in data


def defined(path: Path, *options: str) -> set[str]:
    rows = subprocess.check_output(["nm", "--defined-only", *options, str(path)], text=True).splitlines()
    return {row.split()[-1] for row in rows if row.split()[-2].isupper() or row.split()[-2] in ("w", "v", "u")}


def test_only_the_functions_of_a_candidate_stay_global(objects: dict[str, Path]) -> None:
    path = objects["cuda-sm_80"]
    assert defined(path) == {"f_80_launch", "f_80_workspace", "f_80_preload", "f_80_helper_launch"}
    assert "no section groups" in subprocess.check_output(["readelf", "-g", str(path)], text=True)


def test_resources_are_those_of_the_worst_kernel_and_headers_are_named_without_their_folder(tmp_path: Path) -> None:
    text = f"""
__global__ void small(float* x) {{ x[threadIdx.x] = x[0] * x[1] + x[2]; }}
__global__ void shared(float* x) {{
  __shared__ float s[3000];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[255 - threadIdx.x];
}}
__global__ void __launch_bounds__(1024, 2) spills(const float* x, float* y) {{
  float v[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; ++i) y[(i * 37 % 96) * 1024 + threadIdx.x] = v[i] * v[(i * 7 + 5) % 96];
}}
{API} int f_launch(float* x) {{ small<<<1, 1>>>(x); shared<<<1, 256>>>(x); spills<<<1, 1024>>>(x, x); return 0; }}
"""
    binding = "struct Tensor { float* get(); };\nint binding(Tensor& x) { small<<<1, 1>>>(x.get()); return 0; }\n"
    options = CompileOptions(options=("--fmad=false", "-Xcompiler=-ffunction-sections"))  # without what is not called
    path, sm_80 = tmp_path / "object.o", target_by_name("cuda-sm_80")
    outcome = NvccToolchain().compile(text + binding, sm_80, path, 60, options)
    used = symbols_of(path.read_bytes()).used
    assert any("cudaLaunch" in name for name in used)
    assert not any("Tensor" in name for name in used)
    assert "cuda:cuda_runtime.h" in outcome.includes
    assert all(name.startswith(("cuda:", "/")) for name in outcome.includes)
    assert not any(name.startswith(NvccToolchain().toolkit().include) for name in outcome.includes)
    assert Path(NvccToolchain().locate("cuda:cuda_runtime.h")).is_file()
    resources = outcome.resources
    assert resources["shared"] == 12000
    assert resources["registers"] == 32
    assert resources["spill_bytes"] > 0
    assert resources["stack"] > 0
    assert 2000 < resources["text"] < 100_000
    assert resources["memory"] > 1 << 20
    told = objdump(path, "-res-usage")
    for name, word in (("registers", "REG"), ("stack", "STACK"), ("shared", "SHARED")):
        assert resources[name] == max(map(int, re.findall(rf"\b{word}:(\d+)", told))), told
    assert "FMUL" in (sass := objdump(path, "-sass"))
    assert "FFMA" not in sass


def objdump(path: Path, option: str) -> str:
    """What NVIDIA's own tool says of an object."""
    folders = [*os.environ["PATH"].split(os.pathsep), *(f"{p}/triton/backends/nvidia/bin" for p in sys.path)]
    tool = shutil.which("cuobjdump", path=os.pathsep.join(folders))
    assert tool is not None, "no cuobjdump in the toolkit or in Triton's wheel"
    return subprocess.check_output([tool, option, path], text=True)


NO_WHEELS = "no wheels nvidia-cuda-nvcc, -runtime and -cccl: install them, or name folders in AOT_TUNE_TEST_NVCC"
PLACES = [*filter(None, os.environ.get("AOT_TUNE_TEST_NVCC", "").split(os.pathsep)), *sys.path]
WHEELS = [folder for folder in PLACES if any(Path(folder or ".", "nvidia").glob("cu*/bin/nvcc"))]


@pytest.mark.parametrize("folder", WHEELS or [pytest.param("", marks=pytest.mark.skip(reason=NO_WHEELS))])
def test_the_wheels_alone_are_enough(folder: str, tmp_path: Path) -> None:
    chain = NvccToolchain({"PATH": "/usr/bin:/bin"}, Path("/nowhere"), [folder])
    assert chain.toolkit().command[0].startswith(folder)
    path, _ = compiled(source("f"), "cuda-sm_90a", tmp_path / "o", chain)
    chain.link_shared([path], tmp_path / "f.so")
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).f_helper_launch())"
    assert subprocess.check_output([sys.executable, "-c", code, str(tmp_path / "f.so")], text=True) == "2\n"
    linked = [Path(argument) for argument in chain.link_arguments() if argument.startswith("/")]
    assert linked
    assert all(path.is_file() for path in linked)
