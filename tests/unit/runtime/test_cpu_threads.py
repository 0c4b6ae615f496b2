"""How many threads a call gets: what was set, OpenMP's own number, and the quotas of control groups."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import forked
import linked
import pytest
from places import SHARED

from aot_tune.support.installed_paths import RUNTIME
from aot_tune.support.limits import control_groups, core_limits, usable_cores

SHIM = """
#include <cstdio>
#include "cpu_threads.h"
#include "runtime.h"
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) std::printf("%d\\n", static_cast<int>(aot_tune::quota_cores(argv[i])));
  return 0;
}
"""


@pytest.fixture(scope="module")
def quota(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that prints the cores that quotas pay for below each folder that it is given."""
    folder = tmp_path_factory.mktemp("quota")
    (folder / "shim.cpp").write_text(SHIM)
    sources = [folder / "shim.cpp", *(RUNTIME / name for name in ("cpu_threads.cpp", "error.cpp"))]
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=address,undefined"]
    flags += [f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}"]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", str(folder / "quota")], check=True)
    return folder / "quota"


def v2(**quotas: str) -> dict[str, str]:
    """Files of a group kube/pod of version 2, and quotas: of `pod`, of `kube` above it, of the `top`."""
    places = {"pod": "kube/pod/", "kube": "kube/", "top": ""}
    files = {f"sys/fs/cgroup/{places[name]}cpu.max": text for name, text in quotas.items()}
    return {"proc/self/cgroup": "0::/kube/pod\n", **files}


def v1(**files: str) -> dict[str, str]:
    """Those of version 1, in the group's folder."""
    groups = "12:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n1:name=systemd:/docker/1\n"
    found = {f"sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_{name}_us": text for name, text in files.items()}
    return {"proc/self/cgroup": groups, **found}


TREES: dict[str, tuple[Mapping[str, str], int]] = {
    "no groups": ({}, 0),
    "no quota": (v2(pod="max 100000\n"), 0),
    "its own": (v2(pod="300000 100000\n"), 3),
    "part of a core": (v2(pod="50000 100000\n"), 1),
    "two and a half": (v2(pod="250000 100000\n"), 2),
    "of a group above": (v2(pod="900000 100000", kube="200000 100000"), 2),
    "of a container's top": ({**v2(top="400000 100000\n"), "proc/self/cgroup": "0::/\n"}, 4),
    "a group of the host, seen from a container": (
        {**v2(top="400000 100000\n"), "proc/self/cgroup": "0::/../../system.slice\n"},
        4,
    ),
    "version 1": (v1(quota="150000\n", period="50000\n"), 3),
    "version 1 without a quota": (v1(quota="-1\n"), 0),
    "version 1, mounted by one name": ({**v1(), "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n"}, 2),
    "nonsense": (v2(pod="many few\n", top="-5 0\n"), 0),
    "rows of other kinds": ({"proc/self/cgroup": "::\nno colons\n7:\n0::" + ("/" + "x" * 250) * 24 + "\n"}, 0),
}


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_quotas_of_control_groups(quota: Path, tmp_path: Path) -> None:
    roots = [tree(tmp_path / str(number), files) for number, (files, _) in enumerate(TREES.values())]
    done = subprocess.run([quota, *roots], capture_output=True, text=True, check=True)
    usable = len(os.sched_getaffinity(0))
    for root, said, (case, (_, cores)) in zip(roots, done.stdout.split(), TREES.items(), strict=True):
        assert int(said) == cores, case
        assert usable_cores(root) == min(usable, cores or usable)  # what a build tunes with
        assert min(core_limits(control_groups(root)), default=0) == cores


@pytest.fixture(scope="module")
def redirect(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for LD_PRELOAD that reads control groups elsewhere."""
    made = tmp_path_factory.mktemp("redirect") / "redirect.so"
    subprocess.run(["g++", "-shared", "-fPIC", SHARED / "control_groups.cpp", "-o", made, "-ldl"], check=True)
    return made


HEAD = """
import importlib.machinery, importlib.util, os, sys, threading, time
import numpy as np
def load():
    loader = importlib.machinery.ExtensionFileLoader("ops", {module!r})
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("ops", loader))
    loader.exec_module(module)
    return module
