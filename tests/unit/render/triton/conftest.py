"""The driver that tests of launchers share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stand-in that writes down what it is asked."""
    from stand_ins import build

    return build(tmp_path_factory.mktemp("driver"), "libcuda.so.1").parent
