"""How many threads a call gets: what was set, OpenMP's own number, and the quotas of control groups."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import linked
import pytest
from places import SHARED

from aot_tune.bench.devices.cpu import usable_cores
from aot_tune.link import DecisionNode, LibrarySpec, LinkedVariant, OperatorTable, TargetTable
from aot_tune.spec import Kernel, Operator, Tensor, dims, problem
from aot_tune.support.control_groups import control_groups, core_limits
from aot_tune.support.installed_paths import RUNTIME

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
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=address,undefined", "-DAOT_TUNE_PREFIX=x"]
    flags += [f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}"]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", str(folder / "quota")], check=True)
    return folder / "quota"


V2 = {"proc/self/cgroup": "0::/kube/pod\n"}
V1 = {"proc/self/cgroup": "12:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n1:name=systemd:/docker/1\n"}
TREES: dict[str, tuple[Mapping[str, str], int]] = {
    "no groups": ({}, 0),
    "no quota": (V2 | {"sys/fs/cgroup/kube/pod/cpu.max": "max 100000\n"}, 0),
    "its own": (V2 | {"sys/fs/cgroup/kube/pod/cpu.max": "300000 100000\n"}, 3),
    "part of a core": (V2 | {"sys/fs/cgroup/kube/pod/cpu.max": "50000 100000\n"}, 1),
    "two and a half": (V2 | {"sys/fs/cgroup/kube/pod/cpu.max": "250000 100000\n"}, 2),
    "of a group above": (
        V2 | {"sys/fs/cgroup/kube/pod/cpu.max": "900000 100000", "sys/fs/cgroup/kube/cpu.max": "200000 100000"},
        2,
    ),
    "of a container's top": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"},
        4,
    ),
    "a group of the host, seen from a container": (
        {"proc/self/cgroup": "0::/../../system.slice\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"},
        4,
    ),
    "version 1": (
        V1
        | {
            "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us": "50000\n",
        },
        3,
    ),
    "version 1 without a quota": (V1 | {"sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us": "-1\n"}, 0),
    "version 1, mounted by one name": (V1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n"}, 2),
    "nonsense": (V2 | {"sys/fs/cgroup/kube/pod/cpu.max": "many few\n", "sys/fs/cgroup/cpu.max": "-5 0\n"}, 0),
    "rows of other kinds": ({"proc/self/cgroup": "::\nno colons\n7:\n0::" + "/x" * 3000 + "\n"}, 0),
}


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("case", TREES)
def test_quotas_of_control_groups(quota: Path, tmp_path: Path, case: str) -> None:
    files, cores = TREES[case]
    root = tree(tmp_path / "root", files)
    done = subprocess.run([quota, root], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{cores}\n"), done.stderr
    usable = len(os.sched_getaffinity(0))
    assert usable_cores(root) == min(usable, cores or usable)  # what a build tunes with
    assert min(core_limits(control_groups(root)), default=0) == cores


KERNEL = """
#include <omp.h>
#include <cstddef>
#include <cstdint>
struct DLTensor {
  void* data; struct { int32_t type, id; } device; int32_t ndim; struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t* shape; int64_t* strides; uint64_t byte_offset;
};
#define EXPORT extern "C" __attribute__((visibility("default"))) int32_t
EXPORT aot_tune_counted_workspace(const DLTensor*, const DLTensor*, size_t* size) {
  *size = static_cast<size_t>(omp_get_max_threads()) * 64;
  return 0;
}
EXPORT aot_tune_counted_launch(const DLTensor* x, const DLTensor* y, void*, size_t size, void*) {
  int threads = 0;
#pragma omp parallel reduction(+ : threads)
  threads += 1;
  if (size != static_cast<size_t>(omp_get_max_threads()) * 64) return 90;
  float* const out = static_cast<float*>(y->data);
  for (int64_t i = 0; i < x->shape[0]; ++i) out[i * y->strides[0]] = static_cast<float>(threads);
  return 0;
}
"""


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """A library whose operator gives the number of threads that its kernel has; tuned with 64."""
    folder = tmp_path_factory.mktemp("counted")
    (folder / "counted.cpp").write_text(KERNEL)
    flags = ["-std=c++17", "-O2", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"]
    made = folder / "counted.o"
    subprocess.run(["g++", *flags, "-c", "counted.cpp", "-o", made.name], cwd=folder, check=True)
    (n,) = dims("N")
    operator = Operator(
        name="threads",
        dims=("N",),
        tensors=(Tensor("x", (n,)), Tensor("y", (n,), output=True)),
        reference=lambda xp, call: {"y": call.x},
        flops=n,
        workload=(problem(N=4),),
        kernels=(Kernel("counted", "threads/counted.cpp.j2", generic=True),),
    )
    variant = LinkedVariant(
        name="counted",
        symbol="aot_tune_counted",
        kernel="counted",
        target="cpu-x86-64",
        level=1,
        object_path=str(made),
        object_digest=hashlib.sha256(made.read_bytes()).hexdigest(),
        generic=True,
    )
    table = TargetTable(target="cpu-x86-64", level=1, nodes=(DecisionNode(leaf=(0,)),), processors=64)
    spec = LibrarySpec(
        output="counted", operators=(OperatorTable(operator=operator, variants=(variant,), tables=(table,)),)
    )
    return linked.link_library(spec, folder / "out")


@pytest.fixture(scope="module")
def redirect(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for LD_PRELOAD that reads control groups elsewhere."""
    folder = tmp_path_factory.mktemp("redirect")
    argv = [
        "g++",
        "-shared",
        "-fPIC",
        "-O1",
        str(SHARED / "control_groups.cpp"),
        "-o",
        str(folder / "redirect.so"),
        "-ldl",
    ]
    subprocess.run(argv, check=True)
    return folder / "redirect.so"


