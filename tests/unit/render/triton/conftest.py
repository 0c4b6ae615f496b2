"""The driver that tests of launchers share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stand-in that writes down what it is asked."""
    import triton_launch

    return triton_launch.stand_in(tmp_path_factory.mktemp("driver"), "libcuda_triton.cpp", "libcuda.so.1")
