"""AOT_TUNE_OVERRIDE: what serves the calls that a file's rules are for, what explain() says of it, and bad files."""

import json
import os
from pathlib import Path
from typing import Any

import forked
import linked
import pytest

PRELUDE = """
ops = linked.load_module(Path({module!r}))

def gemm(m, n=8, k=8, bias=None, **options):
    "The mark of the variant that served a call."
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    return float(ops.gemm(a, b, bias, **options)[0, 0]) - k

def told(name, **call):
    found = ops.explain(name, **call)
    return [found["variant"], found["why"], found.get("override", ""), found["rejected"]]

def said(function, *given, **named):
    try:
        return function(*given, **named)
    except ops.Error as error:
        return [type(error).__name__, str(error)]
"""
NAMED = "named by a rule of AOT_TUNE_OVERRIDE"
RANKED = "first of the variants ranked for such calls whose guards hold"


def run(built: linked.Built, rules: Path | str, code: str, **environment: str) -> Any:
    """What `code` leaves in `found`, in a process of its own; a program in Python, for CPUs of level 2."""
    text = PRELUDE.format(module=str(built.module)) + code + "\nprint(json.dumps(found))"
    environment = {"AOT_TUNE_CPU_LEVEL": "2", "AOT_TUNE_OVERRIDE": str(rules), **environment}
    return json.loads(forked.python(text, **environment))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "rules"
    file.write_text(
        """\
# small ones as they are
gemm: M<=4 -> plain

gemm: 16<=M<=64, N=8 -> packed_2  # with a comment
ops.gemm: bias, activation=relu -> packed
elsewhere.gemm: -> nothing
rms_norm: -> norm
"""
    )
    return file


def test_the_first_rule_that_a_call_meets_decides(built: linked.Built, rules: Path) -> None:
    """By the nearest problem it is small_2 (10) up to M = 16, and packed_2 (20) beyond."""
    code = """
bias = np.zeros(8, np.float32)
found = [gemm(4), gemm(5), gemm(16), gemm(16, n=9), gemm(64), gemm(65), gemm(16, bias=bias),
         gemm(5, bias=bias, activation="relu"), gemm(4, bias=bias, activation="relu"), gemm(5, bias=bias)]
"""
    assert run(built, rules, code) == [0, 10, 20, 10, 20, 20, 20, 20, 0, 10]
    assert run(built, "", code) == [10, 10, 10, 10, 20, 20, 10, 10, 10, 10]


def test_explain_tells_the_rule_and_its_line(built: linked.Built, rules: Path) -> None:
    code = """
found = [told("gemm", M=4, N=8, K=8), told("gemm", M=5, N=8, K=8), told("gemm", M=20, N=8, K=8),
         told("gemm", M=20, N=8, K=7), told("rms_norm", M=2, N=2), ops.is_tuned("gemm", M=8, N=8, K=8)]
"""
    refused = "packed_2: ((K % 4) == 0)"
    assert run(built, rules, code) == [
        ["plain", NAMED, f"{rules}:2: gemm: M<=4 -> plain", []],
        ["small_2", RANKED, "", []],
        ["packed_2", NAMED, f"{rules}:4: gemm: 16<=M<=64, N=8 -> packed_2", []],
        ["small_2", RANKED, f"{rules}:4: gemm: 16<=M<=64, N=8 -> packed_2", [refused, refused]],
        ["norm", NAMED, f"{rules}:7: rms_norm: -> norm", []],
        True,
    ]


def test_where_its_variant_refuses_the_usual_decision_serves(built: linked.Built, tmp_path: Path) -> None:
    """Not the next rule: by its guards, its workspace, or since it is not for this device at all."""
    file = tmp_path / "rules"
    file.write_text("gemm: K=7 -> packed_2\ngemm: M=32 -> small_2\ngemm: M=3 -> packed_3\ngemm: M=3 -> packed_2\n")
    code = """
room = np.empty(128, np.uint8)
found = [gemm(8, k=7), gemm(32), gemm(32, workspace=room[:64]), gemm(32), gemm(3)]
"""
    assert run(built, file, code) == [10, 10, 20, 10, 20]
    code = "found = [told('gemm', M=3, N=8, K=8)]"
    assert run(built, file, code) == [["packed_2", NAMED, f"{file}:4: gemm: M=3 -> packed_2", []]]


def test_other_variables(built: linked.Built, rules: Path) -> None:
    """AOT_TUNE_FORCE wins, and fails where it must; what AOT_TUNE_EXCLUDE names is not served, but generic ones are."""
    code = "found = [said(gemm, 4), said(gemm, 32), told('gemm', M=32, N=8, K=8)]"
    forced = run(built, rules, code, AOT_TUNE_FORCE="small_2")
    assert forced == [10, 10, ["small_2", "named by AOT_TUNE_FORCE", "", []]]
    left_out = run(built, rules, code, AOT_TUNE_EXCLUDE="packed_2,plain")
    line = f"{rules}:4: gemm: 16<=M<=64, N=8 -> packed_2"
    excluded = "packed_2: AOT_TUNE_EXCLUDE names it"
    assert left_out == [0, 10, ["small_2", RANKED, line, [excluded, excluded]]]


