"""The records of a build: what is exported to commit, and the folder that it goes to."""

import os
import shutil
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from databases import DEVICE, empty_record

from aot_tune.cli.main import main
from aot_tune.database import OperatorDatabase, load_databases, save_database
from aot_tune.pipeline.failures import Failures
from aot_tune.pipeline.records import record_writer as keep
from aot_tune.pipeline.records.record_writer import check_record_folder, export_records
from aot_tune.plan.options import resolve
from aot_tune.support.errors import DatabaseError


def record(folder: Path, slug: str = DEVICE.slug) -> Path:
    return save_database(folder, empty_record(slug=slug))


def test_a_folder_of_records_of_any_devices_is_taken(tmp_path: Path) -> None:
    check_record_folder(tmp_path / "new" / "tuning", [DEVICE], ["gemm"])
    assert not (tmp_path / "new").exists()  # nothing is written until there is something to write
    record(tmp_path)
    record(tmp_path, "another-cpu")
    check_record_folder(tmp_path, [DEVICE], ["gemm"])


def test_the_folder_of_a_single_device_is_none(tmp_path: Path) -> None:
    for slug in (DEVICE.slug, "another-cpu"):
        path = record(tmp_path, slug)
        with pytest.raises(DatabaseError, match="folder of a single device") as caught:
            check_record_folder(path.parent, [DEVICE], ["gemm"])
        assert str(tmp_path) in caught.value.fix


def test_a_record_in_another_place_would_be_a_second_one(tmp_path: Path) -> None:
    path = record(tmp_path / "deeper")
    with pytest.raises(DatabaseError, match="in another place than"):
        check_record_folder(tmp_path, [DEVICE], ["gemm"])
    check_record_folder(tmp_path, [DEVICE], ["softmax"])
    path.write_text("no record\n")
    with pytest.raises(DatabaseError, match=r"gemm\.jsonl"):
        check_record_folder(tmp_path, [DEVICE], ["gemm"])


def test_files_and_folders_that_take_nothing_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="is not a folder"):
        check_record_folder(tmp_path / "file", [DEVICE], ["gemm"])
    with pytest.raises(DatabaseError, match="cannot be written"):
        check_record_folder(tmp_path / "file" / "below", [DEVICE], ["gemm"])


def database(operator: str = "gemm", slug: str = "cpu-2t") -> OperatorDatabase:
    return empty_record(operator, slug)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AOT_TUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("AOT_TUNE_CACHE", raising=False)
    return tmp_path / "cache"


def build(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    *found: OperatorDatabase,
    name: str = "ops",
    prefix: str = "one",
    note: str = "",
    roots: tuple[Path, ...] = (),
) -> Path | None:
    plan = SimpleNamespace(name=name, prefix=prefix, operators=tuple(d.operator for d in found) or ("gemm",))
    options = resolve({}, {})
    renderer = SimpleNamespace(roots=roots)
    session: Any = SimpleNamespace(plan=plan, store=SimpleNamespace(root=cache), options=options, renderer=renderer)
    monkeypatch.setattr(keep, "databases_of", lambda *_: iter(found))
    noted: Any = SimpleNamespace(target=SimpleNamespace(name="cpu-x86-64-v3"), note=note)
    keep.save_records(session, {"gemm": [noted], "other": [SimpleNamespace(target=noted.target, note="")]})
    return keep.records_folder(session)


def test_an_operator_whose_record_is_inconsistent_does_not_take_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(_session: Any, operator: SimpleNamespace, *_: Any) -> OperatorDatabase:
        if operator.name == "gemm":
            raise DatabaseError("it is measured twice")
        return database(operator.name)

    monkeypatch.setattr(keep, "database_of", made)
    names = ("gemm", "softmax")
    operators = {name: SimpleNamespace(name=name) for name in names}
    session: Any = SimpleNamespace(failures=Failures(), operators=operators, devices=[DEVICE], databases=[])
    assert [d.operator for d in keep.databases_of(session, dict.fromkeys(names, ()))] == ["softmax"]
    assert session.failures.operators == ["gemm"]


