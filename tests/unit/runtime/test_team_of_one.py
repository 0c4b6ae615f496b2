"""Parallel regions of kernels: a team of one is the calling thread, without OpenMP's help, and sees no other team."""

from __future__ import annotations

import subprocess

import pytest

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


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What the program prints, with a library that is linked as the build links it."""
    folder = tmp_path_factory.mktemp("team")
    (folder / "kernel.cpp").write_text(KERNEL)
    (folder / "program.cpp").write_text(PROGRAM)
    warned = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fopenmp"]
    library = ["kernel.cpp", RUNTIME / "team_of_one.cpp", "-shared", "-fPIC", "-Wl,--wrap=GOMP_parallel", "-Wl,-z,defs"]
    subprocess.run(["g++", *warned, *map(str, library), "-o", "libkernel.so"], cwd=folder, check=True)
    program = ["program.cpp", "-rdynamic", "libkernel.so", f"-Wl,-rpath,{folder}", "-ldl", "-o", "program"]
    subprocess.run(["g++", *warned, *program], cwd=folder, check=True)
    done = subprocess.run([folder / "program"], capture_output=True, text=True, check=True, timeout=60)
    return [[int(n) for n in line.split()] for line in done.stdout.splitlines()]


def test_a_team_of_one_begins_no_region_of_openmp(said: list[list[int]]) -> None:
    assert said[0] == [0, 0, 1]


def test_larger_teams_do(said: list[list[int]]) -> None:
    assert said[1] == [1, 1, 2]
    assert said[2] == [1, 2, 3]


def test_nor_does_a_default_team_of_one(said: list[list[int]]) -> None:
    assert said[3] == [0, 0, 1]


def test_in_a_region_of_the_caller_each_thread_has_a_team_of_its_own(said: list[list[int]]) -> None:
    assert said[4] == [0, 1, 0, 1]
