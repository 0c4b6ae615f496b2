"""`aot-tune workload`: files in, files and tables out."""

import json
from pathlib import Path

import msgspec
import pytest

from aot_tune.cli.main import main
from aot_tune.report.report_records import Report
from aot_tune.workloads.coverage import Coverage
from aot_tune.workloads.workload_lines import decode_workload

TRACE = b"""{"trace": {"format": 1, "library": "ops", "prefix": "aot_tune", "build": "", "pid": 7, "begun": 1.5}}
{"operator": "gemm", "dims": {"M": 16, "N": 64, "K": 32}, "strides": {"b": [1, 32]}, "calls": 6, "captured": 3}
{"operator": "softmax", "dims": {"R": 4, "D": 8}, "calls": 9, "captured": 0}
{"operator": "softmax", "dims": {"R": 0, "D": 8}, "calls": 2, "captured": 0}
"""
WORKLOAD = b'{"operator": "gemm", "dims": {"M": 16, "N": 64, "K": 32}, "order": {"b": [1, 0]}, "weight": 3.5}\n'
Told = pytest.CaptureFixture[str]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "trace.jsonl").write_bytes(TRACE)
    (tmp_path / "workload.jsonl").write_bytes(WORKLOAD)
    return [str(tmp_path / "trace.jsonl"), str(tmp_path / "workload.jsonl")]


def test_merge(files: list[str], tmp_path: Path, capsys: Told) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["workload", "merge", *files, "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "aot-tune: left out 1 line of calls without elements",
        f"{out}: 2 problems, 18.5 calls",
    ]
    merged = out.read_text()
    assert [json.loads(line) for line in merged.splitlines()] == [
        {"operator": "gemm", "dims": {"M": 16, "N": 64, "K": 32}, "order": {"b": [1, 0]}, "weight": 9.5},
        {"operator": "softmax", "dims": {"R": 4, "D": 8}, "weight": 9},
    ]
    assert main(["workload", "merge", str(out)]) == 0
    assert capsys.readouterr().out == merged


def test_show(files: list[str], capsys: Told) -> None:
    assert main(["workload", "show", *files, "--top", "1"]) == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "softmax: 11 calls of 2 problems, 53.7 % of all, 0.0 % captured",
        "calls share captured R D T else",
        "9 43.9 % 0.0 % 4 8 f32",
        "and 2 calls of 1 more problem",
        "",
        "gemm: 9.5 calls of 1 problem, 46.3 % of all, 31.6 % captured",
        "calls share captured M N K T else",
        "9.5 46.3 % 31.6 % 16 64 32 f32 b:10",
    ]


def test_all_mistakes_of_all_files_are_told(files: list[str], tmp_path: Path, capsys: Told) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"operator": "gemm"}\n{"operator": "gem", "dims": {}}\n')
    assert main(["workload", "merge", *files, str(bad), str(tmp_path / "none.jsonl")]) == 1
    said = capsys.readouterr().err
    assert f"1. {bad}:1: the line is not a problem: it lacks the required field `dims`" in said
    assert f"2. {tmp_path}/none.jsonl cannot be read\n  why: No such file or directory\n  fix: " in said
    assert f"3. {bad}:2: unknown operator 'gem'\n  why: there are " in said
    bad.write_text("")
    assert main(["workload", "show", str(bad)]) == 1
    assert f"{bad}: no problem is in these files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "f", "--top", "0"], "argument --top: '0' is not a positive number"),
        (["from-model", "f", "--tokens", "1,,2"], "argument --tokens: '' is not a positive number"),
        (["from-model", "f", "--tokens", "1", "--context", "-1"], "argument --context: '-1' is not a positive number"),
        (["from-model", "f", "--tokens", "1", "--dtype", "f64"], "argument --dtype: invalid choice: 'f64'"),
        (["coverage", "f", "--build", "a", "--module", "b"], "not allowed with argument --build"),
        ([], "the following arguments are required: SUBCOMMAND"),
    ],
)
def test_wrong_command_lines(arguments: list[str], said: str, capsys: Told) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["workload", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_from_model(tmp_path: Path, capsys: Told) -> None:
    config, out = tmp_path / "config.json", tmp_path / "out.jsonl"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
    config.write_text(json.dumps(sizes))
    command = ["workload", "from-model", str(config), "--tokens", "1, 16,16", "--dtype", "f16", "-o", str(out)]
    assert main(command) == 1
    assert f"{config}: it has no vocab_size" in capsys.readouterr().err
    assert not out.exists()
    config.write_text(json.dumps(sizes | {"vocab_size": 100}))
    assert main(command) == 0
    found = {f"{one.operator} {one.problem.id}": one.weight for one in decode_workload(out.read_bytes(), "out")}
    assert found["gemm M=16 N=192 K=64 b:10 T=f16"] == 2
    assert found["gemm M=1 N=100 K=64 b:10 T=f16"] == 1
    assert main([*command, "--tp", "3"]) == 1
    assert "3 devices cannot share" in capsys.readouterr().err


def test_coverage(files: list[str], tmp_path: Path, capsys: Told) -> None:
    assert main(["workload", "coverage", *files, "--module", "json"]) == 1
    assert "there is no report beside json" in capsys.readouterr().err
    tables = [{"target": "cpu-x86-64-v3", "level": 3, "tuned": ["M=16 N=64 K=32 b:10"]}]
    operators = [{"name": n, "variants": [], "tables": t} for n, t in (("gemm", tables), ("softmax", []))]
    manifest = {"schema": 1, "library": "ops", "prefix": "aot_tune", "module": "ops", "operators": operators}
    report = Report(library="ops", mode="auto", targets=(), devices=(), toolchains={}, policy="", operators=())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "report.json").write_bytes(msgspec.json.encode(report))
    command = ["workload", "coverage", *files, "--build", str(tmp_path)]
    assert main(command) == 0
    said = capsys.readouterr()
    assert said.out.startswith("library ops, build ")
    assert "warning" not in said.err
    assert main([*command, "--json"]) == 0
    told = msgspec.json.decode(capsys.readouterr().out, type=Coverage)
    (problems,) = told.targets.values()
    (product,) = (p for p in problems if p.operator == "gemm")
    assert (product.problem, product.calls, product.tuned) == ("M=16 N=64 K=32 b:10", 9.5, False)
    (tmp_path / "trace.jsonl").write_bytes(TRACE.replace(b'"build": ""', b'"build": "0123456789abcdef"'))
    assert main(command) == 0
    assert f"aot-tune: warning: {files[0]}:1: the trace is of build 0123456789ab of 'ops'" in capsys.readouterr().err
    assert main([*command, "--target", "cpu-x86-64-v33"]) == 1
    assert (
        "library 'ops' has no target 'cpu-x86-64-v33'\n  fix: did you mean 'cpu-x86-64-v3'" in capsys.readouterr().err
    )
