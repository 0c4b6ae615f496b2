"""What the names in AOT_TUNE_TARGETS stand for."""

from __future__ import annotations

import pytest

from aot_tune.compile import target_by_name
from aot_tune.plan import wanted_targets
from aot_tune.support.errors import OptionError


def test_a_family_stands_for_its_best_target_here(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [target_by_name(n) for n in ("cpu-x86-64", "cpu-x86-64-v3", "cuda-sm_90", "cuda-sm_90a")]
    monkeypatch.setattr(wanted_targets, "native_targets", lambda: here)
    assert [t.name for t in wanted_targets.targets_named("native")] == ["cpu-x86-64-v3", "cuda-sm_90a"]
    assert [t.name for t in wanted_targets.targets_named("cuda")] == ["cuda-sm_90a"]
    assert [t.name for t in wanted_targets.targets_named("cpu")] == ["cpu-x86-64-v3"]


def test_a_family_without_a_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wanted_targets, "native_targets", lambda: [target_by_name("cpu-x86-64")])
    with pytest.raises(OptionError, match="no device of that family") as caught:
        wanted_targets.targets_named("cuda")
    assert "aot-tune doctor" in caught.value.fix
