"""A folder that records cannot be written to is told before anything is measured."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from databases import DEVICE

from aot_tune.database import OperatorDatabase, save_database
from aot_tune.pipeline.records.record_writer import check_record_folder
from aot_tune.support.errors import DatabaseError

OTHER = msgspec.structs.replace(DEVICE, name="Another CPU", slug="another-cpu", identity={"model": "Another CPU"})


def record(folder: Path, *, other: bool = False, operator: str = "gemm") -> Path:
    database = OperatorDatabase(
        operator=operator, contract="c", device=OTHER if other else DEVICE, policy={}, policy_digest="p",
        toolchains={}, baselines={}, candidates=(), problems=(), measurements=(),
    )  # fmt: skip
    return save_database(folder, database)


def test_a_folder_of_records_of_any_devices_is_taken(tmp_path: Path) -> None:
    check_record_folder(tmp_path / "new" / "tuning", [DEVICE], ["gemm"])
    assert not (tmp_path / "new").exists()  # nothing is written until there is something to write
    record(tmp_path)
    record(tmp_path, other=True)
    check_record_folder(tmp_path, [DEVICE], ["gemm"])


def test_the_folder_of_a_single_device_is_none(tmp_path: Path) -> None:
    for other in (False, True):
        path = record(tmp_path, other=other)
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
