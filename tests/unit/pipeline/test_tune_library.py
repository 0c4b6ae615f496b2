"""What is refused of a planned library before anything is measured, and what the command line makes of a project."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from compiled_project import GENERIC, planned, project

from aot_tune.bench.devices.family import family
from aot_tune.cli import tune_command
from aot_tune.cli.main import main
from aot_tune.pipeline import tune_library
from aot_tune.pipeline.records.record_writer import WrittenRecords
from aot_tune.pipeline.tune_library import TuneOrder, tune_records
from aot_tune.plan import preflight
from aot_tune.support.errors import BuildError
from aot_tune.support.progress import Progress


def plan_of(folder: Path, name: str = "ops", **options: str) -> Path:
    templates = folder / "templates"
    if not templates.is_dir():
        project(folder, 'Kernel("some", "twice/some.cpp.j2", parameters=(K,))', some=GENERIC)
    return planned(templates, folder / "build" / "aot_tune" / name, name, **options)


def test_a_named_target_without_a_device_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, AOT_TUNE_TARGETS="cpu-x86-64-v2;hip-gfx942")
    with pytest.raises(BuildError, match="no device for hip-gfx942") as caught:
        tune_records(plan, TuneOrder(out=str(tmp_path / "out"), named=True), Progress())
    assert "--target" in caught.value.fix
    plan = plan_of(tmp_path, AOT_TUNE_TARGETS="hip-gfx942")
    with pytest.raises(BuildError, match="no device for hip-gfx942"):  # whoever named it
        tune_records(plan, TuneOrder(out=str(tmp_path / "out")), Progress())


def test_each_model_of_devices_is_tuned_in_a_turn_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cpu,) = family("cpu").devices(1)
    models = [msgspec.structs.replace(cpu, name=n, identity={**cpu.identity, "model_name": n}) for n in ("A 1", "A 2")]
    turns = list[tuple[list[str], tuple[str, ...]]]()

    def tuned(part: Any, *given: Any) -> WrittenRecords:
        *_, digests = given
        turns.append(([d.name for d in models if d.digest in digests], part.targets))
        return WrittenRecords(files={}, notes=(), error=None)

    monkeypatch.setattr(tune_library, "tune_part", tuned)
    monkeypatch.setattr(preflight, "devices", lambda *_: [*models, models[0]])
    plan = plan_of(tmp_path, AOT_TUNE_TARGETS="cpu-x86-64-v2;hip-gfx942")
    for devices, names in (((), ["A 1", "A 2"]), (("A 2",), ["A 2"]), (("A*",), ["A 1", "A 2"])):
        tune_records(plan, TuneOrder(out=str(tmp_path / "out"), devices=devices), Progress())
        assert turns == [([name], ("cpu-x86-64-v2",)) for name in names]
        turns.clear()
    with pytest.raises(BuildError, match="no device for cpu-x86-64-v2, hip-gfx942") as caught:
        tune_records(plan, TuneOrder(out=str(tmp_path / "out"), devices=("B",)), Progress())
    assert "A 1; A 2" in caught.value.why


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A project of two libraries; what is asked of the processes that tune them."""
    plans, asked = [plan_of(tmp_path, "one", AOT_TUNE_BUDGET="100"), plan_of(tmp_path, "two")], list[list[str]]()
    monkeypatch.setattr(tune_command, "source_folder", lambda given: given)
    monkeypatch.setattr(tune_command, "configure_project", lambda *_: plans)
    monkeypatch.setattr(tune_command, "run_planned", lambda arguments, _: asked.append(list(arguments)) or (0, b""))
    monkeypatch.chdir(tmp_path)
    return asked


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([".", "twise"], "no operator 'twise'\n  fix: did you mean 'twice'?"),
        (["--library", "on"], "no library 'on'\n  fix: did you mean 'one'?"),
    ],
)
def test_unknown_names_are_refused(
    two: list[list[str]], capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    assert main(["tune", *given]) == 1
    assert said in capsys.readouterr().err
    assert not two


def test_libraries_are_tuned_one_by_one_into_the_folder_of_the_project(
    two: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", ".", "twice"]) == 0
    assert [a[a.index("--output") + 1] for a in two] == [str(tmp_path / "tuning")] * 2
    assert all("--operator=twice" in a and "--named" not in a for a in two)
    assert "DATABASE tuning in aot_tune_add_library(two)" in capsys.readouterr().err
    two.clear()
    assert (
        main(["tune", "--library", "one", "--target", "cpu", "--devices", "A*", "-o", "there", "--budget", "100"]) == 0
    )
    ((*_, devices, named, seconds),) = two
    assert (devices, named) == ("--devices=A*", "--named")
    assert 90 < float(seconds.removeprefix("--seconds=")) <= 100
    assert str(tmp_path / "there") in two[0]
