"""Launchers of Triton kernels, compiled by g++ and called with a driver that writes down what it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import triton_launch as tl
from stand_ins import build

from aot_tune.spec import Buffer, Parameter, TritonFunction, ceildiv

IMAGE = msgspec.structs.replace
X = {"shape": [5, 7]}
SIMPLE = TritonFunction(
    "scale.py:scale_kernel",
    {"x_ptr": "x", "out_ptr": "out", "n": tl.M * tl.N},
    grid=lambda meta: (ceildiv(meta["n"], meta["BLOCK"]),),
)
BLOCK = {"parameters": (Parameter("BLOCK", (16, 32)),)}


@pytest.fixture(scope="session")
def simple(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A launcher with two pointers and an integer."""
    source = simple_source()
    return tl.compiled(tmp_path_factory.mktemp("simple"), source, (8, 8, 4, 8, 8)), source.symbol


def simple_source(function: TritonFunction = SIMPLE, warps: int = 4) -> Any:
    op = tl.operator(function, tl.parameters("x_ptr out_ptr n BLOCK!"), kernel=BLOCK)
    return tl.rendered(op, config={"BLOCK": 16, "num_warps": warps})


def launched(folder: Path, cuda: Path, image: Any, *calls: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Calls of the simple launcher with another image."""
    source = simple_source()
    return tl.call(tl.compiled(folder, source, (8, 8, 4, 8, 8), image), source.symbol, calls, cuda)


def number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def test_pointers_and_integers_are_passed_and_the_grid_is_launched(simple: tuple[Path, str], cuda: Path) -> None:
    (answer,) = tl.call(*simple, [{"arguments": [X, X], "stream": 9}], cuda)
    assert (answer["workspace"], answer["bytes"], answer["launch"]) == (0, 0, 0)
    assert answer["log"][:2] == ["load scale_kernel", "function"]
    assert answer["log"][2] == "launch scale_kernel grid=3,1,1 block=128,1,1 shared=1024 stream=9"
    got = tl.passed(answer)
    assert [number(p) for p in got] == [*answer["data"], 35, 0, 0]
    assert [len(p) for p in got] == [8, 8, 4, 8, 8]
    assert answer["note"] == ""


def test_an_integer_that_does_not_fit_is_an_error_and_nothing_runs(simple: tuple[Path, str], cuda: Path) -> None:
    huge = {"shape": [1 << 20, 1 << 12], "memory": False}
    just = {"shape": [1 << 19, (1 << 12) - 1], "memory": False}
    wrong, right = tl.call(*simple, [{"arguments": [huge, huge]}, {"arguments": [just, just]}], cuda)
    assert wrong["launch"] == 1
    assert not [line for line in wrong["log"] if line.startswith("launch")]
    assert right["launch"] == 0
    assert number(tl.passed(right)[2]) == (1 << 19) * ((1 << 12) - 1)


def test_grids_without_blocks_and_beyond_the_limits(tmp_path: Path, cuda: Path) -> None:
    """The first extent divides by M - 3, which is 0 once, and negative below: Python's floor, no crash."""
    function = TritonFunction(
        "scale.py:scale_kernel", {"x_ptr": "x", "out_ptr": "out"}, grid=(tl.M * (8 // (tl.M - 3)), tl.N, 1)
    )
    source = tl.rendered(tl.operator(function, tl.parameters("x_ptr out_ptr")))
    library = tl.compiled(tmp_path, source, (8, 8, 8, 8))
    wanted = {(0, 7): (0, 0), (4, 65535): (0, 1), (4, 65536): (1, 0), (3, 5): (1, 0), (2, 5): (1, 0)}
    calls = [{"arguments": [{"shape": shape, "memory": False}] * 2} for shape in wanted]
    for (status, launches), answer in zip(wanted.values(), tl.call(library, source.symbol, calls, cuda), strict=True):
        assert answer["launch"] == status
        assert len([line for line in answer["log"] if line.startswith("launch")]) == launches


def test_clusters_cooperative_and_programmatic_launches_and_shared_memory_that_a_device_lacks(
    tmp_path: Path, cuda: Path
) -> None:
    """A target's code runs on several devices, some of which have less shared memory."""
    image = IMAGE(tl.IMAGE, ctas=2, cooperative=True, pdl=True, warps=12, shared=100_000)
    call = {"arguments": [X, X]}
    (answer,) = launched(tmp_path, cuda, image, call)
    assert answer["log"][:9] == [
        "load scale_kernel",
        "cache 1 on 100",
        "attribute 8 100000 on 100",
        "function",
        "launch scale_kernel grid=6,1,1 block=384,1,1 shared=100000 stream=0",
        "with 6=1,0,0",
        "with 2=1,0,0",
        "with 4=2,1,1",
        "with 5=1,0,0",
    ]
    made = tmp_path / "candidate.so", simple_source().symbol
    (answer,) = tl.call(*made, [{"set": ["shared_limit", 50_000]}, call], cuda)
    assert (answer["workspace"], answer["launch"]) == (-100, 1)
    assert "does not run blocks of 100000 bytes of shared memory" in answer["note"]


def test_sixteen_threads_load_the_kernel_once(simple: tuple[Path, str], cuda: Path) -> None:
    (answer,) = tl.call(*simple, [{"threads": 16, "arguments": [X, X]}], cuda)
    assert answer["statuses"] == [0] * 16
    assert answer["loads"] == 1
    assert len([line for line in answer["log"] if line.startswith("launch")]) == 16


def test_each_device_is_prepared_once_and_preload_is_for_that_of_the_thread(tmp_path: Path, cuda: Path) -> None:
    calls = [{"arguments": [{**X, "device": d}, {**X, "device": d}]} for d in (3, 0, 3, 63, 64, -1)]
    image = IMAGE(tl.IMAGE, shared=60_000)
    third, first, again, absent, beyond, negative = launched(tmp_path, cuda, image, *calls)
    assert [a["launch"] for a in (third, first, again)] == [0, 0, 0]
    assert [a["loads"] for a in (third, first, again)] == [1, 1, 1]
    assert "attribute 8 60000 on 103" in third["log"]
    assert "attribute 8 60000 on 100" in first["log"]
    assert [line.split()[0] for line in again["log"]] == ["launch"] + ["parameter"] * 5
    assert absent["launch"] == absent["workspace"] == 101  # as the driver says
    assert beyond["launch"] == negative["launch"] == 101
    made = tmp_path / "candidate.so", simple_source().symbol
    (answer,) = tl.call(*made, [{"enter": 5}, {"preload": True}], cuda)
    assert answer["preload"] == 0
    assert answer["log"] == ["load scale_kernel", "cache 1 on 105", "attribute 8 60000 on 105", "function"]


def with_image(
    simple: tuple[Path, str], folder: Path, text: str, cuda: Path, *calls: dict[str, Any]
) -> list[dict[str, Any]]:
    """Calls of the simple launcher with another image for the driver."""
    (folder / f"{simple[1]}.bin").write_text(text)
    return tl.call(*simple, calls, cuda, AOT_TUNE_KERNEL_DIR=str(folder))


def test_a_kernel_that_the_driver_refuses_is_left_to_other_variants(
    simple: tuple[Path, str], tmp_path: Path, cuda: Path
) -> None:
    call = {"arguments": [X, X]}
    first, second, preload = with_image(simple, tmp_path, "refuse 222", cuda, call, call, {"preload": True})
    assert (first["workspace"], first["launch"], second["workspace"], preload["preload"]) == (-100, 222, -100, -100)
    assert first["note"].startswith("the driver does not translate the kernel's PTX, error 222: update it, ")
    assert preload["loads"] == 1
    (answer,) = with_image(simple, tmp_path, "another_kernel 8", cuda, call)
    assert (answer["workspace"], answer["launch"]) == (-100, 500)
    assert answer["note"].startswith("the driver refuses the kernel's code, error 500: build with this device among ")
    assert "unload" in answer["log"]


def test_a_failure_that_may_pass_is_reported_and_tried_again(
    simple: tuple[Path, str], tmp_path: Path, cuda: Path
) -> None:
    call = {"arguments": [X, X]}
    first, second = with_image(simple, tmp_path, "refuse 2", cuda, call, call)  # out of memory
    assert (first["workspace"], first["launch"], second["workspace"], first["note"]) == (2, 2, 2, "")
    assert second["loads"] == 6  # the note tries as well


def test_without_a_driver_or_with_one_that_is_too_old(simple: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("not a library\n")
    old = build(tmp_path / "old", "libcuda.so.1", "-DTOO_OLD").parent
    said = (
        "libcuda.so.1 of NVIDIA's driver cannot be loaded: install the driver",
        "the driver has no cuLibraryLoadData: update it to one for CUDA 12.0 or later",
    )
    for folder, note in zip((tmp_path, old), said, strict=True):
        answer, preload = tl.call(
            *simple, [{"arguments": [X, X]}, {"preload": True}], None, LD_LIBRARY_PATH=str(folder)
        )
        assert (answer["workspace"], answer["launch"], preload["preload"]) == (-100, -100, -100)
        assert answer["note"] == note


@pytest.mark.parametrize(("setting", "status"), [("init", 100), ("launch", 719), ("device", 3)])
def test_the_status_of_the_driver_comes_back(simple: tuple[Path, str], cuda: Path, setting: str, status: int) -> None:
    (answer,) = tl.call(*simple, [{"set": [setting, status]}, {"arguments": [X, X]}], cuda)
    assert answer["launch"] == status
    assert answer["workspace"] == (0 if setting == "launch" else status)


def test_a_folder_of_kernels_takes_the_place_of_what_is_embedded(
    simple: tuple[Path, str], cuda: Path, tmp_path: Path
) -> None:
    library, symbol = simple
    (tmp_path / f"{symbol}.bin").write_bytes(b"scale_kernel 8 8" + b" " * 200_000)
    call = {"arguments": [X, X], "repeat": 2}
    (answer,) = tl.call(library, symbol, [call], cuda, AOT_TUNE_KERNEL_DIR=str(tmp_path))
    assert len(tl.passed(answer)) == 4  # two of each launch, as the other image says
    said = f"aot_tune: {symbol}: AOT_TUNE_KERNEL_DIR: the kernel is taken from {tmp_path}/{symbol}.bin\n"
    assert answer["stderr"] == said
    (answer,) = tl.call(library, symbol, [call], cuda, AOT_TUNE_KERNEL_DIR=str(tmp_path / "nowhere"))
    assert (answer["launch"], answer["stderr"], len(tl.passed(answer))) == (0, "", 10)


def test_workspaces_hold_buffers_and_scratch_memory(tmp_path: Path, cuda: Path) -> None:
    """Of two functions that run one after the other: they share a buffer, which is 0 before the first of them."""
    locks, x = Buffer("i32", tl.M, zero=True), {"x": "x"}
    first = TritonFunction(
        "scale.py:scale_kernel", {**x, "locks": locks, "parts": Buffer("f32", tl.M * tl.N)}, grid=(tl.M, 2)
    )
    second = TritonFunction(
        "scale.py:apply", {"x": locks, "locks": Buffer("f32", 1), "parts": tl.M}, grid=(tl.M - 4, 1)
    )
    image = IMAGE(
        tl.IMAGE,
        ctas=2,
        global_scratch=384,
        global_scratch_alignment=128,
        profile_scratch=8,
        profile_scratch_alignment=8,
    )
    declared = tl.parameters("x locks parts out")
    source = tl.rendered(tl.operator(first, declared, (second, declared)), pins={"2:parts.bits": 64})
    then = [IMAGE(tl.IMAGE, name="apply")]
    library = tl.compiled(tmp_path, source, (8, 8, 8, 8, 8, 8), image, then=then)
    calls = [{"arguments": [X, X]}]
    answer, empty = tl.call(library, source.symbol, [*calls, {"arguments": [{"shape": [4, 7]}] * 2}], cuda)
    # locks 20, parts 140, scratch of 5 x 2 x 2 blocks: 7680 and 160, the second's buffer: in whole pieces of 256
    wanted = 256 + 256 + 7680 + 256 + 256
    assert answer["bytes"] == wanted + 192
    base = answer["address"]
    assert base % 256 == 0
    got = [number(p) for p in tl.passed(answer)]
    assert got[1:3] == [base, base + 256]
    assert got[4:6] == [base + 512, base + 512 + 7680]
    assert got[6:] == [base, base + wanted - 256, 5, answer["data"][1], 0, 0]
    launches = [line.partition(" block")[0] for line in answer["log"] if not line.startswith(("parameter", "with"))]
    assert [line for line in launches if not line.startswith(("zero", "set"))] == [
        "load scale_kernel", "function", "load apply", "function",
        "launch scale_kernel grid=10,2,1", "launch apply grid=1,1,1",
    ]  # fmt: skip
    assert [line.split()[1] for line in empty["log"] if line.startswith("launch")] == ["scale_kernel"]
    memory = bytes.fromhex(answer["memory"])
    assert memory[:20] == bytes(20)
    assert set(memory[20 : 512 + 7680]) == {0xFF}
    assert memory[512 + 7680 :][:160] == bytes(160)
    short = [
        {**calls[0], "room": wanted - 1},
        {**calls[0], "skew": 64},
        {**calls[0], "skew": 192},
        {**calls[0], "room": 0},
    ]
    small, skewed, most, nothing = tl.call(library, source.symbol, short, cuda)
    assert (small["launch"], nothing["launch"]) == (1, 1)
    for one in (skewed, most):
        assert one["launch"] == 0
        assert [number(p) % 256 for p in tl.passed(one)][1:3] == [0, 0]
        assert number(tl.passed(one)[5]) + 160 <= one["address"] + one["bytes"]
