"""The C++ shim: through it, calls of torch's operators reach a library without Python.

It is one small library for all tuned libraries. `build_shim` compiles it against the installed torch, and it is kept in
the cache folder. Without it, calls go through Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from aot_tune.signatures.operator_signature import OperatorSignature, Overload
from aot_tune.support.installed_paths import RUNTIME
from aot_tune.torch.torch_versions import TorchError

_SOURCE = Path(__file__).resolve().parent / "csrc" / "shim.cpp"
_HEADERS = (_SOURCE.with_name("torch_call.h"), RUNTIME / "tables.h", RUNTIME / "include" / "aot_tune" / "base.h")
_CAPSULE = "aot_tune.tables.2"
_NAME = "aot_tune_torch.so"
_OLDEST = (2, 11)
"""The oldest torch whose stable ABI has what the shim needs."""

_SECONDS = 600.0


class ShimError(TorchError):
    """The shim cannot be built, or does not fit this torch."""


def build_shim(folder: str | os.PathLike[str] | None = None, *, rebuild: bool = False) -> Path:
    """Compile the shim for the installed torch, unless that was done before. Returns its path.

    Args:
        folder: where to put it. The default is the cache folder, where `register` looks for it.
        rebuild: compile it even if it exists.

    The compiler is `CXX`, else g++ or c++. It takes some seconds. Python's headers must be installed.

    Raises:
        ShimError: when torch is too old, when there is no compiler, or when it fails. It says what to do.
        CacheError: when the cache folder belongs to somebody else, or is not writable.
    """
    _check_torch()
    target = Path(folder).absolute() if folder is not None else _folder(make=True)
    if target is None:
        raise ShimError("there is no cache folder to put the shim into", fix="set AOT_TUNE_CACHE_DIR, or pass folder=")
    target.mkdir(parents=True, exist_ok=True)
    path = target / _NAME
    if path.is_file() and not rebuild and folder is None:
        return path
    with tempfile.TemporaryDirectory(dir=target, prefix="build-") as scratch:
        library = Path(scratch) / _NAME
        _compile([*_compiler(), *_flags(), str(_SOURCE), *_libraries(), "-o", str(library)], Path(scratch))
        library.chmod(0o600)
        library.replace(path)
    return path


def find_shim() -> Path | None:
    """The shim that `build_shim` made for this torch; None if there is none."""
    with contextlib.suppress(ShimError):
        _check_torch()
        folder = _folder(make=False)
        if folder is not None and (folder / _NAME).is_file():
            return folder / _NAME
    return None


class Shim:
    """The loaded shim. It stays loaded, because torch keeps its functions."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.PyDLL(str(path))
        except OSError as error:
            raise ShimError(
                f"the shim {path} cannot be loaded: {error}",
                why="it was built for another torch or Python",
                fix="call aot_tune.torch.build_shim(rebuild=True) and start Python again",
            ) from error
        start = self._library.aot_tune_torch_start
        start.restype = ctypes.c_char_p
        lacking = start()
        if lacking is not None:
            raise ShimError(
                f"torch {torch.__version__} has no {lacking.decode()}, which the shim needs",
                fix="register(..., shim=False) calls operators through Python",
            )
        self._space = self._library.aot_tune_torch_namespace
        self._space.restype, self._space.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        self._implement = self._library.aot_tune_torch_implement
        self._implement.restype = ctypes.c_char_p
        number = ctypes.c_int
        self._implement.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, number, ctypes.c_char_p, number, number, number,
            ctypes.c_bool, ctypes.POINTER(ctypes.py_object),
        ]  # fmt: skip
        self._spaces: dict[str, int] = {}

    def implement(
        self,
        module: ModuleType,
        namespace: str,
        operators: Sequence[OperatorSignature],
        op: OperatorSignature,
        overload: Overload,
        *,
        differentiable: bool,
    ) -> None:
        """Put the kernel of an overload into torch's dispatcher."""
        if namespace not in self._spaces:
            self._spaces[namespace] = self._space(namespace.encode())
        names = [t.name for t in op.tensors]
        inputs = [names.index(t.name) for t in op.positional]
        taken, made = ([names.index(n) for n in some] for some in (overload.taken, overload.made))
        errors = (ctypes.py_object * 3)(module.ArgumentTypeError, module.ArgumentValueError, module.CallError)
        _kept.append(errors)
        defined = f"{op.name}{'.' if overload.name else ''}{overload.name}"
        wrong = self._implement(
            self._spaces[namespace], defined.encode(), _tables(module), list(operators).index(op),
            bytes([*inputs, *taken, *made]), len(inputs), len(taken), len(made), differentiable, errors,
        )  # fmt: skip
        if wrong is not None:
            raise ShimError(
                f"the shim cannot take {namespace}::{defined}: {wrong.decode()}",
                fix="register(..., shim=False) calls operators through Python",
            )


