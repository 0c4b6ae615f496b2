"""The number of parallel compiles, on made-up machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aot_tune.compile import parallel_compiles
from aot_tune.support.errors import OptionError

GIB = 1 << 30


def machine(root: Path, *, memory_gib: float = 64, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {int(memory_gib * 2**20)} kB\n")
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))


def test_variables_in_order(tmp_path: Path) -> None:
    root = machine(tmp_path)
    everything = {"AOT_TUNE_JOBS": "3", "CMAKE_BUILD_PARALLEL_LEVEL": "5", "MAX_JOBS": "7"}
    assert parallel_compiles(everything, root=root).count == 3
    everything["AOT_TUNE_JOBS"] = ""
    assert parallel_compiles(everything, root=root).count == 5
    del everything["CMAKE_BUILD_PARALLEL_LEVEL"]
    assert parallel_compiles(everything, root=root).count == 7
    assert "MAX_JOBS" in parallel_compiles(everything, root=root).reason


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "٣x"])
def test_a_bad_number_names_variable_and_value(value: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="MAX_JOBS") as caught:
        parallel_compiles({"MAX_JOBS": value}, root=machine(tmp_path))
    assert repr(value) in caught.value.what


def test_compilers_that_need_much(tmp_path: Path) -> None:
    """nvcc with CUTLASS: the line says how much each needs when that is what bounds the number."""
    root = machine(tmp_path, memory_gib=20)
    assert parallel_compiles({}, root=root, memory=4 * GIB).count == 5
    assert "20.0 GiB free, 4.0 GiB each" in parallel_compiles({}, root=root, memory=4 * GIB).reason
    assert "each" not in parallel_compiles({}, root=root).reason
    assert parallel_compiles({"MAX_JOBS": "9"}, root=root, memory=4 * GIB).count == 9


def test_cgroup_2_limits_of_a_parent_hold(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__self__cgroup="0::/outer/inner\n",
        sys__fs__cgroup__outer__cpu_dot_max="250000 100000\n",
        sys__fs__cgroup__outer__inner__cpu_dot_max="max 100000\n",
    )
    assert parallel_compiles({}, root=root).count == 2


def test_cgroup_2_memory_counts_what_is_used(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__memory_dot_max=f"{4 * GIB}\n",
        sys__fs__cgroup__memory_dot_current=f"{GIB}\n",
    )
    assert parallel_compiles({}, root=root).count == 3


@pytest.mark.parametrize("stat", ["inactive_file", "total_inactive_file"])
def test_files_that_were_read_leave_room(tmp_path: Path, stat: str) -> None:
    root = machine(
        tmp_path,
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__memory_dot_max=f"{8 * GIB}\n",
        sys__fs__cgroup__memory_dot_current=f"{8 * GIB - 4096}\n",
        sys__fs__cgroup__memory_dot_stat=f"anon {GIB}\ninactive_file {5 * GIB}\n{stat} {5 * GIB}\n",
    )
    assert parallel_compiles({}, root=root).count == 5
    (root / "sys/fs/cgroup/memory.stat").write_text("nonsense\n")
    assert parallel_compiles({}, root=root).count == 1


def test_cgroup_1(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__self__cgroup="5:cpu:/job\n3:memory:/job\n",
        sys__fs__cgroup__cpu__job__cpu_dot_cfs_quota_us="400000\n",
        sys__fs__cgroup__cpu__job__cpu_dot_cfs_period_us="100000\n",
        sys__fs__cgroup__memory__job__memory_dot_limit_in_bytes=f"{1 << 62}\n",
    )
    assert parallel_compiles({}, root=root).count == 4
