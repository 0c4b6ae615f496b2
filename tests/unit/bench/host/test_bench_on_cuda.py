"""The whole bench of the CUDA family, with worker processes, on the host's tensors; races are a module of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compiled import Bed

from aot_tune.bench.host.verify_in_library import verify_linked
from aot_tune.support.errors import AotTuneError

pytest.importorskip("torch")

from cuda_bench import CONTRACT, make_bed, objects_in

LIBRARY = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "good.cpp"
struct Execution { void *stream, *workspace; size_t size; };
#define CALL const DLTensor *x, const DLTensor *bias, const DLTensor *y
EXPORT int32_t my_axpb(CALL, const Execution* how) {
  const char* const variant = std::strchr(std::getenv("AOT_TUNE_FORCE"), ':') + 1;
  if (std::strcmp(variant, "idle") == 0) return 0;
  if (std::strcmp(variant, "refusing") == 0) return 1;
  if (std::strcmp(variant, "crashing") == 0) std::abort();
  return candidate_launch(x, bias, y, how->workspace, how->size, how->stream);
}
EXPORT int32_t my_axpb_workspace(CALL, size_t* size) { return candidate_workspace(x, bias, y, size); }
EXPORT int32_t my_axpb_explain(CALL, const Execution*, char* text, size_t size) {
  static const char* const forced = std::getenv("AOT_TUNE_FORCE");
  std::snprintf(text, size, "variant: %s\n", std::strchr(forced, ':') + 1);
  return 0;
}
EXPORT const char* my_last_error() { return ""; }
__attribute__((destructor)) static void go() { std::abort(); }
"""
"""A library that takes its process with it when it is unloaded; two of its variants are bad."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return objects_in(tmp_path_factory.mktemp("objects"))


@pytest.fixture
def bed(tmp_path: Path, objects: Callable[[str], Path]) -> Iterator[Bed]:
    with make_bed(tmp_path, objects) as found:
        yield found


@pytest.fixture(scope="module")
def worn_bed(tmp_path_factory: pytest.TempPathFactory, objects: Callable[[str], Path]) -> Iterator[Bed]:
    """For tests in which workers die: others have taken their place before the next."""
    with make_bed(tmp_path_factory.mktemp("bed"), objects) as found:
        yield found


def test_candidates_are_screened_and_stay_loaded(worn_bed: Bed) -> None:
    bed, measured = worn_bed, worn_bed.screen("good")
    assert measured.status == "ok", measured.reason
    assert len(measured.screen) >= 2
    assert measured.bitwise is True
    assert {"verify", "bench"} <= set(measured.phases)
    again = bed.screen("good", best_ns=1.0)
    assert (again.status, len(again.screen)) == ("ok", 2)
    assert "load" not in again.phases
    worker = bed.bench.pool.candidates()
    assert bed.entry("good").code in worker.loaded


@pytest.mark.slow
def test_a_fault_is_a_status_and_the_next_candidate_is_unaffected(worn_bed: Bed) -> None:
    for name, status, pattern in (
        ("segfault", "crashed", "SIGSEGV in R="),
        ("past_end", "wrong-result", "oob: guard zone of 'y'"),
        ("one_wrong", "wrong-result", "1 of"),
        ("refuses", "failed", "candidate_launch returned 5"),
        ("exits", "no-result", "ended with status 0"),
        ("huge_workspace", "skipped", "bytes of workspace"),
        ("later", "wrong-result", "timed calls"),
        ("hangs", "timeout", "no answer within 3 s"),
    ):
        measured = worn_bed.screen(name, tune_checks=name != "later")
        assert measured.status == status, measured
        assert pattern in measured.reason
        assert worn_bed.screen("good").status == "ok"


def test_a_reference_that_takes_too_much_memory_says_what_to_do(worn_bed: Bed) -> None:
    with pytest.raises(AotTuneError, match=r"no reference for problem 'R=17 D=4'") as caught:
        worn_bed.prepare(R=17, D=4)
    assert caught.value.why == "Tried to allocate 64.00 GiB. (out of memory)"
    assert "some rows at a time, or leave the problem out of the workload" in caught.value.fix
    assert worn_bed.screen("good").status == "ok"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "my.cpp").write_text(LIBRARY)
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-I", CONTRACT, "-o", "libmy.so", "my.cpp"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    return folder / "libmy.so"


@pytest.mark.slow
def test_libraries_stay_loaded_once_a_worker_died_as_one_went_and_bad_ones_are_told(bed: Bed, library: Path) -> None:
    """Else each variant of a library would cost a worker, which takes seconds to start on a GPU."""
    for variant in ("one", "two", "three", "four"):
        found = verify_linked(
            bed.bench.context, library, "my_axpb", f"axpb:{variant}", [bed.prepare(), bed.prepare(R=3, D=5)]
        )
        assert found.status == "ok", found.reason
    assert bed.bench.pool.deaths == 1
    told = [line for line in bed.lines if "libraries now stay loaded" in line]
    assert len(told) == 1
    assert "SIGABRT" in told[0]
    for variant, status in (("idle", "wrong-result"), ("refusing", "failed"), ("crashing", "crashed")):
        found = verify_linked(bed.bench.context, library, "my_axpb", f"axpb:{variant}", [bed.prepare()])
        assert found.status == status
        assert found.reason
