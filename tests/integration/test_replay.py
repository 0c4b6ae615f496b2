"""From measurements to a database, and from the database to the same wheel everywhere."""

import json
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from environments import OPERATORS, Builder, Built, Compiler, Venv, copy_source, members


@pytest.fixture(scope="module")
def tuning(built: Built, venv: Venv, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database that `aot-tune records export` wrote after the session's build."""
    del built
    folder = tmp_path_factory.mktemp("record") / "tuning"
    said = venv.run("aot-tune", "records", "export", folder, AOT_TUNE_CACHE_DIR=str(cache))
    files = {str(p) for p in folder.rglob("*.jsonl")}
    assert {line for line in said.splitlines() if line.startswith("/")} == files
    (when,) = (line for line in said.splitlines() if line.startswith("of the build"))
    assert re.fullmatch(r"of the build of library 'ops' that recorded last, at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d:", when)
    told = [line for line in said.splitlines() if line != when and not line.startswith("/")]
    assert len(told) == len(files)
    assert all(re.fullmatch(r"  [1-9]\d* problems?, [1-9]\d* candidates?", line) for line in told), told
    return folder


def variants(wheel: Path) -> set[tuple[str, str]]:
    manifest = json.loads(members(wheel)["aot_tune/share/aot_tune/ops/manifest.json"])
    return {(o["name"], v["object"]) for o in manifest["operators"] for v in o["variants"]}


def test_the_database_is_sorted_text_by_device_and_operator(tuning: Path, venv: Venv, cache: Path) -> None:
    (device,) = tuning.iterdir()
    assert [p.name for p in sorted(device.iterdir())] == [f"{o}.jsonl" for o in OPERATORS]
    before = {p.name: p.read_bytes() for p in device.iterdir()}
    for data in before.values():
        assert data.decode().endswith("\n")
        for line in data.decode().splitlines():
            json.loads(line)
    venv.run("aot-tune", "records", "export", tuning, AOT_TUNE_CACHE_DIR=str(cache))
    assert {p.name: p.read_bytes() for p in device.iterdir()} == before


def test_recording_nothing_is_an_error(venv: Venv, tmp_path: Path) -> None:
    said = venv.run("aot-tune", "records", "export", tmp_path / "t", AOT_TUNE_CACHE_DIR=str(tmp_path / "c"), status=1)
    assert "has recorded anything" in said
    assert "fix:" in said
    assert not (tmp_path / "t").exists()


def test_replayed_wheels_are_bit_identical(
    tuning: Path, builder: Builder, built: Built, compiler: Compiler, tmp_path: Path
) -> None:
    """In isolation and not, two folders, two times, with the cache and with none; the variants are those tuned."""
    some = ("rms_norm", "softmax")
    recorded = copy_source(tmp_path / "recorded", operators=some)
    shutil.copytree(tuning, recorded / "tuning")
    for file in (recorded / "tuning").rglob("*.jsonl"):
        if file.stem not in some:
            file.unlink()
    other = tmp_path / "somewhere else" / "copy"
    shutil.copytree(recorded, other)
    for path in other.rglob("*"):
        os.utime(path, (time.time() - 86_400, time.time() - 86_400))
    env = {k: v for k, v in builder.env.items() if k != "AOT_TUNE_TARGETS"}  # those of the database
    env |= {"AOT_TUNE_MODE": "replay", "AOT_TUNE_STRICT": "1", "SOURCE_DATE_EPOCH": "1700000000"}
    replay = replace(builder, env=env, out=tmp_path / "wheels")
    first = replay.build(recorded, "first")
    assert "measurements made" not in first.log
    compiler.clear()
    anew = {"AOT_TUNE_CACHE": "off", "CCACHE_DISABLE": "1", "TMPDIR": str(tmp_path), "LC_ALL": "C"}
    second = replace(replay, isolated=False).build(other, "second", **anew)
    assert compiler.candidates() > 0
    assert first.wheel.name == second.wheel.name
    one, two = members(first.wheel), members(second.wheel)
    assert [n for n in one if one[n] != two.get(n)] == []
    assert first.wheel.read_bytes() == second.wheel.read_bytes()
    assert variants(first.wheel) == {(name, code) for name, code in variants(built.wheel) if name in some}
