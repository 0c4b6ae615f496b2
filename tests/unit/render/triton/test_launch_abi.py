"""Launchers beside the code that Triton makes: what is passed has the places and sizes that the kernel reads."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import pytest
import triton_launch as tl
from elftools.elf.elffile import ELFFile
from triton_installed import EACH_TRITON, ask, chain, request

from aot_tune.compile import target_by_name
from aot_tune.spec import Buffer, Descriptor, Parameter, Scalar, Tensor, TritonFunction, parameter, stride

_PARAMETER = 0x17  # EIATTR_KPARAM_INFO of cubins: index, ordinal, offset, then flags with the size above bit 18
SCALARS = (Scalar("scale"), Scalar("shift", "f64"))


def places(cubin: bytes, kernel: str) -> list[tuple[int, int]]:
    """Offset and size of each parameter of a kernel, in order."""
    section: Any = ELFFile(io.BytesIO(cubin)).get_section_by_name(f".nv.info.{kernel}")
    data, at, found = section.data(), 0, {}
    while at < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        if form != 4:  # the value stands in the place of the size
            at += 4
            continue
        if attribute == _PARAMETER:
            _, ordinal, offset, flags = struct.unpack_from("<IHHI", data, at + 4)
            found[ordinal] = (offset, flags >> 18)
        at += 4 + size
    return [found[i] for i in range(len(found))]


def operator(target: str, inspection: Any) -> Any:
    function = TritonFunction(
        "triton_functions/launched.py:everything",
        {
            "rows": Descriptor("x", (parameter("BLOCK"), parameter("BLOCK")), "nan"),
            "absent": None,
            "small": -3,
            "count": tl.M,
            "flag": True,
            "half": "scale",
            "brain": "shift",
            "wide": stride("out", 0),
            "one": 1,
            "precise": "shift",
            "sums": Buffer("f32", parameter("BLOCK"), zero=True),
        },
        grid=lambda meta: (meta["count"] // meta["BLOCK"],),
    )
    return tl.operator(
        function,
        inspection,
        target=target_by_name(target),
        tensors=(Tensor("x", (tl.M, tl.N), "bf16"), Tensor("out", (tl.M, tl.N), "bf16", output=True)),
        scalars=SCALARS,
        kernel={"parameters": (Parameter("BLOCK", (64,)), Parameter("MADE", (False, True)))},
    )


@pytest.mark.slow
@EACH_TRITON
@pytest.mark.parametrize(("target", "made"), [("cuda-sm_90a", True), ("cuda-sm_80", False)])
def test_parameters_are_where_the_kernel_reads_them(
    search: list[str], target: str, made: bool, tmp_path: Path, cuda: Path
) -> None:
    (answer,) = ask(search, target, request("launched.py:everything", {}))
    assert answer.inspection is not None, answer.fault
    pins = {"wide.bits": 64, "x%16": 0, "out%16": 0}
    op = operator(target, answer.inspection)
    source = tl.rendered(op, config={"BLOCK": 64, "MADE": made}, pins=pins, target=target_by_name(target))
    outcome = chain(search).compile(source.source, target_by_name(target), tmp_path / "candidate.o", 120)
    assert outcome.status == "ok", outcome.log
    library = tmp_path / "candidate.so"
    chain(search).link_shared([tmp_path / "candidate.o"], library)
    header = (tmp_path / "kernel.h").read_text()
    queued_problems = places((tmp_path / "kernel.bin").read_bytes(), "everything")

    # The driver's stand-in reads as many bytes of each parameter as the kernel does.
    sizes = " ".join(str(size) for _, size in queued_problems)
    (tmp_path / f"{source.symbol}.bin").write_text(f"everything {sizes}")
    x, out = {"shape": [256, 64], "dtype": "bf16"}, {"shape": [256, 64], "strides": [72, 1], "dtype": "bf16"}
    scalars = [{"scalar": "f32", "value": 1.5}, {"scalar": "f64", "value": 0.1}]
    calls = [{"arguments": [x, out, *scalars]}]
    (got,) = tl.call(library, source.symbol, calls, cuda, AOT_TUNE_KERNEL_DIR=str(tmp_path))
    assert got["launch"] == 0
    passed = tl.passed(got)

    tma = "tma = true" in header
    assert tma == (target == "cuda-sm_90a")
    at_x, at_out = got["data"]
    numbers = struct.Struct("<q")
    if tma:
        assert numbers.unpack_from(passed[0])[0] == at_x
        rest = passed[1:]
    else:
        parts = 7 if "descriptor_rounding = true" in header else 6
        assert [int.from_bytes(p, "little") for p in passed[:parts]] == [at_x, 256, 64, 64, 1, 1, 0][:parts]
        rest = passed[parts:]
    form = "iiqqqbiBHHqfdqqqq"
    assert [len(p) for p in rest] == [struct.calcsize(f) for f in form]
    values = [struct.unpack(f, p)[0] for f, p in zip(form, rest, strict=True)]
    assert values[:4] == [256, 64, 64, 1]
    scratch = values[-2]
    assert values[4:-2] == [at_x, -3, 256, 1, 0x3E00, 0x3DCC, 72, 1.5, 0.1, got["address"], at_out]
    assert values[-1] == 0

    ends = [offset + size for offset, size in queued_problems]
    assert all(end <= offset for end, (offset, _) in zip(ends, queued_problems[1:], strict=False))
    needed = 256 + (4 * int(header.split("global_scratch = ")[1].split(",")[0]) + 255) // 256 * 256
    assert got["bytes"] == needed + 192
    assert (scratch - got["address"] == 256) if tma and made else scratch == 0
