"""`aot-tune records`, as people and git call it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from databases import DEVICE, SEEN, a_database, in_store, older_text
from places import ROOT

from aot_tune.cli.main import main
from aot_tune.cli.records_commands import ChangedRecords, CheckedRecords
from aot_tune.database import OperatorDatabase, encode, load_database, save_database
from aot_tune.database.record_lines import STORE_SCHEMA
from aot_tune.database.records import canonical_database
from aot_tune.spec import problem
from aot_tune.spec.load_operators import load_operator

PLACE = "test-cpu/gemm.jsonl"
(CPU,) = (ROOT / "tuning").glob("cpu-*")
(H200,) = (ROOT / "tuning").glob("cuda-nvidia-h200-*")
ABOVE = {CPU: ["batched_gemm", "T=bf16", "narrow"], H200: ["/gemm.", "T=f32 math=ieee", "few rows"]}
"""Where a committed record loses more than the limit. Whoever commits one that does not takes it out."""


def with_problem(database: OperatorDatabase, extent: int, scale: float = 1.0) -> OperatorDatabase:
    """The record with another problem, measured as the first one."""
    more, first = problem(M=extent, N=64, K=64), database.problems[0]
    again = tuple(
        msgspec.structs.replace(m, problem=more, final=m.final and tuple(t * scale for t in m.final))
        for m in database.measurements
        if m.problem == first
    )
    return canonical_database(
        msgspec.structs.replace(
            database, problems=(*database.problems, more), measurements=(*database.measurements, *again)
        )
    )


def elsewhere(database: OperatorDatabase) -> OperatorDatabase:
    """The same measured on another device."""
    device = msgspec.structs.replace(DEVICE, name="Other CPU", slug="other-cpu", identity={"model": "Other CPU"})
    found = tuple(msgspec.structs.replace(m, device=device.digest) for m in database.measurements)
    return msgspec.structs.replace(database, device=device, measurements=found)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_folders_of_several_machines_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = canonical_database(a_database())
    save_database(tmp_path / "one", with_problem(base, 2))
    save_database(tmp_path / "two", with_problem(base, 3))
    save_database(tmp_path / "three", elsewhere(base))
    sources = [str(tmp_path / name) for name in ("one", "two", "three")]
    assert main(["records", "merge", *sources, "-o", str(tmp_path / "all")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/all/{place}" for place in (PLACE, "other-cpu/gemm.jsonl")
    ]
    assert len(load_database(tmp_path / "all" / PLACE).problems) == 4
    assert main(["records", "merge", *reversed(sources), "-o", str(tmp_path / "again")]) == 0
    assert content(tmp_path / "again") == content(tmp_path / "all")
    assert main(["records", "merge", *sources, "-o", sources[0]]) == 0
    assert content(tmp_path / "one") == content(tmp_path / "all")


class Repository:
    """A git repository of one record, with the merge driver."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "tuning" / PLACE
        self.git("init", "-q", "-b", "main")
        self.git("config", "merge.aot-tune.driver", f"{sys.executable} -m aot_tune {DRIVER}")
        (folder / ".gitattributes").write_text("tuning/**/*.jsonl merge=aot-tune\n")
        self.commit("main", canonical_database(a_database()))

    def git(self, *words: str, status: int = 0) -> str:
        who = {f"GIT_{who}_{what}": "someone@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        env = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["git", *words], cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def commit(self, branch: str, database: OperatorDatabase) -> None:
        """Put a record on a branch of its own that begins at the first commit."""
        if branch != "main":
            self.git("checkout", "-q", "-B", branch, "main")
        save_database(self.folder / "tuning", database)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", branch)


DRIVER = "records merge-driver %O %A %B --path %P"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    return Repository(tmp_path)


def test_git_merges_branches_that_measured_different_problems(repository: Repository) -> None:
    """Both add lines at one place, which git as it is leaves to people."""
    base = canonical_database(a_database())
    repository.commit("ours", with_problem(base, 2))
    repository.commit("theirs", with_problem(base, 3))
    plain = ("-c", "merge.aot-tune.driver=false")
    repository.git(*plain, "merge", "ours", status=1)
    repository.git("merge", "--abort")
    repository.git("merge", "-q", "ours", "-m", "both")
    assert load_database(repository.file) == with_problem(with_problem(base, 2), 3)
    assert repository.git("status", "--porcelain") == ""


def test_git_leaves_what_cannot_be_merged_to_people(repository: Repository) -> None:
    base = canonical_database(a_database())
    repository.commit("theirs", canonical_database(a_database(contract="changed")))
    repository.commit("ours", with_problem(base, 2))
    said = repository.git("merge", "theirs", status=1)
    assert f"aot-tune: tuning/{PLACE} is not merged: records of 'gemm' on test-cpu differ in their version of" in said
    assert "contract and changed; theirs changed it" in said
    assert f"`git checkout --ours tuning/{PLACE}` or `--theirs` takes one" in said
    assert repository.git("status", "--porcelain") == f"UU tuning/{PLACE}\n"
    assert load_database(repository.file) == with_problem(base, 2)


def test_diff_is_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = canonical_database(a_database())
    save_database(tmp_path / "before", base)
    save_database(tmp_path / "same", base)
    assert main(["records", "diff", str(tmp_path / "before"), str(tmp_path / "same")]) == 0
    assert capsys.readouterr().out == "the records say the same\n"
    first, more = base.candidates[0], with_problem(base, 2)
    slower = [
        msgspec.structs.replace(m, final=(9e9,)) if m.candidate == first.id and m.final else m
        for m in more.measurements
    ]
    after = msgspec.structs.replace(more, measurements=tuple(slower))
    save_database(tmp_path / "after", after)
    save_database(tmp_path / "after", elsewhere(base))
    assert main(["records", "diff", str(tmp_path / "before"), str(tmp_path / "after")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [PLACE, "  the fastest changes on 2 of 4 problems"]
    assert f"    {first.candidate.target} M=1 N=4096 K=4096 b:10 +bias activation=gelu" in said
    assert "  problems that were added: 1" in said
    assert said[-2:] == ["other-cpu/gemm.jsonl", "  came"]
    assert max(map(len, said)) <= 80
    assert main(["records", "diff", str(tmp_path / "before"), str(tmp_path / "after"), "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out, type=ChangedRecords)
    assert (told.came, told.went) == (("other-cpu/gemm.jsonl",), ())
    assert len(told.changed[PLACE].problems) == 4
    assert sum(changed.other for changed in told.changed[PLACE].problems) == 2
    given = [str(tmp_path / "before" / PLACE), str(tmp_path / "after/other-cpu/gemm.jsonl")]
    assert main(["records", "diff", *given]) == 1
    assert "their times cannot be compared" in capsys.readouterr().err


def test_show_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ([str(CPU)], [str(CPU / "gemm.jsonl"), "--problems"]):
        assert main(["records", "show", *given]) == 0
        said = capsys.readouterr().out.splitlines()
        assert max(map(len, said)) <= 80
    assert said[0].startswith("gemm on AMD EPYC")
    database = load_database(CPU / "gemm.jsonl")
    assert f"  operator    of digest {database.contract[:12]}" in said
    assert sum(line.startswith("    M=") for line in said) == sum(len(database.problems) for _ in (3, 4))


def test_a_text_of_the_store_is_read_as_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It has no toolchains, and of candidates only those that were measured. No command writes over it."""
    base = canonical_database(a_database())
    path = in_store(tmp_path / "cache", base)
    before = path.read_bytes()
    measured = {m.candidate for m in base.measurements}
    same = msgspec.structs.replace(
        base, toolchains={}, candidates=tuple(c for c in base.candidates if c.id in measured)
    )
    record = tmp_path / "gemm.jsonl"
    assert main(["records", "merge", str(path), "-o", str(record)]) == 0
    assert load_database(record) == same
    capsys.readouterr()
    assert main(["records", "diff", str(path), str(record)]) == 0
    assert capsys.readouterr().out == "the records say the same\n"
    shown = []
    for file in (path, record):
        assert main(["records", "show", str(file), "--problems"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert main(["records", "merge", str(path), str(save_database(tmp_path / "other", base)), "-o", str(record)]) == 1
    assert "has records already" in capsys.readouterr().err
    assert main(["records", "merge", str(path), str(record), "-o", str(path)]) == 1
    assert main(["records", "upgrade", str(path)]) == 1
    assert main(["records", "check", str(path)]) == 1
    assert capsys.readouterr().err.count(f"it is of format 'aot_tune store', schema {STORE_SCHEMA}") == 3
    assert path.read_bytes() == before
    again = a_database(objects="-of-other-code")
    in_store(tmp_path / "cache", again)
    assert main(["records", "diff", str(path), str(record)]) == 0
    assert "candidates of other code: packed: 4" in capsys.readouterr().out
    path.write_bytes(path.read_bytes() + before[before.index(b'{"candidate"') : -300])
    assert main(["records", "diff", str(path), str(record)]) == 0
    assert not caplog.records
    path.write_bytes(before.replace(b'"contract":"', b'"contract":"x'))
    assert main(["records", "show", str(path)]) == 0
    assert f"parts of {path} are damaged and not used" in caplog.text
    path.write_bytes(before.replace(b'"schema":%d' % STORE_SCHEMA, b'"schema":%d' % (STORE_SCHEMA + 1)))
    assert main(["records", "show", str(path)]) == 1
    assert f"it is of format 'aot_tune store', schema {STORE_SCHEMA + 1}" in capsys.readouterr().err


def test_what_was_seen_of_the_device_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = a_database()
    seen = tuple(msgspec.structs.replace(m, seen=SEEN) for m in made.measurements)
    path = save_database(tmp_path, msgspec.structs.replace(made, measurements=seen))
    assert main(["records", "show", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[said.index("  driver      580.65.06") :][:4] == [
        "  driver      580.65.06",
        "  clock       1755 to 1980 MHz in races",
        "  clock set   by power cap",
        "  beside      other processes in 2 of 2 races",
    ]


def test_upgrade_writes_the_current_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_database(tmp_path, a_database())
    new = path.read_bytes()
    for schema in (3, 4):
        path.write_bytes(older_text(a_database(), schema))
        assert main(["records", "upgrade", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"{path}\n"
        assert path.read_bytes() == new
    path.write_bytes(new.replace(b'"schema":6', b'"schema":5'))
    other = save_database(
        tmp_path, msgspec.structs.replace(a_database(), operator="softmax", candidates=(), measurements=())
    )
    assert main(["records", "upgrade", str(tmp_path)]) == 0  # half of the folder is converted already
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_bytes() == new
    other.unlink()
    assert main(["records", "upgrade", str(path)]) == 0
    assert capsys.readouterr().err == "all records are in the format of this version already\n"
    path.write_bytes(older_text(a_database(), 2))
    before = path.read_bytes()
    assert main(["records", "upgrade", str(tmp_path)]) == 1
    assert "schema 2" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_check_of_bundled_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(CPU, tmp_path / "cpu")
    assert main(["records", "check", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.endswith("7 records: all is well\n")
    assert "without digests" not in said
    path = tmp_path / "cpu" / "softmax.jsonl"
    path.write_bytes(encode(msgspec.structs.replace(load_database(path), contract="0" * 64)))
    assert main(["records", "check", str(tmp_path), "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert f"{path}: it is of another version of operator 'softmax'" in err
    assert main(["records", "check", str(tmp_path), "--json"]) == 1
    told = msgspec.json.decode(capsys.readouterr().out, type=CheckedRecords)
    assert (told.records, told.mistakes) == (7, 2)
    assert {(f.record, f.wrong) for f in told.findings if "another version" in f.what} == {(str(path), True)}
    assert re.search(r"softmax on cpu-\S+: no record has 13 of 13 problems", err)
    assert out == "7 records: 2 mistakes\n"
    path.write_bytes(path.read_bytes().replace(b'"bitwise":true', b'"bitwise":false', 1))
    assert main(["records", "check", str(tmp_path)]) == 1
    assert "has another digest" in capsys.readouterr().err


@pytest.mark.parametrize("folder", [CPU, H200], ids=["cpu", "h200"])
def test_committed_records_lose_no_more_than_the_limit_on_calls_that_nobody_measured(folder: Path, capsys) -> None:
    assert main(["records", "check", "--render", "--json", str(folder)]) == 1
    told = msgspec.json.decode(capsys.readouterr().out, type=CheckedRecords)
    (only,) = (f for f in told.findings if f.wrong)
    assert "that nobody measured" in only.what
    assert all(word in f"{only.record}: {only.what}" for word in ABOVE[folder]), only


def test_check_and_prune_by_what_templates_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A template that has changed: what it was recorded with is told, and dropped with what was measured of it."""
    templates, records = tmp_path / "templates", tmp_path / "tuning"
    shutil.copytree(ROOT / "templates" / "softmax", templates / "softmax")
    shutil.copytree(ROOT / "templates" / "common", templates / "common")
    records.mkdir()
    path = Path(shutil.copy(CPU / "softmax.jsonl", records))
    before = load_database(path)
    given = [str(records), "--templates", str(templates)]
    assert main(["records", "check", "--render", "--quiet", *given]) == 0
    assert main(["records", "prune", *given]) == 0
    assert capsys.readouterr().out.endswith("nothing to drop\n")
    changed = templates / load_operator(templates / "softmax").kernels[0].template
    text = changed.read_text()
    changed.write_text(f"{text}\nstatic const int another = 1;\n")
    assert main(["records", "check", "--render", "--quiet", *given]) == 1
    assert "have another source than the recorded one, such as" in capsys.readouterr().err
    assert main(["records", "check", "--quiet", *given]) == 0
    assert main(["records", "prune", "-n", *given]) == 0
    assert re.search(r"\n  \d+ of other sources\n", capsys.readouterr().out)
    changed.write_text(text)
    kernel = next(c.candidate.kernel for c in before.candidates if not c.candidate.generic)
    operator = templates / "softmax" / "operator.py"
    operator.write_text(operator.read_text() + WITHOUT.format(kernel))
    assert main(["records", "check", "--quiet", *given]) == 1
    assert f"of {kernel}) are of kernels that the operator no longer has" in capsys.readouterr().err
    assert main(["records", "prune", "-n", *given]) == 0
    assert "of kernels that are gone" in capsys.readouterr().out
    assert load_database(path) == before
    assert main(["records", "prune", *given]) == 0
    left = load_database(path)
    assert {c.candidate.kernel for c in before.candidates} - {c.candidate.kernel for c in left.candidates} == {kernel}
    assert [m for m in before.measurements if m.candidate in {c.id for c in left.candidates}] == [
        m for m in left.measurements if not m.candidate.startswith("baseline:")
    ]


WITHOUT = """
import dataclasses

operator = dataclasses.replace(operator, kernels=tuple(k for k in operator.kernels if k.name != {!r}))
"""
