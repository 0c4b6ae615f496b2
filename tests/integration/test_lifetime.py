"""What a process does with a library beside calling it: forks, closes it, has two of its name, ends threads, traces."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import ROOT
from project import Project
from traces import read_trace


@pytest.fixture(scope="module")
def built(faced: Project) -> Path:
    return faced.folder / "cmake"


def python(code: str, *folders: Path, status: int = 0, **given: str) -> str:
    """What a fresh process prints that finds modules in `folders`."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_WAIT_POLICY": "active", **given}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


STATE = """
import ctypes, os, resource
import numpy as np
c, maths = ctypes.CDLL(None), ctypes.CDLL("libm.so.6")

def action(number):
    found = ctypes.create_string_buffer(256)
    c.sigaction(number, None, found)
    return found.raw[:16], found.raw[136:140]  # what it does, the mask, flags

def state():
    "What all code of a process shares. Of the arithmetic's words, flags of what happened do not count."
    words, variables = ctypes.create_string_buffer(64), ctypes.POINTER(ctypes.c_char_p).in_dll(c, "environ")
    maths.fegetenv(words)
    tasks = os.listdir("/proc/self/task")
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return {
        "arithmetic": [words.raw[:2], int.from_bytes(words.raw[28:32], "little") & 0xFFC0],
        "children": [open(f"/proc/self/task/{task}/children").read() for task in tasks],
        "environment": variables[:next(n for n in range(10000) if variables[n] is None)],
        "folder": os.getcwd(),
        "limits": [resource.getrlimit(number) for number in range(16)],
        "mask": status["Umask"],
        "signals": [*map(action, range(1, 65)), status["SigBlk"], status["SigIgn"], status["SigCgt"]],
        "threads": tasks,
    }

before = state()
WORK
after = state()
print(*(name for name in before if before[name] != after[name]))
"""
MEDDLER = """
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xmmintrin.h>
static void handle(int) {}
static void* rest(void* nothing) { return pause(), nothing; }
__attribute__((constructor)) static void meddle() {
  pthread_t thread;
  rlimit limit = {};
  signal(SIGUSR1, handle);
  setenv("OMP_WAIT_POLICY", "passive", 1);
  pthread_create(&thread, nullptr, rest, nullptr);
  if (fork() == 0) prctl(PR_SET_PDEATHSIG, SIGKILL), pause();
  _mm_setcsr(_mm_getcsr() | 0x8040);
  setrlimit(RLIMIT_CORE, &limit);
  umask(0);
  if (chdir("/") != 0) abort();
}
"""
CALLS = """
import aot_tune, face
for n in (1, 2000, 2000, 2000):
    face.twice(np.ones(n, np.float32))
face.explain("twice", N=5)
try:
    face.twice(np.ones(5))
except TypeError:
    pass
"""


def test_import_and_calls_change_nothing_of_the_process(built: Path, tmp_path: Path) -> None:
    """Nor do they write files. OpenMP, whose threads stay, has none. A library that changes all of it is told."""
    home, source, library = tmp_path / "home", tmp_path / "meddler.cpp", tmp_path / "meddler.so"
    home.mkdir()
    given = {"HOME": str(home), "XDG_CACHE_HOME": "", "AOT_TUNE_CACHE_DIR": "", "OMP_THREAD_LIMIT": "1"}
    assert python(STATE.replace("WORK", CALLS), built, ROOT, **given) == "\n"
    assert not [*home.iterdir()]
    source.write_text(MEDDLER)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    found = python(STATE.replace("WORK", f"ctypes.CDLL({str(library)!r})"), **given)
    assert found == "arithmetic children environment folder limits mask signals threads\n"


def test_a_child_of_fork_calls_what_its_parent_called(built: Path) -> None:
    code = """
import os
import face, numpy as np
x = np.ones(1000, np.float32)
for _ in range(3):
    assert face.twice(x).sum() == 2000
    child = os.fork()
    assert face.twice(x).sum() == 2000
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("done")
"""
    assert python(code, built).split() == ["done"]


