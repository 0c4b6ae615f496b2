"""What a run-time trace (AOT_TUNE_TRACE) holds, and a clock that runs ahead, so that no test waits for a write."""

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from aot_tune.spec import Problem, problem

_HEADER = ("format", "library", "prefix", "build", "pid", "begun")

_CLOCK = """
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long ahead;
extern "C" void clock_ahead(long seconds) { __atomic_add_fetch(&ahead, seconds, __ATOMIC_SEQ_CST); }
static long costs[1000];  // of kernels of the tests, by what they add to results
extern "C" void clock_cost(int mark, long seconds) { costs[mark] = seconds; }
extern "C" void spend(int mark) { clock_ahead(costs[mark]); }
extern "C" int clock_gettime(clockid_t id, timespec* time) noexcept {
  const int status = static_cast<int>(syscall(SYS_clock_gettime, id, time));
  if (id == CLOCK_MONOTONIC) time->tv_sec += __atomic_load_n(&ahead, __ATOMIC_SEQ_CST);
  return status;
}
"""


def late_clock(folder: Path) -> Path:
    """A library for LD_PRELOAD whose `clock_ahead(seconds)` sets the monotonic clock forward."""
    made = folder / "libclock.so"
    source = folder / "clock.cpp"
    source.write_text(_CLOCK)
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    return made


class Trace:
    """The lines of a trace: headers, counts, calls of other kinds."""

    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        self.headers = [line["trace"] for line in lines if "trace" in line]
        self.counts = [line for line in lines if "operator" in line]
        self.others = sum(line["others"] for line in lines if "others" in line)
        assert len(self.headers) + len(self.counts) + sum("others" in line for line in lines) == len(lines)
        assert all(tuple(header) == _HEADER for header in self.headers)

    def calls(self) -> dict[tuple[str, str], tuple[int, int]]:
        """For each operator and problem the calls, and how many of them were captured."""
        found: Counter[tuple[str, str]] = Counter()
        captured: Counter[tuple[str, str]] = Counter()
        for line in self.counts:
            found[line["operator"], problem_of(line).id] += line["calls"]
            captured[line["operator"], problem_of(line).id] += line["captured"]
        return {key: (count, captured[key]) for key, count in found.items()}

    @property
    def total(self) -> int:
        return self.others + sum(line["calls"] for line in self.counts)


def read_trace(path: Path) -> Trace:
    """The lines of a file, all of which are whole."""
    text = path.read_text()
    assert text.endswith("\n")
    return Trace([json.loads(line) for line in text.splitlines()])


def problem_of(line: dict[str, Any]) -> Problem:
    """The problem of a line, which says nothing else, in the form in which `problem` writes it."""
    fields = {k: v for k, v in line.items() if k not in ("operator", "calls", "captured")}
    assert {"calls", "captured"} <= line.keys()
    found = msgspec.convert(fields, Problem, strict=True)
    assert fields.keys() <= set(Problem.__struct_fields__)
    stated = {k: v for k, v in msgspec.structs.asdict(found).items() if k != "dims"}
    assert msgspec.json.encode(problem(**stated, **found.dims)) == msgspec.json.encode(found)
    return found
