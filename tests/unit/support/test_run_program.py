"""Running a compiler: bounded, clean, and gone when it should be."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import becomes_true, is_alive

from aot_tune.support.errors import ToolchainError
from aot_tune.support.run_program import compiler_environment, key_environment, run

PLAIN = {"PATH": os.environ["PATH"]}


def python(code: str, tmp_path: Path, timeout: float = 30.0, memory: int | None = None):
    return run([sys.executable, "-c", code], folder=tmp_path, environ=PLAIN, timeout=timeout, memory=memory)


def gone(pid: int) -> bool:
    return becomes_true(lambda: not is_alive(pid), 10)


def test_a_flood_is_cut_in_the_middle(tmp_path: Path) -> None:
    done = python("print('first')\nfor _ in range(30000): print('x' * 99)\nprint('last')", tmp_path)
    assert len(done.output) < 80_000
    assert done.output.startswith("first\n")
    assert done.output.endswith("last\n")
    assert "bytes left out" in done.output


def test_a_timeout_kills_the_whole_group(tmp_path: Path) -> None:
    code = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\nprint(os.getpid() if child == 0 else child, flush=True)\ntime.sleep(600)"
    )
    began = time.monotonic()
    done = python(code, tmp_path, timeout=1.0)
    assert done.timed_out
    assert time.monotonic() - began < 20
    pids = done.output.split()
    assert pids
    assert all(gone(int(pid)) for pid in pids)


def test_what_the_program_leaves_running_is_killed(tmp_path: Path) -> None:
    code = "import os, time\npid = os.fork()\nif pid == 0: time.sleep(600)\nprint(pid, flush=True)"
    done = python(code, tmp_path)
    assert done.code == 0
    assert gone(int(done.output))


def test_memory_is_bounded(tmp_path: Path) -> None:
    code = "import time; time.sleep(0.3); x = bytearray(3 << 30); print('got it')"
    assert "MemoryError" in python(code, tmp_path, memory=1 << 30).output


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_machine_that_ran_out_is_not_the_compilers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    python("", tmp_path)  # the reaper runs

    def fail(*_arguments: object, **_named: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(ToolchainError, match="cannot be started") as caught:
        run(["g++"], folder=tmp_path, environ=PLAIN, timeout=1)
    assert "AOT_TUNE_JOBS" in caught.value.fix
    assert "CXX" not in caught.value.fix


def test_environment_is_an_allow_list(tmp_path: Path) -> None:
    odd = {
        "PATH": "/bin",
        "LD_PRELOAD": "evil.so",
        "PYTHONPATH": "/x",
        "GCC_COMPARE_DEBUG": "1",
        "CPATH": "/opt/include",
        "LANG": "de_DE.UTF-8",
        "TMPDIR": "/missing",
    }
    environ = compiler_environment(odd, tmp_path)
    assert environ == {
        "PATH": "/bin",
        "CPATH": "/opt/include",
        "LC_ALL": "C",
        "TMPDIR": str(tmp_path),
        "SOURCE_DATE_EPOCH": "0",
    }
    assert key_environment(odd) == {"CPATH": "/opt/include"}


def test_nothing_lives_on_when_the_caller_is_killed(tmp_path: Path, start_python) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom aot_tune.support.run_program import run\n"
        "child = 'import os, time\\nos.fork()\\nopen(str(os.getpid()), \"w\").close()\\ntime.sleep(600)'\n"
        "run([sys.executable, '-c', child], folder=Path(sys.argv[1]), environ={}, timeout=600)\n"
    )
    process = start_python(code, tmp_path)
    assert becomes_true(lambda: len(list(tmp_path.iterdir())) == 2, 20)
    pids = [int(p.name) for p in tmp_path.iterdir()]
    process.kill()
    process.wait()
    assert all(gone(pid) for pid in pids)