_kept: list[object] = []
"""Objects that the shim points to, so that they stay alive."""


@cache
def load_shim(path: Path) -> Shim:
    """The shim at a path. It is loaded once. Raises ShimError when it does not fit this torch."""
    return Shim(path)


def _tables(module: ModuleType) -> int:
    """The addresses of a module's tables."""
    capsule = getattr(module, "__tables__", None)
    valid, pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    valid.argtypes, pointer.argtypes = [ctypes.py_object, ctypes.c_char_p], [ctypes.py_object, ctypes.c_char_p]
    pointer.restype = ctypes.c_void_p
    if capsule is None or not valid(capsule, _CAPSULE.encode()):
        raise ShimError(
            f"{module.__name__} has no tables that this shim can read",
            why="another version of aot_tune built the module",
            fix="build the module again with the version that is installed, or pass shim=False",
        )
    return int(pointer(capsule, _CAPSULE.encode()))


def _check_torch() -> None:
    if tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) < _OLDEST:
        raise ShimError(
            f"torch {torch.__version__} is too old for the shim",
            why=f"its stable ABI has what is needed from torch {'.'.join(map(str, _OLDEST))} on",
            fix="use a newer torch; without the shim operators are called through Python",
        )


def _folder(*, make: bool) -> Path | None:
    """The folder of this torch's shim in the cache; None if there is no cache."""
    from aot_tune.support.storage import cache_location, check_folder

    location = cache_location(os.environ)
    if location.root is None or not (make or location.root.is_dir()):
        return None
    check_folder(location.root, trusted=location.trusted, writable=make)
    return location.root / "torch" / _key()


def _key() -> str:
    """What a shim depends on, except for the compiler."""
    texts = [path.read_text() for path in (_SOURCE, *_HEADERS)]
    about = [torch.__version__, str(torch.version.git_version), sys.implementation.cache_tag or "", torch.__file__]
    return hashlib.sha256("\0".join([*about, *texts]).encode()).hexdigest()[:24]


def _compiler() -> list[str]:
    named = os.environ.get("CXX", "")
    for name in (named,) if named else ("g++", "c++"):
        words = [name] if shutil.which(name) else shlex.split(name)
        if words and shutil.which(words[0]):
            return words
    raise ShimError(
        f"CXX={named!r} is not a program" if named else "no C++ compiler found: neither g++ nor c++ is on PATH",
        fix="install g++ 11 or later, or set CXX to its path",
    )


def _flags() -> list[str]:
    python = Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").is_file():
        raise ShimError(
            f"Python's headers are missing: there is no {python / 'Python.h'}",
            why="the shim raises the module's own errors",
            fix="install python3-dev or its like; without the shim operators are called through Python",
        )
    included = [Path(torch.__file__).parent / "include", python]
    family = ["-DUSE_CUDA"] if torch.version.cuda or torch.version.hip else []
    return [
        "-O2", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", *family,
        f"-DAOT_TUNE_GPU={'kDLROCM' if torch.version.hip else 'kDLCUDA'}",
        *(part for path in included for part in ("-isystem", str(path))),
        f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}",
    ]  # fmt: skip


def _libraries() -> list[str]:
    family = ["-ltorch_hip"] if torch.version.hip else ["-ltorch_cuda"] if torch.version.cuda else []
    return [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10", *family]


def _compile(argv: Sequence[str], folder: Path, environ: Mapping[str, str] = os.environ) -> None:
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**environ, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ShimError(f"the shim cannot be compiled: {error}", fix="set CXX to g++ 11 or later") from error
    if done.returncode != 0:
        raise ShimError(
            f"the shim cannot be compiled against torch {torch.__version__}",
            why=(done.stderr or done.stdout).strip()[:4000],
            fix="set CXX to g++ 11 or later; without the shim operators are called through Python",
        )
