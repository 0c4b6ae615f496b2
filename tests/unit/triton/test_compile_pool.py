"""The processes that compile Triton functions: kept, one for each thread, replaced when dead, gone with their owner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from processes import becomes_true, processes
from triton_installed import FUNCTIONS, ONE_TRITON, ask, integer, request

from aot_tune.render.triton.recipe import Recipe
from aot_tune.spec import dims
from aot_tune.support.run_program import kill_running
from aot_tune.triton.compile_pool import CompilerPool, CompilerSetup
from aot_tune.triton.triton_messages import CompileRequest

TARGET = "cuda-sm_90a"
_REQUESTS: dict[tuple[str, str], Recipe] = {}


@pytest.fixture
def pool() -> Iterator[CompilerPool]:
    made = CompilerPool()
    yield made
    made.close()


def setup_of(search: list[str], **environ: str) -> CompilerSetup:
    return CompilerSetup.of(TARGET, [str(FUNCTIONS.parent)], search, {**os.environ, **environ})


def compile_request(search: list[str], folder: Path, function: str = "rows.py:plain") -> CompileRequest:
    if (search[0], function) not in _REQUESTS:
        (answer,) = ask(search, TARGET, request(function, {"n": integer(dims("N")[0])}))
        assert answer.inspection is not None, answer.fault
        types = {"a": "*fp32", "x": "*fp32", "y": "*fp32", "n": "i32", "step": "i32"}
        names = [p.name for p in answer.inspection.parameters]
        _REQUESTS[search[0], function] = Recipe(
            function=f"triton_functions/{function}",
            digest=answer.inspection.digest,
            signature={n: types.get(n, "constexpr") for n in names},
            constexprs={"BLOCK": 256},
        )
    folder.mkdir(exist_ok=True)
    return CompileRequest(recipe=_REQUESTS[search[0], function], image=str(folder / "kernel.bin"))


def workers(parent: int) -> list[int]:

    def is_its_worker(entry: Path) -> bool:
        command = (entry / "cmdline").read_bytes().split(b"\0")
        above = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        return b"aot_tune.triton.compile_worker" in command and int(above) == parent

    return processes(is_its_worker)


@ONE_TRITON
def test_a_worker_is_kept_and_used_again_and_replaced_once_it_is_dead(
    search: list[str], pool: CompilerPool, tmp_path: Path
) -> None:
    """Variables of Triton do not reach it: a user's settings for the JIT would change what is made."""
    before = set(workers(os.getpid()))
    asked = compile_request(search, tmp_path)
    jit = {"TRITON_DEFAULT_FP_FUSION": "0", "DISABLE_PTXAS_OPT": "1", "TRITON_INTERPRET": "1"}
    images, started = [], []
    for environ in ({}, {}, jit):
        reply, memory = pool.compile(setup_of(search, **environ), asked, 60)
        assert reply.image is not None, reply.error
        assert memory > 50 << 20
        images.append((tmp_path / "kernel.bin").read_bytes())
        started.append(set(workers(os.getpid())) - before)
    assert len(set(images)) == 1
    assert len(started[1]) == 1
    for one in (compile_request(search, tmp_path, "odd.py:asks"), asked):  # which does not read the second request
        reply, _ = pool.compile(setup_of(search), one, 60)
        assert reply.image is not None, reply.error
    kill_running()
    time.sleep(0.2)
    reply, _ = pool.compile(setup_of(search), asked, 60)
    assert reply.image is not None
    pool.close()
    assert set(workers(os.getpid())) <= before  # an earlier test's was killed, too


@ONE_TRITON
def test_workers_die_with_the_process_that_started_them(search: list[str], tmp_path: Path) -> None:
    """Also one that is busy, and also when nobody can clean up."""
    request_file = tmp_path / "request.json"
    request_file.write_bytes(msgspec.json.encode(compile_request(search, tmp_path, "wrong.py:hangs")))
    program = f"""
import sys
sys.path[:0] = {search!r}
import msgspec
from pathlib import Path
from aot_tune.triton.compile_pool import pool, CompilerSetup
from aot_tune.triton.triton_messages import CompileRequest
request = msgspec.json.decode(Path({str(request_file)!r}).read_bytes(), type=CompileRequest)
setup = CompilerSetup.of({TARGET!r}, [{str(FUNCTIONS.parent)!r}], {search!r}, {{"PATH": {os.environ["PATH"]!r}}})
pool().compile(setup, request, 50)
"""
    owner = subprocess.Popen([sys.executable, "-c", program])
    try:
        assert becomes_true(lambda: workers(owner.pid), 30)
        started = workers(owner.pid)
        time.sleep(1)  # it compiles by now
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    assert becomes_true(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 10)
