"""What launchers of Triton kernels are linked with: of their own families, compiled once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import triton_launch as tl

from aot_tune.compile.triton.launcher_functions import functions_of
from aot_tune.compile.triton.launcher_objects import LAUNCHER
from aot_tune.support.errors import ToolchainError

CALLS = """\
struct DLTensor { void* data; };
#include "launch.h"
namespace kernel { constexpr unsigned ctas = 1; constexpr bool pdl = false, tma = false; }
#include "HEADER"
extern "C" int NAME(launcher::Kernel& kernel) { return launcher::preload(kernel); }
"""


def calling(folder: Path, header: str) -> Path:
    """An object that calls a function of a family."""
    out = folder / f"{header}.o"
    (folder / "calls.cpp").write_text(CALLS.replace("HEADER", header).replace("NAME", f"run_{Path(header).stem}"))
    subprocess.run(["g++", "-c", "-fPIC", f"-I{LAUNCHER}", "calls.cpp", "-o", out], cwd=folder, check=True)
    return out


def test_only_what_is_called_is_linked_and_it_is_made_once(tmp_path: Path) -> None:
    cuda, hip = (calling(tmp_path, header) for header in ("launcher.h", "launcher_hip.h"))
    (tmp_path / "none.o").write_bytes(b"")
    assert functions_of([tmp_path / "none.o"], ["g++"], os.environ) == []
    (first,) = functions_of([cuda], ["g++"], os.environ)
    (second,) = functions_of([hip, tmp_path / "none.o"], ["g++"], os.environ)
    made = first.stat().st_mtime_ns
    assert functions_of([hip, cuda, cuda], ["g++"], os.environ) == [first, second]
    assert first.stat().st_mtime_ns == made


def test_both_families_meet_in_one_library_that_shows_neither(tmp_path: Path) -> None:
    objects = [calling(tmp_path, header) for header in ("launcher.h", "launcher_hip.h")]
    library = tl.linked(objects, tmp_path / "lib.so")
    shown = subprocess.run(["nm", "-DC", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert sorted(line.split()[-1] for line in shown.splitlines()) == ["run_launcher", "run_launcher_hip"]


def test_a_compiler_that_refuses_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"the functions of Triton launchers do not compile: .*no-such-flag"):
        functions_of([calling(tmp_path, "launcher.h")], ["g++", "--no-such-flag"], os.environ)