def recorded(folder: Path, library: str = "ops") -> list[str]:
    export_records(library, folder)
    return [f"{d.device.slug}/{d.operator}" for d in load_databases(folder)]


def test_nothing_of_an_earlier_build_stays(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(cache, monkeypatch, database(slug="cpu-2t"))
    second = build(cache, monkeypatch, database(slug="cpu-1t"))
    assert first == second
    assert recorded(tmp_path / "out") == ["cpu-1t/gemm"]
    assert build(cache, monkeypatch) == first  # it measured nothing
    assert recorded(tmp_path / "again") == ["cpu-1t/gemm"]
    assert list((cache / "tmp").iterdir()) == []


def test_projects_do_not_mix_and_the_newest_is_taken(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = build(cache, monkeypatch, database("gemm"), database("softmax"))
    two = build(cache, monkeypatch, database("gemm"), prefix="two")
    other = build(cache, monkeypatch, database("scale"), name="ops_more")
    assert one is not None
    assert two is not None
    assert other is not None
    for age, folder in ((3, one), (2, two), (1, other)):
        os.utime(folder, (1e9 - age, 1e9 - age))
    assert recorded(tmp_path / "a") == ["cpu-2t/gemm"]
    os.utime(one)
    assert recorded(tmp_path / "b") == ["cpu-2t/gemm", "cpu-2t/softmax"]
    assert recorded(tmp_path / "c", "ops_more") == ["cpu-2t/scale"]
    with pytest.raises(DatabaseError, match="no build of library 'op' has recorded anything"):
        export_records("op", tmp_path / "d")


def test_a_second_checkout_has_records_of_its_own(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS.md, row 58: libraries of one name, prefix and operators."""
    places = [tmp_path / "one" / "templates", tmp_path / "two" / "templates"]
    for place, slug in zip(places, ("cpu-1t", "cpu-2t"), strict=True):
        place.mkdir(parents=True)
        build(cache, monkeypatch, database(slug=slug), roots=(place,))
    build(cache, monkeypatch, database(slug="cpu-3t"), roots=(places[0],))
    assert recorded(tmp_path / "two" / "tuning") == ["cpu-2t/gemm"]
    assert recorded(tmp_path / "one" / "tuning") == ["cpu-3t/gemm"]
    monkeypatch.chdir(places[1].parent)
    assert recorded(Path("tuning")) == ["cpu-2t/gemm"]
    monkeypatch.chdir("/")
    with pytest.raises(DatabaseError, match="2 projects have a library 'ops'") as caught:
        export_records("ops", tmp_path / "elsewhere" / "tuning")
    assert all(str(place) in caught.value.why for place in places)
    shutil.rmtree(places[0])  # a folder that is gone, as an unpacked sdist's is, is nobody's
    build(cache, monkeypatch, database(slug="cpu-4t"), roots=(places[1],))
    assert recorded(tmp_path / "elsewhere" / "tuning") == ["cpu-4t/gemm"]


def test_what_a_build_left_undone_is_told_with_its_record(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = build(cache, monkeypatch, database(), note="the budget ended before 2 of 3 problems were measured")
    assert folder is not None
    os.utime(folder, (1e9, 1e9))
    assert main(["records", "export", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}/out/cpu-2t/gemm.jsonl\n"
    assert said.err == (
        f"of the build of library 'ops' that recorded last, at {datetime.fromtimestamp(1e9):%Y-%m-%d %H:%M:%S}:\n"
        "  0 problems, 0 candidates\n"
        "NOTE gemm on cpu-x86-64-v3: the budget ended before 2 of 3 problems were measured\n"
    )
    build(cache, monkeypatch, database())
    assert main(["records", "export", str(tmp_path / "out")]) == 0
    assert "NOTE" not in capsys.readouterr().err
