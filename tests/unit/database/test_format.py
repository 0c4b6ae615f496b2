"""Databases as text: round trips, fixed bytes, and reading that is strict to the byte."""

import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bundled import OPERATORS
from databases import DEVICE, SEEN, a_database, databases, empty_record, older_text
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT

from aot_tune.bench.protocol.measurement_records import DeviceState, Seen, rounded
from aot_tune.database import (
    OperatorDatabase,
    database_path,
    decode,
    encode,
    load_database,
    load_databases,
    save_database,
)
from aot_tune.database.files import load_tree
from aot_tune.database.record_lines import SCHEMA
from aot_tune.database.records import canonical_database
from aot_tune.spec import Problem
from aot_tune.support.errors import DatabaseError


@pytest.fixture
def small() -> OperatorDatabase:
    """A database with everything in it, and little of it."""
    return a_database()


@given(databases())
@settings(max_examples=10, deadline=None)
def test_text_and_back(database: OperatorDatabase) -> None:
    text = encode(database)
    again = decode(text)
    assert again == canonical_database(database)
    assert encode(again) == text


@given(databases())
@settings(max_examples=10, deadline=None)
def test_records_without_digests_are_read(database: OperatorDatabase) -> None:
    assert decode(older_text(database)) == canonical_database(database)
    assert decode(older_text(database, 3), oldest=3) == canonical_database(database)


def test_a_line_that_an_older_record_lost_is_missed(small: OperatorDatabase) -> None:
    lines = older_text(small).splitlines(keepends=True)
    with pytest.raises(DatabaseError, match=r":21: it holds 5 candidates, 2 problems, 8 measurements, but its end"):
        decode(b"".join(line for n, line in enumerate(lines) if n != 13))


