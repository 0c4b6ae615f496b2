"""The Triton toolchain: objects, images, their launch constants, and equality with the JIT."""

import ctypes
import hashlib
import io
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from triton_compiled import PLAIN, compiled, recipe
from triton_installed import EACH_TRITON, FUNCTIONS, ONE_TRITON, chain, jit_of

from aot_tune.compile import target_by_name
from aot_tune.compile.object_files import symbols_of, why_unlinkable
from aot_tune.compile.triton_toolchain import HIP_TARGETS, TritonToolchain

pytestmark = pytest.mark.slow

PRODUCT: dict[str, Any] = {
    "signature": {
        "a": "tensordesc<bf16[128, 64]>", "b": "tensordesc<bf16[64, 128]>", "c": "*bf16",
        "M": "i32", "N": "i32", "K": "i32", "BM": "constexpr", "BN": "constexpr", "BK": "constexpr",
    },
    "constexprs": {"BM": 128, "BN": 128, "BK": 64},
    "divisible": ["c", "M", "N", "K"],
    "options": {"num_warps": 8, "num_stages": 3},
}  # fmt: skip


def test_targets_are_those_that_its_code_runs_on() -> None:
    names = [t.name for t in TritonToolchain().targets()]
    assert names[0] == TritonToolchain().baselines()[0].name == "cuda-ptx_80"
    assert {"cuda-sm_80", "cuda-sm_90", "cuda-sm_90a", "cuda-sm_100a", "cuda-sm_120a"} < set(names)
    assert not {"cuda-sm_100", "cuda-sm_120"} & set(names)
    assert [t.name for t in HIP_TARGETS] == ["hip-gfx90a", "hip-gfx942", "hip-gfx950"] == names[-3:]
    for target in HIP_TARGETS:
        assert [target.runs_on(level) for level in (target.level - 1, target.level, target.level + 1)] == [0, 1, 0]
    assert [t.facts["shared_bytes"] for t in HIP_TARGETS] == [65536, 65536, 163840]
    assert target_by_name("hip-gfx942").facts.keys() >= target_by_name("cuda-sm_90a").facts.keys()


TARGETS = ("cuda-ptx_80", "cuda-sm_90a", "cuda-sm_120a", "hip-gfx942")


@pytest.mark.parametrize("target", TARGETS)
@ONE_TRITON
def test_an_object_holds_its_image_and_three_functions(search: list[str], target: str, tmp_path: Path) -> None:
    outcome, out = compiled(search, recipe(search, "rows.py:plain", **PLAIN), target, tmp_path)
    assert outcome.status == "ok", outcome.log
    image = (tmp_path / "kernel.bin").read_bytes()
    assert outcome.device == hashlib.sha256(image).hexdigest()
    assert symbols_of(out.read_bytes()).defined == {"f_workspace", "f_launch", "f_preload"}
    assert why_unlinkable(out.read_bytes(), "f", "hip-any") is None
    assert outcome.resources.keys() >= {"registers", "spill_bytes", "shared", "text", "memory"}
    assert 4 <= outcome.resources["registers"] <= 255
    assert outcome.resources["text"] > len(image)
    tools = chain(search)
    assert outcome.includes
    assert all(Path(tools.locate(name)).is_file() for name in outcome.includes)
    assert not any("kernel" in name for name in outcome.includes)
    tools.link_shared([out], tmp_path / "f.so")
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    where, name = ctypes.c_void_p(), ctypes.c_char_p()
    size = library.f_preload(ctypes.byref(where), ctypes.byref(name))
    assert where.value is not None
    assert ctypes.string_at(where.value, size + 1) == image + b"\0"
    assert name.value == b"plain"
    warp = 64 if target.startswith("hip") else 32
    assert library.f_launch() == outcome.resources["shared"] + 8 * warp
    _check_image(image, target)


