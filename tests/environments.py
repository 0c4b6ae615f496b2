"""Virtual environments, command runs and counting compilers for the tests of whole packages."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NAMED = re.compile(r"OPERATORS ([a-z_ ]+)\n")
OPERATORS = sorted(_NAMED.findall((ROOT / "CMakeLists.txt").read_text())[0].split())
"""The bundled operators that an install has by default."""

# Drops the capabilities by which root may write anywhere; of no effect for anybody else.
_OBEY_MODES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if os.geteuid() == 0:
    for capability in (1, 2, 3):  # DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER
        if libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            sys.exit("cannot drop capability %d: %s" % (capability, os.strerror(ctypes.get_errno())))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def obeying_modes(argv: Sequence[object]) -> list[str]:
    """A command under which read-only files are read-only for root too."""
    return [sys.executable, "-c", _OBEY_MODES, *map(str, argv)]


CCACHE = shutil.which("ccache") or shutil.which("ccache", path=str(Path(sys.executable).parent)) or ""
"""Keeps what g++ made: most builds compile the same run time. Where bytes are compared, CCACHE_DISABLE is set."""


def environment(**given: str) -> dict[str, str]:
    """The environment without what would lead a build elsewhere, without time for older CPUs or handlers of XLA."""
    dropped = ("AOT_TUNE_", "SKBUILD", "CMAKE_", "PYTHON", "CXX", "MAX_JOBS", "VIRTUAL_ENV", "SOURCE_DATE_EPOCH")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    # Bytecode of all of numpy for each isolated build costs more than what such a build imports of it.
    launcher = {"CMAKE_CXX_COMPILER_LAUNCHER": f"{ROOT}/tests/cached;{CCACHE}"} if CCACHE else {}
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_COMPILE": "no", "AOT_TUNE_OLDER_CPUS": "0"}
    settings["AOT_TUNE_XLA_FFI"] = "0"
    return {**kept, **launcher, **settings, **given}


@contextlib.contextmanager
def own_processors() -> Iterator[None]:
    """Where tests run side by side, what is started in here keeps to a share of the processors: at least one.

    Threads of a kernel that is measured would wait for one whose processor the other tests have.
    """
    worker = re.fullmatch(r"gw(\d+)", os.environ.get("PYTEST_XDIST_WORKER", ""))
    allowed = os.sched_getaffinity(0)
    if worker is not None:
        share = max(1, len(allowed) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
        first = int(worker[1]) * share % len(allowed)
        os.sched_setaffinity(0, sorted(allowed)[first : first + share])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def run(
    argv: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    status: int | None = 0,
    timeout: float = 900,
) -> str:
    """Run a command; its output, stdout and stderr together. `status` None allows any."""
    with own_processors():
        done = subprocess.run(
            [str(a) for a in argv],
            env=dict(env) if env is not None else environment(),
            cwd=cwd or Path(tempfile.gettempdir()),  # never where `aot_tune` would be imported from
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            start_new_session=True,
        )
    assert status is None or done.returncode == status, f"{argv} ended with {done.returncode}:\n{done.stdout[-8000:]}"
    return done.stdout


@functools.cache
def front_end() -> Path:
    """A Python with the test environment's packages but without the hook of its editable install.

    That hook would give a build of any other source tree this tree's `aot_tune`, under isolation too.
    """
    folder = Path(tempfile.mkdtemp(prefix="front-end-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = Venv.make(folder / "venv")
    (made.packages / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")  # whose own .pth files do not count
    return made.python


def pip(*arguments: object, env: Mapping[str, str] | None = None, status: int | None = 0) -> str:
    return run([front_end(), "-m", "pip", *arguments], env=env, status=status)


@dataclass(frozen=True)
class Venv:
    """A virtual environment in `folder`."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return next(self.folder.glob("lib/python3*/site-packages"))

    @classmethod
    def make(cls, folder: Path) -> Venv:
        run([sys.executable, "-m", "venv", "--without-pip", folder])
        return cls(folder)

    def install(self, *arguments: object, env: Mapping[str, str] | None = None) -> str:
        return pip("--python", self.python, "install", "--no-index", *arguments, env=env)

    def run(self, *arguments: object, status: int | None = 0, **given: str) -> str:
        """Run a program of the environment, its `bin` first on the path."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        program = self.folder / "bin" / str(arguments[0])
        return run([program, *arguments[1:]], env=environment(PATH=path, **given), status=status, cwd=self.folder)


@dataclass(frozen=True)
class Compiler:
    """A g++ that logs its runs: `path` to use as CXX."""

    path: Path
    log: Path

    @classmethod
    def make(cls, folder: Path) -> Compiler:
        folder.mkdir(parents=True, exist_ok=True)
        path, log = folder / "g++", folder / "runs.log"
        # Its text is the same in every folder: a toolchain is known by it. ccache knows a compiler by its name.
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> "${{0%/*}}/runs.log"\nexec {CCACHE} g++ "$@"\n')
        path.chmod(0o755)
        return cls(path, log)

    def candidates(self) -> int:
        """How many candidates it has compiled: only those are built without glue's definitions and dependencies."""
        if not self.log.exists():
            return 0
        runs = [f" {line} " for line in self.log.read_text().splitlines()]
        return sum(" -c " in r and "-march=x86-64" in r and "candidate" in r for r in runs)

    def clear(self) -> None:
        self.log.unlink(missing_ok=True)


