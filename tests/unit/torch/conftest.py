"""What all tests of aot_tune.torch share."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own: a shim that the user has built would serve libraries that only stand in for one."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("AOT_TUNE_CACHE_DIR", str(folder))
    monkeypatch.delenv("AOT_TUNE_TRUST_CACHE", raising=False)
    return folder
