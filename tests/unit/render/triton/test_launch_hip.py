"""Launchers of Triton kernels for AMD's devices, with a stand-in of the HIP runtime; nothing here ran on a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import triton_launch as tl

from aot_tune.spec import Buffer, Parameter, TritonFunction, ceildiv, device

X = {"shape": [5, 7]}
IMAGE = msgspec.structs.replace(tl.IMAGE, warp_size=64)
FUNCTION = TritonFunction(
    "scale.py:scale_kernel",
    {"x_ptr": "x", "out_ptr": "out", "n": tl.M * tl.N, "locks": Buffer("i32", tl.M)},
    grid=lambda meta: (ceildiv(meta["n"], meta["BLOCK"]),),
    reset_to_zero=("out_ptr", "locks"),
    cooperative=True,
    launch_pdl=True,
)


@pytest.fixture(scope="session")
def hip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tl.stand_in(tmp_path_factory.mktemp("driver"), "libamdhip64_triton.cpp", "libamdhip64.so")


def source_of(function: TritonFunction = FUNCTION) -> Any:
    declared = tl.parameters("x_ptr out_ptr n locks BLOCK!")
    op = tl.operator(function, declared, target=tl.GFX942, kernel={"parameters": (Parameter("BLOCK", (16,)),)})
    return tl.rendered(op, config={"BLOCK": 16}, target=tl.GFX942, pins={"x_ptr.range": 32})


def parameters(answer: dict[str, Any]) -> list[int]:
    lines = [line.removeprefix("parameter ") for line in answer["log"] if line.startswith("parameter")]
    return [int.from_bytes(bytes.fromhex(line), "little") for line in lines]


@pytest.fixture(scope="module")
def simple(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    source = source_of()
    return tl.compiled(tmp_path_factory.mktemp("simple"), source, (8, 8, 4, 8, 8, 8), IMAGE), source.symbol


def test_a_kernel_is_loaded_its_outputs_are_cleared_and_it_runs(simple: tuple[Path, str], hip: Path) -> None:
    (answer,) = tl.call(*simple, [{"arguments": [X, X], "stream": 5}], hip)
    assert (answer["workspace"], answer["bytes"], answer["launch"]) == (0, 256 + 192, 0)
    assert answer["log"][:4] == [
        "load scale_kernel on 0",
        "set 140 on 5",
        "set 20 on 5",
        "launch scale_kernel grid=3,1,1 block=256,1,1 shared=1024 stream=5",
    ]
    x, out = answer["data"]
    assert parameters(answer) == [x, out, 35, answer["address"], 0, 0]
    assert bytes.fromhex(answer["tensors"][1]) == bytes(140)


def test_cooperative_launches_and_what_these_devices_do_not_know(tmp_path: Path, hip: Path) -> None:
    source, image = source_of(), msgspec.structs.replace(IMAGE, cooperative=True)
    library = tl.compiled(tmp_path, source, (8, 8, 4, 8, 8, 8), image)
    (answer,) = tl.call(library, source.symbol, [{"arguments": [X, X], "stream": 5}], hip)
    assert "cooperative scale_kernel grid=3,1,1 block=256,1,1 shared=1024 stream=5" in answer["log"]
    assert '"launch_cooperative_grid": true' in source.source
    assert "launch_pdl" not in source.source
    assert '"ranges": [\n    "x_ptr"\n  ]' in source.source


def test_each_device_has_its_own_module_and_number_of_processors(tmp_path: Path, hip: Path) -> None:
    function = TritonFunction("scale.py:scale_kernel", {"x_ptr": "x"}, grid=(device("multiprocessors"),))
    op = tl.operator(function, tl.parameters("x_ptr"), target=tl.GFX942)
    source = tl.rendered(op, target=tl.GFX942)
    library = tl.compiled(tmp_path, source, (8, 8, 8), IMAGE)
    calls: list[Any] = []
    for number in (0, 6, 0):
        one = {"shape": [5, 7], "device": number}
        calls += [{"set": ["current", number]}, {"arguments": [one, one]}]
    first, sixth, again = tl.call(library, source.symbol, calls, hip)
    assert first["log"][:2] == [
        "load scale_kernel on 0",
        "launch scale_kernel grid=304,1,1 block=256,1,1 shared=1024 stream=0",
    ]
    assert sixth["log"][0] == "load scale_kernel on 6"
    assert "grid=310,1,1" in sixth["log"][1]
    assert (again["loads"], "grid=304,1,1" in again["log"][0]) == (2, True)


def test_a_kernel_that_is_refused_is_left_to_other_variants(
    simple: tuple[Path, str], tmp_path: Path, hip: Path
) -> None:
    def calls(text: str) -> list[dict[str, Any]]:
        (tmp_path / f"{simple[1]}.bin").write_text(text)
        return tl.call(*simple, [{"arguments": [X, X]}] * 2, hip, AOT_TUNE_KERNEL_DIR=str(tmp_path))

    first, second = calls("refuse 209")
    assert (first["workspace"], first["launch"], second["workspace"], second["loads"]) == (-100, 209, -100, 1)
    assert first["log"] == ["last error"]
    assert first["note"].startswith("AMD's HIP runtime refuses the kernel's code, error 209: ")
    other, _ = calls("another 8")
    assert (other["workspace"], other["launch"]) == (-100, 500)
    assert other["log"] == ["load another on 0", "unload", "last error"]
    first, second = calls("refuse 2")
    assert (first["workspace"], first["launch"], second["loads"]) == (2, 2, 6)


def test_without_a_runtime_or_with_one_that_is_too_old(simple: tuple[Path, str], tmp_path: Path) -> None:
    for name in ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"):
        (tmp_path / name).write_text("not a library\n")
    old = tl.stand_in(tmp_path / "old", "libamdhip64_triton.cpp", "libamdhip64.so", "-DTOO_OLD")
    said = ("libamdhip64.so of AMD's ROCm cannot be loaded", "AMD's HIP runtime has no hip")
    for folder, note in zip((tmp_path, old), said, strict=True):
        (answer,) = tl.call(*simple, [{"arguments": [X, X]}], None, LD_LIBRARY_PATH=str(folder))
        assert (answer["workspace"], answer["launch"]) == (-100, -100)
        assert answer["note"].startswith(note)


def test_more_threads_than_32_bits_count_are_an_error(tmp_path: Path, hip: Path) -> None:
    op = tl.operator(
        TritonFunction("scale.py:scale_kernel", {"x_ptr": "x"}, grid=(tl.M,)), tl.parameters("x_ptr"), target=tl.GFX942
    )
    source = tl.rendered(op, target=tl.GFX942)
    library = tl.compiled(tmp_path, source, (8, 8, 8), IMAGE)
    shapes = [{"shape": [m, 1], "memory": False} for m in ((1 << 24) - 1, 1 << 24)]
    answers = tl.call(library, source.symbol, [{"arguments": [s, s]} for s in shapes], hip)
    assert [a["launch"] for a in answers] == [0, 1]
