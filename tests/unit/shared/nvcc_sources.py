"""CUDA sources for the tests of the toolchain, and whether there is a compiler for them."""

from pathlib import Path

from aot_tune.compile import target_by_name
from aot_tune.compile.nvcc import NvccToolchain
from aot_tune.support.errors import ToolchainError

TOOLCHAIN = NvccToolchain()


def _missing() -> str:
    try:
        TOOLCHAIN.identity()
    except ToolchainError as error:
        return f"no CUDA compiler here: {error.what}"
    return ""


MISSING = _missing()

API = 'extern "C" __attribute__((visibility("default")))'
SOURCE = f"""
#include <cuda_runtime.h>
#include <cstdint>
#include <cassert>
template <class T> struct Shared {{
  static int count;
  static int next() {{ static int n = 0; return ++n + ++count; }}
}};
template <class T> int Shared<T>::count = 0;
template <class T> __device__ __noinline__ T shared_function(T x) {{ return x * T(MARK); }}
template <class T> __global__ void shared_kernel(T* x, int64_t n) {{
  assert(n > 0);
  const int64_t i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) x[i] = shared_function(x[i]);
}}
{API} int32_t SYMBOL_workspace(size_t* size) {{ *size = 0; return 0; }}
{API} int32_t SYMBOL_preload(void) {{
  cudaFuncAttributes a;
  return cudaFuncGetAttributes(&a, shared_kernel<float>);
}}
{API} int32_t SYMBOL_launch(float* x, int64_t n, void* stream) {{
  shared_kernel<float><<<(n + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, n);
  return cudaGetLastError();
}}
{API} int32_t SYMBOL_helper_launch(void) {{ return Shared<float>::next(); }}
{API} int32_t other_name(void) {{ return MARK; }}
"""


def source(symbol: str, mark: int = 2) -> str:
    return SOURCE.replace("SYMBOL", symbol).replace("MARK", str(mark))


def compiled(text: str, target: str, folder: Path, chain: NvccToolchain = TOOLCHAIN) -> tuple[Path, dict[str, int]]:
    folder.mkdir(parents=True)
    outcome = chain.compile(text, target_by_name(target), folder / "object.o", 120)
    assert outcome.status == "ok", outcome.log
    assert sorted(p.name for p in folder.iterdir()) == ["candidate.cu", "object.o"]
    return folder / "object.o", outcome.resources
