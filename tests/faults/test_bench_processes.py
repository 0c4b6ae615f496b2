"""Worker processes: how they start, die and are replaced; nothing of them is left behind."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from aot_tune.bench.devices.family import devices
from aot_tune.bench.host.pool import Pool
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import Deadlines, Policy
from aot_tune.support.errors import WorkerError

pytestmark = pytest.mark.slow

DEADLINES = Deadlines(handshake=30)


def test_a_worker_is_started_once_with_an_environment_that_is_an_allow_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "import path"
    kept.mkdir()
    for name in ("LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "CPATH", "OMP_NUM_THREADS", "PYTHONSTARTUP", "SECRET"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setenv("TMPDIR", "/does/not/exist")
    monkeypatch.setattr(sys, "path", [str(kept), *sys.path])
    before = dict(os.environ)
    with Pool(devices("cpu", 2)[0], Policy(deadlines=DEADLINES), tmp_path / "s", 2, lambda _line: None) as pool:
        worker = pool.candidates()
        pid = worker.pid
        worker.start()
        worker.wait_ready()
        assert worker.pid == pid
        assert isinstance(worker.request(messages.Ping(), 5), messages.Pong)
        assert worker.hello.pid == pid
        assert worker.hello.device == pool.device.identity
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert command[1:3] == [b"-m", b"aot_tune.bench.worker"]
        assert os.getpgid(pid) == os.getsid(pid) == pid
        lines = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    assert dict(os.environ) == before
    assert not {"LD_PRELOAD", "CPATH", "PYTHONHOME", "PYTHONSTARTUP", "SECRET"} & set(found)
    assert found["OMP_NUM_THREADS"] == "2"
    assert found["PYTHONPATH"].split(os.pathsep)[0] == str(kept)
    assert "/nowhere" not in found["PYTHONPATH"].split(os.pathsep)
    assert found["TMPDIR"].startswith(str(tmp_path / "s"))
    assert found["HOME"] == found["TMPDIR"]


def test_a_worker_that_never_answers_is_reported_with_what_it_printed(tmp_path: Path) -> None:
    code = "import sys, time; print('cannot find my libraries', file=sys.stderr, flush=True); time.sleep(60)"
    policy = Policy(deadlines=Deadlines(handshake=1.0))
    begin = time.monotonic()
    command = (sys.executable, "-c", code)
    with (
        Pool(devices("cpu", 2)[0], policy, tmp_path, 2, lambda _l: None, command) as pool,
        pytest.raises(WorkerError, match="never answered") as caught,
    ):
        pool.candidates()
    assert "cannot find my libraries" in caught.value.why
    assert time.monotonic() - begin < 5


def test_a_worker_that_dies_at_its_start_is_reported_with_its_traceback(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import no_such_module_anywhere")
    with (
        Pool(devices("cpu", 2)[0], Policy(), tmp_path, 2, lambda _l: None, command) as pool,
        pytest.raises(WorkerError, match="ended with status 1") as caught,
    ):
        pool.candidates()
    assert "No module named 'no_such_module_anywhere'" in caught.value.why