def test_a_library_that_is_closed(built: Path) -> None:
    """Its kernel's threads wait in OpenMP's code for the next call."""
    code = f"""
import _ctypes, ctypes, time
class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]
x, y, shape = (ctypes.c_float * 100)(*[3] * 100), (ctypes.c_float * 100)(), (ctypes.c_int64 * 1)(100)
def tensor(data):
    return Tensor(ctypes.addressof(data), (1, 0), 1, 2, 32, 1, ctypes.addressof(shape), None, 0)
for _ in range(3):
    library = ctypes.CDLL({str(built / "libtiny.so")!r})
    assert library.tiny_twice(ctypes.byref(tensor(x)), ctypes.byref(tensor(y)), None) == 0
    assert y[99] == 6
    _ctypes.dlclose(library._handle)
    time.sleep(0.1)
print("done")
"""
    assert python(code).split() == ["done"]


def test_another_library_of_the_same_name(built: Path, tmp_path: Path) -> None:
    """The loader takes the one that is there, whatever it is."""
    for package in ("one", "same", "other"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
        for file in ("libtiny.so.1", "face.abi3.so"):
            shutil.copy(built / file, tmp_path / package / file)
    library = tmp_path / "other" / "libtiny.so.1"
    library.write_bytes(library.read_bytes().replace(b'"mode": "generic"', b'"mode": "special"'))
    code = """
import one.face, same.face
assert one.face.manifest()["mode"] == "generic"
try:
    import other.face
except ImportError as error:
    print(error)
"""
    said = python(code, tmp_path)
    assert f"needs {library}, but this process has loaded another library of that name: " in said
    assert f"{tmp_path / 'one' / 'libtiny.so.1'}; a process has one of each name" in said
    assert python("import other.face; print(other.face.manifest()['mode'])", tmp_path).split() == ["special"]


def test_a_thread_in_a_call_while_the_interpreter_ends(built: Path) -> None:
    """Python before 3.14 ends such a thread by force once it asks for the interpreter's lock again."""
    code = """
import sys, threading, time
import face, numpy as np
class Made:
    def __init__(self, array): self.array = array
    def __dlpack__(self, **options): return self.array.__dlpack__(**options)
    def __del__(self): str(self.array)
class Space:
    float32 = np.float32
    @staticmethod
    def empty(shape, dtype, device): return Made(np.empty(shape, dtype))
class Given(Made):
    device = "cpu"
    def __array_namespace__(self): return Space
class Slow:
    def __del__(self, sleep=time.sleep): sleep(1)
begun = threading.Event()
def work():
    x = Given(np.ones(1 << 21, np.float32))
    begun.set()
    face.twice(x)
threading.Thread(target=work, daemon=True).start()
begun.wait()
time.sleep(0.1)
sys.slow = Slow()  # goes late, when threads are being ended
print("done")
"""
    assert python(code, built).split() == ["done"]


def test_a_trace_of_several_processes_is_read_by_all_that_take_workloads(faced: Project, tmp_path: Path) -> None:
    """By the command, which compares it with the very build, and by a build that tunes what was called."""
    file, built = tmp_path / "trace.jsonl", faced.folder / "cmake"
    for sizes in ("4096, 4096", "512, 0"):
        code = f"import face, numpy as np\nfor n in ({sizes}): face.twice(np.ones(n, np.float32))"
        assert python(code, built, AOT_TUNE_TRACE=str(file)) == ""
    with file.open("a") as trace:
        trace.write('{"others": 7}\n')
    assert len(read_trace(file).headers) == 2
    templates = ["--templates", str(faced.templates)]
    library = next(built.rglob("manifest.json")).parent
    assert re.search(r"(?s)twice: .*4096", faced.ask("workload", "show", *templates, file))
    said = faced.ask("workload", "coverage", *templates, "--build", library, file)
    assert "another build" not in said
    assert "library tiny, build " in said
    faced.configure(build="traced", AOT_TUNE_WORKLOAD=str(file), AOT_TUNE_MODE="generic")
    (stated,) = json.loads((faced.folder / "traced" / "plan.json").read_bytes())["workload"]["operators"].values()
    assert {p["problem"]["dims"]["N"] for p in stated["problems"]} == {4096, 512}
