"""The C++ toolchain: targets, identity, objects that do not depend on where they are made, and linking."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import program

import aot_tune.compile.cxx as cxx_module
from aot_tune.compile import target_by_name, toolchain_for
from aot_tune.compile.cxx import CxxToolchain
from aot_tune.compile.device_targets import cpu_level
from aot_tune.support.errors import ToolchainError

V1 = "lm fpu sse sse2"
V2 = f"{V1} cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
BF16 = f"{V4} avx512_bf16"
AMX = f"{BF16} amx_tile amx_bf16 amx_int8"
LAUNCH = 'extern "C" __attribute__((visibility("default")))'


def cpuinfo(*flags: str) -> str:
    return "\n".join(f"processor\t: {n}\nflags\t\t: {f}\n" for n, f in enumerate(flags))


def test_a_level_needs_every_flag() -> None:
    for level, flags in enumerate((V1, V2, V3, V4, BF16, AMX), 1):
        assert cpu_level(cpuinfo(flags)) == level
    for flag in set(AMX.split()) - set(V1.split()):
        without = " ".join(f for f in AMX.split() if f != flag)
        lacking = next(n for n, v in enumerate((V2, V3, V4, BF16, AMX), 1) if flag in v.split())
        assert cpu_level(cpuinfo(without)) == lacking, flag


@pytest.mark.parametrize(
    ("flags", "allowed", "best"),
    [
        (V4, True, "cpu-x86-64-v4"),
        (BF16, True, "cpu-x86-64-v4-bf16"),
        (AMX, True, "cpu-x86-64-v4-amx"),
        (AMX, False, "cpu-x86-64-v4-bf16"),
    ],
)
def test_a_cpu_has_tiles_only_where_the_kernel_lets_programs_use_them(
    flags: str, allowed: bool, best: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cxx_module, "has_tiles", lambda: allowed)
    (tmp_path / "cpuinfo").write_text(cpuinfo(flags))
    chain = CxxToolchain(cpuinfo=tmp_path / "cpuinfo")
    assert chain.native()[-1].name == best
    refused = "cpu-x86-64-v4-amx is left out: the CPU has AMX, but the kernel does not let programs use it"
    assert chain.left_out() == ("" if allowed else refused)


def test_no_compiler_says_how_to_point_to_one(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        toolchain_for("cxx", {"PATH": str(tmp_path)}).identity()
    assert "CXX" in caught.value.fix
    assert "CMAKE_CXX_COMPILER" in caught.value.fix
    with pytest.raises(ToolchainError, match="/nowhere/g"):
        toolchain_for("cxx", {"PATH": "/usr/bin:/bin", "CXX": "/nowhere/g++"}).identity()


def test_equal_sources_give_equal_objects_anywhere(tmp_path: Path) -> None:
    source = f"{LAUNCH} const char* where() {{ return __FILE__ __DATE__ __TIME__; }}\n"
    source += "static int n;\nint* p() { return &n; }\n"
    digests = set()
    for place in (tmp_path / "first", tmp_path / "deep/er π $x"):
        place.mkdir(parents=True)
        outcome = toolchain_for("cxx").compile(source, target_by_name("cpu-x86-64-v3"), place / "object.o", 60)
        assert outcome.status == "ok", outcome.log
        data = (place / "object.o").read_bytes()
        assert str(tmp_path).encode() not in data
        digests.add(hashlib.sha256(data).hexdigest())
    assert len(digests) == 1


def test_no_wrapper_has_code_made_when_a_library_is_linked(tmp_path: Path) -> None:
    """FAULTS 87. It would not be the code that was measured."""
    source, found = f"{LAUNCH} void f() {{}}\n", {}
    for flags in ("", " -flto", " -flto -ffat-lto-objects -g"):
        chain = toolchain_for("cxx", {"PATH": os.environ["PATH"], "CXX": f"g++{flags}"})
        assert chain.compile(source, target_by_name("cpu-x86-64"), tmp_path / "object.o", 60).status == "ok"
        assert b".gnu.lto_" not in (tmp_path / "object.o").read_bytes()
        found[flags] = chain.recipe(target_by_name("cpu-x86-64"))["added"]
    assert len(set(found.values())) == 3


def test_resources_and_includes(tmp_path: Path) -> None:
    source = f"#include <cmath>\n{LAUNCH} float f(float x) {{\n"
    source += "    volatile float big[1000]; big[1] = x; return std::exp(big[1]); }\n"
    outcome = toolchain_for("cxx").compile(source, target_by_name("cpu-x86-64"), tmp_path / "object.o", 60)
    assert outcome.resources["stack"] >= 3800
    assert 10 < outcome.resources["text"] < 1000
    assert outcome.resources["memory"] > 1 << 20
    assert any(path.endswith("/cmath") for path in outcome.includes)
    assert "candidate.cpp" not in outcome.includes


def test_the_target_decides_the_instructions(tmp_path: Path) -> None:
    source = f"{LAUNCH} void f(float* x) {{ for (int i = 0; i < 1024; ++i) x[i] = x[i] * 3.0f + 1.0f; }}\n"
    listing = {}
    for target in (t for t in toolchain_for("cxx").targets() if t.machine == "x86_64"):
        out = tmp_path / f"{target.name}.o"
        assert toolchain_for("cxx").compile(source, target, out, 60).status == "ok"
        listing[target.level] = subprocess.check_output(["objdump", "-d", str(out)], text=True)
    assert "vfmadd" in listing[3]
    assert "vfmadd" in listing[4]
    assert not any("ymm" in listing[n] or "vfmadd" in listing[n] for n in (1, 2))
    assert "zmm" not in listing[3]


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("g++: error: unrecognized command-line option '-mamx-tile'", True),
        ("probe.cpp:1: Error: no such instruction: `tdpbf16ps %tmm0,%tmm1,%tmm2'", True),
        ("as: object.o: No space left on device\nfatal error: error writing: No space left on device", False),
    ],
)
def test_a_compiler_that_does_not_know_a_target_says_so(tmp_path: Path, said: str, refused: bool) -> None:
    """What fails for want of room does not mean that the compiler is too old."""
    script = 'for word in "$@"; do [ "$word" = -mamx-tile ] && { cat "$0.says" >&2; exit 1; }; done'
    old = program(tmp_path / "old-g++", f'{script}\nexec {shutil.which("g++")} "$@"')
    (tmp_path / "old-g++.says").write_text(f"{said}\n")
    chain = toolchain_for("cxx", {"PATH": os.environ["PATH"], "CXX": str(old)})
    assert chain.recipe(target_by_name("cpu-x86-64-v4-bf16"))
    amx = target_by_name("cpu-x86-64-v4-amx")
    if not refused:
        assert chain.recipe(amx)
        return
    with pytest.raises(ToolchainError, match=f"cannot compile for cpu-x86-64-v4-amx: {re.escape(said)}") as caught:
        chain.recipe(amx)
    assert "AOT_TUNE_TARGETS=cpu-x86-64-v4" in caught.value.fix
