"""A stand-in for the library cuBLASLt and for the driver."""

from __future__ import annotations

import subprocess
from pathlib import Path

from places import SHARED

from aot_tune.compile.toolchain import toolchain_for

STUB = SHARED / "stubs" / "cublaslt.cpp"


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
