"""The C interface under sanitizers: every error, nothing written when a call fails, no byte out of bounds."""

import dataclasses
import os
import subprocess
from pathlib import Path

import linked
import pytest
from places import SHARED

from aot_tune.link import generate
from aot_tune.support.installed_paths import RUNTIME


@pytest.mark.slow
def test_calls_under_sanitizers(built: linked.Built, odd: linked.Built, tmp_path: Path) -> None:
    """link_calls.cpp with a library's sources, all but the kernels compiled with sanitizers."""
    program, out = tmp_path / "calls", tmp_path / "out"
    more = (t for t in odd.spec.operators if t.operator.name in ("copy", "likely"))
    made = generate(dataclasses.replace(built.spec, operators=(*built.spec.operators, *more)), out)
    flags = ["-std=c++17", "-g", "-O0", f"-I{out}", f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}"]
    objects = linked.sanitized_runtime(tmp_path / "runtime")
    sources = [SHARED / "link_calls.cpp", made.dispatch]
    subprocess.run(
        ["g++", *linked.SANITIZE, *flags, *sources, *objects, made.archive, "-pthread", "-o", program], check=True
    )
    for level in ("", "2"):
        env = {k: v for k, v in os.environ.items() if k != "AOT_TUNE_CPU_LEVEL"}
        env |= {"ASAN_OPTIONS": "detect_leaks=1:halt_on_error=1"} | ({"AOT_TUNE_CPU_LEVEL": level} if level else {})
        done = subprocess.run([program], capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout == "0 failures\n"


LAST = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include "aot_tune/ops.h"

int call() {
  float data[3][4] = {};
  int64_t shape[2] = {2, 2};
  DLTensor a = {data[0], {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, nullptr, 0}, b = a, out = a;
  b.data = data[1];
  out.data = data[2];
  return aot_tune_gemm(&a, &b, nullptr, nullptr, &out, 0, nullptr);
}

struct Last {  // its destructor runs after those of the thread's own objects
  ~Last() {
    constexpr int kSize = 4096;  // what was freed
    char* mine = static_cast<char*>(std::malloc(kSize));
    std::memset(mine, 7, kSize);
    if (call() != 0) _exit(1);
    for (int i = 0; i < kSize; ++i) {
      if (mine[i] != 7) _exit(2);
    }
  }
} last;

int main() { return call(); }
"""


def compiled(built: linked.Built, text: str, folder: Path, *library: Path, language: str = "c") -> Path:
    """A program against the library's header, linked with what is given."""
    source, program, place = folder / "program.source", folder / "program", built.library.parent
    source.write_text(text)
    flags = [f"-I{place}", f"-I{RUNTIME / 'include'}", f"-Wl,-rpath,{place}", "-pthread", "-x", language, str(source)]
    subprocess.run(["g++", *flags, "-x", "none", *library, "-o", program], check=True)
    return program


def test_a_call_after_the_end_of_its_thread_has_memory_of_its_own(built: linked.Built, tmp_path: Path) -> None:
    program = compiled(built, LAST, tmp_path, built.library, language="c++")
    assert subprocess.run([program], check=False, env={**os.environ, "AOT_TUNE_CPU_LEVEL": "2"}).returncode == 0


SMALL = """
#include <limits.h>
#include <pthread.h>
#include "aot_tune/ops.h"

static void* run(void* failed) {
  float data[3][4] = {{0}};
  int64_t shape[2] = {2, 2};
  DLTensor a = {data[0], {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, 0, 0}, b = a, out = a;
  b.data = data[1];
  out.data = data[2];
  for (int i = 0; i < 3; ++i) *(int*)failed |= aot_tune_gemm(&a, &b, 0, 0, &out, 0, 0);
  return 0;
}

int main() {
  pthread_attr_t attributes;
  pthread_t thread;
  int failed = 0;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN);
  if (pthread_create(&thread, &attributes, run, &failed) != 0) return 1;
  pthread_join(thread, 0);
  return failed != 0 ? 2 : 0;
}
"""


def test_threads_of_small_stacks_call(built: linked.Built, tmp_path: Path) -> None:
    """What threads remember does not lie on their stacks, as the thread_locals of a program's libraries do."""
    assert subprocess.run([compiled(built, SMALL, tmp_path, built.library)], check=False).returncode == 0


CLOSED = """
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include "aot_tune/ops.h"

static sem_t called, closed;

static void* run(void* function) {
  float data[3][4] = {{0}};
  int64_t shape[2] = {2, 2};
  DLTensor a = {data[0], {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, 0, 0}, b = a, out = a;
  b.data = data[1];
  out.data = data[2];
  int failed = 0;
  for (int i = 0; i < 3; ++i) failed |= ((__typeof__(&aot_tune_gemm))function)(&a, &b, 0, 0, &out, 0, 0);
  sem_post(&called);
  sem_wait(&closed);
  return failed != 0 ? function : 0;
}

int main(int count, char** values) {
  sem_init(&called, 0, 0);
  sem_init(&closed, 0, 0);
  for (int i = 0; i < 3; ++i) {
    void* library = dlopen(values[count - 1], RTLD_NOW);
    void* failed = library;
    pthread_t thread;
    if (library == 0) return 1;
    pthread_create(&thread, 0, run, dlsym(library, "aot_tune_gemm"));
    sem_wait(&called);
    dlclose(library);
    sem_post(&closed);
    pthread_join(thread, &failed);
    if (failed != 0) return 2;
  }
  return 0;
}
"""


def test_a_thread_ends_after_the_library_was_closed(built: linked.Built, tmp_path: Path) -> None:
    assert subprocess.run([compiled(built, CLOSED, tmp_path), built.library], check=False).returncode == 0