def threads(wanted=0):
    # while other programs use the cores, calls may have one thread for a while, where nobody states a number
    for _ in range(2000):
        given = np.ones(8, "f4")
        got = ops.threads(given)
        assert got.min() == got.max()
        if got[0] == wanted or (wanted == 0 and ops.get_num_threads() == got[0]):
            break
        time.sleep(0.001)
    return int(got[0])
def elsewhere(function):
    found = []
    worker = threading.Thread(target=lambda: found.append(function()))
    worker.start()
    worker.join()
    return found[0]
"""
OPENMP = """
import ctypes
openmp = ctypes.CDLL("libgomp.so.1")
"""


def run(built: linked.Built, code: str, **environment: str) -> list[str]:
    """What a process writes that knows no variables of OpenMP but these; OpenMP begins with the library."""
    code = HEAD.format(module=str(built.module)) + code.replace("import ops", "ops = load()")
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("OMP_", "GOMP_", "AOT_TUNE_")):
                patch.delenv(name)
        if "LD_PRELOAD" not in environment:
            return forked.python(code, **environment).split()
        argv, env = [sys.executable, "-c", code], {**os.environ, **environment}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


def test_the_variable_of_openmp(odd: linked.Built) -> None:
    code = "import ops\nprint(threads(), elsewhere(threads), threads())"
    assert run(odd, code, OMP_NUM_THREADS="3") == ["3", "3", "3"]
    assert run(odd, code, OMP_NUM_THREADS="3", OMP_THREAD_LIMIT="8") == ["3", "3", "3"]


def test_cores_that_the_process_may_use(odd: linked.Built) -> None:
    """They are counted when OpenMP is loaded."""
    code = """
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cores[:1])
import ops
print(threads())
os.sched_setaffinity(0, cores)
print(threads())
"""
    assert run(odd, code) == ["1", "1"]
    cores = str(len(os.sched_getaffinity(0)))
    assert run(odd, f"import ops\nprint(threads({cores}))") == [cores]


def test_what_is_set_holds_for_all_threads_until_it_is_taken_back(odd: linked.Built) -> None:
    code = """
import ops
print(elsewhere(threads), threads())
ops.set_num_threads(5)
print(threads(), elsewhere(threads))
elsewhere(lambda: ops.set_num_threads(2))
print(threads(), elsewhere(threads))
ops.set_num_threads(0)
print(threads(), elsewhere(threads))
"""
    assert run(odd, code, OMP_NUM_THREADS="3") == ["3", "3", "5", "5", "2", "2", "3", "3"]


def test_a_threads_own_number_of_openmp(odd: linked.Built) -> None:
    """As threadpoolctl limits it, and any C program; a call leaves it as it is."""
    code = """
openmp.omp_set_num_threads(2)
import ops
print(threads(), elsewhere(threads))
def mine():
    openmp.omp_set_num_threads(4)
    return threads()
print(elsewhere(mine), threads())
ops.set_num_threads(1)
print(threads(), openmp.omp_get_max_threads())
ops.set_num_threads(0)
print(threads(), openmp.omp_get_max_threads())
"""
    assert run(odd, OPENMP + code, OMP_NUM_THREADS="3") == ["2", "3", "4", "2", "1", "2", "2", "2"]


def test_the_number_of_torch(odd: linked.Built) -> None:
    """Where both have one OpenMP, it is that of the thread."""
    pytest.importorskip("torch")
    code = """
import torch
import ops
files = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.rpartition("/")[2]}
torch.set_num_threads(1)
print(len(files), threads(), elsewhere(threads))
"""
    files, *found = run(odd, code, OMP_NUM_THREADS="3")
    if files != "1":
        pytest.skip("torch has another OpenMP than libraries")
    assert found == ["1", "3"]


def test_a_child_of_fork_has_the_number_of_its_parent(odd: linked.Built) -> None:
    code = """
