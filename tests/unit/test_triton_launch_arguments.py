"""What launchers of Triton kernels pass: every kind of argument, memory set to zero, tensor descriptors."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import triton_launch as tl
from numpy.lib.stride_tricks import as_strided

from aot_tune.spec import (
    Attribute,
    Buffer,
    Descriptor,
    DTypeOf,
    Inspection,
    KernelParameter,
    Operator,
    Parameter,
    Scalar,
    Tensor,
    TritonFunction,
    alignment,
    attribute,
    dims,
    parameter,
    present,
    stride,
    where,
)
from aot_tune.triton.messages import DescriptorMap

A, B, C = dims("A B C")


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tl.stand_in(tmp_path_factory.mktemp("driver"), "libcuda_triton.cpp", "libcuda.so.1")


def passed(answer: dict[str, Any]) -> list[bytes]:
    assert answer["launch"] == 0, answer
    return [bytes.fromhex(line.removeprefix("parameter ")) for line in answer["log"] if line.startswith("parameter")]


# ---- Kinds of arguments


def kinds() -> Operator:
    arguments = {
        "bias_ptr": "bias",
        "mask_ptr": "mask",
        "rows": tl.M,
        "columns": tl.N,
        "one": tl.N - 4,
        "step": stride("x", 0),
        "bias_step": stride("bias", 0),
        "narrow": tl.M,
        "flag": present("bias") & (alignment("x") >= 16),
        "mode": where(attribute("mode") == 1, tl.M, 0 - tl.N),
        "plain": "scale",
        "wide": "shift",
        "exact": "shift",
        "half": "scale",
        "brain": "shift",
        "count": "count",
        "offset": "offset",
        "is_set": "count",
        "seven": 7,
        "unit": 1,
        "large": 2**40,
        "sixteen": 48,
        "yes": True,
        "share": 0.5,
        "nothing": None,
        "brain_constant": 3.14159,
        "memory": Buffer("f16", 6),
        "T": DTypeOf("x"),
    }
    text = (
        "x out bias_ptr mask_ptr rows columns one step bias_step narrow:i8 flag:u1 mode:i64 plain wide exact:fp64 "
        "half:fp16 brain:bf16 count offset is_set:u1 seven unit large sixteen yes share nothing brain_constant:bf16 "
        "memory T! BLOCK! extra"
    )
    return tl.operator(
        TritonFunction("scale.py:scale_kernel", arguments, grid=(tl.M,)),
        tl.parameters(text),
        tensors=(
            Tensor("x", (tl.M, tl.N), "bf16"),
            Tensor("bias", (tl.N,), "f32", optional=True),
            Tensor("mask", (tl.M,), "u8", optional=True),
            Tensor("out", (tl.M, tl.N), "f32", output=True),
        ),
        scalars=(Scalar("scale"), Scalar("shift", "f64"), Scalar("count", "i32"), Scalar("offset", "i64")),
        attributes=(Attribute("mode", ("plain", "other")),),
        kernel={"parameters": (Parameter("BLOCK", (16, 32)), Parameter("extra", (5, 6)))},
    )


def test_every_kind_of_argument_has_its_type_its_size_and_its_value(tmp_path: Path, cuda: Path) -> None:
    pins = {"bias_ptr.none": 0, "mask_ptr.none": 1, "one": 1, "step.bits": 64, "rows%16": 0}
    source = tl.rendered(kinds(), config={"BLOCK": 32, "extra": 6}, pins=pins)
    # The types of a struct of the host lie as the kernel's parameters do: without gaps they are the same in both.
    form = "P P P i i q i b B q f f d H H i q B i q i B f H P i P P"
    sizes = [struct.calcsize(c) for c in form.split()]
    library = tl.compiled(tmp_path, source, sizes)
    numbers = [("f32", 1.5), ("f64", 2.71828182845), ("i32", -3), ("i64", -(2**35))]
    scalars: list[Any] = [{"scalar": kind, "value": value} for kind, value in numbers]
    shapes: list[Any] = [
        {"shape": [3, 5], "dtype": "bf16", "strides": [2**33, 1], "memory": False},
        {"shape": [5]},
        None,
    ]
    call = {"arguments": [*shapes, {"shape": [3, 5]}, *scalars, {"scalar": "i32", "value": 1}]}
    (answer,) = tl.call(library, source.symbol, [call], cuda)
    x, bias, out = answer["data"]
    got = [struct.unpack(c, p)[0] for c, p in zip(form.split(), passed(answer), strict=True)]
    assert got[:3] == [x, out, bias]
    assert got[3:10] == [3, 5, 2**33, 1, 3, 1, 3]  # rows, columns, step, bias_step, narrow, flag, mode
    single = struct.unpack("f", struct.pack("f", 2.71828182845))[0]
    assert got[10:13] == [1.5, single, 2.71828182845]
    assert got[13:15] == [0x3E00, 0x402D]  # 1.5 in fp16; bf16 is cut off, 0x402df854 of fp32
    assert got[15:18] == [-3, -(2**35), 1]
    assert got[18:23] == [7, 2**40, 48, 1, 0.5]
    assert got[23] == 0x4049  # 3.14159 is 0x40490fd0 in fp32
    assert got[24] == answer["address"]
    assert got[25:] == [6, 0, 0]


def test_values_that_a_parameter_cannot_hold_are_errors(tmp_path: Path, cuda: Path) -> None:
    function = TritonFunction(
        "scale.py:scale_kernel", {"small": tl.M, "positive": 5 - tl.N, "huge": 4 - tl.N}, grid=(1,)
    )
    source = tl.rendered(tl.operator(function, tl.parameters("x out small:i8 positive:u8 huge:u64")))
    library = tl.compiled(tmp_path, source, (8, 8, 1, 1, 8, 8, 8))
    shapes = [(127, 4), (128, 4), (1, 5), (1, 6)]
    calls = [{"arguments": [{"shape": s}, {"shape": s}]} for s in shapes]
    answers = tl.call(library, source.symbol, calls, cuda)
    assert [a["launch"] for a in answers] == [0, 1, 1, 1]
    assert [int.from_bytes(p, "little") for p in passed(answers[0])[2:5]] == [127, 1, 0]


def test_bits_of_short_floats(tmp_path: Path, cuda: Path) -> None:
    """Against numpy for halves, and against the upper bits of single precision for bfloat16, as the JIT passes it."""
    function = TritonFunction("scale.py:scale_kernel", {"half": "shift", "brain": "shift"}, grid=(1,))
    op = tl.operator(function, tl.parameters("x out half:fp16 brain:bf16"), scalars=(Scalar("shift", "f64"),))
    source = tl.rendered(op)
    library = tl.compiled(tmp_path, source, (8, 8, 2, 2, 8, 8))
    rng = np.random.default_rng(3)
    ends = [
        0.0,
        -0.0,
        65504.0,
        65519.9,
        65520.0,
        1e9,
        float("inf"),
        -float("inf"),
        2.0**-24,
        2.0**-25,
        2.0**-25 * 1.0001,
    ]
    ends += [6.1e-5, 2.0**-14, 2.0**-15 * 1.9999, 2049.0, 2051.0, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1e-30]
    values = [*ends, *(float(v) for v in rng.standard_normal(200) * 10.0 ** rng.integers(-9, 6, 200))]
    shape = {"shape": [1, 1]}
    calls = [{"arguments": [shape, shape, {"scalar": "f64", "value": v}]} for v in values]
    for value, answer in zip(values, tl.call(library, source.symbol, calls, cuda), strict=True):
        half, brain = (int.from_bytes(p, "little") for p in passed(answer)[2:4])
        with np.errstate(over="ignore"):
            assert half == int(np.float64(value).astype(np.float16).view(np.uint16)), value
            assert brain == int(np.float32(value).view(np.uint32)) >> 16, value


# ---- Memory that is set to zero


def cubes(inspection: Inspection | None = None) -> Operator:
    """Rank 3; `sums` is named by the function, `out` by its autotuner."""
    declared = tl.parameters("x out sums")
    return tl.operator(
        TritonFunction("scale.py:scale_kernel", {}, grid=(A - 1,), reset_to_zero=("sums",)),
        inspection or Inspection(parameters=declared, reset_to_zero=("out", "sums")),
        dims=("A", "B", "C"),
        tensors=(
            Tensor("x", (A, B, C)),
            Tensor("out", (A, B, C), "bf16", output=True),
            Tensor("sums", (A,), output=True),
        ),
        flops=A * B * C,
        workload=(tl.problem(A=2, B=3, C=4),),
    )


@pytest.mark.parametrize(
    ("strides", "events"),
    [
        ([12, 4, 1], ["set 48 on 7"]),
        ([1, 2, 6], ["set 48 on 7"]),  # dense, the other way round
        ([15, 5, 1], ["set 8x6 every 10 on 7"]),  # rows with gaps, evenly apart
        ([16, 4, 1], ["set 24x2 every 32 on 7"]),
        ([40, 8, 1], ["set 8x3 every 16 on 7", "set 8x3 every 16 on 7"]),
        ([100, 30, 3], ["set 2x4 every 6 on 7"] * 6),
        ([-12, 4, 1], ["set 48 on 7"]),
        ([12, -4, -1], ["set 48 on 7"]),
        ([40, -8, 1], ["set 8x3 every 16 on 7", "set 8x3 every 16 on 7"]),
    ],
)
def test_outputs_are_set_to_zero_and_what_lies_between_is_not(
    tmp_path_factory: pytest.TempPathFactory, cuda: Path, strides: list[int], events: list[str]
) -> None:
    source = tl.rendered(cubes())
    folder = tmp_path_factory.getbasetemp() / "cubes"
    library = folder / "candidate.so"
    if not library.exists():
        tl.compiled(folder, source, (8, 8, 8, 8, 8))
    shape = [2, 3, 4]
    call = {
        "arguments": [{"shape": shape}, {"shape": shape, "strides": strides, "dtype": "bf16"}, {"shape": [2]}],
        "stream": 7,
    }
    (answer,) = tl.call(library, source.symbol, [call], cuda)
    assert answer["launch"] == 0
    assert answer["log"][2:4] == ["set 8 on 7", events[0]]
    assert [line for line in answer["log"] if line.startswith("set")] == ["set 8 on 7", *events]
    got = np.frombuffer(bytes.fromhex(answer["tensors"][1]), np.uint16)
    wanted = np.full(got.shape, 0xFFFF, np.uint16)
    start = -sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    as_strided(wanted[start:], shape, [2 * s for s in strides])[:] = 0
    assert (got == wanted).all()
    assert bytes.fromhex(answer["tensors"][2]) == bytes(8)
    assert bytes.fromhex(answer["tensors"][0]) == b"\xff" * 96


def test_outputs_are_set_to_zero_also_where_no_block_runs(tmp_path: Path, cuda: Path) -> None:
    source = tl.rendered(cubes())
    library = tl.compiled(tmp_path, source, (8, 8, 8, 8, 8))
    one, none = [1, 3, 4], [0, 3, 4]
    calls = [{"arguments": [{"shape": s}, {"shape": s, "dtype": "bf16"}, {"shape": s[:1]}]} for s in (one, none)]
    answer, empty = tl.call(library, source.symbol, calls, cuda)
    assert [line.split()[0] for line in answer["log"]] == ["load", "function", "set", "set"]  # the grid is A - 1
    assert (answer["launch"], empty["launch"], empty["log"]) == (0, 1, [])  # a grid of -1


# ---- Tensor descriptors

MAPS = [
    DescriptorMap(parameter="a", swizzle=3, element_size=2, element_type=10, fp4_padded=False, block=[64, 32]),
    DescriptorMap(parameter="c", swizzle=0, element_size=4, element_type=7, fp4_padded=False, block=[16, 8]),
]


def described(padding: str = "zero") -> Operator:
    return tl.operator(
        TritonFunction(
            "scale.py:scale_kernel",
            {
                "a": Descriptor("x", (parameter("BLOCK"), 64), padding),
                "c": Descriptor("out", (16, 8)),
                "n": tl.N,
            },
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


def test_tensor_maps_are_encoded_as_the_kernel_wants_them(tmp_path: Path, cuda: Path) -> None:
    library = with_maps(described("nan"), tmp_path)
    large = {"shape": [300, 200], "strides": [208, 1], "dtype": "bf16"}
    call = {"arguments": [large, {"shape": [300, 200], "strides": [204, 1]}]}
    (answer,) = tl.call(*library, [call], cuda)
    assert [line for line in answer["log"] if line.startswith("encode")] == [
        "encode type=9 200x32 300x64 +416 interleave=0 swizzle=3 promotion=2 fill=1",
        "encode type=7 200x8 300x16 +816 interleave=0 swizzle=0 promotion=2 fill=0",
    ]
    got = passed(answer)
    words = struct.unpack("16Q", got[0])
    assert words[0] == answer["data"][0]
    assert words[2:4] == (200, 300)
    assert [int.from_bytes(p, "little") for p in got[1:6]] == [300, 200, 208, 1, 200]  # shape, strides, n
    assert struct.unpack("16Q", got[6])[0] == answer["data"][1]
    assert [int.from_bytes(p, "little") for p in got[7:]] == [300, 200, 204, 1, 0, 0]


@pytest.mark.parametrize(("version", "kept"), [(12080, False), (13010, False), (13020, True)])
def test_small_tensors_are_marked_as_the_driver_needs_it(
    tmp_path_factory: pytest.TempPathFactory, cuda: Path, version: int, kept: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "maps"
    op = described()
    if not (folder / "candidate.so").exists():
        with_maps(op, folder)
    library = folder / "candidate.so", tl.rendered(op, config={"BLOCK": 128}).symbol
    # x: 300 x 208 x 2 B = 124800 B, out: 300 x 204 x 4 B = 244800 B
    call = {"arguments": [{"shape": [300, 208], "dtype": "bf16"}, {"shape": [300, 204]}]}
    (answer,) = tl.call(*library, [{"set": ["driver_version", version]}, call], cuda)
    marks = [struct.unpack("16Q", passed(answer)[i])[1] >> 21 & 1 for i in (0, 6)]
    assert marks == [int(kept), 1]


def test_maps_are_kept_for_repeats_and_made_for_what_is_new(tmp_path: Path, cuda: Path) -> None:
    library = with_maps(described(), tmp_path)
    first = {"shape": [32, 64], "dtype": "bf16", "address": 1 << 20}
    out = {"shape": [32, 64], "address": 1 << 21}

    def encodes(x: dict[str, Any], repeat: int = 1) -> dict[str, Any]:
        return {"arguments": [x, out], "repeat": repeat}

    others = [{**first, "address": (1 << 20) + 16}, {**first, "shape": [32, 63], "strides": [64, 1]}]
    others += [{**first, "shape": [31, 64]}, {**first, "strides": [72, 1]}]
    calls = [encodes(first, 5), *map(encodes, others), encodes(first), encodes(others[0])]
    answers = tl.call(*library, calls, cuda)
    counts = [sum(line.startswith("encode") for line in a["log"]) for a in answers]
    assert counts == [2, 1, 1, 1, 1, 0, 0]
    maps = [passed(a)[0] for a in answers]
    assert maps[0] == maps[5]
    assert maps[1] == maps[6]
    assert len(set(maps)) == 5


def test_hundreds_of_tensors_in_turn_need_each_map_once(tmp_path: Path, cuda: Path) -> None:
    """As the weights of a model's layers do."""
    library = with_maps(described(), tmp_path)
    out = {"shape": [32, 64], "address": 1 << 21}
    weights = [{"shape": [32, 64], "dtype": "bf16", "address": (1 << 30) + (i << 21)} for i in range(300)]
    layers = [{"arguments": [weight, out]} for weight in weights]
    answers = tl.call(*library, layers * 3, cuda)
    assert sum(line.startswith("encode") for a in answers for line in a["log"]) == 301
    for i, answer in enumerate(answers):
        assert struct.unpack("16Q", passed(answer)[0])[0] == (1 << 30) + (i % 300 << 21)


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
    got = passed(answer)
    numbers = [int.from_bytes(p, "little") for p in got[len(first) :]]
    assert numbers == [40, 100, 50, 5600, 56, 1, answer["data"][1], 0, 0]
    if tma:
        encoded = "encode type=6 50x32 100x8 40x64 +112 +11200 interleave=0 swizzle=2 promotion=2 fill=0"
        assert encoded in answer["log"]
    else:
        assert [int.from_bytes(p, "little") for p in got[:8]] == [answer["data"][0], 40, 100, 50, 5600, 56, 1, 0]