def test_dtypes_kernels_and_devices(standin: linked.Built, tmp_path: Path) -> None:
    """A rule whose variants are for other devices is passed over; of a kernel the first variant that takes the call."""
    file = tmp_path / "rules"
    file.write_text(
        "scale: T=f32, N<=8 -> plain_cpu\nscale: T=f32, N=8 -> fast\nscale: T=bf16, N=16 -> plain\n"
        "scale: N=32 -> fast\nscale: N=64 -> vendor_90a\n"
    )
    code = """
found = [told("scale", **call)[:3] for call in (
    {"N": 8}, {"N": 8, "device": "cuda:1"}, {"N": 16, "T": "bf16", "device": "cuda:1"},
    {"N": 32, "device": "cuda:1"}, {"N": 32, "T": "bf16", "device": "cuda:1"})]
found.append(told("scale", N=64, device="cuda:1"))
found.append(linked_cuda.call(ops, 8, 1))
"""
    *rows, vendor, mark = run(standin, file, code)
    assert [(variant, override.split(":")[1]) for variant, _, override in rows] == [
        ("plain_cpu", "1"),
        ("fast_90a", "2"),
        ("plain_bf16", "3"),
        ("fast_90a", "4"),
        ("fast_bf16", "4"),
    ]
    assert {why for _, why, _ in rows} == {NAMED}
    assert (vendor[0], vendor[1]) == ("wide_90a", RANKED)
    assert vendor[3] == 2 * ["vendor_90a: the vendor's library 12.3 is not here"]
    assert mark == 400


def test_a_bad_line_is_an_error_of_every_call(built: linked.Built, tmp_path: Path) -> None:
    """Of all operators, and of questions: the file is not used at all. The first is told in full, others by numbers."""
    file = tmp_path / "rules"
    file.write_text("gemm: M<=4 -> plain\n\ngemm: M<=16 -> packet_2\nrms_norm: M>\nnothing\ngemm: -> plain")
    code = """
x, weight = np.ones((2, 2), np.float32), np.ones(2, np.float32)
found = [said(gemm, 4), said(ops.rms_norm, x, weight), said(told, "gemm", M=1, N=1, K=1)]
found.append(ops.is_tuned("gemm", M=8, N=8, K=8))
os.environ["AOT_TUNE_OVERRIDE"] = ""  # it was read
found.append(said(gemm, 4))
"""
    call, norm, explained, tuned, again = run(built, file, code)
    wanted = f"{file}:3: 'packet_2' is no variant and no kernel of gemm here; did you mean 'packed_2'?"
    assert call == ["CallError", call[1]]
    assert call[1].startswith(f"gemm: AOT_TUNE_OVERRIDE: {wanted}")
    assert call[1].endswith(" (also bad: lines 4, 5)")
    assert norm == ["CallError", call[1].replace("gemm: AOT", "rms_norm: AOT", 1)]
    assert explained == call
    assert again == call
    assert tuned


def test_files_that_cannot_be_read(built: linked.Built, tmp_path: Path) -> None:
    for path, reason in (
        (f"{tmp_path}/none", "it cannot be opened: No such file or directory; name a file with lines such as 'gemm: M"),
        (f"{tmp_path}", "it cannot be read: Is a directory; name a file"),
        ("/dev/zero", "it has more than 1048576 bytes; name a file"),
        (f"{tmp_path}/" + "x" * 300, "it cannot be opened: File name too long"),
    ):
        ((kind, said),) = run(built, path, "found = [said(gemm, 4)]")
        assert kind == "CallError"
        assert said.startswith(f"gemm: AOT_TUNE_OVERRIDE: {path[:300]}: ")
        assert reason in said
    os.mkfifo(tmp_path / "pipe")  # calls do not wait for it
    assert run(built, tmp_path / "pipe", "found = [gemm(4)]") == [10]


def test_a_file_without_rules_and_one_of_very_many(built: linked.Built, tmp_path: Path) -> None:
    file = tmp_path / "rules"
    file.write_text("# nothing yet\n\r\n")
    assert run(built, file, "found = [gemm(4)]") == [10]
    file.write_bytes(b"".join(b"gemm: M=%d -> plain\r\n" % m for m in range(100, 30000)) + b"gemm: M=4 -> packed")
    assert run(built, file, "found = [gemm(4), gemm(5), gemm(100), gemm(999)]") == [20, 10, 0, 0]
