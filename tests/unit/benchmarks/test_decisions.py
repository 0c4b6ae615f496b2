"""The benchmark of decisions: what it reads, how it deals folds, and what its scores say."""

from __future__ import annotations

import gzip
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from databases import a_database
from places import BENCHMARKS

from aot_tune.database import CandidateRecord, SurveyedShape
from aot_tune.render import Candidate
from aot_tune.spec import problem

sys.path.insert(0, str(BENCHMARKS))

import decisions
from analytical import Device, fit_device
from decisions import compare, curve, deal
from surveyed import SurveyedKind, read_record, read_surveys

SMALL = "cuda_wgmma bf16 GROUPS=1 WIDTH=32 SPLIT=1 EARLY=1 BLOCKS=2 LATE=0 PAIR=0"
LARGE = (
    "cutlass bf16 SWAP=0 TM=128 TN=256 TK=64 CM=2 CN=1 SCHEDULE=cooperative STAGES=0 SPLITS=1 SWIZZLE=1 "
    "RASTER=heuristic EARLY=1 EPILOGUE=full B=nk"
)


def us(width: int, m: int, n: int, k: int) -> float:
    """Tiles of 64 or 128 rows in waves, small ones half as fast."""
    rows, pace = (64, 0.5) if width == 32 else (128, 1.0)
    waves = -(-(-(-m // rows) * -(-n // width)) // 132)
    return 2 + waves * (-(-k // 64) + 4) * rows * width / pace / 50_000


def survey_file(path: Path, **others: Any) -> Path:
    """Two variants and a vendor's, which takes 1.4 times as long as the better of them; few rows are refused by one."""
    draw = random.Random(1)
    drawn = [
        [round(2 ** draw.uniform(4.2, 12)), 64 * draw.randint(2, 150), 64 * draw.randint(4, 150)] for _ in range(240)
    ]
    shapes = [[16, 1024, 512], [4, 1024, 512], *drawn]
    times: dict[str, list[float | None]] = {
        "small": [us(32, *s) for s in shapes],
        "large": [us(256, *s) if s[0] > 16 else None for s in shapes],
        "vendor": [1.4 * min(us(32, *s), us(256, *s)) for s in shapes],
    }
    for number in range(3):  # shapes count where more than five ran
        times[f"other{number}"] = [9.0 * us(32, *s) for s in shapes]
    labels = {"small": SMALL, "large": LARGE, "vendor": "cublaslt bf16 ALGO=-1"}
    labels |= {f"other{i}": "no_longer_there bf16 X=1" for i in range(3)}
    torch = [1.5 * min(us(32, *s), us(256, *s)) for s in shapes]
    told = {"variants": labels, "shapes": shapes, "times": times, "torch": torch, **others}
    path.write_bytes(gzip.compress(json.dumps(told).encode()))
    return path


@pytest.fixture
def kind(tmp_path: Path) -> SurveyedKind:
    """What a file says."""
    (found,) = read_surveys(survey_file(tmp_path / "made.json.gz"))
    return found


def test_a_file_is_read_with_tiles_the_vendor_and_torch(kind: SurveyedKind) -> None:
    assert kind.name == "made"
    assert len(kind.costs) == 240  # those with few rows ran on five variants only
    assert kind.vendor == {"vendor"}
    small, large = kind.tilings["small"], kind.tilings["large"]
    assert small is not None
    assert large is not None
    assert (small.extents, large.extents) == ({"M": 64, "N": 32, "K": 64}, {"M": 128, "N": 256, "K": 64})
    assert kind.tilings["vendor"] is kind.tilings["other0"] is None
    row, other = next((kind.costs[p], kind.other[p]) for p in kind.costs)
    assert other / row["vendor"] == pytest.approx(1.5 / 1.4)
    assert min(row.values()) > 1000  # ns


def record(kernel: str, backend: str, **config: int) -> CandidateRecord:
    candidate = Candidate(
        operator="gemm", kernel=kernel, backend=backend, target="cuda-sm_90a", config=config, dtypes={"T": "bf16"}
    )
    return CandidateRecord(candidate=candidate, source="s", device="d", status="ok")


def test_a_record_is_read_without_what_failed_or_is_for_single_problems() -> None:
    tile = {"BM": 64, "BN": 64, "SPLIT": 2}
    good, failed = record("cuda_mma_ragged", "nvcc", **tile), record("cuda_mma_ragged", "nvcc", BM=32, BN=64, SPLIT=1)
    vendor, bound = record("cublaslt", "cublaslt", ALGO=-1), record("cublaslt", "cublaslt", ALGO=66)
    every = (good, failed, vendor, bound)
    shape, tuned = (problem(M=m, N=512, K=512, dtypes={"T": "bf16"}) for m in (100, 200))
    plain = a_database()
    first = plain.measurements[0]
    made = [
        msgspec.structs.replace(first, candidate=r.id, problem=tuned, status="crashed" if r is failed else "ok")
        for r in every
    ]
    ns = {r.id: 1000.0 * (1 + i) for i, r in enumerate(every)}
    survey = (SurveyedShape(problem=shape, ns=ns),)
    (kind,) = read_record(msgspec.structs.replace(plain, candidates=every, measurements=tuple(made), survey=survey))
    assert kind.name == "gemm bf16"
    assert kind.costs == {shape.id: {good.id: 1000.0, vendor.id: 3000.0}}
    assert {p: row.keys() for p, row in kind.tuned.items()} == {tuned.id: {good.id, vendor.id}}
    assert kind.vendor == {vendor.id}
    tiling = kind.tilings[good.id]
    assert tiling is not None
    assert tiling.split == 2
    assert kind.moved[shape.id] == 2 * (100 * 512 + 512 * 512 + 100 * 512)
    assert kind.done[shape.id] == 2 * 100 * 512 * 512


def test_what_is_no_survey_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(ValueError, match="no survey"):
        read_surveys(tmp_path / "none.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no record with a survey"):
        read_surveys(tmp_path / "empty")


def test_folds_have_every_problem_once_and_depend_on_the_seed() -> None:
    problems = [f"p{i}" for i in range(23)]
    folds = deal(problems, 5, 1)
    assert sorted(p for fold in folds for p in fold) == sorted(problems)
    assert {len(fold) for fold in folds} == {4, 5}
    assert deal(problems[::-1], 5, 1) == folds != deal(problems, 5, 2)


def test_scores_are_of_the_times_that_were_picked(kind: SurveyedKind) -> None:
    ways = ["the vendor alone", "one variant", "ridge alone", "ours"]
    found = {s.way: s for s in compare(kind, ways, 4, 1, caution=0.0, variants=12)}
    vendor, best = found["the vendor alone"], found["the best of those kept"]
    assert vendor.mean == pytest.approx(0.4)
    assert vendor.high == pytest.approx(0.4)
    assert vendor.worst == pytest.approx(0.4)
    assert (vendor.behind_vendor, vendor.behind_other) == (0.0, 0.0)
    assert best.mean == pytest.approx(0.0)
    assert {s.shapes for s in found.values()} == {240}
    assert found["one variant"].mean > found["ours"].mean
    assert found["ours"].bytes > found["ridge alone"].bytes > 0


def test_a_pick_far_behind_the_vendor_is_counted(kind: SurveyedKind) -> None:
    slow = SurveyedKind(**{**kind.__dict__, "costs": {p: {**r, "vendor": r["small"]} for p, r in kind.costs.items()}})
    (score, _) = compare(slow, ["the vendor alone"], 4, 1, caution=0.0, variants=12)
    assert score.behind_vendor == 0.0
    assert score.behind_other is not None
    assert 0 < score.behind_other < 1


def test_more_shapes_teach_more(kind: SurveyedKind) -> None:
    found = list(curve(kind, 4, 1, caution=0.25, variants=12))
    assert [share for share, _ in found] == [0.125, 0.25, 0.5, 1.0]
    assert found[-1][1].mean < found[0][1].mean


def test_constants_of_a_device_come_nearer_to_its_times(kind: SurveyedKind) -> None:
    rows = {p: {v: row[v] for v in ("small", "large") if v in row} for p, row in kind.costs.items()}

    def off(device: Device) -> float:
        parts = [
            abs(device.log_times(kind, v, [p])[0] - math.log2(t)) for p, row in rows.items() for v, t in row.items()
        ]
        return sum(parts) / len(parts)

    assert off(fit_device(kind, rows)) < 0.6 * off(Device(kind.processors))


@pytest.mark.parametrize("way", ["gradient boosting", "extra trees", "a tree that picks"])
def test_ways_of_scikit_learn_beat_one_variant(kind: SurveyedKind, way: str) -> None:
    found = {s.way: s for s in compare(kind, [way, "one variant"], 4, 1, caution=0.0, variants=12)}
    assert found[way].mean < found["one variant"].mean


def test_without_scikit_learn_its_ways_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    path = str(survey_file(tmp_path / "made.json.gz"))
    with pytest.raises(SystemExit):
        decisions.main([path, "--ways", "extra trees"])
    assert "pip install scikit-learn" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        decisions.main([path, "--ways", "by hand"])
    assert "there is no way 'by hand'" in capsys.readouterr().err


def test_the_command_writes_tables_and_scores(tmp_path: Path) -> None:
    path = survey_file(tmp_path / "made.json.gz")
    table, scores = tmp_path / "table.md", tmp_path / "scores.json"
    arguments = [str(path), "--folds", "3", "--ways", "the vendor alone,one variant"]
    assert decisions.main([*arguments, "--markdown", str(table), "--json", str(scores)]) == 0
    lines = table.read_text().splitlines()
    assert lines[0] == "### made: 240 shapes, 6 variants"
    assert any(line.startswith("| the vendor alone | 40.0 | 40 | 40 | 0.0 | 0.0 |") for line in lines)
    assert [s["way"] for s in json.loads(scores.read_text())] == [
        "the vendor alone",
        "one variant",
        "the best of those kept",
    ]
