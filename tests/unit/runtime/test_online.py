"""AOT_TUNE_ONLINE: variants that are tried on calls that nobody measured, within a share of the time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import forked
import linked
import pytest
from traces import late_clock, read_trace

from aot_tune.workloads.workload_lines import add_up, decode_workload, encode_workload, known_problems

PRELUDE = """
import ctypes, os, sys, time
from pathlib import Path
sys.path[:0] = {path!r}
import numpy as np
from module_files import load_module
ops = load_module(Path({module!r}), "ops")
clock = ctypes.CDLL(None)

def gemm(m, scale=1000, n=8):
    "What the variant that served adds to each element."
    return int(ops.gemm(np.full((m, 8), scale, np.float32), np.full((8, n), scale, np.float32))[0, 0]) - 8 * scale**2

def costs(small, packed):
    clock.clock_cost(10, small)
    clock.clock_cost(20, packed)
"""
UNTIL = """
served = [gemm(5)]
while ops.explain("gemm", M=5, N=8, K=8)["why"] != WHY and len(served) < 1000:
    served.append(gemm(5))
"""
GEMM = linked.gemm_operator()
WHY = "the fastest of those that AOT_TUNE_ONLINE tried on such calls"


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return late_clock(tmp_path_factory.mktemp("clock"))


def run(built: linked.Built, code: str, wanted: str, clock: Path | None = None, **given: str) -> tuple[str, str]:
    """What a process of its own writes to stdout and stderr. With a clock, its kernels say how long they take."""
    prelude = PRELUDE.format(path=[p for p in sys.path if p], module=str(built.module)) + f"WHY = {WHY!r}\n"
    env = {"AOT_TUNE_ONLINE": wanted, "AOT_TUNE_CPU_LEVEL": "2", **given}
    if clock is None:
        return forked.run(prelude + code, **env)
    argv = [sys.executable, "-c", prelude + code]
    env = {**os.environ, **env, "LD_PRELOAD": str(clock)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_fastest_variant_serves_and_is_kept(built: linked.Built, clock: Path, tmp_path: Path) -> None:
    """Calls like measured problems are not tried. Other processes take the choice, and builds the problem."""
    file = tmp_path / "choices.jsonl"
    code = """
costs(small=10, packed=1)
print(*{gemm(8) for _ in range(20)})
"""
    said = run(built, code + UNTIL + "print(*sorted(set(served)), len(served) < 30, gemm(5))", f"100%:{file}", clock)
    assert said == ("10\n10 20 True 20\n", "")
    (line,) = read_trace(file).counts
    found = line["online"]
    assert (line["dims"], found["variant"], [*found["ns"]]) == (
        {"M": 5, "N": 8, "K": 8},
        "packed_2",
        ["small_2", "packed_2"],
    )
    merged = encode_workload(add_up(known_problems(decode_workload(file.read_bytes(), "file"), {"gemm": GEMM})))
    assert merged == b'{"operator":"gemm","dims":{"M":5,"N":8,"K":8},"weight":%d}\n' % line["calls"]
    by_c = f"""
from dltensors import tensor_of
arrays = [np.ones((n, 8), np.float32) for n in (5, 8, 5)]
a, b, out = (tensor_of(x.ctypes.data, (1, 0), x.shape, None, (2, 32)) for x in arrays)
given = ctypes.byref(a), ctypes.byref(b), None, None, ctypes.byref(out), 0, None
print(ctypes.CDLL({str(built.library)!r}).aot_tune_gemm(*given), arrays[2].max(), gemm(6), gemm(8))
"""
    assert run(built, by_c, f"0:{file}") == ("0 28.0 10 10\n", "")
    text = file.read_text()
    others = ('"build": "', '"build": "0'), ('"device": "', '"device": "other '), ("8}", '8}, "present": ["bias"]')
    for before, after in others:
        file.write_text(text.replace(before, after))
        assert run(built, by_c, f"0:{file}") == ("0 18.0 10 10\n", "")


def test_trials_take_their_share_of_the_time(built: linked.Built, clock: Path, tmp_path: Path) -> None:
    """One trial may take longer than was foreseen, and is paid for afterwards."""
    code = """
costs(small=10, packed=25)
begun, lost = time.monotonic(), 0
for n in range(2000):
    before = time.monotonic()
    gemm(5)
    lost += time.monotonic() - before - 10
    assert lost <= 0.005 * (time.monotonic() - begun) + 16, n
