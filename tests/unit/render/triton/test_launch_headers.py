"""What launchers declare of CUDA's driver and of HIP, compared with the headers where those are."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import linked_cuda
import pytest
import triton_launch as tl

HEAD = """\
#include <cstddef>
#include <cstdint>
#include <type_traits>
"""

CUDA = """
#include "cuda.cpp"
#include <cuda.h>
using namespace launcher;
#define SAME(ours, theirs) static_assert(int64_t(ours) == int64_t(theirs), #theirs)
SAME(sizeof(LaunchAttribute), sizeof(CUlaunchAttribute));
SAME(offsetof(LaunchAttribute, value), offsetof(CUlaunchAttribute, value));
SAME(sizeof(LaunchConfig), sizeof(CUlaunchConfig));
SAME(offsetof(LaunchConfig, block), offsetof(CUlaunchConfig, blockDimX));
SAME(offsetof(LaunchConfig, shared), offsetof(CUlaunchConfig, sharedMemBytes));
SAME(offsetof(LaunchConfig, stream), offsetof(CUlaunchConfig, hStream));
SAME(offsetof(LaunchConfig, attributes), offsetof(CUlaunchConfig, attrs));
SAME(offsetof(LaunchConfig, attribute_count), offsetof(CUlaunchConfig, numAttrs));
SAME(sizeof(TensorMap), sizeof(CUtensorMap));
static_assert(alignof(TensorMap) >= alignof(CUtensorMap), "alignment of tensor maps");
SAME(kCooperative, CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
SAME(kClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME(kClusterSchedulingPolicy, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
SAME(kProgrammaticStreamSerialization, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
SAME(kSpread, CU_CLUSTER_SCHEDULING_POLICY_SPREAD);
SAME(kMaxDynamicShared, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(kNonPortableCluster, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
SAME(kPreferShared, CU_FUNC_CACHE_PREFER_SHARED);
SAME(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(kNoInterleave, CU_TENSOR_MAP_INTERLEAVE_NONE);
SAME(kPromote128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
SAME(kFillNan, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
SAME(kTypes[8], CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ);
SAME(kTypes[9], CU_TENSOR_MAP_DATA_TYPE_FLOAT64);
SAME(kTypes[10], CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME(kTypes[6], CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME(kTypes[7], CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
SAME(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME(kFileNotFound, CUDA_ERROR_FILE_NOT_FOUND);
// In C, pointers to structs and their handles, enums and ints are passed alike: each parameter has the same class.
template <typename T>
struct Class {
  static constexpr int value = std::is_pointer<T>::value ? 100 : int(sizeof(T));
};
template <typename Ours, typename Theirs>
struct Alike;
template <typename R, typename... A, typename S, typename... B>
struct Alike<R (*)(A...), S (*)(B...)> {
  static constexpr bool same_count = sizeof...(A) == sizeof...(B);
  static constexpr int ours[] = {Class<A>::value..., 0}, theirs[] = {Class<B>::value..., 0};
  static constexpr bool value() {
    for (unsigned i = 0; i < sizeof...(A); ++i) {
      if (ours[i] != theirs[i]) return false;
    }
    return same_count;
  }
};
#define ALIKE(member, theirs) static_assert(Alike<decltype(Driver::member), decltype(&theirs)>::value(), #theirs)
"""

HIP = """
#include "hip.cpp"
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
using namespace launcher;
#define SAME(ours, theirs) static_assert(int64_t(ours) == int64_t(theirs), #theirs)
SAME(kMultiprocessorCount, hipDeviceAttributeMultiprocessorCount);
SAME(kInvalidValue, hipErrorInvalidValue);
SAME(kInvalidDevice, hipErrorInvalidDevice);
SAME(kFileNotFound, hipErrorFileNotFound);
"""

_ERROR = re.compile(r"case (\d+): +// ((?:CUDA_ERROR_|hipError)\w+)")


def check(folder: Path, text: str, source: str, *includes: str) -> None:
    """Compile the comparison, with what the sources of launchers say of statuses and functions."""
    launcher = (tl.LAUNCHER / source).read_text()
    errors = _ERROR.findall(launcher)
    assert len(errors) >= 8
    lines = [f"SAME({number}, {name});" for number, name in errors]
    functions = re.findall(r'\{"(\w+)", offsetof\(Driver, (\w+)\)\}', launcher)
    assert len(functions) > 10
    if "ALIKE" in text:
        lines += [f"ALIKE({member}, {name});" for name, member in functions]
    else:
        lines += [f"using function_{name} = decltype(&{name});" for name, _ in functions]
    (folder / "compare.cpp").write_text(HEAD + text + "\n".join(lines) + "\n")
    own = (tl.LAUNCHER, tl.LAUNCHER.parent / "include")
    flags = ["g++", "-std=c++17", "-fsyntax-only", *(f"-I{i}" for i in own), *(f"-I{i}" for i in includes)]
    done = subprocess.run([*flags, "compare.cpp"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def triton_include(backend: str) -> Path | None:
    """The folder of a driver's headers in an installed Triton."""
    found = importlib.util.find_spec("triton")
    folder = Path(found.origin).parent / "backends" / backend / "include" if found and found.origin else None
    return folder if folder is not None and folder.is_dir() else None


def test_declarations_are_those_of_cuda(tmp_path: Path) -> None:
    includes = [*linked_cuda.cuda_runtime()[0], *filter(None, [triton_include("nvidia")])]
    there = [i for i in includes if (Path(i) / "cuda.h").is_file()]
    if not there:
        pytest.skip("no cuda.h is here")
    check(tmp_path, CUDA, "cuda.cpp", str(there[0]))


def test_declarations_are_those_of_hip(tmp_path: Path) -> None:
    include = triton_include("amd")
    if include is None:
        pytest.skip("no HIP headers are here: they come with Triton")
    check(tmp_path, HIP, "hip.cpp", str(include))
