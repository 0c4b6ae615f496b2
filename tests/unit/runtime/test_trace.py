"""AOT_TUNE_TRACE: what a library writes of the calls that it served, and when."""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import forked
import linked
import linked_cuda
import pytest
from environments import obeying_modes
from traces import late_clock, problem_of, read_trace

PRELUDE = """
import ctypes, importlib.machinery, importlib.util, os, signal, sys, threading
from pathlib import Path
import numpy as np

def near(shape, strides=None, dtype="f4", alignment=64):
    "Ones at an address of which `alignment` is the largest power of two up to 64."
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if strides else int(np.prod(shape))
    room = np.ones(4 * count + 256, np.uint8)
    start = -room.ctypes.data % 128 + (alignment if alignment < 64 else 0)
    flat = room[start:start + 4 * count].view(dtype)
    flat[:] = 1
    steps = [4 * s for s in strides] if strides else None
    return np.lib.stride_tricks.as_strided(flat, shape, steps) if strides else flat.reshape(shape)

def gemm(m, n=5, k=3, **more):
    ops.gemm(near((m, k)), near((k, n)), **{"out": near((m, n)), **more})

def ahead(seconds):
    ctypes.CDLL(None).clock_ahead(seconds)

loader = importlib.machinery.ExtensionFileLoader("ops", os.environ["MODULE"])
ops = importlib.util.module_from_spec(importlib.util.spec_from_loader("ops", loader))
loader.exec_module(ops)
"""


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return late_clock(tmp_path_factory.mktemp("clock"))


