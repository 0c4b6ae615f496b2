"""Triton kernels become a library for AMD's devices, called through a stand-in of the HIP runtime.

Nothing here ran on a card.
"""

import os
import re
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import stand_ins
from cuda_project import FAKE, Made, build
from elftools.elf.elffile import ELFFile
from environments import ROOT, environment, run
from triton_record import copy_templates

from aot_tune.compile.object_files import device_digest
from aot_tune.link.elf import read_archive

TARGETS = "hip-gfx90a;hip-gfx942;cuda-sm_90a"
MACHINES = {"hip-gfx90a": 0x3F, "hip-gfx942": 0x4C}
"""Architectures in the flags of an ELF file. [AMDGPU backend of LLVM, ELF header]"""

pytestmark = pytest.mark.usefixtures("needs_triton")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The author's library for three targets of two families, as it is without a record."""
    folder = tmp_path_factory.mktemp("hip")
    templates = copy_templates(folder)
    return build(folder / "project", templates=(templates,), operators=("rms_norm",), TARGETS=TARGETS)


def images(made: Made) -> dict[str, tuple[Any, str]]:
    """For each member of the archive the code object in it, and its digest."""
    found = {}
    for member in read_archive((made.folder / "aot_tune" / "my_ops" / "variants.a").read_bytes()):
        section = ELFFile(BytesIO(member.data)).get_section_by_name(".rodata.aot_tune_kernel_image")
        found[member.name] = (section.data(), device_digest(member.data))
    return found


def test_each_architecture_has_generic_variants_and_cuda_has_one(made: Made) -> None:
    code = images(made)
    for target in (*MACHINES, "cuda-ptx_80"):
        found = made.variants("rms_norm", target)
        assert {v["dtypes"]["T"] for v in found.values()} == {"bf16", "f16", "f32"}
        assert all(v["generic"] for v in found.values())
        for variant in found.values():
            data, digest = code[f"{variant['symbol']}.o"]
            assert digest == variant["device"]
            if target in MACHINES:
                image = ELFFile(BytesIO(data))
                assert (image["e_machine"], image["e_flags"] & 0xFF) == ("EM_AMDGPU", MACHINES[target])
            else:
                assert b".target sm_80" in data
    assert not made.variants("rms_norm", "cpu")
    assert not [n for n in made.needed() if n.startswith(("libcuda", "libamdhip", "libhsa", "libtriton"))]
    assert str(ROOT).encode() not in made.library.read_bytes()


def test_the_build_says_loudly_what_it_is(made: Made) -> None:
    caution = "hip targets: nothing is measured on AMD's devices, and their code is untested on real cards"
    assert f"note: {caution}" in made.log
    assert caution in made.report.notes
    for target in MACHINES:
        assert re.search(rf"rms_norm.*: NOT TUNED for {target}, the generic variant serves", made.log)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stand-in for libamdhip64.so, which knows the architectures of code objects."""
    return stand_ins.build(tmp_path_factory.mktemp("driver"), "libamdhip64.so").parent


CALLS = """
stub = ctypes.CDLL("libamdhip64.so")
stub.stub_log.restype = ctypes.c_char_p

def on(array, device=0, code=2):
    return OnDevice(array, (10, device), code)

def bf16(rows, columns, device=0):
    whole = np.zeros(rows * columns + 64, np.float16)
    start = -whole.ctypes.data % 64 // 2
    return on(whole[start:start + rows * columns].reshape(rows, columns), device, 4)

def launched(call):
    before = len(stub.stub_log())
    call()
    said = stub.stub_log()[before:].decode().splitlines()
    print("; ".join(s for s in said if s.startswith(("load", "rms_norm"))))

def norm(rows, columns, device=0):
    weight = on(bf16(1, columns).array[0], device, 4)
    x, out = bf16(rows, columns, device), bf16(rows, columns, device)
    launched(lambda: ops.rms_norm(x, weight, eps=1e-5, out=out, stream=7))
"""


@pytest.fixture
def calls(driver: Path, made: Made) -> Callable[[str], list[str]]:
    """Run calls in a process that finds the stand-in; the lines that they print."""

    def called(code: str) -> list[str]:
        path = os.pathsep.join([str(made.folder), *(p for p in sys.path if p)])
        env = environment(PYTHONPATH=path, LD_LIBRARY_PATH=str(driver))
        return run([sys.executable, "-c", FAKE + CALLS + code], env=env).strip().splitlines()

    return called


def test_a_device_gets_the_code_of_its_architecture(calls: Callable[[str], list[str]]) -> None:
    said = calls(
        """
for device in (0, 0, 1):
    norm(64, 100, device)
x, out = on(np.zeros((3, 8), np.float32)), on(np.zeros((3, 8), np.float32))
launched(lambda: ops.rms_norm(x, on(x.array[0]), eps=1e-5, out=out))
launched(lambda: ops.preload("rocm:1"))
fails(lambda: norm(64, 100, 2))
fails(lambda: ops.rms_norm(x, x, out=out))
fails(lambda: ops.rms_norm(OnDevice(x.array), OnDevice(x.array[0]), out=OnDevice(out.array)))
print(ops.explain("rms_norm", R=1, D=8, T="f32", device="rocm:1")["target"])
"""
    )
    assert said[0] == "load gfx942; rms_norm 64,1,1 x 256 on 0 stream 7"  # 4 wavefronts of 64
    assert said[1] == "rms_norm 64,1,1 x 256 on 0 stream 7"  # loaded once
    assert said[2] == "load gfx90a; rms_norm 64,1,1 x 256 on 1 stream 7"
    assert said[3] == "load gfx942; rms_norm 3,1,1 x 256 on 0 stream 0"
    assert said[4] == "load gfx90a; load gfx90a"  # three dtypes, of which one was there
    assert "rocm:2 has the architecture gfx1100, but this library is for hip-gfx90a, hip-gfx942 alone" in said[5]
    assert said[6].startswith("ArgumentValueError")
    assert "there is no CUDA driver here" in said[7]
    assert said[8] == "hip-gfx90a"