print(round(lost), ops.explain("gemm", M=5, N=8, K=8)["variant"])
"""
    assert run(built, code, f"0.5%:{tmp_path}/file", clock) == ("55 small_2\n", "")


def test_a_variant_with_other_results_is_told_and_not_taken(built: linked.Built, tmp_path: Path) -> None:
    code = "print(*{gemm(m, scale=1) for m in (5, 6) for _ in range(50)})"
    out, said = run(built, code, f"100:{tmp_path}/file")
    assert out == "10\n"
    assert said == (
        "aot_tune: ops.gemm: M=5 N=8 K=8: variant packed_2 differs from variant small_2: out[0, 0] is 28, wanted 18, "
        "give or take 0.0352; 40 of 40 elements differ too much. It is not taken for such calls. (AOT_TUNE_ONLINE)\n"
    )


def test_calls_that_change_their_inputs_change_them_once(odd: linked.Built, tmp_path: Path) -> None:
    """The other variant computes with copies, before the one that serves, or it serves itself."""
    code = "x = np.zeros(1000, np.float32)\nfor _ in range(200): ops.grow(x)\nprint(x.min(), x.max())"
    profile = tmp_path / "profile"
    assert run(odd, code, f"100:{tmp_path}/file", AOT_TUNE_PROFILE=str(profile)) == ("200.0 200.0\n", "")
    assert profile.read_text().count('"bytes": 8000') == 200  # 1000 floats, read and written
    assert [*read_trace(tmp_path / "file").counts[0]["online"]["ns"]] == ["grow_1", "grow_2"]


def test_a_share_that_is_no_number_is_an_error_of_the_first_call(built: linked.Built) -> None:
    code = "try:\n    gemm(8)\nexcept ops.CallError as error:\n    print(error)"
    for value in ("yes", "%", "-1", "101", "1.2.3", "1%%", "1:", "0,5", "1 %"):
        wanted = "such as 1 or 0.5%, alone or with a file as in 1%:choices.jsonl, or nothing"
        error = (
            f"gemm: AOT_TUNE_ONLINE is '{value}', which is no share of time; wanted percent from 0 to 100, {wanted}\n"
        )
        assert run(built, code, value) == (error, "")


def test_where_choices_are_kept(built: linked.Built, tmp_path: Path) -> None:
    """In the cache, for this user alone; a file that others may write is not read. Without the variable, nowhere."""
    file = tmp_path / "aot_tune" / "online" / "ops.jsonl"
    calls, home = "print(*{gemm(m) for m in (5, 8)})", {"XDG_CACHE_HOME": str(tmp_path), "AOT_TUNE_CACHE_DIR": ""}
    assert run(built, calls, "", **home) == ("10\n", "")
    assert not file.parent.exists()
    assert run(built, calls, "1", **home) == ("10\n", "")
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    file.chmod(0o666)
    lost = f"aot_tune: AOT_TUNE_ONLINE: {file}: others may write to it; choices are not kept\n"
    assert run(built, calls, "1", **home) == ("10\n", lost)


def test_calls_on_a_device_are_timed_by_events(standin: linked.Built, tmp_path: Path) -> None:
    """Nothing waits for them but the comparison, and calls in a capture are no trials: their stream is odd."""
    code = """
import linked_cuda
driver = linked_cuda.driver_of(Path(MODULE)).library
for mark, ns in ((100, 9000), (300, 5000), (400, 1000)):
    driver.stub_set(b"cost_%d" % mark, ctypes.c_int64(ns))

def served(calls, stream=2):
    out, x = np.zeros(12, np.float32), np.full(12, 1e6, np.float32)
    marks = []
    for _ in range(calls):
        ops.scale(linked_cuda.OnDevice(x, (2, 1)), out=linked_cuda.OnDevice(out, (2, 1)), stream=stream)
        marks.append(int(out[0] - 1e6 - 1000 * stream))
    return marks

driver.stub_log.restype = ctypes.c_char_p
driver.stub_set(b"query", ctypes.c_int64(600))
print(*set(served(20)), driver.stub_events())
driver.stub_set(b"query", ctypes.c_int64(0))
print(*set(served(20, stream=3)), driver.stub_events())
print(*sorted(set(served(100))), *set(served(20)), driver.stub_events(), driver.stub_log().count(b"copy"))
"""
    out = run(standin, code.replace("MODULE", repr(str(standin.module))), f"100:{tmp_path}/file")
    assert out == ("300 2\n300 2\n300 400 400 0 2\n", "")
    (line,) = read_trace(tmp_path / "file").counts
    assert line["online"]["device"] == "a  fake  GPU, 131 processors"
    assert (line["online"]["variant"], line["captured"]) == ("fast_90a", 20)
