"""The bundled operators under torch.ops on a GPU: streams, CUDA graphs, compiled graphs, several GPUs, profiles."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import environment, run

SCRIPT = Path(__file__).with_name("torch_scenarios.py")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shim is built once."""
    return tmp_path_factory.mktemp("torch_shim")


@pytest.mark.parametrize("way", ["python", "shim"])
@pytest.mark.parametrize("scenario", ["values", "side_stream", "graph", "compiled", "profiled"])
def test_on_the_gpu(library: Any, cache: Path, scenario: str, way: str) -> None:
    given = environment(PYTHONPATH=library.import_path, AOT_TUNE_CACHE_DIR=str(cache), CXX=os.environ.get("CXX", "g++"))
    run([sys.executable, "-B", SCRIPT, scenario, library.module, way], env=given, timeout=300)
