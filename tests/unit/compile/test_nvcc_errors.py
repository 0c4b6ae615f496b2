"""What goes wrong with a real nvcc: errors lead to the template; deadlines and missing tools are statuses."""

import os
from pathlib import Path

import pytest
from nvcc_sources import API, MISSING, source

from aot_tune.compile import ObjectCache, target_by_name
from aot_tune.compile.nvcc import NvccToolchain

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

BROKEN = f"""template <class T> __global__ void k(T* x) {{ static_assert(sizeof(T) == 1, "one byte"); }}
{API} int SYMBOL_launch() {{ k<int><<<1, 1>>>(nullptr); return 0; }}
"""
LARGE = f"""__global__ void k(float* x) {{
  __shared__ float s[20000]; s[threadIdx.x] = x[0]; __syncthreads(); x[1] = s[5];
}}
{API} int SYMBOL_launch() {{ k<<<1, 1>>>(nullptr); return 0; }}
"""


def test_errors_lead_to_the_template_and_are_kept(tmp_path: Path, make_cuda) -> None:
    for text, begins in ((BROKEN, "test/kernel.cu.j2:101: "), (LARGE, "ptxas: error: ")):
        for cached in (False, True):
            cache = ObjectCache(tmp_path / "cache", NvccToolchain())
            made = cache.get(make_cuda(text), target_by_name("cuda-sm_80"))
            assert made.status == "compile-failed"
            assert made.error.startswith(begins)
            assert "\n" not in made.error
            assert (made.cached, cache.counters.compiled) == (cached, 0 if cached else 1)
    assert "too much shared data" in made.error
    kept = {p.name for p in (tmp_path / "cache/objects").glob("*/*/*")}
    assert kept == {"candidate.cu", "key.json", "object.json"}


def test_the_deadline_is_a_status(tmp_path: Path) -> None:
    outcome = NvccToolchain().compile(source("f"), target_by_name("cuda-sm_80"), tmp_path / "object.o", 0.2)
    assert outcome.status == "timeout"
    assert "longer than 0.2 s" in outcome.log
    assert sorted(p.name for p in tmp_path.iterdir()) == ["candidate.cu"]


def test_missing_cutlass_costs_the_candidate_and_is_not_kept(tmp_path: Path, make_cuda) -> None:
    environ = {k: v for k, v in os.environ.items() if k != "CUTLASS_PATH"}
    text = f'#include "cutlass/cutlass.h"\n{API} int SYMBOL_launch() {{ return 0; }}\n'
    chain = NvccToolchain({**environ, "NVCC": NvccToolchain().toolkit().command[0]}, search=[])
    made = ObjectCache(tmp_path / "cache", chain).get(make_cuda(text), target_by_name("cuda-sm_80"))
    assert made.status == "compile-failed"
    assert "nvidia-cutlass" in made.error
    assert not list((tmp_path / "cache" / "objects").glob("*/*"))
