"""Calls of a library: streams, threads, graphs, loading ahead, workspaces, odd values; each in a fresh process."""

from pathlib import Path
from typing import Any

import pytest
from traces import read_trace


@pytest.mark.parametrize(
    "scenario",
    [
        "imports",
        "two_streams",
        "two_threads",
        "capture_beside",
        "preload",
        "workspaces",
        "attention_of_torch",
        "wrong_calls",
        "without_force",
        "rows_in_place",
        "leading_dims",
        "empty_calls",
        "no_numbers",
        "far_apart",
    ],
)
def test_calls(library: Any, scenario: str) -> None:
    library.run(scenario)


@pytest.mark.parametrize("loading", ["EAGER", "LAZY"])
@pytest.mark.parametrize("first", ["warm", "preloaded", "cold"])
def test_capture(library: Any, first: str, loading: str) -> None:
    """`cold`: the first call of the process is inside a global-mode capture."""
    library.run("capture", first, CUDA_MODULE_LOADING=loading)


def test_a_trace_tells_which_calls_were_captured(library: Any, tmp_path: Path) -> None:
    """Each case is called once in a graph, whose replays are no calls, and once without; asking disturbs no capture."""
    library.run("capture", "cold", AOT_TUNE_TRACE=str(tmp_path / "one"))
    traced = read_trace(tmp_path / "one")
    assert traced.total > 0
    assert all(2 * line["captured"] == line["calls"] for line in traced.counts)
    library.run("capture_beside", AOT_TUNE_TRACE=str(tmp_path / "beside"))
    traced = read_trace(tmp_path / "beside")
    assert 0 < sum(line["captured"] for line in traced.counts) < traced.total


def test_a_process_that_sees_no_gpu_can_import(library: Any) -> None:
    library.run("imports", CUDA_VISIBLE_DEVICES="")
