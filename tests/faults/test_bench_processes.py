"""Worker processes: how they start, die and are replaced; nothing of them is left behind."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from processes import becomes_true, is_alive, processes

from aot_tune.bench.devices.family import family
from aot_tune.bench.host.worker_process import DiedError, Pool
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.channel import HELLO, new_id, write_frame
from aot_tune.bench.protocol.measurement_records import Deadlines, Device, Policy
from aot_tune.support.errors import WorkerError
from aot_tune.support.kernel_features import set_subreaper
from aot_tune.support.processes import children_of

pytestmark = pytest.mark.slow

DEADLINES = Deadlines(handshake=30)


def pool_in(
    folder: Path, *command: str, policy: Policy | None = None, unit: str = "GPU-1", **identity: str | int
) -> Pool:
    """Workers for this CPU, or for a device of an identity; `command` runs in place of a worker."""
    fake = Device(family="cpu", name="fake", slug="fake", identity=identity, unit=unit)
    device = fake if identity else family("cpu").devices(2)[0]
    return Pool(device, policy or Policy(deadlines=DEADLINES), folder, 2, lambda _line: None, command or None)


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
    with pool_in(tmp_path / "s") as pool:
        worker = pool.candidates()
        pid = worker.pid
        worker.start()
        worker.wait_ready()
        assert worker.pid == pid
        assert isinstance(worker.request(messages.Ping(), 5), messages.Pong)
        assert worker.hello.pid == pid
        assert worker.hello.device == pool.device.identity
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert command[2] == b"aot_tune.bench.worker"
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


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Any]:
    with pool_in(tmp_path) as made:
        yield made


def test_a_worker_outlives_odd_messages_and_its_death_is_noticed_at_once(pool: Any) -> None:
    first, spare = pool.candidates(), pool._workers["spare"]
    odd = b'{"type":"dance"}', b'{"type":"load","handle":1}', b'{"type":"ping","more":1}'
    for raw in (*odd, b"not json", b"", b"[]", b"\xff\xfe"):
        first._id = new_id()
        write_frame(first._requests, first._id + raw)
        reply = first._wait(5)
        assert isinstance(reply, messages.Failure)
        assert reply.kind == "protocol"
    reply = first.request(messages.Verify(handle="nobody", keys=()), 5)
    assert isinstance(reply, messages.Failure)
    assert reply.kind == "KeyError"
    assert isinstance(first.request(messages.Ping(), 5), messages.Pong)
    spare.wait_ready()
    os.kill(first.pid, signal.SIGSTOP)  # busy for ever
    threading.Timer(0.3, os.kill, (first.pid, signal.SIGKILL)).start()
    begin = time.monotonic()
    with pytest.raises(DiedError) as caught:
        pool.request(first, messages.Ping(), 30)
    took = time.monotonic() - begin
    assert took < 5, f"a death after 0.3 s was noticed after {took:.3f} s"
    assert caught.value.status == "oom"  # a kill that the bench did not send
    assert pool.candidates() is spare
    assert pool._workers["spare"] is not spare


def test_a_death_is_told_with_its_own_fault_and_not_with_that_of_a_kill_before(pool: Any) -> None:
    told, reasons = iter(("Xid 43", "Xid 31")), []
    pool.faults, pool._kernel.of = lambda: next(told), lambda _pid: ""
    for status in ("timeout", "crashed"):
        worker = Mock(pid=0, role="candidate", request=Mock(side_effect=DiedError(status, "it died")))
        with pytest.raises(DiedError) as caught:
            pool.request(worker, messages.Ping(), 1)
        reasons.append(caught.value.reason)
    assert reasons == ["it died", "it died; Xid 31"]


def test_a_worker_that_never_answers_is_reported_with_what_it_printed(tmp_path: Path) -> None:
    code = "import sys, time; print('cannot find my libraries', file=sys.stderr, flush=True); time.sleep(60)"
    begin, policy = time.monotonic(), Policy(deadlines=Deadlines(handshake=1.0))
    with (
        pool_in(tmp_path, sys.executable, "-c", code, policy=policy) as pool,
        pytest.raises(WorkerError, match="never answered") as caught,
    ):
        pool.candidates()
    assert "cannot find my libraries" in caught.value.why
    assert time.monotonic() - begin < 5


SLOW = """
import os, sys, time
import msgspec
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.channel import HELLO, opened, read_frame, write_frame
from aot_tune.bench.protocol.messages import Setup

setup = msgspec.json.decode(sys.argv[1], type=Setup)
hello = messages.Hello(pid=os.getpid(), abi=messages.PROTOCOL, device=setup.device.identity, sandbox={})
write_frame(setup.replies, HELLO + messages.encode(hello))
for moves in (1, 0):
    asked, _ = opened(read_frame(setup.requests))
    for number in range(4):
        place = messages.Place(place=f"place {moves * number}", resident_bytes=0)
        write_frame(setup.replies, asked + messages.encode(place))
        time.sleep(0.4)
    write_frame(setup.replies, asked + messages.encode(messages.Pong()))
"""


def test_a_deadline_is_for_each_place_that_a_worker_names(tmp_path: Path) -> None:
    """A machine that others keep busy takes long for many problems; a hang stays at one."""
    with pool_in(tmp_path, sys.executable, "-c", SLOW) as pool:
        worker = pool.candidates()
        assert isinstance(worker.request(messages.Ping(), 1.2), messages.Pong)  # it takes 1.6 s
        with pytest.raises(DiedError, match=r"no answer within 1\.2 s in place 0") as caught:
            worker.request(messages.Ping(), 1.2)
    assert caught.value.status == "timeout"


def test_a_worker_that_dies_at_its_start_is_reported_with_its_traceback(tmp_path: Path) -> None:
    with (
        pool_in(tmp_path, sys.executable, "-c", "import no_such_module_anywhere") as pool,
        pytest.raises(WorkerError, match="ended with status 1") as caught,
    ):
        pool.candidates()
    assert "No module named 'no_such_module_anywhere'" in caught.value.why


QUICK = (
    sys.executable,
    "-I",
    "-S",
    "-c",
    f"""
