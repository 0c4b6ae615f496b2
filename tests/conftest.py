"""Fixtures that several stages' tests share."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from aot_tune.render import Candidate, Rendered

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # for what test modules share
settings.register_profile("any machine", deadline=None)  # how fast an example is says nothing about the code
settings.load_profile("any machine")

for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # `nohup`, or a shell's `&`, may have them ignored
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

Once = Callable[[str, Callable[[Path], object]], Path]
LAUNCH = 'extern "C" __attribute__((visibility("default")))'


def pytest_configure(config: pytest.Config) -> None:
    """Let all processes of a run share what g++ made, whatever folder it was made in.

    In all of them, numpy's OpenBLAS has one thread, so that it may serve calls.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    cache = getattr(config, "cache", None)  # there is none with `-p no:cacheprovider`
    if cache is not None:
        os.environ.setdefault("CCACHE_DIR", str(cache.mkdir("ccache")))
    os.environ.setdefault("CCACHE_NOHASHDIR", "1")
    os.environ.setdefault("CCACHE_BASEDIR", tempfile.gettempdir())
    os.environ.setdefault("CCACHE_COMPILERCHECK", "%compiler% --version")  # most are scripts of a test's own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    from sharing import rank

    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope`, tests that share fixtures share a process."""
    from sharing import shared_scope
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shared_scope(nodeid)

    return Scheduling(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """A variable of ours that a test leaves behind changes what later tests see: that test fails."""
    before = _own_variables()
    yield
    assert _own_variables() == before


def _own_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("AOT_TUNE_")}


@pytest.fixture
def make_rendered() -> Callable[..., Rendered]:
    """Small candidates: `make_rendered(7)`, or with a source of their own, in which SYMBOL stands for the symbol."""

    def make(number: int = 0, source: str | None = None, target: str = "cpu-x86-64") -> Rendered:
        if source is None:
            source = (
                f"// target: {target}\n{LAUNCH} int SYMBOL_workspace(unsigned long* size) {{ *size = 0; return 0; }}\n"
                f"{LAUNCH} int SYMBOL_launch(float* x, int n) {{\n"
                f"    for (int i = 0; i < n; ++i) x[i] += {number}.0f;\n    return 0;\n}}\n"
            )
        digest = hashlib.sha256(source.encode()).hexdigest()
        symbol = f"aot_tune_test_{digest[:16]}"
        lines = [("test/kernel.cpp.j2", n + 101) for n in range(source.count("\n") + 1)]
        candidate = Candidate(operator="test", kernel="kernel", backend="cxx", target=target, config={"N": number})
        return Rendered(
            candidate=candidate, source=source.replace("SYMBOL", symbol), digest=digest, symbol=symbol, lines=lines
        )

    return make


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder that the processes of a run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "run"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def once(run_folder: Path) -> Once:
    """`once(name, make)` is a folder that `make(folder)` filled once in a run: by the first process that wants it."""
    from filelock import FileLock

    def get(name: str, make: Callable[[Path], object]) -> Path:
        folder = run_folder / name
        with FileLock(f"{folder}.lock"):
            if not (folder / "ready").exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
                folder.mkdir()
                make(folder)
                (folder / "ready").touch()
        return folder

    return get


@pytest.fixture(scope="session")
def tuned_once(once: Once) -> Any:
    """The tiny project of tests/project.py, built and recorded once in a run of the tests, to be copied.

    `tuned_once.copied(folder)` has the build in `build`, the record in `tuning`, the object cache and the measurements'
    store in `cache`: a build of it compiles and measures only what a change asks for.
    """
    from project import Project

    def make(folder: Path) -> None:
        made = Project.make(folder / "project")
        made.configure()
        made.build()
        made.record()

    return Project.at(once("tuned", make) / "project")


@pytest.fixture(scope="session")
def forks() -> Callable[..., str]:
    """Runs `aot-tune` for a project's `runs`, where nothing is told by how a process starts."""
    from forked import command

    return command


@pytest.fixture
def tuned(tuned_once: Any, tmp_path: Path) -> Any:
    """A copy of `tuned_once` of a test's own."""
    return tuned_once.copied(tmp_path / "project")


@pytest.fixture
def counting_compiler(tmp_path: Path) -> tuple[Path, Callable[[], int]]:
    """A compiler that counts its runs on sources: its path, and how often it has run."""
    log, path = tmp_path / "runs.log", tmp_path / "counting-g++"
    path.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) echo run >> "{log}";; esac\nexec g++ "$@"\n')
    path.chmod(0o755)
    return path, lambda: len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def start_python() -> Callable[..., subprocess.Popen[str]]:
    """Start a Python program of the tests: `start_python(code, *arguments, **environment)`."""

    def start(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        argv = [sys.executable, "-c", code, *(str(a) for a in arguments)]
        return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    return start