HEAD = """
import os, sys, threading
import numpy as np
def threads():
    given = np.ones(8, "f4")
    got = ops.threads(given)
    assert got.min() == got.max()
    assert ops.get_num_threads() == got[0]
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
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "AOT_TUNE_"))}
    env |= {"PYTHONPATH": str(built.module.parent), **environment}
    argv = [sys.executable, "-c", HEAD + code]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


def test_the_variable_of_openmp(counted: linked.Built) -> None:
    code = "import ops\nprint(threads(), elsewhere(threads), threads())"
    assert run(counted, code, OMP_NUM_THREADS="3") == ["3", "3", "3"]
    assert run(counted, code, OMP_NUM_THREADS="3", OMP_THREAD_LIMIT="8") == ["3", "3", "3"]


def test_cores_that_the_process_may_use(counted: linked.Built) -> None:
    """They are counted when OpenMP is loaded."""
    code = """
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cores[:1])
import ops
print(threads())
os.sched_setaffinity(0, cores)
print(threads())
"""
    assert run(counted, code) == ["1", "1"]
    cores = str(len(os.sched_getaffinity(0)))
    assert run(counted, "import ops\nprint(threads())") == [cores]


def test_what_is_set_holds_for_all_threads_until_it_is_taken_back(counted: linked.Built) -> None:
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
    assert run(counted, code, OMP_NUM_THREADS="3") == ["3", "3", "5", "5", "2", "2", "3", "3"]


def test_a_threads_own_number_of_openmp(counted: linked.Built) -> None:
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
    assert run(counted, OPENMP + code, OMP_NUM_THREADS="3") == ["2", "3", "4", "2", "1", "2", "2", "2"]


def test_the_number_of_torch(counted: linked.Built) -> None:
    """Where both have one OpenMP, it is that of the thread."""
    pytest.importorskip("torch")
    code = """
