"""Streams, threads, graphs, loading ahead and workspaces, each in a fresh process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from traces import read_trace


def test_importing_makes_no_context(library: Any) -> None:
    library.run("imports")


def test_two_streams(library: Any) -> None:
    library.run("two_streams")


def test_several_threads_from_the_first_call_on(library: Any) -> None:
    library.run("two_threads")


@pytest.mark.parametrize("loading", ["EAGER", "LAZY"])
@pytest.mark.parametrize("first", ["warm", "preloaded", "cold"])
def test_capture(library: Any, first: str, loading: str) -> None:
    """`cold`: the first call of the process is inside a global-mode capture."""
    library.run("capture", first, CUDA_MODULE_LOADING=loading)


def test_a_capture_beside_first_calls_of_another_thread(library: Any) -> None:
    library.run("capture_beside")


def test_a_trace_tells_which_calls_were_captured(library: Any, tmp_path: Path) -> None:
    """Each case is called once in a graph, whose replays are no calls, and once without; asking disturbs no capture."""
    library.run("capture", "cold", AOT_TUNE_TRACE=str(tmp_path / "one"))
    traced = read_trace(tmp_path / "one")
    assert traced.total > 0
    assert all(2 * line["captured"] == line["calls"] for line in traced.counts)
    library.run("capture_beside", AOT_TUNE_TRACE=str(tmp_path / "beside"))
    traced = read_trace(tmp_path / "beside")
    assert 0 < sum(line["captured"] for line in traced.counts) < traced.total


def test_preload(library: Any) -> None:
    library.run("preload")


def test_workspaces_of_the_caller(library: Any) -> None:
    library.run("workspaces")


def test_attention_as_users_of_torch_call_it(library: Any) -> None:
    library.run("attention_of_torch")


def test_wrong_calls(library: Any) -> None:
    library.run("wrong_calls")


def test_a_process_that_sees_no_gpu_can_import(library: Any) -> None:
    library.run("imports", CUDA_VISIBLE_DEVICES="")