def start(module: Path, code: str, *wrap: str, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "MODULE": str(module), **environment}
    argv = [*wrap, sys.executable, "-c", PRELUDE + code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(argv, env=env, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def run(module: Path, code: str, *wrap: str, status: int = 0, **environment: str) -> str:
    """What a process writes to stderr; one that begins with libraries or rights of its own is no fork."""
    if not wrap and "LD_PRELOAD" not in environment:
        return forked.run(PRELUDE + code, status=status, MODULE=str(module), **environment)[1]
    process = start(module, code, *wrap, **environment)
    _, said = process.communicate(timeout=100)
    assert process.returncode == status, said
    return said


def test_calls_are_counted_by_kind(built: linked.Built, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    said = run(
        built.module,
        """
for _ in range(3):
    gemm(4)
gemm(4, activation="none")
b = near((3, 5), strides=(1, 3))
for bias in (near((5,)), near((5,), alignment=16)):
    ops.gemm(near((4, 3)), b, bias, activation="relu", out=near((4, 5), alignment=4))
gemm(1, residual=near((1, 5), strides=(77, 1)))  # a stride that is never used
gemm(4, n=0)
gemm(4, k=0)
ops.rms_norm(near((2, 8)), near((8,)), near((2, 8), strides=(0, 1)), out=near((2, 8)), residual_out=near((2, 8)))
for bad in (np.ones((4, 4), "f4"), np.ones((4, 3), "f8")):
    try:
        ops.gemm(bad, near((3, 5)))
    except (ValueError, TypeError):
        pass
try:
    gemm(2000)  # its variant fails
except ops.Error:
    pass
ops.explain("gemm", M=4, N=5, K=3)
ops.is_tuned("gemm", M=4, N=5, K=3)
""",
        AOT_TUNE_TRACE=str(file),
        AOT_TUNE_CPU_LEVEL="2",
    )
    assert said == ""
    lines = file.read_text().splitlines()
    relu = '{"operator": "gemm", "dims": {"M": 4, "N": 5, "K": 3}, "attributes": {"activation": "relu"}, '
    relu += '"present": ["bias"], "strides": {"b": [1, 3]}, "alignment": {%s"out": 4}, "calls": 1, "captured": 0}'
    norm = '{"operator": "rms_norm", "dims": {"M": 2, "N": 8}, "present": ["residual", "residual_out"], '
    norm += '"strides": {"residual": [0, 1]}, "calls": 1, "captured": 0}'
    assert lines[1:] == [
        '{"operator": "gemm", "dims": {"M": 4, "N": 5, "K": 3}, "calls": 4, "captured": 0}',
        relu % "",
        relu % '"bias": 16, ',
        '{"operator": "gemm", "dims": {"M": 1, "N": 5, "K": 3}, "present": ["residual"], "calls": 1, "captured": 0}',
        '{"operator": "gemm", "dims": {"M": 4, "N": 0, "K": 3}, "calls": 1, "captured": 0}',
        '{"operator": "gemm", "dims": {"M": 4, "N": 5, "K": 0}, "calls": 1, "captured": 0}',
        norm,
    ]
    (header,) = read_trace(file).headers
    assert (header["library"], header["prefix"], header["format"]) == ("ops", "aot_tune", 1)


RANDOM = """
import random
chosen = random.Random(1)
for _ in range(300):
    m, n, k = (chosen.choice([0, 1, 2, 5]) for _ in range(3))
    def tensor(*shape):
        kind, alignment = chosen.randrange(6), chosen.choice([4, 16, 64])
        row = (1,) if len(shape) == 1 else (max(shape[1], 1), 1)
        strides = {0: (1, shape[0])[:len(shape)], 1: tuple(2 * s for s in row)}.get(kind, row)
        return near(shape, None if 0 in shape else strides, alignment=alignment)
    given = {"activation": chosen.choice(["none", "relu"])}
    if chosen.random() < 0.3: given["bias"] = tensor(n)
    if chosen.random() < 0.3: given["residual"] = tensor(m, n)
    ops.gemm(tensor(m, k), tensor(k, n), out=tensor(m, n), **given)
"""

AGAIN = """
from traces import problem_of, read_trace
operators = {"gemm": linked.gemm_operator(), "rms_norm": linked.norm_operator()}
for line in read_trace(Path(os.environ["BEFORE"])).counts:
    operator, problem = operators[line["operator"]], problem_of(line)
    tensors = {}
    for tensor in operator.tensors:
        if operator.is_present(problem, tensor):
            shape, strides = operator.shape(problem, tensor), operator.strides(problem, tensor)
            strides = strides if min(shape) > 0 else None
            tensors[tensor.name] = near(shape, strides, alignment=problem.alignment.get(tensor.name, 64))
    for _ in range(line["calls"]):
        getattr(ops, operator.name)(**tensors, **problem.attributes)
"""


def test_each_problem_is_one_of_the_operator_and_called_again_gives_its_line(
    built: linked.Built, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    run(built.module, RANDOM, AOT_TUNE_TRACE=str(first))
    run(built.module, AGAIN, AOT_TUNE_TRACE=str(second), BEFORE=str(first))
    traced = read_trace(first)
    assert (traced.total, traced.others) == (300, 0)
    assert len(traced.counts) > 150
    for field in ("attributes", "present", "strides", "alignment"):
        assert any(field in line for line in traced.counts)
    assert read_trace(second).counts == traced.counts
    problems = [problem_of(line) for line in traced.counts]
    assert len({p.id for p in problems}) == len(problems)
    served = tuple(p for p in problems if p.dims["M"] * p.dims["N"] > 0)  # on others there is nothing to compute
    assert dataclasses.replace(linked.gemm_operator(), workload=served).workload == served  # each is checked


def test_kinds_are_bounded_between_two_writes(built: linked.Built, clock: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    code = """
for m in range(1, 4201): gemm(m, n=1, k=1)
for _ in range(3): gemm(1, n=1, k=1)
ahead(10)
gemm(4300, n=1, k=1)
for m in range(4201, 4211): gemm(m, n=1, k=1)
"""
    run(built.module, code, AOT_TUNE_TRACE=str(file), AOT_TUNE_CPU_LEVEL="1", LD_PRELOAD=str(clock))
    traced = read_trace(file)
    kinds = [(line["dims"]["M"], line["calls"]) for line in traced.counts]
    # 104 kinds and the call that comes 10 s later find no room; after that there is room again
    assert kinds == [(1, 4), *((m, 1) for m in range(2, 4097)), *((m, 1) for m in range(4201, 4211))]
    assert traced.others == 105


def test_a_process_that_is_killed_loses_what_came_after_the_last_write(
    built: linked.Built, clock: Path, tmp_path: Path
) -> None:
    file = tmp_path / "trace"
    code = """
def told():
    return Path(os.environ["AOT_TUNE_TRACE"]).read_text().count('"operator"')
gemm(4)
assert told() == 0
ahead(9)
gemm(5)
assert told() == 0
ahead(1)
gemm(6)
assert told() == 3
gemm(4)
ahead(10)
gemm(4)
assert told() == 4
gemm(7)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run(built.module, code, AOT_TUNE_TRACE=str(file), LD_PRELOAD=str(clock), status=-9)
    traced = read_trace(file)
    assert [(line["dims"]["M"], line["calls"]) for line in traced.counts] == [(4, 1), (5, 1), (6, 1), (4, 2)]
    assert len(traced.headers) == 1


def test_processes_share_a_file(built: linked.Built, clock: Path, tmp_path: Path) -> None:
    """Each call writes; lines of one process stand behind its header."""
    file = tmp_path / "trace"
    code = """
print("ready", flush=True)
input()
for i in range(400):
    gemm(1 + i % 3)
    ahead(11)
"""
    running = [start(built.module, code, AOT_TUNE_TRACE=str(file), LD_PRELOAD=str(clock)) for _ in range(3)]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in running:
        _, said = process.communicate(timeout=100)
        assert (process.returncode, said) == (0, "")
    traced = read_trace(file)
    assert {calls for calls, _ in traced.calls().values()} == {402, 399}
    assert {header["pid"] for header in traced.headers} == {process.pid for process in running}
    assert file.read_text().startswith('{"trace": ')


def test_a_child_of_fork_counts_its_own(built: linked.Built, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    code = """
for _ in range(3): gemm(4)
child = os.fork()
if child == 0:
    gemm(4); gemm(5)
    ctypes.CDLL(None).exit(0)  # with the destructors of libraries
assert os.waitpid(child, 0)[1] == 0
idle = os.fork()
if idle == 0: ctypes.CDLL(None).exit(0)
assert os.waitpid(idle, 0)[1] == 0
gemm(4)
"""
    run(built.module, code, AOT_TUNE_TRACE=str(file))
    traced = read_trace(file)
    assert [(line["dims"]["M"], line["calls"]) for line in traced.counts] == [(4, 1), (5, 1), (4, 4)]
    assert len({header["pid"] for header in traced.headers}) == 2

    run(built.module, code, AOT_TUNE_TRACE=str(tmp_path / "of-%p-%%p%"))
    files = sorted(tmp_path.glob("of-*"), key=lambda f: f.stat().st_size)
    traces = [read_trace(f) for f in files]
    assert [f.name for f in files] == [f"of-{t.headers[0]['pid']}-%{t.headers[0]['pid']}%" for t in traces]
    assert sorted(t.total for t in traces) == [2, 4]


CALLS = """
for _ in range(3): gemm(4)
ops.rms_norm(near((2, 8)), near((8,)))
"""


def test_a_file_that_cannot_be_written(built: linked.Built, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody reads it
    (tmp_path / "full").symlink_to("/dev/full")
    (tmp_path / "text").write_text("mine\nwithout an end")
    (tmp_path / "kept").write_text("")
    (tmp_path / "kept").chmod(0o400)
    for name, reason in (
        ("none/trace", "it cannot be opened: No such file or directory"),
        ("", "it cannot be opened: Is a directory"),
        ("text", "it is there already, and is no trace"),
        ("pipe", "it is no regular file: Illegal seek"),
        ("full", "it cannot be written: No space left on device"),
        ("kept", "it cannot be opened: Permission denied"),
        ("x" * 5000, "it cannot be opened: File name too long"),
    ):
        wrap = obeying_modes([]) if name == "kept" else []
        (line,) = run(built.module, CALLS, *wrap, AOT_TUNE_TRACE=f"{tmp_path}/{name}").splitlines()
        assert line.startswith(f"aot_tune: AOT_TUNE_TRACE={tmp_path}/{name}"[:4000])
        assert line.endswith(f": {reason}; calls are not traced")
    assert (tmp_path / "text").read_text() == "mine\nwithout an end"


def test_a_file_that_may_not_grow(built: linked.Built, clock: Path, tmp_path: Path) -> None:
    """What was whole stays so, and the signal that ends a process by default does not come."""
    file = tmp_path / "trace"
    code = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
gemm(4)
ahead(10)
gemm(4)
resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(os.environ["AOT_TUNE_TRACE"]) + 20,) * 2)
for _ in range(3):
    ahead(10)
    gemm(5)
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    said = run(built.module, code, AOT_TUNE_TRACE=str(file), LD_PRELOAD=str(clock))
    assert said == f"aot_tune: AOT_TUNE_TRACE={file}: it cannot be written: File too large; calls are not traced\n"
    assert [(line["dims"]["M"], line["calls"]) for line in read_trace(file).counts] == [(4, 2)]


def test_a_line_that_a_killed_process_left_is_cut_off(built: linked.Built, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    run(built.module, CALLS, AOT_TUNE_TRACE=str(file))
    whole = file.read_bytes()
    for torn in (b'{"operator": "ge', b'{"operator": "' + b"x" * 9000, b""):
        file.write_bytes(whole + torn)
        run(built.module, CALLS, AOT_TUNE_TRACE=str(file))
        traced = read_trace(file)
        assert (traced.total, len(traced.headers)) == (8, 2)
    file.write_bytes(whole[:7])
    run(built.module, CALLS, AOT_TUNE_TRACE=str(file))
    assert read_trace(file).total == 4


def test_a_library_that_is_closed_writes(built: linked.Built, tmp_path: Path) -> None:
    """And begins anew when it is opened again."""
    file = tmp_path / "trace"
    code = """
import _ctypes
from dltensors import F32, tensor_of
data = [near((4, 4)) for _ in range(3)]
given = [ctypes.byref(tensor_of(d.ctypes.data, (1, 0), (4, 4), None, F32)) for d in data]
def told():
    return Path(os.environ["AOT_TUNE_TRACE"]).read_text().count('"operator"')
for n in (1, 2):
    library = ctypes.CDLL(os.environ["LIBRARY"])
    assert library.aot_tune_gemm(*given[:2], None, None, given[2], 0, None) == 0
    assert told() == n - 1
    _ctypes.dlclose(library._handle)
    assert told() == n
"""
    code = PRELUDE.partition("loader = ")[0] + code
    forked.run(code, LIBRARY=str(built.library), AOT_TUNE_TRACE=str(file))
    assert read_trace(file).total == 2


def test_calls_in_a_capture(standin: linked.Built, tmp_path: Path) -> None:
    """The stand-in of the driver captures from streams of odd numbers."""
    file = tmp_path / "trace"
    code = """
import linked_cuda
for stream in (3, 4, 5, 0): linked_cuda.call(ops, 8, 1, stream=stream)
on = linked_cuda.OnDevice
x, out = (near((8,), dtype="i4").view("i2")[:8] for _ in range(2))  # stand-ins for kernels write floats in any case
ops.scale(on(x, (2, 1), 4), out=on(out, (2, 1), 4), stream=3)
ops.scale(on(near((0,)), (2, 1)), out=on(near((0,)), (2, 1)), stream=3)  # nothing is launched
ops.scale(near((8,)), out=near((8,)))
"""
    run(standin.module, code, AOT_TUNE_TRACE=str(file))
    traced = read_trace(file)
    found = [(line["dims"]["N"], line.get("dtypes", {}), line["calls"], line["captured"]) for line in traced.counts]
    assert sum(calls for n, dtypes, calls, _ in found if n == 8 and not dtypes) == 5
    assert sum(captured for n, dtypes, _, captured in found if n == 8 and not dtypes) == 2
    assert [row for row in found if row[1]] == [(8, {"T": "bf16"}, 1, 1)]
    assert [row for row in found if row[0] == 0] == [(0, {}, 1, 0)]
    problems = {"cuda": tuple(problem_of(line) for line in traced.counts if line["dims"]["N"] > 0)}
    assert dataclasses.replace(linked_cuda.operator(), workload=problems).workload == problems


PROFILER = """
// What a profiler brings, as <nvtx3/nvtxDetail/nvtxTypes.h> declares it.
#include <stdint.h>
#include <stdio.h>
typedef void (*Function)(void);
typedef struct { size_t size; int (*table)(int, Function***, unsigned*); } Callbacks;
static int push(const char* name) { return fprintf(stderr, "[%s\\n", name) > 0 ? 0 : -1; }
static int pop(void) { return fputs("]\\n", stderr); }
int InitializeInjectionNvtx2(const void* (*exported)(uint32_t)) {
  const Callbacks* callbacks = exported(1);
  Function** table;
  unsigned size = 0;
  if (callbacks->size < sizeof *callbacks || callbacks->table(1, &table, &size) == 0 || size != 16) return 0;
  *table[9] = (Function)push;
  *table[11] = (Function)pop;
  return callbacks->table(3, &table, &size) == 0 && exported(2) == NULL && exported(3) != NULL;
}
"""


def test_a_profile_names_operator_variant_and_dims(built: linked.Built, standin: linked.Built, tmp_path: Path) -> None:
    """As ranges of a profiler's, and as lines that are trace events."""
    calls = """
ops = linked.load_module(Path({module!r}))
x = np.ones((8, 8), np.float32)
for _ in range(3):
    ops.gemm(x, x)
"""
    code, variant = calls.format(module=str(built.module)), "small_2"
    (tmp_path / "profiler.c").write_text(PROFILER)
    command = ["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "profiler.so"), str(tmp_path / "profiler.c")]
    subprocess.run(command, check=True, timeout=60)
    given = {"AOT_TUNE_CPU_LEVEL": "2", "AOT_TUNE_PROFILE": "nvtx"}
    _, said = forked.run(code, **given, NVTX_INJECTION64_PATH=str(tmp_path / "profiler.so"))
    assert said == f"[ops.gemm {variant} M=8 N=8 K=8 768 bytes\n]\n" * 3
    _, said = forked.run(code, **given)
    assert said.endswith("NVTX runs this process, as `nsys profile` would; calls are not profiled\n")
    assert said.count("\n") == 1
    path = tmp_path / "profile.jsonl"
    _, said = forked.run(code, AOT_TUNE_CPU_LEVEL="2", AOT_TUNE_PROFILE=str(path))
    assert said == ""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        assert (line["name"], line["cat"], line["ph"]) == ("ops.gemm", "call", "X")
        assert line["args"] == {"variant": variant, "call": "M=8 N=8 K=8", "bytes": 768, "GB/s": line["args"]["GB/s"]}
        assert 0 < line["dur"] < 1e6
        assert line["args"]["GB/s"] == pytest.approx(0.768 / line["dur"], rel=0.01, abs=0.001)
        assert 0 <= time.time() - line["ts"] * 1e-6 < 60
    assert len(lines) == 3
    path.unlink()
    run(standin.module, "import linked_cuda; linked_cuda.call(ops, 8, 1, stream=3)", AOT_TUNE_PROFILE=str(path))
    (line,) = [json.loads(line) for line in path.read_text().splitlines()]  # the call does not wait for the device
    assert (line["cat"], sorted(line["args"])) == ("launch", ["bytes", "call", "variant"])
    _, said = forked.run(code, AOT_TUNE_CPU_LEVEL="2", AOT_TUNE_PROFILE=str(tmp_path / "none" / "p.jsonl"))
    assert said.count("\n") == 1
    assert said.endswith("No such file or directory; calls are not profiled\n")
