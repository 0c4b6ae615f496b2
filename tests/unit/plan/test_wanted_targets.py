"""What the names in AOT_TUNE_TARGETS stand for."""

from types import SimpleNamespace
from typing import cast

import pytest

from aot_tune.compile import target_by_name
from aot_tune.database import OperatorDatabase
from aot_tune.plan import wanted_targets
from aot_tune.plan.options import resolve
from aot_tune.support.errors import OptionError


def test_a_family_stands_for_its_best_target_here(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [target_by_name(n) for n in ("cpu-x86-64", "cpu-x86-64-v3", "cuda-sm_90", "cuda-sm_90a")]
    monkeypatch.setattr(wanted_targets, "native_targets", lambda: here)
    assert [t.name for t in wanted_targets.targets_named("native")] == ["cpu-x86-64-v3", "cuda-sm_90a"]
    assert [t.name for t in wanted_targets.targets_named("cuda")] == ["cuda-sm_90a"]
    assert [t.name for t in wanted_targets.targets_named("cpu")] == ["cpu-x86-64-v3"]


def records(*targets: str) -> OperatorDatabase:
    """Records of one device with a candidate for each of some targets."""
    return cast(
        OperatorDatabase,
        SimpleNamespace(
            targets=list(targets),
            candidates=[SimpleNamespace(candidate=SimpleNamespace(target=t, generic=False)) for t in targets],
        ),
    )


@pytest.mark.parametrize(
    ("best", "given", "there", "found"),
    [
        ("cpu-x86-64-v4", {}, True, "cpu-x86-64-v3"),
        ("cpu-x86-64-v4-bf16", {"AOT_TUNE_MODE": "tune"}, True, "cpu-x86-64-v3"),
        ("cpu-x86-64-v4-bf16", {"AOT_TUNE_OLDER_CPUS": "0"}, True, ""),
        ("cpu-x86-64-v4-bf16", {"AOT_TUNE_TARGETS": "cpu"}, True, ""),
        ("cpu-x86-64-v4-bf16", {"AOT_TUNE_MODE": "generic"}, True, ""),
        ("cpu-x86-64-v4-bf16", {}, False, ""),  # it measures nothing, and no record has it
        ("cpu-x86-64-v3", {}, True, ""),
    ],
)
def test_newer_cpus_have_a_target_for_older_ones_beside(
    monkeypatch: pytest.MonkeyPatch, best: str, given: dict[str, str], there: bool, found: str
) -> None:
    monkeypatch.setattr(wanted_targets, "native_targets", lambda: [target_by_name(best)])
    wanted = wanted_targets.apart(resolve(given, {}), [], may_measure=there)
    assert [t.name for t in wanted.targets] == [best]
    assert (wanted.older.name if wanted.older else "") == found


@pytest.mark.parametrize(
    ("recorded", "seconds", "targets", "older"),
    [
        (["cpu-x86-64-v3", "cpu-x86-64-v4"], "40", ["cpu-x86-64-v4"], "cpu-x86-64-v3"),
        (["cpu-x86-64-v3", "cpu-x86-64-v4"], "0", ["cpu-x86-64-v4"], ""),
        (["cpu-x86-64-v4", "cuda-sm_90a"], "40", ["cpu-x86-64-v4", "cuda-sm_90a"], ""),
        (["cpu-x86-64-v2", "cpu-x86-64-v3"], "40", ["cpu-x86-64-v2", "cpu-x86-64-v3"], ""),
    ],
)
def test_a_replay_has_what_records_have(recorded: list[str], seconds: str, targets: list[str], older: str) -> None:
    options = resolve({"AOT_TUNE_MODE": "replay", "AOT_TUNE_OLDER_CPUS": seconds}, {})
    wanted = wanted_targets.apart(options, [records(*recorded)], may_measure=True)
    assert [t.name for t in wanted.targets] == targets
    assert (wanted.older.name if wanted.older else "") == older


def test_a_family_without_a_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wanted_targets, "native_targets", lambda: [target_by_name("cpu-x86-64")])
    with pytest.raises(OptionError, match="no device of that family") as caught:
        wanted_targets.targets_named("cuda")
    assert "aot-tune doctor" in caught.value.fix