@given(databases(), st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None)
def test_the_order_of_anything_never_changes_a_byte(database: OperatorDatabase, rng: random.Random) -> None:
    def mixed(items: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(rng.sample(items, len(items)))

    other = msgspec.structs.replace(
        database,
        candidates=mixed(database.candidates),
        problems=mixed(database.problems),
        measurements=mixed(database.measurements),
        policy=dict(reversed(database.policy.items())),
        toolchains={k: dict(reversed(v.items())) for k, v in database.toolchains.items()},
        device=msgspec.structs.replace(DEVICE, identity=dict(reversed(DEVICE.identity.items()))),
    )
    assert encode(other) == encode(database)


def test_the_text_can_be_reviewed(small: OperatorDatabase) -> None:
    lines = encode(small).decode().splitlines()
    kinds = [next(iter(json.loads(line))) for line in lines]
    assert kinds[:5] == ["header", "device", "policy", "toolchains", "baselines"]
    assert kinds[5:10] == ["candidate"] * 5
    assert kinds[10:-1] == ["problem", *["measurement"] * 5, "problem", *["measurement"] * 4]
    assert kinds[-1] == "end"
    measured = [json.loads(line)["measurement"] for line in lines if line.startswith('{"measurement"')]
    assert [(m["problem"], m["candidate"]) for m in measured] == sorted(
        (m["problem"], m["candidate"]) for m in measured
    )
    best = next(m for m in measured if m.get("ns") == 1240.5)
    assert best["spread"] == rounded((1250.35 - 1237.25) / 2)
    assert best["final"] == [1234.0, 1240.5, 1260.2]
    assert best["screen"] == [1234.6, 1300.0]
    assert max(len(line) for line in lines[5:]) < 500


def test_a_measurement_is_rounded_when_it_is_made_and_its_text_holds_all_of_it(small: OperatorDatabase) -> None:
    """What was seen of the device stays with a race, but for the device's UUID."""
    exact = msgspec.structs.replace(
        small.measurements[0], screen=(1234.56789,), final=(0.00123456789, 2.0), overhead=98765.4321, error=1 / 3
    )
    made = exact.in_digits()
    assert (made.screen, made.final, made.overhead, made.error) == ((1234.6,), (0.0012346, 2.0), 98765.0, 0.33333)
    seen = [msgspec.structs.replace(m, seen=SEEN) for m in small.measurements]
    for read in decode(encode(msgspec.structs.replace(small, measurements=tuple(seen)))).measurements:
        assert read.seen == (msgspec.structs.replace(SEEN, unit="") if read.final else None)
    driven = msgspec.structs.replace(DEVICE, driver="580.65.06")
    assert decode(encode(msgspec.structs.replace(small, device=driven))).device == driven
    assert driven.digest == DEVICE.digest


def test_what_is_seen_is_the_least_and_the_most() -> None:
    states = [
        DeviceState(sm_mhz=1900, memory_mhz=2619, celsius=40, watts=310.4, reasons=1),
        DeviceState(sm_mhz=1700, memory_mhz=0, celsius=45, reasons=4, others=2),
        DeviceState(sm_mhz=1800, memory_mhz=2619, others=1),
    ]
    device = msgspec.structs.replace(DEVICE, unit="GPU-1", driver="580.65.06")
    assert Seen.of(device, states, [0.0, 1950.4]) == Seen(
        driver="580.65.06",
        unit="GPU-1",
        clock_mhz=(1700, 1950),
        memory_mhz=(2619, 2619),
        celsius=(40, 45),
        watts=(310, 310),
        reasons=5,
        others=2,
    )
    assert Seen.of(device, []) is None


def test_each_race_of_a_committed_record_has_the_clocks_and_the_driver() -> None:
    files = [*(ROOT / "tuning").glob("cuda-nvidia-h200-*/*.jsonl")]
    races = [json.loads(line)["measurement"] for file in files for line in file.open() if '"race":' in line]
    assert len(races) > 2000
    wanted = {"driver", "clock_mhz", "memory_mhz", "celsius", "watts"}
    assert [race for race in races if not wanted <= race.get("seen", {}).keys() or "unit" in race["seen"]] == []


def test_records_before_and_after_a_conversion_hold_the_same(small: OperatorDatabase) -> None:
    """Schema 5 is schema 6 without what was seen: its digests hold, and one line changes when it is rewritten."""
    now = encode(small)
    before = now.replace(b'"schema":6', b'"schema":5')
    read = decode(before)
    assert read == decode(now) == canonical_database(small)
    assert encode(read) == now
    assert [a == b for a, b in zip(now.splitlines(), before.splitlines(), strict=True)].count(False) == 1


def test_cut_at_every_byte(small: OperatorDatabase) -> None:
    text = encode(small)
    for length in range(len(text)):
        with pytest.raises(DatabaseError) as caught:
            decode(text[:length], "file.jsonl")
        assert "file.jsonl:" in caught.value.what


def test_every_byte_changed_is_an_error(small: OperatorDatabase) -> None:
    """Or the same value, such as `1E2` for `1e2`: what a digest is of says nothing of how it is written."""
    text, rng, read, messages = encode(small), random.Random(3), canonical_database(small), []
    for at in range(len(text)):
        changed = bytearray(text)
        changed[at] ^= rng.randrange(1, 256)
        try:
            assert decode(bytes(changed), "file.jsonl") == read
        except DatabaseError as error:
            messages.append(error.what)
    assert len(messages) > len(text) * 0.95
    assert all("file.jsonl" in message for message in messages)


def nth(lines: list[str], start: str, n: int = 0) -> int:
    """The index of the n-th line that begins with `start`."""
    return [i for i, line in enumerate(lines) if line.startswith(start)][n]


def changed(start: str, old: str, new: str) -> Callable[[list[str]], list[str]]:
    def edit(lines: list[str]) -> list[str]:
        at = next(i for i, line in enumerate(lines) if line.startswith(start) and old in line)
        return [*lines[:at], lines[at].replace(old, new), *lines[at + 1 :]]

    return edit


def without(start: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [line for i, line in enumerate(lines) if i != nth(lines, start)]


def twice(start: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [*lines[: nth(lines, start)], lines[nth(lines, start)], *lines[nth(lines, start) :]]


MEASUREMENT = '{"measurement":{"problem":"M=1 '


@pytest.mark.parametrize(
    ("edit", "place", "words"),
    [
        (lambda lines: [], ":1:", "not a database"),
        (lambda lines: ["hello"], ":1:", "not a database"),
        (without('{"header"'), ":1:", "not a database"),
        (without('{"device"'), ":2:", "the line with the device belongs here"),
        (without('{"toolchains"'), ":4:", "the line with the toolchains belongs here"),
        (without('{"candidate"'), ":", "no line above has the candidate"),
        (without('{"problem"'), ":11:", "no line above has the problem"),
        (without(MEASUREMENT), ":11:", "was changed by hand, lost, or merged by git as text"),
        (without('{"measurement":{"problem":"M=16 '), ":17:", "`aot-tune records merge`"),
        (without('{"end"'), ":21:", "its end is missing"),
        (lambda lines: [*lines, lines[-1]], ":22:", "header"),
        (twice('{"candidate"'), ":7:", "listed twice"),
        (twice('{"problem"'), ":12:", "listed twice"),
        (twice(MEASUREMENT), ":", "measured twice"),
        (lambda lines: [*lines[:12], "", *lines[12:]], ":13:", "remove it and record again"),
        (lambda lines: [*lines[:12], "<<<<<<< HEAD", *lines[12:]], ":13:", "the conflict stands"),
        (lambda lines: ["<<<<<<< HEAD", *lines], ":1:", "the conflict stands"),
        (lambda lines: [*lines[:12], "{}", *lines[12:]], ":13:", "must hold one thing"),
        (changed('{"candidate"', '"MR":', '"MS":'), ":", "has the config of"),
        (changed('{"problem"', '"M":1,', '"M":2,'), ":11:", "has the dims of"),
        (changed(MEASUREMENT, '"ns":', '"nanoseconds":'), ":12:", "unknown field"),
        (changed(MEASUREMENT, '"status":"ok"', '"status":"fine"'), ":12:", "status"),
        (changed(MEASUREMENT, '"final":[', '"final":["x",'), ":12:", "final"),
        (changed(MEASUREMENT, '"final":[', '"final":[1,1,1,1,1,1,1,'), ":12:", "not the median"),
        (changed(MEASUREMENT, '"screen":[', '"screen":[-1,'), ":", "not a time"),
        (changed(MEASUREMENT, '"error":0.25', '"error":0.2'), ":11:", "has another digest"),
        (changed('{"candidate"', "source4", "source5"), ":11:", "of their candidates was changed"),
        (changed('{"candidate"', "was not declared", "is"), ":22:", "candidates without measurements"),
        (changed('{"toolchains"', "12.2.0", "12.3.0"), ":22:", "the head"),
        (changed('{"header"', '"contract":"c', '"contract":"d'), ":11:", "problem 'M=1 "),
        (changed('{"baselines"', "2.4.6", "2.4.7"), ":11:", "one of its measurements"),
    ],
)
def test_bad_lines_are_named(small: OperatorDatabase, edit, place: str, words: str) -> None:
    lines = edit(encode(small).decode().splitlines())
    text = "".join(f"{line}\n" for line in lines).encode()
    with pytest.raises(DatabaseError) as caught:
        decode(text, "gemm.jsonl")
    assert f"gemm.jsonl{place}" in caught.value.what
    assert words in str(caught.value)


@pytest.mark.parametrize("schema", [0, 1, 2, 3, SCHEMA + 1])
def test_another_schema_is_not_read_at_all(small: OperatorDatabase, schema: int) -> None:
    first, rest = encode(small).split(b"\n", 1)
    now = f'"schema":{SCHEMA}'.encode()
    other = first.replace(now, f'"schema":{schema},"later":true'.encode()) + b"\n{not even json\n" + rest
    with pytest.raises(DatabaseError, match=f"schema {schema}") as caught:
        decode(other, "gemm.jsonl")
    remedy = {3: "aot-tune records upgrade", SCHEMA + 1: "or a newer one"}.get(schema, "record again")
    assert remedy in caught.value.fix


def test_files(small: OperatorDatabase, tmp_path: Path) -> None:
    path = save_database(tmp_path / "tuning", small)
    assert path == database_path(tmp_path / "tuning", small) == tmp_path / "tuning" / "test-cpu" / "gemm.jsonl"
    assert load_database(path) == canonical_database(small)
    save_database(tmp_path / "tuning", empty_record("other"))
    assert [d.operator for d in load_databases(tmp_path / "tuning")] == ["gemm", "other"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["gemm.jsonl", "other.jsonl"]
    assert load_databases(tmp_path / "nothing") == []
    before = path.read_bytes()
    save_database(tmp_path / "tuning", small)
    assert path.read_bytes() == before


def test_what_a_killed_record_left_goes(small: OperatorDatabase, tmp_path: Path) -> None:
    """Only that: what people put there stays, however old; and git never sees it."""
    path = save_database(tmp_path, small)
    code = (
        "import os, sys\nfrom pathlib import Path\nimport aot_tune.support.storage as storage\n"
        "from aot_tune.database import load_database, save_database\n"
        "storage.write_file = lambda path, data, **_: (path.touch(), os._exit(9))\n"
        "save_database(Path(sys.argv[1]), load_database(Path(sys.argv[2])))\n"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path, path], check=False).returncode == 9
    (left,) = (p for p in path.parent.iterdir() if p != path)
    ignored = ROOT / ".gitignore"
    assert any(left.match(pattern) for pattern in ignored.read_text().split())
    note, old = path.parent / "notes-of-a-person.txt", path.parent / ".aot_tune~elsewhere-1-2-3"
    for file in (note, old):
        file.touch()
        os.utime(file, (0, 0))
    save_database(tmp_path, small)
    assert sorted(path.parent.iterdir()) == sorted([path, note])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"screen": (math.nan,)}, "is not a time"),
        ({"screen": (-1.0,)}, "is not a time"),
        ({"final": (0.0, 0.0, 5.0)}, "no call takes 0 ns"),  # what is chosen compares times by their ratios
        ({"error": 1.5}, r"its error is 1\.5 tolerances, but its status is ok"),
        ({"candidate": "unknown"}, "there is no such candidate"),
        ({"code": "other"}, "it was measured as code other, but the candidate's is "),
    ],
)
def test_what_is_no_measurement_is_not_written(small: OperatorDatabase, fields: dict[str, Any], words: str) -> None:
    first = msgspec.structs.replace(small.measurements[0], **fields)
    with pytest.raises(DatabaseError, match=words):
        encode(msgspec.structs.replace(small, measurements=(first, *small.measurements[1:])))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:2000]), r"gemm\.jsonl:\d+: the last line is cut off"),
        (
            lambda path: path.rename(path.with_name("rms_norm.jsonl")),
            r"rms_norm\.jsonl:1: it is a record of operator 'gemm'\n  why: a record has the name",
        ),
        (
            lambda path: save_database(path.parent.parent, empty_record(slug="zz")).rename(path.with_name("x.jsonl")),
            r"x\.jsonl:2: it is of zz \(zz\), but gemm\.jsonl is not\n  why: a folder holds",
        ),
        (
            lambda path: save_database(path.parent.parent / "copy", a_database()),
            r"gemm\.jsonl and .*gemm\.jsonl hold the same operator and device\n  fix: merge them with",
        ),
    ],
)
def test_files_that_are_no_folder_of_records(tmp_path: Path, spoil: Callable[[Path], object], words: str) -> None:
    save_database(tmp_path, empty_record("softmax"))
    spoil(save_database(tmp_path, a_database()))
    with pytest.raises(DatabaseError, match=words):
        load_tree(tmp_path)


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm", "silu_mul"])
def test_widths_that_are_no_multiple_of_anything_cost_percents(name: str) -> None:
    """By a committed record: the time for each byte, beside that of the multiples of 8 that are nearest.

    The generic variant is not the one that serves them.
    """
    (path,) = (ROOT / "tuning").glob(f"cuda-nvidia-h200-*/{name}.jsonl")
    record, operator = load_database(path), OPERATORS[name]
    generic = {c.candidate.id for c in record.candidates if c.candidate.generic}
    paces: dict[bool, list[tuple[Problem, float]]] = {True: [], False: []}
    served: list[bool] = []
    for shape in record.survey:
        best = min(shape.ns, key=lambda c: shape.ns[c])
        pace = shape.ns[best] / operator.compulsory_bytes(shape.problem)
        paces[shape.problem.dims["D"] % 8 == 0].append((shape.problem, pace))
        served += [best in generic] if shape.problem.dims["D"] % 8 else []
    assert sum(served) <= 0.02 * len(served)
    costs = []
    for p, pace in paces[False]:
        near = [
            other
            for q, other in paces[True]
            if q.dtypes == p.dtypes and all(0.4 <= q.dims[d] / p.dims[d] <= 2.5 for d in "RD")
        ]
        if len(near) >= 3:
            costs.append(pace / statistics.median(near))
    assert len(costs) > 40
    assert statistics.geometric_mean(costs) < 1.4
    assert sorted(costs)[-len(costs) // 20] < 2.6
    assert max(costs) < 4
