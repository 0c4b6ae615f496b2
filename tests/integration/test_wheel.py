"""The wheel: what is in it, how it was built, and what its commands say."""

import json
import re
import sys
import tarfile
from pathlib import Path

from environments import OPERATORS, Built, Venv, members, run


def test_the_sdist_has_what_a_build_needs_and_no_more(made_wheel: Path) -> None:
    (sdist,) = (made_wheel / "sdist").iterdir()
    run([Path(sys.executable).parent / "twine", "check", "--strict", sdist])
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "pyproject.toml", "LICENSE", "NOTICE", "CHANGELOG.md", "aot_tune/build.py"} <= names
    assert any(name.startswith("tuning/") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", ".ci/", "wheelhouse/"))]


def test_it_was_tuned(built: Built) -> None:
    assert built.measured > 0
    report = json.loads(members(built.wheel)["aot_tune/share/aot_tune/ops/report.json"])
    assert {o["operator"] for o in report["operators"] if o["problems"]} == set(OPERATORS)


def test_the_build_tells_what_it_uses_and_how_far_it_is(built: Built) -> None:
    lines = [line.strip() for line in built.log.splitlines()]
    for start in ("mode auto", "targets cpu-x86-64-v", "devices ", "budget no limit, effort quick"):
        assert any(line.startswith(f"aot_tune: {start}") for line in lines), start
    assert any(re.match(r"aot_tune: .*compiled \d+ of \d+", line) for line in lines)
    assert any(re.match(r"aot_tune: .*tried \d+ of \d+, .*best so far", line) for line in lines)


def test_what_is_inside(built: Built) -> None:
    names = set(members(built.wheel))
    assert re.fullmatch(r"aot_tune-[0-9.]+-cp310-abi3-linux_x86_64\.whl", built.wheel.name)
    package = {
        "ops.abi3.so", "ops.pyi", "lib/libaot_tune_ops.so", "lib/pkgconfig/aot_tune_ops.pc", "include/aot_tune/ops.h",
        "include/aot_tune/base.h", "include/aot_tune/tensor.h", "include/aot_tune/tensor.hpp",
        "share/cmake/aot_tune/aot_tuneConfig.cmake", "share/aot_tune/ops/manifest.json",
        "templates/gemm/operator.py", "templates/common/simd.h.j2", "runtime/cpu.cpp", "link/binding/module.cpp",
        "torch/csrc/shim.cpp",
    }  # fmt: skip
    assert package <= {n.removeprefix("aot_tune/") for n in names}
    assert any(n.endswith(".data/data/share/cmake/aot_tune/aot_tuneConfig.cmake") for n in names)
    assert not [n for n in names if "__pycache__" in n or n.startswith("tests/") or "/tests/" in n]


def test_no_path_of_this_machine_is_inside(built: Built, cache: Path, source: Path) -> None:
    forbidden = [str(cache), str(source), str(Path.home()) + "/", sys.prefix + "/"]
    for name, data in members(built.wheel).items():
        for path in forbidden:
            assert path.encode() not in data, f"{name} holds {path}"


def test_the_manifest_is_of_what_is_inside(built: Built) -> None:
    inside = members(built.wheel)
    manifest = json.loads(inside["aot_tune/share/aot_tune/ops/manifest.json"])
    library = inside["aot_tune/lib/libaot_tune_ops.so"]
    assert [o["name"] for o in manifest["operators"]] == OPERATORS
    for operator in manifest["operators"]:
        generics = [str(v["dtypes"]) for v in operator["variants"] if v["generic"]]
        assert len(generics) == len(set(generics)) > 0  # one for each choice of dtypes
        for variant in operator["variants"]:
            assert re.fullmatch(r"[0-9a-f]{64}", variant["object"])
            assert variant["object"].encode() in library


def test_auditwheel_and_abi3audit_pass(built: Built, tmp_path: Path) -> None:
    bin_folder = Path(sys.executable).parent
    shown = run([bin_folder / "auditwheel", "show", built.wheel])
    assert "manylinux_2_2" in shown or "manylinux_2_3" in shown or "manylinux2014" in shown, shown
    audited = run([bin_folder / "abi3audit", "--strict", "--report", built.wheel])
    report = json.loads(audited[audited.index("{") : audited.rindex("}") + 1])
    (wheel,) = report["specs"].values()
    objects = wheel["wheel"]
    assert len(objects) >= 1
    for shared in objects:
        assert shared["result"]["is_abi3"], shared
        assert not shared["result"]["future_abi3_objects"], shared
        assert not shared["result"]["non_abi3_symbols"], shared


def test_the_module_works_with_no_compiler_on_the_path(venv: Venv, tmp_path: Path) -> None:
    code = (
        "import shutil; assert shutil.which('g++') is None and shutil.which('cmake') is None\n"
        "import numpy, aot_tune.ops as ops\n"
        "y = ops.softmax(numpy.zeros((2, 4), 'f4'))\n"
        "assert (numpy.from_dlpack(y) == 0.25).all(), y\n"
        "print('torch' in __import__('sys').modules, 'jinja2' in __import__('sys').modules)\n"
    )
    assert run([venv.python, "-c", code], env={"PATH": str(tmp_path), "HOME": str(tmp_path)}).split() == ["False"] * 2


def test_commands(venv: Venv, tmp_path: Path, cache: Path) -> None:
    for flag, file in (("--cmake-dir", "aot_tuneConfig.cmake"), ("--include-dir", "aot_tune/ops.h")):
        assert (Path(venv.run("aot-tune", flag).strip()) / file).is_file()
    one = venv.run("aot-tune", "report", "softmax")
    assert re.search(r"^softmax on cpu-\S+: tried [1-9]\d* \([^)]*\d+ ok", one, re.MULTILINE)
    assert "gemm" not in one
    said = venv.run("aot-tune", "explain", "gemm", "M=1", "N=64", "K=64")
    told = json.loads(venv.run("aot-tune", "explain", "gemm", "M=1", "N=64", "K=64", "--json"))
    assert (told["operator"], told["dims"]) == ("gemm", {"M": 1, "N": 64, "K": 64})
    assert told["variant"] in said
    found = json.loads(venv.run("aot-tune", "doctor", "--json", AOT_TUNE_CACHE_DIR=str(cache)))
    assert (found["problems"], found["cache"]["folder"]) == (0, str(cache))
    alone = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    without = run([venv.folder / "bin" / "aot-tune", "doctor"], env=alone, status=1)
    assert "no C++ compiler found: neither g++ nor c++ is on PATH" in without