import torch, ops
files = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.rpartition("/")[2]}
torch.set_num_threads(1)
print(len(files), threads(), elsewhere(threads))
"""
    files, *found = run(counted, code, OMP_NUM_THREADS="3")
    if files != "1":
        pytest.skip("torch has another OpenMP than libraries")
    assert found == ["1", "3"]


def test_a_child_of_fork_has_the_number_of_its_parent(counted: linked.Built) -> None:
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
    assert run(counted, code, OMP_NUM_THREADS="3") == ["2", "2", "2"]


def test_calls_at_once_from_many_threads(counted: linked.Built) -> None:
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
    assert run(counted, code, OMP_NUM_THREADS="3") == ["True", "3", "3"]


def test_within_a_parallel_region_there_is_one_thread(counted: linked.Built, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PARALLEL)
    folder = counted.library.parent
    flags = ["-std=c11", "-fopenmp", f"-I{folder}", f"-I{RUNTIME / 'include'}", f"-Wl,-rpath,{folder}"]
    argv = ["gcc", *flags, str(tmp_path / "program.c"), str(counted.library), "-o", str(tmp_path / "program")]
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
  float x[1] = {0}, y[1] = {0};
  int64_t shape[1] = {1};
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


def test_explain_says_how_many(counted: linked.Built) -> None:
    code = """
import ops
for count in (64, 2):
    ops.set_num_threads(count)
    print(ops.explain("threads", N=8).get("threads", "as tuned").replace(" ", "_"))
"""
    assert run(counted, code) == ["as_tuned", "tuned_with_64,_this_process_has_2"]


def test_numbers_that_are_refused(counted: linked.Built) -> None:
    code = """
import ops
for count in (-1, 1 << 40, -(1 << 40), "4", 1.5, None):
    try:
        ops.set_num_threads(count)
    except (ops.ArgumentValueError, TypeError, OverflowError) as error:
        print(type(error).__name__, "wanted 1 or more" in str(error))
print(threads())
"""
    said = run(counted, code, OMP_NUM_THREADS="3")
    refused = ["ArgumentValueError", "True"]
    assert said[:6] == refused * 3
    assert said[6:] == ["TypeError", "False"] * 3 + ["3"]


def test_a_quota_counts_where_nobody_says_otherwise(counted: linked.Built, redirect: Path, tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this process may use one core alone")
    cores = str(len(os.sched_getaffinity(0)))
    root = tree(tmp_path / "root", V2 | {"sys/fs/cgroup/kube/pod/cpu.max": "150000 100000\n"})
    place = {"LD_PRELOAD": str(redirect), "CONTROL_GROUPS": str(root)}
    code = "import ops\nprint(threads(), elsewhere(threads), ops.get_num_threads())"
    assert run(counted, code, **place) == ["1", "1", "1"]
    assert run(counted, code, **place, OMP_NUM_THREADS="3") == ["3", "3", "3"]
    assert run(counted, code, LD_PRELOAD=str(redirect), CONTROL_GROUPS=str(tmp_path)) == [cores] * 3
    set_by_hand = """
import ops
ops.set_num_threads(3)
print(threads())
ops.set_num_threads(0)
print(threads(), openmp.omp_get_max_threads())
openmp.omp_set_num_threads(7)
print(threads())
"""
    assert run(counted, OPENMP + set_by_hand, **place) == ["3", "1", cores, "7"]


C_PROGRAM = """
#include <aot_tune/ops.h>
#include <aot_tune/tensor.h>
#include <pthread.h>
#include <stdio.h>
static void* call(void* unused) {
  float x[2] = {0, 0}, y[2] = {0, 0};
  int64_t shape[1] = {2};
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


def test_from_c(counted: linked.Built, tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(C_PROGRAM)
    folder = counted.library.parent
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{folder}", f"-I{RUNTIME / 'include'}"]
    argv = ["gcc", *flags, str(tmp_path / "program.c"), str(counted.library), f"-Wl,-rpath,{folder}"]
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
    env = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")} | {"PYTHONPATH": str(built.module.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