import sys, os, json, struct
setup = json.loads(sys.argv[1])
hello = dict(type="hello", pid=os.getpid(), abi={messages.PROTOCOL}, device=dict(a=1), sandbox=dict(), unit="GPU-1")
hello = {HELLO!r} + json.dumps(hello).encode()
os.write(setup["replies"], struct.pack("<I", len(hello)) + hello)
os.read(setup["requests"], 1000)
os.abort()
""",
)
"""A process that only shakes hands, so that many of them start in seconds."""


@pytest.mark.parametrize(
    ("unit", "identity", "said"),
    [
        ("GPU-1", 2, "on another device: a differ"),
        ("GPU-2", 1, "another device: UUIDs differ"),
        ("MIG-2", 1, "another device: UUIDs differ"),
        ("MIG-1", 1, ""),
    ],
)
def test_a_worker_on_another_device_ends_the_build(tmp_path: Path, unit: str, identity: int, said: str) -> None:
    with pool_in(tmp_path, *QUICK, unit=unit, a=identity) as pool:
        if not said:
            assert pool.candidates().hello.unit == "GPU-1"
            return
        with pytest.raises(WorkerError, match=said):
            pool.candidates()


def test_many_failures_leave_two_workers_and_no_zombie(tmp_path: Path) -> None:
    before = set(children_of(os.getpid()))
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pool_in(tmp_path, *QUICK, a=1) as pool:
        for _ in range(12):
            with pytest.raises(DiedError) as caught:
                pool.request(pool.candidates(), messages.Ping(), 10)
            assert caught.value.status == "crashed"
        pool.candidates()
        assert len(pool.workers()) == 2
        assert len(set(children_of(os.getpid())) - before) == 2
    assert set(children_of(os.getpid())) == before
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_the_subreaper_flag_is_restored(tmp_path: Path) -> None:
    def is_subreaper() -> bool:
        value = ctypes.c_int(-1)
        ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0)
        return bool(value.value)

    try:
        for before in (False, True):
            set_subreaper(before)
            with pool_in(tmp_path, *QUICK):
                assert is_subreaper()
            assert is_subreaper() == before
    finally:
        set_subreaper(False)


PROGRAM = """
import resource, sys, time
from pathlib import Path
from types import SimpleNamespace
from aot_tune.bench.devices.family import family
from aot_tune.bench.host.bench import Bench
from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.spec.load_operators import load_operator
from tests.compiled import linked_variant
how, scratch, folder, *paths = sys.argv[1:]
if how == "few descriptors":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
bench = Bench(family("cpu").devices(2)[0], Policy(), scratch=Path(scratch), threads=2)
if how == "exit":
    bench.__enter__()
    bench.pool.candidates()
    print(*(w.pid for w in bench.pool.workers()), flush=True)
    raise SystemExit(0)
with bench:
    operator = load_operator(Path(folder))
    prepared = bench.prepare(operator, operator.workload[0])
    bench.pool.settle()
    print(*(w.pid for w in bench.pool.workers()), flush=True)
    for path in paths:
        one = linked_variant(SimpleNamespace(id=path), Path(path), "candidate", path)
        print(bench.screen(prepared, one).status, flush=True)
    time.sleep(0 if paths else 60)
"""


def below(folder: Path, word: bytes = b"") -> list[int]:
    """Processes whose folder is below another, with a word in their command."""
    return processes(
        lambda entry: (entry / "cwd").readlink().is_relative_to(folder) and word in (entry / "cmdline").read_bytes()
    )


def test_no_worker_outlives_its_parent(tmp_path: Path, start_python: Any, operator_folder: Path, objects: Any) -> None:
    """FAULTS.md, row 84: the first one's is busy with a candidate that never returns and keeps nothing that ties it."""
    ways = ("SIGKILL", "SIGTERM", "SIGINT", "exit")
    candidates = {"SIGKILL": [objects("outlives")]}
    parents = [start_python(PROGRAM, w, tmp_path / w, operator_folder, *candidates.get(w, [])) for w in ways]
    workers = [[int(p) for p in parent.stdout.readline().split()] for parent in parents]
    assert [len(pids) for pids in workers] == [3, 3, 3, 2]
    time.sleep(0.5)
    assert all(is_alive(p) for pids in workers[:3] for p in pids)
    assert becomes_true(lambda: below(tmp_path, b"sleep"), 10)
    for how, parent in zip(ways[:3], parents, strict=False):
        parent.send_signal(getattr(signal, how))
    parents[3].wait(10)
    becomes_true(lambda: not any(is_alive(p) for pids in workers for p in pids), 10)
    assert [how for how, pids in zip(ways, workers, strict=True) if any(is_alive(p) for p in pids)] == []
    assert becomes_true(lambda: not below(tmp_path), 10)
    for parent in parents:
        parent.wait(10)
        parent.stdout.close()


def test_few_descriptors_are_enough(tmp_path: Path, start_python: Any, operator_folder: Path, objects: Any) -> None:
    two = objects("segfault"), objects("good")
    parent = start_python(PROGRAM, "few descriptors", tmp_path / "scratch", operator_folder, *two)
    out, _ = parent.communicate(timeout=60)
    assert out.splitlines()[1:] == ["crashed", "ok"]
