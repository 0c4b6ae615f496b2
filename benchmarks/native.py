"""Compiles the C++ probes of this folder on the machine where they run, and loads them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

__all__ = ["build_calls", "build_launches", "build_machine", "build_variant", "installed", "load_machine"]

_HERE = Path(__file__).resolve().parent


def installed(beside: Sequence[str] = ("numpy", "torch")) -> Path:
    """The folder of the installed package. The packages that it is compared with must be installed too.

    Raises:
        SystemExit: when Python does not import an installed, built aot_tune.
    """
    for name in beside:
        if importlib.util.find_spec(name) is None:
            raise SystemExit(f"benchmarks: {name} is not installed: aot_tune is compared with it; `pip install {name}`")
    import aot_tune

    package = Path(aot_tune.__file__).resolve().parent
    if importlib.util.find_spec("aot_tune.ops") is None or not (package / "lib").is_dir():
        raise SystemExit(f"benchmarks: {package} is a source tree; unset PYTHONPATH and run `pip install .` first")
    return package


def _compile(source: Path, out: Path, *arguments: str) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if compiler is None:
        raise SystemExit("benchmarks: no C++ compiler for the probes; install g++ or set CXX")
    argv = [*compiler.split(), "-std=c++17", "-O3", "-fPIC", "-shared", str(source), "-o", str(out), *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"benchmarks: {' '.join(argv)} fails:\n{done.stderr}")
    return out


def build_machine(folder: Path) -> Path:
    """The probe of copies, reads and multiply-adds."""
    return _compile(_HERE / "machine.cpp", folder / "machine.so", "-fopenmp", "-march=native")


def build_launches(folder: Path) -> Path:
    """The probe of launches on a GPU."""
    import aot_tune

    include = Path(aot_tune.__file__).resolve().parent / "include"
    return _compile(_HERE / "launches.cpp", folder / "launches.so", f"-I{include}", "-ldl")


def build_calls(folder: Path, package: Path) -> Path:
    """The probe of calls from C, linked only with the installed library."""
    lib = package / "lib"
    flags = (f"-I{package / 'include'}", f"-L{lib}", "-laot_tune_ops", f"-Wl,-rpath,{lib}")
    return _compile(_HERE / "calls.cpp", folder / "calls.so", *flags)


def load_machine(path: str) -> Any:
    """The probe's functions, with their types."""
    library = ctypes.CDLL(path)
    memory = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.machine_memcpy.argtypes = library.machine_stream.argtypes = memory
    library.machine_memcpy.restype = library.machine_stream.restype = None
    library.machine_read.argtypes = memory[1:]
    library.machine_read.restype = ctypes.c_float
    library.machine_gflops.argtypes = [ctypes.c_int64, ctypes.c_int]
    library.machine_gflops.restype = ctypes.c_double
    return library


def build_variant(folder: Path, operator: str, dims: dict[str, int]) -> dict[str, str] | None:
    """The kernel of a problem's variant as a separate shared library: its path, and the symbol of its launch function.

    None if the installed sources do not give exactly the object that the library has, because of another compiler.
    """
    from aot_tune import ops
    from aot_tune.compile import toolchain_for
    from aot_tune.render import Candidate, Renderer
    from aot_tune.spec.load_operators import bundled_templates, load_operator

    choice = ops.explain(operator, **dims)
    table = next(o for o in ops.manifest()["operators"] if o["name"] == operator)
    variant = next(v for v in table["variants"] if v["name"] == choice["variant"])
    root = bundled_templates()
    declared = load_operator(root / operator)
    chain = toolchain_for("cxx")
    target = next(t for t in chain.targets() if t.name == variant["target"])
    candidate = Candidate(
        operator=operator,
        kernel=variant["kernel"],
        backend=declared.kernel(variant["kernel"]).backend,
        target=target.name,
        config=variant["config"],
        generic=variant["generic"],
        dtypes=variant["dtypes"],
    )
    rendered = Renderer([root]).render(declared, candidate, target)
    if rendered.symbol != variant["symbol"]:
        return None
    work = folder / operator
    work.mkdir()
    compiled = chain.compile(rendered.source, target, work / "object.o", 120.0)
    if compiled.status != "ok" or sha256((work / "object.o").read_bytes()).hexdigest() != variant["object"]:
        return None
    chain.link_shared([work / "object.o"], work / "kernel.so")
    return {"path": str(work / "kernel.so"), "symbol": f"{rendered.symbol}_launch", "variant": variant["name"]}
