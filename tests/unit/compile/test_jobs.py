"""The number of parallel compiles, on made-up machines."""

import os
from pathlib import Path

import pytest

from aot_tune.compile import parallel_compiles
from aot_tune.support.errors import OptionError

GIB = 1 << 30


def machine(root: Path, memory_gib: float = 64, files: dict[str, str] | None = None) -> Path:
    """A machine of 16 cores, with these files of its kernel."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {int(memory_gib * 2**20)} kB\n")
    for name, text in (files or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))


def test_variables_in_order_then_what_compilers_need(tmp_path: Path) -> None:
    root = machine(tmp_path, memory_gib=20)
    given = {"AOT_TUNE_JOBS": "3", "CMAKE_BUILD_PARALLEL_LEVEL": "5", "MAX_JOBS": "7"}
    for variable, count in (("AOT_TUNE_JOBS", 3), ("CMAKE_BUILD_PARALLEL_LEVEL", 5), ("MAX_JOBS", 7)):
        found = parallel_compiles(given, root=root, memory=4 * GIB)
        assert (found.count, variable in found.reason) == (count, True)
        given[variable] = ""
    found = parallel_compiles(given, root=root, memory=4 * GIB)
    assert found.count == 5
    assert "20.0 GiB free, 4.0 GiB each" in found.reason


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "٣x"])
def test_a_bad_number_names_variable_and_value(value: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="MAX_JOBS") as caught:
        parallel_compiles({"MAX_JOBS": value}, root=machine(tmp_path))
    assert repr(value) in caught.value.what


MEMORY = "sys/fs/cgroup/memory"
FULL = {"proc/self/cgroup": "0::/", f"{MEMORY}.max": str(8 * GIB), f"{MEMORY}.current": str(8 * GIB - 4096)}
READ = f"anon {GIB}\ninactive_file {5 * GIB}"


@pytest.mark.parametrize(
    ("files", "count"),
    [
        (
            {
                "proc/self/cgroup": "0::/outer/inner",
                "sys/fs/cgroup/outer/cpu.max": "250000 100000",  # of the parent
                "sys/fs/cgroup/outer/inner/cpu.max": "max 100000",
            },
            2,
        ),
        ({**FULL, f"{MEMORY}.max": str(4 * GIB), f"{MEMORY}.current": str(GIB)}, 3),
        ({**FULL, f"{MEMORY}.stat": READ}, 5),  # files that were read leave room
        ({**FULL, f"{MEMORY}.stat": "nonsense"}, 1),
        (
            {
                "proc/self/cgroup": "5:cpu:/job\n3:memory:/job",  # version 1
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(1 << 62),
            },
            4,
        ),
    ],
)
def test_limits_of_control_groups_hold(files: dict[str, str], count: int, tmp_path: Path) -> None:
    assert parallel_compiles({}, root=machine(tmp_path, files=files)).count == count