def _check_image(image: bytes, target: str) -> None:
    """The image is of the kind and architecture that the target says."""
    arch = target.rpartition("_")[2].rpartition("-")[2]
    if target.startswith("cuda-ptx"):
        text = image.decode()
        assert ".target sm_80" in text
        assert ".version 8.0" in text
        assert ".entry plain(" in text
        return
    elf = ELFFile(io.BytesIO(image))
    assert elf["e_machine"] in ("EM_CUDA", "EM_AMDGPU", 190, 224)
    if target.startswith("hip"):
        assert arch.encode() in image
    else:
        flags = elf["e_flags"]  # the architecture is in the lowest byte up to ABI 7, in the next one from 8 on
        assert int(arch.rstrip("a")) in (flags & 0xFF, flags >> 8 & 0xFF)


@ONE_TRITON
def test_the_bytes_do_not_depend_on_the_folder(search: list[str], tmp_path: Path) -> None:
    made = set()
    for name in ("one", "another/folder"):
        root = tmp_path / name
        shutil.copytree(FUNCTIONS, root / "triton_functions")
        outcome, out = compiled(search, recipe(search, "rows.py:plain", root, **PLAIN), "cuda-ptx_80", root, root)
        assert outcome.status == "ok", outcome.log
        made.add(out.read_bytes())
    assert len(made) == 1
    assert str(tmp_path).encode() not in made.pop()


@EACH_TRITON
def test_the_code_is_that_of_the_jit(search: list[str], tmp_path: Path) -> None:
    """The JIT's own binder and compiler, line tables included, give the same sections for a GPU to execute."""
    array = {"address": 256, "size": 1 << 20, "dtype": "bf16"}
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "rows.py:plain": (PLAIN, {"x": array, "y": array, "n": 1000, "step": 1024, "BLOCK": 1024}),
        "matmul.py:product": (
            PRODUCT,
            {
                "a": {"dtype": "bf16", "shape": [256, 512], "strides": [512, 1], "block": [128, 64]},
                "b": {"dtype": "bf16", "shape": [512, 256], "strides": [256, 1], "block": [64, 128]},
                "c": array, "M": 256, "N": 256, "K": 512, "BM": 128, "BN": 128, "BK": 64,
            },
        ),
    }  # fmt: skip
    for function, (ours, arguments) in cases.items():
        said = jit_of(search)(
            function=f"triton_functions/{function}",
            target=("cuda", 90, 32),
            arguments=arguments,
            options={**ours["options"], "enable_fp_fusion": True},
            compile=True,
        )
        outcome, _ = compiled(search, recipe(search, function, **ours), "cuda-sm_90a", tmp_path / function)
        assert outcome.status == "ok", outcome.log
        code = _sections((tmp_path / function / "kernel.bin").read_bytes())
        assert any(name.startswith(".text") for name in code)
        assert code == said["code"], function
        assert outcome.resources["shared"] == said["shared"]


def _sections(image: bytes) -> dict[str, str]:
    wanted = (".text", ".nv.constant", ".nv.shared", ".rodata")
    sections = (s for s in ELFFile(io.BytesIO(image)).iter_sections() if s.name.startswith(wanted) and s.data_size)
    return {s.name: hashlib.sha256(s.data()).hexdigest() for s in sections}


@EACH_TRITON
def test_descriptors_become_tensor_maps_where_the_device_has_them(search: list[str], tmp_path: Path) -> None:
    one = recipe(search, "matmul.py:product", **PRODUCT)
    texts = {}
    for target in ("cuda-sm_90a", "cuda-sm_80", "hip-gfx942"):
        outcome, _ = compiled(search, one, target, tmp_path / target)
        assert outcome.status == "ok", outcome.log
        texts[target] = (tmp_path / target / "kernel.h").read_text()
    assert "tma = true" in texts["cuda-sm_90a"]
    assert re.search(r"descriptor_a = \{3, 2, 10, false, 2, \{128, 64, 0, 0, 0\}\}", texts["cuda-sm_90a"])
    assert re.search(r"descriptor_b = \{3, 2, 10, false, 2, \{64, 64, 0, 0, 0\}\}", texts["cuda-sm_90a"])
    for target in ("cuda-sm_80", "hip-gfx942"):
        assert "tma = false" in texts[target]
        assert "descriptor_a" not in texts[target]
    rounding = "3.6" not in chain(search).identity()["version"]
    assert f"descriptor_rounding = {str(rounding).lower()}" in texts["cuda-sm_80"]
