"""The command line: what it says of wrong names, and of files that cannot be read."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from places import ROOT

from aot_tune.cli import doctor
from aot_tune.cli.doctor import Examination, OptionsFound, cache_lines, examination_lines, find_options, option_lines
from aot_tune.cli.explain_command import Explanation
from aot_tune.cli.main import command_line, main
from aot_tune.plan.options import OPTIONS
from aot_tune.plan.run_time_variables import RUN_TIME_VARIABLES
from aot_tune.report.report_records import OperatorReport, Report
from aot_tune.support.storage import CacheLocation


class Library(ModuleType):
    @staticmethod
    def manifest() -> str:
        return '{"operators": [{"name": "gemm"}]}'


def test_explain_knows_the_operators(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "a_library", Library("a_library"))
    assert main(["explain", "gem", "M=1", "--module", "a_library"]) == 1
    said = capsys.readouterr().err
    assert said == "aot-tune: module a_library has no operator 'gem'\n  fix: did you mean 'gemm'?\n"
    monkeypatch.setitem(sys.modules, "aot_tune.ops", Library("aot_tune.ops"))
    assert main(["explain", "affine", "N=1"]) == 1
    assert "fix: use one of: gemm; for a library of your own add --module" in capsys.readouterr().err
    assert main(["explain", "gemm", "--module", "json"]) == 1
    assert "json is not the Python module of a library" in capsys.readouterr().err


def test_explain_takes_numbers_and_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    library, stated = Library("a_library"), {}

    def explain(operator: str, **facts: object) -> dict[str, object]:
        stated.update(facts)
        return {"operator": operator, "tensors": [], "rejected": []}

    monkeypatch.setattr(library, "explain", explain, raising=False)
    monkeypatch.setitem(sys.modules, "a_library", library)
    facts = ["M=16", "N=-1", "scale=2.0", "eps=1e-5", "T=bf16", "choice=e5", "causal=False", "+bias"]
    assert main(["explain", "gemm", *facts, "--module", "a_library"]) == 0
    wanted = {"M": 16, "N": -1, "scale": 2.0, "eps": 1e-5, "T": "bf16", "choice": "e5", "causal": False, "bias": True}
    assert stated == wanted
    assert [type(stated[name]) for name in ("M", "scale", "causal")] == [int, float, bool]
    capsys.readouterr()
    told = {"operator": "gemm", "nearest": "M=1", "expected": ["one takes 1 us", "two takes 2 us"], "why": "so"}
    monkeypatch.setattr(library, "explain", lambda operator, **facts: told)
    assert main(["explain", "gemm", "M=16", "--module", "a_library"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *("operator  gemm", "nearest   M=1", "why       so", "expected  one takes 1 us", "expected  two takes 2 us")
    ]
    variant = {
        "name": "rows_1",
        "resources": {"registers": 40, "spill_bytes": 0, "shared": 1032},
        "roofline": {"share": 0.71, "problem": "M=1", "of": "a data sheet"},
    }
    held = {"operators": [{"name": "gemm", "variants": [variant, {"name": "generic_0"}]}]}
    monkeypatch.setattr(library, "manifest", lambda: held, raising=False)
    for name, said in (
        ("rows_1", ["code      40 registers, no spills, 1032 static bytes of shared memory",
                    "roofline  71 % by a data sheet, on 'M=1' at best"]),
        ("generic_0", []),
    ):  # fmt: skip
        told["variant"] = name
        assert main(["explain", "gemm", "M=16", "--module", "a_library"]) == 0
        assert capsys.readouterr().out.splitlines()[6:] == said
    told["variant"], told["tuned"], told["workspace"] = "rows_1", True, 64
    assert main(["explain", "gemm", "M=16", "--module", "a_library", "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Explanation)
    assert (found.operator, found.nearest, found.tuned, found.workspace) == ("gemm", "M=1", True, 64)
    assert (found.code["registers"], found.roofline and found.roofline.share) == (40, 0.71)
    assert found.expected == ("one takes 1 us", "two takes 2 us")
    for layout in ("b:10", "x:(8192,1)", "x@4"):
        assert main(["explain", "gemm", "M=16", layout, "--module", "a_library"]) == 1
        assert "fix: leave it out: calls stated here are row-major" in capsys.readouterr().err


def test_report_knows_the_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = OperatorReport(
        operator="gemm",
        target="cpu-x86-64-v3",
        tried=0,
        statuses={},
        problems=(),
        variants=(),
        failures=(),
        mean_regret=0.0,
        held_out_regret=None,
    )
    report = Report(library="ops", mode="auto", targets=(), devices=(), toolchains={}, policy="", operators=(one,))
    path = tmp_path / "report.json"
    path.write_bytes(msgspec.json.encode(report))
    assert main(["report", "gem", "--build", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "aot-tune: the report has no operator 'gem'\n  fix: did you mean 'gemm'?\n"
    assert main(["report", "gemm", "--build", str(path)]) == 0
    assert "gemm on cpu-x86-64-v3" in capsys.readouterr().out
    assert main(["report", "--json", "--build", str(path)]) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Report) == report


def test_report_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "somebodys"
    package.mkdir()
    for name in ("__init__.py", "ops.py"):
        (package / name).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["report", "--module", "somebodys.ops"]) == 1
    assert (
        f"there is no report beside somebodys.ops\n  why: looked for {package}/report.json\n" in capsys.readouterr().err
    )
    report = Report(library="theirs", mode="auto", targets=(), devices=(), toolchains={}, policy="", operators=())
    (package / "report.json").write_bytes(msgspec.json.encode(report))
    assert main(["report", "--module", "somebodys.ops"]) == 0
    assert "library   theirs" in capsys.readouterr().out
    (package / "report.json").write_text('{"schema": 99}')
    assert main(["report", "--module", "somebodys.ops"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"aot-tune: {package}/report.json is a report of another version\n  why: it has version 99")
    assert "Traceback" not in said
    (package / "ops.abi3.so").touch()
    assert main(["report", "--module", "somebodys"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("aot-tune: somebodys is a package, not the module of a library\n")
    assert said.endswith("  fix: name the module: somebodys.ops\n")
    for absent in ("somebodys.opps", "nobodys.ops"):
        assert main(["report", "--module", absent]) == 1
        assert f"module {absent} is not installed here" in capsys.readouterr().err


def test_doctor_as_json_is_what_it_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("AOT_TUNE_CACHE_DIR", str(tmp_path / "cache"))
    status = main(["doctor", "--json"])
    found = msgspec.json.decode(capsys.readouterr().out, type=Examination)
    assert found.schema == 1
    assert (status, found.cache.folder) == (int(found.problems > 0), str(tmp_path / "cache"))
    assert any(c.backend == "cxx" and c.identity["version"] == c.version for c in found.compilers if not c.trouble)
    assert main(["doctor"]) == status
    assert capsys.readouterr().out.splitlines()[-1] == list(examination_lines(found, verbose=False))[-1]


def test_doctor_says_what_options_mean(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for width in (20, 40, 80, 120):
        lines = list(option_lines(find_options((), {}), width))
        for one in (*OPTIONS, *RUN_TIME_VARIABLES):
            assert any(line.split(" ")[0] == one.name for line in lines), one.name
        longest = max((line for line in lines if not line.startswith("AOT_TUNE_")), key=len)
        assert len(longest) <= max(width, 60)  # a pattern or a path that is longer than a line is not broken
        assert "](" not in "".join(lines)
        assert any("docs/tuning-elsewhere.md" in line for line in lines)
    monkeypatch.setenv("AOT_TUNE_BUDGET", "300")
    assert main(["doctor", "--options", "budget"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("AOT_TUNE_BUDGET  (default: empty)\n  now '300', from the environment\n  seconds")
    assert said.count("AOT_TUNE_") == 1
    assert main(["doctor", "--options", "budget", "--json"]) == 0
    (told,) = msgspec.json.decode(capsys.readouterr().out, type=OptionsFound).options
    assert (told.name, told.default, told.value) == ("AOT_TUNE_BUDGET", "", "300")
    assert main(["doctor", "--options", "bugdet"]) == 1
    said = capsys.readouterr().err
    assert "there is no option 'AOT_TUNE_BUGDET'" in said
    assert "'AOT_TUNE_BUDGET'" in said


def test_commands_that_programs_run_are_named_to_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["tun"], ["--help"]):
        with pytest.raises(SystemExit):
            main(given)
        said = "".join(capsys.readouterr())
        assert "doctor" in said
        assert not re.search("configure|check-library|planned", said)


def test_operands_and_options_come_in_any_order() -> None:
    for words in ("D gemm --target x", "D --target x gemm", "--target x D gemm"):
        given = command_line().parse_args(["tune", *words.split()])
        assert (given.directory, given.operators, given.target) == (Path("D"), ["gemm"], ["x"])


def test_doctor_tells_of_a_cache_that_no_build_could_use(tmp_path: Path) -> None:
    shared, file = tmp_path / "shared", tmp_path / "file"
    shared.mkdir()
    shared.chmod(0o777)
    file.touch()

    def told(root: Path, **about: bool) -> tuple[int, str]:
        found = doctor.examine_cache(CacheLocation(root=root, mode="rw", **about))
        return int(found.trouble is not None and found.trouble.stops), "\n".join(cache_lines(found))

    problems, said = told(shared, required=True)
    assert problems == 1
    assert "may be written by others (mode 0777)" in said
    assert "fix: chmod go-w" in said
    assert told(shared, required=True, trusted=True) == (0, f"cache      {shared} (rw)")
    problems, said = told(file / "aot_tune")
    assert problems == 0
    assert f"the cache folder '{file}/aot_tune' is not a folder" in said
    assert said.endswith("(a build goes on without it)")
    assert told(tmp_path / "new" / "aot_tune", required=True)[0] == 0
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("encoding", ["ascii", "koi8-r", "utf-8"])
def test_outputs_in_any_encoding(encoding: str) -> None:
    """Reports have a sign that ASCII lacks, and names of files what no encoding has."""
    told = "print('half \\u00b1 \\udcff')\nraise AotTuneError('other \\u00b1 \\udcff')"
    code = f"""
import argparse, sys
from aot_tune.cli import doctor, main
from aot_tune.support.errors import AotTuneError
def tell(_: argparse.Namespace) -> int:
    {told.replace(chr(10), chr(10) + "    ")}
doctor._doctor = tell
sys.exit(main.main(["doctor"]))
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert (done.returncode, done.stdout[:5], done.stderr[:16]) == (1, b"half ", b"aot-tune: other ")
