"""What tests of calls of cuBLASLt share: candidates compiled and called, without the library or with its stand-in."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from forked import answer
from places import SHARED

from aot_tune.compile.toolchain import target_by_name, toolchain_for
from aot_tune.render import Rendered

STUB = SHARED / "stubs" / "cublaslt.cpp"
TARGET = target_by_name("cuda-sm_90a")
UNAVAILABLE = -100
RECORDED = {
    "ALGO": 66,
    "TILE": 20,
    "STAGES": 36,
    "SPLITK": 3,
    "REDUCTION": 2,
    "SWIZZLE": 1,
    "CUSTOM": 5,
    "INNER": 4,
    "CLUSTER": 9,
    "VERSION": 130100,
}


def compile_shared(rendered: Rendered, folder: Path) -> Path:
    toolchain = toolchain_for("cublaslt")
    outcome = toolchain.compile(rendered.source, TARGET, folder / "candidate.o", 120.0)
    assert outcome.status == "ok", outcome.log
    assert outcome.log == ""
    toolchain.link_shared([folder / "candidate.o"], folder / "candidate.so")
    return folder / "candidate.so"


def build_stub(folder: Path, *flags: str, name: str = "libcublasLt.so.13", driver: bool = True) -> Path:
    command = [*toolchain_for("cxx").command(), "-std=c++17", "-O1", "-shared", "-fPIC", str(STUB)]  # type: ignore[attr-defined]
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, *flags, f"-Wl,-soname,{name}", "-o", folder / name, "-ldl"], check=True)
    if driver:
        soname = "-Wl,-soname,libcuda.so.1"
        subprocess.run([*command, "-DDRIVER", soname, "-o", folder / "libcuda.so.1", "-ldl"], check=True)
    return folder


def stand_ins(libraries: Path | None) -> list[str]:
    """The libraries of a folder that `build_stub` made."""
    return [str(libraries / name) for name in ("libcublasLt.so.13", "libcuda.so.1")] if libraries else []


def call(candidate: tuple[Path, str], libraries: Path | None, calls: list[dict[str, Any]]) -> Any:
    path, symbol = candidate
    given = {"candidate": str(path), "symbol": symbol, "libraries": stand_ins(libraries), "calls": calls}
    return answer("from cublaslt_calls import answers", "answers(given)", given)
