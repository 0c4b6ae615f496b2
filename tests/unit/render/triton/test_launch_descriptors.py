"""What launchers of Triton kernels pass for tensor descriptors: maps for the GPU, or their parts."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import triton_launch as tl

from aot_tune.spec import Descriptor, Operator, Parameter, Tensor, TritonFunction, dims, parameter
from aot_tune.triton.triton_messages import DescriptorMap

A, B, C = dims("A B C")


MAPS = [
    DescriptorMap(parameter="a", swizzle=3, element_size=2, element_type=10, fp4_padded=False, block=[64, 32]),
    DescriptorMap(parameter="c", swizzle=0, element_size=4, element_type=7, fp4_padded=False, block=[16, 8]),
]


def described(padding: str = "zero") -> Operator:
    return tl.operator(
        TritonFunction(
            "scale.py:scale_kernel",
            {"a": Descriptor("x", (parameter("BLOCK"), 64), padding), "c": Descriptor("out", (16, 8)), "n": tl.N},
            grid=(tl.M,),
        ),
        tl.parameters("a n c BLOCK!"),
        tensors=(Tensor("x", (tl.M, tl.N), "bf16"), Tensor("out", (tl.M, tl.N), output=True)),
        kernel={"parameters": (Parameter("BLOCK", (128, 256)),)},
    )


def with_maps(op: Operator, folder: Path, maps: Sequence[DescriptorMap] = MAPS, **more: Any) -> tuple[Path, str]:
    source = tl.rendered(op, config={"BLOCK": 128})
    image = msgspec.structs.replace(tl.IMAGE, tma=True, descriptors=list(maps), **more)
    one = (128, 4, 4, 8, 8)
    return tl.compiled(folder, source, (*one, 4, *one, 8, 8), image), source.symbol


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A launcher that encodes maps."""
    return with_maps(described(), tmp_path_factory.mktemp("maps"))


def test_tensor_maps_are_encoded_as_the_kernel_wants_them(tmp_path: Path, cuda: Path) -> None:
    library = with_maps(described("nan"), tmp_path)
    large = {"shape": [300, 200], "strides": [208, 1], "dtype": "bf16"}
    call = {"arguments": [large, {"shape": [300, 200], "strides": [204, 1]}]}
    (answer,) = tl.call(*library, [call], cuda)
    assert [line for line in answer["log"] if line.startswith("encode")] == [
        "encode type=9 200x32 300x64 +416 interleave=0 swizzle=3 promotion=2 fill=1",
        "encode type=7 200x8 300x16 +816 interleave=0 swizzle=0 promotion=2 fill=0",
    ]
    got = tl.passed(answer)
    words = struct.unpack("16Q", got[0])
    assert words[0] == answer["data"][0]
    assert words[2:4] == (200, 300)
    assert [int.from_bytes(p, "little") for p in got[1:6]] == [300, 200, 208, 1, 200]  # shape, strides, n
    assert struct.unpack("16Q", got[6])[0] == answer["data"][1]
    assert [int.from_bytes(p, "little") for p in got[7:]] == [300, 200, 204, 1, 0, 0]


def test_maps_are_kept_for_repeats_and_made_for_what_is_new(maps: tuple[Path, str], cuda: Path) -> None:
    first = {"shape": [32, 64], "dtype": "bf16", "address": 1 << 20}
    out = {"shape": [32, 64], "address": 1 << 21}

    def encodes(x: dict[str, Any], repeat: int = 1) -> dict[str, Any]:
        return {"arguments": [x, out], "repeat": repeat}

    others = [{**first, "address": (1 << 20) + 16}, {**first, "shape": [32, 63], "strides": [64, 1]}]
    others += [{**first, "shape": [31, 64]}, {**first, "strides": [72, 1]}]
    calls = [encodes(first, 5), *map(encodes, others), encodes(first), encodes(others[0])]
    answers = tl.call(*maps, calls, cuda)
    counts = [sum(line.startswith("encode") for line in a["log"]) for a in answers]
    assert counts == [2, 1, 1, 1, 1, 0, 0]
    found = [tl.passed(a)[0] for a in answers]
    assert found[0] == found[5]
    assert found[1] == found[6]
    assert len(set(found)) == 5