@pytest.mark.parametrize("rounding", [False, True])
def test_descriptors_in_parts(tmp_path: Path, cuda: Path, rounding: bool) -> None:
    source = tl.rendered(described("nan"), config={"BLOCK": 128})
    image = msgspec.structs.replace(tl.IMAGE, descriptor_rounding=rounding)
    one = (8, 8, 8, 8, 8, 1, *((1,) if rounding else ()), 4, 4, 8, 8)
    library = tl.compiled(tmp_path, source, (*one, 4, *one, 8, 8), image)
    call = {"arguments": [{"shape": [30, 20], "strides": [24, 1], "dtype": "bf16"}, {"shape": [30, 20]}]}
    (answer,) = tl.call(library, source.symbol, [call], cuda)
    got = [int.from_bytes(p, "little") for p in passed(answer)]
    x, out = answer["data"]
    flags = [1, 0] if rounding else [1]
    wanted = [x, 30, 20, 24, 1, *flags, 30, 20, 24, 1, 20, out, 30, 20, 20, 1, 0, *flags[1:], 30, 20, 20, 1, 0, 0]
    assert got == wanted


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        {"strides": [1, 32]},
        {"strides": [64, 2]},
        {"strides": [65, 1]},
        {"offset": 8},
        {"shape": [32, 0]},
        {"shape": [2**31, 64], "memory": False},
    ],
    ids=str,
)
def test_tensors_that_no_descriptor_can_be_of_are_errors(
    tmp_path_factory: pytest.TempPathFactory, cuda: Path, tma: bool, wrong: dict[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"wrong_{tma}"
    op = described()
    if not (folder / "candidate.so").exists():
        with_maps(op, folder, MAPS if tma else ())
    library = folder / "candidate.so", tl.rendered(op, config={"BLOCK": 128}).symbol
    (answer,) = tl.call(
        *library, [{"arguments": [{"shape": [32, 64], "dtype": "bf16", **wrong}, {"shape": [32, 64]}]}], cuda
    )
    assert answer["launch"] == 1
    assert not [line for line in answer["log"] if line.startswith("launch")]


def test_a_descriptor_of_five_axes_and_one_of_packed_pairs(tmp_path: Path, cuda: Path) -> None:
    op = tl.operator(
        TritonFunction("scale.py:scale_kernel", {"d": Descriptor("x", (1, 2, 3, 4, 32))}, grid=(A,)),
        tl.parameters("d out"),
        dims=("A", "B", "C"),
        tensors=(Tensor("x", (A, B, C, A, B), "u8"), Tensor("out", (A,), output=True)),
        flops=A,
        workload=(tl.problem(A=2, B=3, C=4),),
    )
    source = tl.rendered(op)
    maps = [
        DescriptorMap(parameter="d", swizzle=1, element_size=1, element_type=0, fp4_padded=True, block=[1, 2, 3, 4, 64])
    ]
    image = msgspec.structs.replace(tl.IMAGE, tma=True, descriptors=maps)
    library = tl.compiled(tmp_path, source, (128, *[4] * 5, *[8] * 5, 8, 8, 8), image)
    x = {"shape": [2, 16, 4, 2, 16], "dtype": "u8"}
    (answer,) = tl.call(library, source.symbol, [{"arguments": [x, {"shape": [2]}]}], cuda)
    assert (
        "encode type=0 32x64 2x4 4x3 16x2 2x1 +16 +32 +128 +2048 interleave=0 swizzle=1 promotion=2 fill=0"
        in answer["log"]
    )
    assert [int.from_bytes(p, "little") for p in passed(answer)[1:6]] == [2, 16, 4, 2, 16]


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
    for (int i = 0; i < 300000; ++i) {
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
    assert found > 100_000
    assert wrong == 0


def test_a_parameter_keeps_its_default_and_none_leaves_the_list(tmp_path: Path, cuda: Path) -> None:
    declared = (
        *tl.parameters("x out"),
        KernelParameter(name="alpha", has_default=True, default=0.25),
        KernelParameter(name="other", has_default=True, default=None),
        KernelParameter(name="steps", has_default=True, default=32),
    )
    source = tl.rendered(tl.operator(TritonFunction("scale.py:scale_kernel", {}, grid=(1,)), declared))
    library = tl.compiled(tmp_path, source, (8, 8, 4, 4, 8, 8))
    (answer,) = tl.call(library, source.symbol, [{"arguments": [{"shape": [1, 1]}] * 2}], cuda)
    assert [struct.unpack(c, p)[0] for c, p in zip("fi", passed(answer)[2:4], strict=True)] == [0.25, 32]