import ops
ops.set_num_threads(2)
print(threads(), flush=True)
child = os.fork()
if child == 0:
    print(threads(), flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(threads())
"""
    assert run(odd, code, OMP_NUM_THREADS="3") == ["2", "2", "2"]


def test_calls_at_once_from_many_threads(odd: linked.Built) -> None:
    code = """
import ops
from concurrent.futures import ThreadPoolExecutor
def change(count):
    ops.set_num_threads(count)
    return threads_at_least_one()
def threads_at_least_one():
    got = ops.threads(np.ones(8, "f4"))
    return got.min() == got.max() and got[0] in (1, 2, 3)
with ThreadPoolExecutor(4) as pool:
    print(all(pool.map(change, [1, 2, 3, 0] * 200)))
ops.set_num_threads(0)
print(threads(), elsewhere(threads))
"""
    assert run(odd, code, OMP_NUM_THREADS="3") == ["True", "3", "3"]


def test_within_a_parallel_region_there_is_one_thread(odd: linked.Built, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PARALLEL)
    folder = odd.library.parent
    flags = ["-std=c11", "-fopenmp", f"-I{folder}", f"-I{RUNTIME / 'include'}", f"-Wl,-rpath,{folder}"]
    argv = ["gcc", *flags, str(tmp_path / "program.c"), str(odd.library), "-o", str(tmp_path / "program")]
    subprocess.run(argv, check=True)
    for nested, wanted in (({}, "1 1 4\n"), ({"OMP_MAX_ACTIVE_LEVELS": "2"}, "4 4 4\n")):
        env = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")} | {"OMP_NUM_THREADS": "2"} | nested
        done = subprocess.run([tmp_path / "program"], env=env, capture_output=True, text=True, check=True)
        assert done.stdout == wanted


PARALLEL = """
#include <aot_tune/ops.h>
#include <aot_tune/tensor.h>
#include <stdio.h>
static int threads(void) {
  float x[8] = {0}, y[8] = {0};
  int64_t shape[1] = {8};
  DLTensor in = aot_tune_tensor(x, AOT_TUNE_F32, aot_tune_cpu(), 1, shape, NULL), out = in;
  out.data = y;
  return aot_tune_threads(&in, &out, NULL) == AOT_TUNE_OK ? (int)y[0] : -1;
}
int main(void) {
  int found[2] = {0, 0};
  aot_tune_set_num_threads(4);
#pragma omp parallel for num_threads(2)
  for (int i = 0; i < 2; ++i) found[i] = threads();
  printf("%d %d %d\\n", found[0], found[1], threads());
  return 0;
}
"""


def test_explain_says_how_many(odd: linked.Built) -> None:
    code = """
import ops
for count in (64, 2):
    ops.set_num_threads(count)
    print(ops.explain("threads", N=8).get("threads", "as tuned").replace(" ", "_"))
"""
    assert run(odd, code) == ["as_tuned", "tuned_with_64,_this_process_has_2"]


def test_one_thread_where_more_gained_too_little(odd: linked.Built) -> None:
    """FAULTS.md, row 95: on such a problem, and on what is no larger."""
    code = """
import ops
def of(size):
    return {int(n) for _ in range(4) for n in ops.threads(np.ones(size, "f4"))}
print(*(of(size) == {1} for size in (4, 3, 1)), *(of(size) == {3} for size in (5, 6, 16, 40)))
print(openmp.omp_get_max_threads())
print(*(ops.explain("threads", N=size).get("team", "-").split()[0] for size in (4, 3, 6)))
"""
    assert run(odd, OPENMP + code, OMP_NUM_THREADS="3") == [*["True"] * 7, "3", "one", "one", "-"]


def test_a_thread_that_waited_for_a_core_leaves_calls_one_for_a_while(odd: linked.Built) -> None:
    """FAULTS.md, row 95: with a busy neighbour, calls of microseconds took as many milliseconds."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this process may use one core alone")
    code = """
import ops
late = np.full(8, -1, "f4")
def after_waiting():
    for _ in range(20):  # the caller may wait for a core too
        ops.threads(late)
        if ops.get_num_threads() == 1:
            break
    return ops.get_num_threads()
def comes_back():
    for _ in range(3000):
        if ops.threads(np.ones(8, "f4")).max() > 1:
            return True
        time.sleep(0.001)
print(after_waiting(), comes_back())
ops.set_num_threads(2)
print(after_waiting())
"""
    assert run(odd, code) == ["1", "True", "2"]
    code = code.partition("def comes")[0] + "print(after_waiting())"
    assert run(odd, code, OMP_NUM_THREADS="2") == ["2"]