@pytest.mark.parametrize("tma", [True, False])
def test_a_descriptor_of_a_transpose_has_its_axes(tmp_path: Path, cuda: Path, tma: bool) -> None:
    op = tl.operator(
        TritonFunction("scale.py:scale_kernel", {"b": Descriptor("x", (64, 8, 32), order=(2, 0, 1))}, grid=(1,)),
        tl.parameters("b out"),
        dims=("A", "B", "C"),
        tensors=(Tensor("x", (A, B, C), "f16"), Tensor("out", (A,), output=True)),
        flops=A,
        workload=(tl.problem(A=2, B=3, C=4),),
    )
    source = tl.rendered(op)
    maps = [
        DescriptorMap(parameter="b", swizzle=2, element_size=2, element_type=6, fp4_padded=False, block=[64, 8, 32])
    ]
    image = msgspec.structs.replace(tl.IMAGE, tma=tma, descriptors=maps if tma else [])
    x = {"shape": [100, 50, 40], "strides": [56, 1, 5600], "dtype": "f16"}
    first = (128,) if tma else (8, *[8] * 6, 1)
    library = tl.compiled(tmp_path, source, (*first, 4, 4, 4, 8, 8, 8, 8, 8, 8), image)
    (answer,) = tl.call(library, source.symbol, [{"arguments": [x, {"shape": [100]}]}], cuda)
    got = tl.passed(answer)
    numbers = [int.from_bytes(p, "little") for p in got[len(first) :]]
    assert numbers == [40, 100, 50, 5600, 56, 1, answer["data"][1], 0, 0]
    if tma:
        encoded = "encode type=6 50x32 100x8 40x64 +112 +11200 interleave=0 swizzle=2 promotion=2 fill=0"
        assert encoded in answer["log"]
    else:
        assert [int.from_bytes(p, "little") for p in got[:8]] == [answer["data"][0], 40, 100, 50, 5600, 56, 1, 0]


WRONG: list[dict[str, Any]] = [
    {"strides": [1, 32]},
    {"strides": [64, 2]},
    {"strides": [65, 1]},
    {"offset": 8},
    {"shape": [32, 0]},
    {"shape": [2**31, 64], "memory": False},
]


@pytest.mark.parametrize("tma", [True, False])
def test_tensors_that_no_descriptor_can_be_of_are_errors(
    tmp_path: Path, maps: tuple[Path, str], cuda: Path, tma: bool
) -> None:
    library = maps if tma else with_maps(described(), tmp_path, ())
    calls = [{"arguments": [{"shape": [32, 64], "dtype": "bf16", **wrong}, {"shape": [32, 64]}]} for wrong in WRONG]
    for wrong, answer in zip(WRONG, tl.call(*library, calls, cuda), strict=True):
        assert answer["launch"] == 1, wrong
        assert not [line for line in answer["log"] if line.startswith("launch")]


CACHE = r"""
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>
#include "cuda.cpp"
using namespace launcher;
static Described slot = {2, 4, false, {0, 1}, {}, nullptr, 0};
static MapCache<2> cache(slot);
static std::atomic<long> found{0}, wrong{0};
static void fill(uint64_t number, TensorMap* map) {
  for (uint64_t i = 0; i < 16; ++i) map->words[i] = number * 16 + i;
}
int main() {
  auto work = [](unsigned seed) {
    for (int i = 0; i < 100000; ++i) {
      seed = seed * 1664525u + 1013904223u;
      const uint64_t number = (seed >> 8) % 2000;  // many more than there is room for
      Descriptor of = {};
      of.data = reinterpret_cast<void*>(number << 12 | 16);
      of.shape[0] = static_cast<int64_t>(number % 7 + 1), of.shape[1] = 64, of.strides[0] = 64, of.strides[1] = 1;
      const MapKey<2> key(of);
      TensorMap map, wanted;
      fill(number, &wanted);
      if (!cache.find(key, &map)) {
        cache.keep(key, wanted);
        continue;
      }
      ++found;
      wrong += std::memcmp(&map, &wanted, sizeof(map)) != 0;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 8; ++i) threads.emplace_back(work, i * 77);
  for (auto& thread : threads) thread.join();
  std::printf("%ld %ld\n", found.load(), wrong.load());
}
"""


def test_no_thread_ever_gets_the_map_of_another_tensor(tmp_path: Path) -> None:
    (tmp_path / "cache.cpp").write_text(CACHE)
    own = (f"-I{tl.LAUNCHER}", f"-I{tl.LAUNCHER.parent / 'include'}")
    run = ["g++", "-std=c++17", "-O2", *own, "cache.cpp", "-o", "cache", "-lpthread", "-ldl"]
    subprocess.run(run, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "cache"], capture_output=True, text=True, check=True)
    found, wrong = map(int, done.stdout.split())
    assert found > 30_000
    assert wrong == 0
