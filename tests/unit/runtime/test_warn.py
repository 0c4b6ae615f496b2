"""What a library says where it was tuned for others: AOT_TUNE_WARN=unseen, explain()'s threads and processors."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import linked
import pytest
from places import ROOT, SHARED

from aot_tune.link import LibrarySpec, SeenCalls

PRELUDE = """
import os, sys, threading
import linked, linked_cuda, numpy as np
from pathlib import Path
ops = linked.load_module(Path(sys.argv[1]))

def gemm(m, n=8, k=8, **options):
    return ops.gemm(np.ones((m, k), np.float32), np.ones((k, n), np.float32), **options)

def norm(m):
    return ops.rms_norm(np.ones((m, 2), np.float32), np.ones(2, np.float32))
"""
REMEDY = (
    "; what serves it is a guess. To tune what the program calls, run it once with AOT_TUNE_TRACE=calls.jsonl, then "
    "`aot-tune workload merge calls.jsonl -o workload.jsonl`, and build with AOT_TUNE_WORKLOAD=+workload.jsonl. "
    "(AOT_TUNE_WARN=unseen tells the first such call of each operator.)\n"
)


def run(built: linked.Built, code: str, **environment: str) -> tuple[str, str]:
    """What a process of its own writes to stdout and stderr."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(SHARED)]), **environment}
    argv = [sys.executable, "-c", PRELUDE + code, str(built.module)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def warned(built: linked.Built, code: str, wanted: str = "unseen", **environment: str) -> str:
    return run(built, code, AOT_TUNE_WARN=wanted, **{"AOT_TUNE_CPU_LEVEL": "2", **environment})[1]


def with_tables(spec: LibrarySpec, *changes: dict[str, object]) -> LibrarySpec:
    """A library whose first operator's tables are changed."""
    first, *others = spec.operators
    tables = tuple(dataclasses.replace(t, **c) for t, c in zip(first.tables, changes, strict=True))  # type: ignore[arg-type]
    return dataclasses.replace(spec, operators=(dataclasses.replace(first, tables=tables), *others))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """The library whose table for level 2 was tuned with 3 threads, on M from 2 to 64, with N = 8 and K from 1 to 8."""
    folder = tmp_path_factory.mktemp("seen")
    dims = {"M": (2, 64), "N": (8, 8), "K": (1, 8)}
    calls = (SeenCalls(facts=(), dims=dims),)
    spec = with_tables(linked.library_spec(folder / "objects"), {"seen": calls, "processors": 3}, {})
    return linked.link_library(spec, folder / "out")


def test_the_first_call_outside_of_what_was_measured_is_told(seen: linked.Built) -> None:
    code = """
for m in (2, 64, 64, 33):
    gemm(m, activation="relu")  # no kind of its own
gemm(8, n=0)
gemm(8, k=0)
for m in (65, 66, 1):
    gemm(m, n=9, activation="relu")
    gemm(m, n=9, activation="relu")
norm(2)
norm(3)
"""
    where = "outside of what was measured for cpu-x86-64-v2: M is not within 2 to 64, N is not within 8 to 8"
    assert warned(seen, code) == (
        f"aot_tune: ops.gemm: M=65 N=9 K=8 activation=relu: {where}{REMEDY}"
        f"aot_tune: ops.rms_norm: M=2 N=2: nothing of it was measured for cpu{REMEDY}"
    )
    assert warned(seen, code, "") == ""
    assert run(seen, code)[1] == ""


def test_calls_within_are_not_told(seen: linked.Built) -> None:
    assert warned(seen, "for m in range(2, 65): gemm(m, k=1 + m % 8)") == ""
    assert warned(seen, "ops.explain('gemm', M=1000, N=1, K=1); ops.is_tuned('gemm', M=1000, N=1, K=1)") == ""


def test_a_call_that_fails_is_not_told(seen: linked.Built) -> None:
    code = """
try:
    gemm(2000)  # its variant fails
except ops.Error:
    gemm(70)
"""
    assert "M=70 N=8 K=8: outside of what was measured for cpu-x86-64-v2: M is not within 2 to 64; " in warned(
        seen, code
    )


def test_a_table_of_another_level(seen: linked.Built) -> None:
    said = warned(seen, "gemm(8)", AOT_TUNE_CPU_LEVEL="3")
    assert said == f"aot_tune: ops.gemm: M=8 N=8 K=8: nothing of it was measured for cpu-x86-64-v3{REMEDY}"
    said = warned(seen, "gemm(8)", AOT_TUNE_CPU_LEVEL="1")
    assert said == f"aot_tune: ops.gemm: M=8 N=8 K=8: nothing of it was measured for cpu{REMEDY}"


def test_threads_tell_it_once(seen: linked.Built) -> None:
    code = """
barrier = threading.Barrier(8)
def work(m):
    barrier.wait()
    for i in range(20): gemm(m + 8 * i)
threads = [threading.Thread(target=work, args=(100 + i,)) for i in range(8)]
for t in threads: t.start()
for t in threads: t.join()
"""
    assert warned(seen, code).count("\n") == 1


@pytest.mark.parametrize("value", ["1", "unseen,", "Unseen", "all"])
def test_another_value_is_an_error_of_the_first_call(seen: linked.Built, value: str) -> None:
    code = """
for call in (lambda: gemm(8), lambda: norm(2), lambda: ops.explain("gemm", M=1, N=1, K=1)):
    try:
        call()
    except ops.CallError as error:
        print(error)
"""
    said, complaint = run(seen, code, AOT_TUNE_WARN=value)
    text = f"AOT_TUNE_WARN is '{value}', wanted 'unseen', or nothing\n"
    assert said == f"gemm: {text}rms_norm: {text}gemm: {text}"
    assert complaint == ""


@pytest.fixture(scope="module")
def cuda(cuda_spec: LibrarySpec, standin: linked.Built, tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """A library for devices with 132 multiprocessors in sm_90a, where calls in f32 alone were measured."""
    folder = tmp_path_factory.mktemp("seen_cuda")
    calls = (SeenCalls(facts=(("dtype.T", 0),), dims={"N": (8, 512)}),)
    spec = with_tables(cuda_spec, {}, {}, {"seen": calls, "processors": 132})
    driver = standin.library.parent / "libcuda.so.1"
    found = ["-Wl,--no-as-needed", str(driver), f"-Wl,-rpath,{driver.parent}"]
    return linked.link_library(spec, folder, families=["cuda"], libraries=found)


def test_kinds_of_calls(cuda: linked.Built) -> None:
    code = "for n in (8, 512): linked_cuda.call(ops, n, 1)\n"
    assert warned(cuda, code) == ""
    where = "aot_tune: ops.scale: N=4096 T=f32: outside of what was measured for cuda-sm_90a: N is not within 8 to 512"
    assert warned(cuda, code + "linked_cuda.call(ops, 4096, 1)") == where + REMEDY
    code += "bf16 = lambda: linked_cuda.OnDevice(np.zeros(32, np.uint16)[:8], (2, 1), 4)\n"
    said = warned(cuda, code + "ops.scale(bf16(), out=bf16())")
    where = "aot_tune: ops.scale: N=8 T=bf16: no calls of these dtypes and attributes were measured for cuda-sm_90a"
    assert said == where + REMEDY


def test_explain_tells_another_number_of_threads(seen: linked.Built, tmp_path_factory: pytest.TempPathFactory) -> None:
    """That is, of those that OpenMP has for the process; the table for level 3 does not know its own."""
    folder = tmp_path_factory.mktemp("threads") / "out"
    threaded = linked.link_library(seen.spec, folder, libraries=["-Wl,--no-as-needed", "-lgomp", "-Wl,--as-needed"])
    code = "print(ops.explain('gemm', M=8, N=8, K=8).get('threads'))"

    def told(built: linked.Built, level: str, threads: str) -> str:
        return run(built, code, AOT_TUNE_CPU_LEVEL=level, OMP_NUM_THREADS=threads)[0].strip()

    assert told(threaded, "2", "2") == "tuned with 3, this process has 2"
    assert told(threaded, "2", "5") == "tuned with 3, this process has 5"
    assert told(threaded, "2", "3") == "None"
    assert told(threaded, "3", "2") == "None"
    assert told(seen, "2", "2") == "None"  # its kernels use no OpenMP: threads make no difference


def test_explain_tells_another_number_of_multiprocessors(cuda: linked.Built) -> None:
    """The driver's first device, for which another table is, has 132, the second 131."""
    code = """
for device in ("cuda:0", "cuda:1", "cpu"):
    print(ops.explain("scale", N=8, device=device).get("processors"))
"""
    assert run(cuda, code)[0].splitlines() == ["None", "tuned with 132, this device has 131", "None"]