def test_numbers_that_are_refused(odd: linked.Built) -> None:
    code = """
import ops
for count in (-1, 1 << 40, -(1 << 40), "4", 1.5, None):
    try:
        ops.set_num_threads(count)
    except (ops.ArgumentValueError, TypeError, OverflowError) as error:
        print(type(error).__name__, "wanted 1 or more" in str(error))
print(threads())
"""
    said = run(odd, code, OMP_NUM_THREADS="3")
    refused = ["ArgumentValueError", "True"]
    assert said[:6] == refused * 3
    assert said[6:] == ["TypeError", "False"] * 3 + ["3"]


def test_a_quota_counts_where_nobody_says_otherwise(odd: linked.Built, redirect: Path, tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this process may use one core alone")
    cores = str(len(os.sched_getaffinity(0)))
    root = tree(tmp_path / "root", v2(pod="150000 100000\n"))
    place = {"LD_PRELOAD": str(redirect), "CONTROL_GROUPS": str(root)}
    code = "import ops\nprint(threads(), elsewhere(threads), ops.get_num_threads())"
    assert run(odd, code, **place) == ["1", "1", "1"]
    assert run(odd, code, **place, OMP_NUM_THREADS="3") == ["3", "3", "3"]
    code = f"import ops\nprint(threads({cores}))"
    assert run(odd, code, LD_PRELOAD=str(redirect), CONTROL_GROUPS=str(tmp_path)) == [cores]
    set_by_hand = """
import ops
ops.set_num_threads(3)
print(threads())
ops.set_num_threads(0)
print(threads(), openmp.omp_get_max_threads())
openmp.omp_set_num_threads(7)
print(threads())
"""
    assert run(odd, OPENMP + set_by_hand, **place) == ["3", "1", cores, "7"]


C_PROGRAM = """
#include <aot_tune/ops.h>
#include <aot_tune/tensor.h>
#include <pthread.h>
#include <stdio.h>
static void* call(void* unused) {
  float x[8] = {0}, y[8] = {0};
  int64_t shape[1] = {8};
  DLTensor in = aot_tune_tensor(x, AOT_TUNE_F32, aot_tune_cpu(), 1, shape, NULL), out = in;
  out.data = y;
  if (aot_tune_threads(&in, &out, NULL) == AOT_TUNE_OK) printf("%d %d\\n", (int)y[1], (int)aot_tune_get_num_threads());
  return unused;
}
int main(void) {
  pthread_t other;
  call(NULL);
  if (aot_tune_set_num_threads(2) != AOT_TUNE_OK) return 1;
  if (pthread_create(&other, NULL, call, NULL) != 0 || pthread_join(other, NULL) != 0) return 1;
  if (aot_tune_set_num_threads(-4) != AOT_TUNE_ERROR_ATTRIBUTE) return 1;
  puts(aot_tune_last_error());
  return 0;
}
"""


def test_from_c(odd: linked.Built, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(C_PROGRAM)
    folder = odd.library.parent
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{folder}", f"-I{RUNTIME / 'include'}"]
    argv = ["gcc", *flags, str(tmp_path / "program.c"), str(odd.library), f"-Wl,-rpath,{folder}"]
    subprocess.run([*argv, "-o", str(tmp_path / "program")], check=True)
    env = {**os.environ, "OMP_NUM_THREADS": "3"}
    done = subprocess.run([tmp_path / "program"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "3 3",
        "2 2",
        "the number of threads is -4; wanted 1 or more, or 0 for OpenMP's own number",
    ]


def test_without_openmp_there_is_one_thread(built: linked.Built) -> None:
    code = "import ops; print(ops.get_num_threads()); ops.set_num_threads(4); print(ops.get_num_threads())"
    assert run(built, code) == ["1", "1"]
