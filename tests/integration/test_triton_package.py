"""Two ordinary Triton kernels become a library, without a GPU: by replay of a record, called through a stand-in driver.

The record's times are made up: code with the JIT's assumptions is twice as fast as code without.
"""

import os
import sys
from pathlib import Path

import pytest
from cuda_project import FAKE, Made, build
from environments import ROOT, environment, run
from triton_record import copy_templates, write_record

from aot_tune.compile.object_files import device_digest
from aot_tune.link.elf import read_archive

TARGET = "cuda-sm_90a"


pytestmark = pytest.mark.usefixtures("needs_triton")


SPLIT = """
first = {"x_ptr": "x", "x_stride": stride("x", 0), "columns": D, "parts": Buffer("f32", R * ceildiv(D, 1024))}
second = {**arguments, **first, "BLOCK": 1024}
second.pop("rows")
split = Kernel("split", backend="triton", requires=(D > 1024,), worthwhile=(R == 1,), triton=(
    TritonFunction("kernels.py:squares", {**first, "BLOCK": 1024}, (ceildiv(D, 1024), R)),
    TritonFunction("kernels.py:scaled", second, (R,), options={"num_warps": 8}),
))
operator = dataclasses.replace(operator, kernels=(split, *operator.kernels))
"""
TWO_LAUNCHES = """

@triton.jit
def squares(x_ptr, x_stride, columns, parts, BLOCK: tl.constexpr):
    part, row = tl.program_id(0), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + column, mask=column < columns, other=0.0).to(tl.float32)
    tl.store(parts + row * tl.num_programs(0) + part, tl.sum(x * x, 0))


@triton.jit
def scaled(out_ptr, x_ptr, weight_ptr, out_stride, x_stride, columns, eps, parts, BLOCK: tl.constexpr):
    row, total, count = tl.program_id(0), 0.0, tl.cdiv(columns, BLOCK)
    for part in range(count):
        total += tl.load(parts + row * count + part)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + column, mask=column < columns, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        y = x * tl.rsqrt(total / columns + eps) * weight
        tl.store(out_ptr + row * out_stride + column, y, mask=column < columns)
"""


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The author's folder of operators and kernels, one of which launches two functions."""
    folder = copy_templates(tmp_path_factory.mktemp("author"))
    (folder / "kernels.py").write_text((folder / "kernels.py").read_text() + TWO_LAUNCHES)
    operator = folder / "rms_norm" / "operator.py"
    text = operator.read_text().replace("import Kernel", "import Buffer, Kernel")
    operator.write_text(f"import dataclasses\n{text}{SPLIT}")
    return folder


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory, templates: Path) -> Made:
    folder = tmp_path_factory.mktemp("replayed")
    write_record(templates, folder / "tuning", TARGET)
    return build(
        folder / "project",
        templates=(templates,),
        operators=("rms_norm", "swiglu"),
        database=folder / "tuning",
        MODE="replay",
        STRICT="1",
    )


def test_it_is_a_library_of_cubins_without_a_toolkit(replayed: Made) -> None:
    assert not [n for n in replayed.needed() if n.startswith(("libcuda", "libcudart", "libtriton", "libpython"))]
    members = {m.name: m for m in read_archive((replayed.folder / "aot_tune" / "my_ops" / "variants.a").read_bytes())}
    for operator in ("rms_norm", "swiglu"):
        found = replayed.variants(operator, TARGET)
        assert found
        assert all(v["device"] and not v["rebuilt"] for v in found.values())
        for variant in found.values():
            assert device_digest(members[f"{variant['symbol']}.o"].data) == variant["device"]
    assert replayed.variants("rms_norm", "cuda-ptx_80")
    data = replayed.library.read_bytes()
    assert b".target sm_80" in data
    assert str(ROOT).encode() not in data


def called(replayed: Made, driver: Path, code: str) -> list[str]:
    """Lines that a program prints which finds the module and the stand-in."""
    path = os.pathsep.join([str(replayed.folder), *(p for p in sys.path if p)])
    env = environment(PYTHONPATH=path, LD_LIBRARY_PATH=str(driver))
    return run([sys.executable, "-c", FAKE + "import os, sys\n" + CALLS + code], env=env).strip().splitlines()


CALLS = """
stub = ctypes.CDLL("libcuda.so.1")
stub.stub_log.restype = ctypes.c_char_p

def bf16(rows, columns, pitch=None, offset=0):
    pitch = pitch or columns
    whole = np.zeros(rows * pitch + offset + 64, np.float16)
    start = -whole.ctypes.data % 64 // 2 + offset
    array = whole[start:start + rows * pitch].reshape(rows, pitch)[:, :columns]
    return OnDevice(array, code=4)

def launched(x, w, out):
    before = len(stub.stub_log())
    ops.rms_norm(x, w, eps=1e-5, out=out)
    said = stub.stub_log()[before:].decode().splitlines()
    print("; ".join(s.partition(" shared")[0] for s in said if s.startswith(("load", "launch"))))

def case(rows, columns, **given):
    weight = bf16(1, columns)
    flat = OnDevice(weight.array[0], code=4)
    launched(bf16(rows, columns, **given), flat, bf16(rows, columns))
case(4096, 4096)
case(4096, 4096)
case(4096, 4096, offset=1)
case(4096, 4096, pitch=4097)
case(63, 4096)
case(7, 100)
case(1, 4096)
"""

MODES = """
for current in (-1, 0, 0, -1, 0):
    stub.stub_enter(current)
    before = stub.stub_exchanges()
    case(4096, 4096)
    print(stub.stub_exchanges() - before, stub.stub_current())
"""


def test_calls_get_the_code_that_is_right_for_them(replayed: Made, triton_driver: Path) -> None:
    """A call like one before it leaves the thread alone."""
    said = called(replayed, triton_driver, MODES)
    two, loaded = "launch rms_norm grid=2048,1,1 block=256,1,1", "load cubin; "
    assert said[0] == loaded + two  # what the JIT would assume holds
    assert said[1] == two  # loaded once
    assert said[2] == loaded + two  # an address that 16 does not divide: other code of the same config
    assert said[3] == two  # a stride that 16 does not divide
    assert said[4] == "launch rms_norm grid=32,1,1 block=256,1,1"  # 63 rows, two a block
    assert said[5].startswith("load ptx; launch rms_norm grid=7,1,1")  # no BLOCK was compiled for 100 columns
    apart = "launch squares grid=4,1,1 block=128,1,1", "launch scaled grid=1,1,1 block=256,1,1"
    assert said[6] == "; ".join(("load cubin", "load cubin", *apart))
    assert said[8::2] == ["2 -1", "0 0", "0 0", "2 -1", "0 0"]  # changes of the mode; the device is left as it was
    assert said[9::2] == [two] * 4
