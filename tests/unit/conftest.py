"""What the tests of one stage share among their files."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import linked


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """The library of `linked.library_spec`, linked."""
    folder = tmp_path_factory.mktemp("linked")
    return linked.link_library(linked.library_spec(folder / "objects"), folder / "out")


@pytest.fixture(scope="session")
def ops(built: linked.Built) -> ModuleType:
    """Its Python module."""
    return linked.load_module(built.module)