@dataclass(frozen=True)
class Built:
    wheel: Path
    log: str

    @property
    def measured(self) -> int:
        counts = re.findall(r"(\d+) measurements made", self.log)
        assert counts, f"the build says nothing of measurements:\n{self.log[-6000:]}"
        return sum(map(int, counts))


@dataclass
class Builder:
    """Builds wheels of a source tree without an index; `env` goes to every build."""

    wheelhouse: Path
    out: Path
    env: dict[str, str] = field(default_factory=dict)
    isolated: bool = True

    def build(self, source: Path, name: str = "wheel", *, read_only: bool = False, **given: str) -> Built:
        out = self.out / name
        shutil.rmtree(out, ignore_errors=True)
        argv: list[object] = [front_end(), "-m", "pip", "wheel", "-v", "--no-deps", "--no-cache-dir", "-w", out]
        argv += ["--no-index", "--find-links", self.wheelhouse]
        argv += [source] if self.isolated else ["--no-build-isolation", source]
        log = run(obeying_modes(argv) if read_only else argv, env=environment(**{**self.env, **given}))
        (wheel,) = out.glob("*.whl")
        return Built(wheel, log)


_NOT_SOURCE = shutil.ignore_patterns(".git", "__pycache__", ".*_cache", ".hypothesis", ".venv", "*.egg-info", "*.so")
_CUT = """
import dataclasses  # the tests' smaller workload, so that the whole set is tuned within seconds

import msgspec

_MOST = {"B": 4, "H": 2, "HK": 2}
operator = dataclasses.replace(
    operator,
    workload={
        family: tuple(
            msgspec.structs.replace(p, dims={n: min(e, _MOST.get(n, e)) for n, e in p.dims.items()})
            for p in sorted(operator.workload_for(family), key=lambda p: operator.flops.evaluate(operator.facts(p)))[:1]
        )
        for family in ("cpu", "cuda")
    },
)
"""
_FEWER_CHECKS = (
    ("aot_tune/bench/protocol/measurement_records.py", "check_bytes: int = 8 << 20", "check_bytes: int = 1 << 20"),
    ("aot_tune/bench/host/odd_problems.py", "_MOST_ON_HOST = 40", "_MOST_ON_HOST = 4"),
)
"""In files of the source: odd problems are small, and few. Those of attention alone would take a minute."""


def make_sdist(folder: Path) -> Path:
    code = "import sys; from aot_tune.build import build_sdist; print(build_sdist(sys.argv[1]))"
    said = run([sys.executable, "-B", "-c", code, folder], env=environment(PYTHONPATH=str(ROOT)), cwd=ROOT)
    return folder / said.splitlines()[-1]


def copy_source(folder: Path, sdist: Path | None = None, *, operators: Sequence[str] = ()) -> Path:
    """A copy of the source tree, or of an sdist, without its records; with those operators alone, or with all.

    Each operator has its smallest problem alone, and is verified on a few small odd ones.
    """
    if sdist is None:
        shutil.copytree(ROOT, folder, ignore=_NOT_SOURCE)
    else:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder.parent, filter="data")
        (folder.parent / sdist.name.removesuffix(".tar.gz")).rename(folder)
    for made in (*folder.glob("build*"), folder / "dist", folder / "wheelhouse", folder / "tuning"):
        shutil.rmtree(made, ignore_errors=True)
    for path in folder.glob("templates/*/operator.py"):
        if operators and path.parent.name not in operators:
            shutil.rmtree(path.parent)
        else:
            path.write_text(path.read_text() + _CUT)
    lists = folder / "CMakeLists.txt"
    lists.write_text(_NAMED.sub(f"OPERATORS {' '.join(operators or OPERATORS)}\n", lists.read_text()))
    for name, old, new in _FEWER_CHECKS:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
    return folder


def tree_digest(folder: Path) -> str:
    """Digest of names, kinds and contents of everything below a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        total.update(f"{path.relative_to(folder)}\0{path.is_dir()}\0".encode())
        if path.is_file():
            total.update(path.read_bytes())
    return total.hexdigest()


def make_read_only(folder: Path) -> None:
    """Take write permission away from everything below a folder."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & 0o555)


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {i.filename: archive.read(i) for i in archive.infolist() if not i.is_dir()}
