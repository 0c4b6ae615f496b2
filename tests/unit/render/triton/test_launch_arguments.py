"""What launchers of Triton kernels pass: every kind of argument, and memory set to zero."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import triton_launch as tl
from numpy.lib.stride_tricks import as_strided

from aot_tune.spec import (
    Attribute,
    Buffer,
    Declarations,
    DTypeOf,
    Operator,
    Parameter,
    Scalar,
    Tensor,
    TritonFunction,
    alignment,
    attribute,
    dims,
    present,
    stride,
    where,
)

A, B, C = dims("A B C")


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
    got = [struct.unpack(c, p)[0] for c, p in zip(form.split(), tl.passed(answer), strict=True)]
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
    assert [int.from_bytes(p, "little") for p in tl.passed(answers[0])[2:5]] == [127, 1, 0]


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
        half, brain = (int.from_bytes(p, "little") for p in tl.passed(answer)[2:4])
        with np.errstate(over="ignore"):
            assert half == int(np.float64(value).astype(np.float16).view(np.uint16)), value
            assert brain == int(np.float32(value).view(np.uint32)) >> 16, value


# ---- Memory that is set to zero


def cubes(inspection: Declarations | None = None) -> Operator:
    """Rank 3; `sums` is named by the function, `out` by its autotuner."""
    declared = tl.parameters("x out sums")
    return tl.operator(
        TritonFunction("scale.py:scale_kernel", {}, grid=(A - 1,), reset_to_zero=("sums",)),
        inspection or Declarations(parameters=declared, reset_to_zero=("out", "sums")),
        dims=("A", "B", "C"),
        tensors=(
            Tensor("x", (A, B, C)),
            Tensor("out", (A, B, C), "bf16", output=True),
            Tensor("sums", (A,), output=True),
        ),
        flops=A * B * C,
        workload=(tl.problem(A=2, B=3, C=4),),
    )


EVENTS: tuple[tuple[list[int], list[str]], ...] = (
    ([12, 4, 1], ["set 48 on 7"]),
    ([1, 2, 6], ["set 48 on 7"]),  # dense, the other way round
    ([15, 5, 1], ["set 8x6 every 10 on 7"]),  # rows with gaps, evenly apart
    ([16, 4, 1], ["set 24x2 every 32 on 7"]),
    ([40, 8, 1], ["set 8x3 every 16 on 7", "set 8x3 every 16 on 7"]),
    ([100, 30, 3], ["set 2x4 every 6 on 7"] * 6),
    ([-12, 4, 1], ["set 48 on 7"]),
    ([12, -4, -1], ["set 48 on 7"]),
    ([40, -8, 1], ["set 8x3 every 16 on 7", "set 8x3 every 16 on 7"]),
)


def test_outputs_are_set_to_zero_and_what_lies_between_is_not(tmp_path: Path, cuda: Path) -> None:
    source, shape = tl.rendered(cubes()), [2, 3, 4]
    library = tl.compiled(tmp_path, source, (8, 8, 8, 8, 8))
    calls = [
        {
            "arguments": [{"shape": shape}, {"shape": shape, "strides": strides, "dtype": "bf16"}, {"shape": [2]}],
            "stream": 7,
        }
        for strides, _ in EVENTS
    ]
    for (strides, events), answer in zip(EVENTS, tl.call(library, source.symbol, calls, cuda), strict=True):
        assert answer["launch"] == 0
        assert [line for line in answer["log"] if line.startswith("set")] == ["set 8 on 7", *events]
        got = np.frombuffer(bytes.fromhex(answer["tensors"][1]), np.uint16)
        wanted = np.full(got.shape, 0xFFFF, np.uint16)
        start = -sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
        as_strided(wanted[start:], shape, [2 * s for s in strides])[:] = 0
        assert (got == wanted).all()
        assert bytes.fromhex(answer["tensors"][2]) == bytes(8)
        assert bytes.fromhex(answer["tensors"][0]) == b"\xff" * 96
