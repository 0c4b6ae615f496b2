"""Parallel regions of kernels: a team of one is the calling thread, without OpenMP's help, and sees no other team."""

from __future__ import annotations

import subprocess
from pathlib import Path

from aot_tune.support.installed_paths import RUNTIME

KERNEL = """
#include <omp.h>
// What the last thread of a region saw: its number, and the size of its team; `threads` 0 is the default.
extern "C" void region(int threads, int* number, int* team) {
  if (threads == 0) {
#pragma omp parallel
    {
#pragma omp critical
      *number = omp_get_thread_num() > *number ? omp_get_thread_num() : *number, *team = omp_get_num_threads();
    }
  } else {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp critical
      *number = omp_get_thread_num() > *number ? omp_get_thread_num() : *number, *team = omp_get_num_threads();
    }
  }
}
"""
PROGRAM = """
#include <dlfcn.h>
#include <omp.h>

#include <cstdio>

static int begun = 0;
using Begin = void (*)(void (*)(void*), void*, unsigned, unsigned);

// In front of OpenMP's own, for the library: it counts.
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  __atomic_add_fetch(&begun, 1, __ATOMIC_RELAXED);
  static const auto next = reinterpret_cast<Begin>(dlsym(RTLD_NEXT, "GOMP_parallel"));
  next(body, data, threads, flags);
}

extern "C" void region(int threads, int* number, int* team);

static void show(int threads) {
  int number = 0, team = 0;
  begun = 0;
  region(threads, &number, &team);
  std::printf("%d %d %d\\n", begun, number, team);
}

int main() {
  omp_set_dynamic(0);
  show(1);
  show(2);
  omp_set_num_threads(3);
  show(0);
  omp_set_num_threads(1);
  show(0);
  int numbers[2] = {}, teams[2] = {};
#pragma omp parallel num_threads(2)
  region(1, &numbers[omp_get_thread_num()], &teams[omp_get_thread_num()]);
  std::printf("%d %d %d %d\\n", numbers[0], teams[0], numbers[1], teams[1]);
  return 0;
}
"""


def test_teams(tmp_path: Path) -> None:
    """Linked as the build links: of each call the regions that OpenMP began, the thread's number and its team."""
    (tmp_path / "kernel.cpp").write_text(KERNEL)
    (tmp_path / "program.cpp").write_text(PROGRAM)
    warned = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fopenmp"]
    library = ["kernel.cpp", RUNTIME / "team_of_one.cpp", "-shared", "-fPIC", "-Wl,--wrap=GOMP_parallel", "-Wl,-z,defs"]
    subprocess.run(["g++", *warned, *map(str, library), "-o", "libkernel.so"], cwd=tmp_path, check=True)
    program = ["program.cpp", "-rdynamic", "libkernel.so", f"-Wl,-rpath,{tmp_path}", "-ldl", "-o", "program"]
    subprocess.run(["g++", *warned, *program], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == [
        "0 0 1",  # a team of one begins no region of OpenMP
        "1 1 2",
        "1 2 3",
        "0 0 1",  # nor does a default team of one
        "0 1 0 1",  # in a region of the caller each thread has a team of its own
    ]
