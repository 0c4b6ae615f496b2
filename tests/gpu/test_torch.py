"""The bundled operators under torch on a GPU: torch.ops (streams, graphs, several GPUs, profiles), patched models."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import environment, run

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shim is built once."""
    return tmp_path_factory.mktemp("torch_shim")


@pytest.mark.parametrize("way", ["python", "shim"])
@pytest.mark.parametrize("scenario", ["values", "side_stream", "graph", "compiled", "profiled"])
def test_on_the_gpu(library: Any, cache: Path, scenario: str, way: str) -> None:
    given = environment(PYTHONPATH=library.import_path, AOT_TUNE_CACHE_DIR=str(cache), CXX=os.environ.get("CXX", "g++"))
    argv = [sys.executable, "-B", HERE / "torch_scenarios.py", scenario, library.module, way]
    run(argv, env=given, timeout=300)


@pytest.mark.parametrize("scenario", ["models", "compiled", "moved"])
def test_patched_on_the_gpu(library: Any, scenario: str) -> None:
    given = environment(PYTHONPATH=library.import_path)
    argv = [sys.executable, "-B", HERE / "patch_scenarios.py", scenario, library.module]
    run(argv, env=given, timeout=300)
