"""Which variant a call gets: the same from C, from Python and by a model of the tables, on every level of the CPU."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import linked
import numpy as np
import pytest
from places import ROOT, SHARED

from aot_tune.compile.cpu_levels import cpu_level as from_cpuinfo
from aot_tune.link import OperatorTable, TargetTable
from aot_tune.link.emit.decision import fact_printer
from aot_tune.spec import Facts, all_of, problem
from aot_tune.spec.load_operators import bundled_templates, load_operators
from aot_tune.spec.targets import TILES_LEVEL

SCRIPT = """
import json, sys
import numpy as np
import linked
from pathlib import Path
ops = linked.load_module(Path(sys.argv[1]))
answers = []
for m, n, k, transposed, tight in json.load(sys.stdin):
    a = np.zeros((m, k), np.float32)
    b = np.zeros((n, k), np.float32).T if transposed else np.zeros((k, n), np.float32)
    told = ops.explain("gemm", a, b)
    try:
        mark = int(ops.gemm(a, b)[0, 0])
    except ops.CallError as error:
        mark = str(error)
    stated = None if transposed else ops.explain("gemm", M=m, N=n, K=k)["variant"]
    answers.append([told["variant"], mark, stated, told["device"]])
print(json.dumps(answers))
"""
MARKS = {"plain": 0, "small_2": 10, "packed_2": 20, "packed_3": 30}


def model(table: OperatorTable, target: TargetTable | None, facts: Facts) -> str:
    """What the tables say, walked in Python."""
    generic = table.variants[table.generics("cpu")[0]].name
    if target is None:
        return generic
    node = target.nodes[0]
    while node.fact:
        node = target.nodes[node.below if facts[node.fact] <= node.threshold else node.above]
    for index in node.leaf:
        if all_of(table.variants[index].requires, facts):
            return table.variants[index].name
    return generic


def ask(built: linked.Built, level: str, shapes: list[list[int]]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(SHARED)])
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(built.module)],
        input=json.dumps(shapes),
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "AOT_TUNE_CPU_LEVEL": level},
    )


def cpu_level() -> int:
    """The level of this CPU for a library without variants that use tiles."""
    return min(from_cpuinfo(Path("/proc/cpuinfo").read_text()), TILES_LEVEL - 1)


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_three_ways_to_ask_agree_on_many_shapes(built: linked.Built, level: int) -> None:
    if level > cpu_level():
        pytest.skip(f"this CPU has level {cpu_level()}")
    table = built.spec.operators[0]
    tables = [t for t in table.tables if t.level <= level]
    target = max(tables, key=lambda t: t.level, default=None)
    draw = random.Random(level)
    extents = (1, 2, 3, 4, 8, 15, 16, 17, 33)
    shapes = [
        [draw.choice((*extents, 1001)), draw.choice(extents), draw.choice(extents), draw.randint(0, 1), 0]
        for _ in range(2500)
    ]
    asked = ask(built, str(level), shapes)
    assert asked.returncode == 0, asked.stderr
    for (m, n, k, transposed, _), (told, mark, stated, device) in zip(shapes, json.loads(asked.stdout), strict=True):
        unit = n == 1 or not transposed or (k == 1 and n == 1)
        step = 1 if unit else k
        if transposed and k == 1:
            step = 1  # a (1, N) matrix is contiguous however it came about
        facts = {"M": m, "N": n, "K": k, "stride.b.1": step}
        wanted = model(table, target, facts)
        assert told == wanted, (m, n, k, transposed)
        if wanted == "broken":
            assert mark == "gemm: variant broken for cpu-x86-64-v2: launch returned 7"
        else:
            assert mark == MARKS[wanted]
        assert stated in (None, model(table, target, {**facts, "stride.b.1": 1}))
        assert device == f"cpu level {level}"


@pytest.mark.parametrize("level", ["v2", "x86-64-v2", "cpu-x86-64-v2"])
def test_spellings_of_a_level(built: linked.Built, level: str) -> None:
    if cpu_level() < 2:
        pytest.skip(f"this CPU has level {cpu_level()}")
    assert json.loads(ask(built, level, [[2, 2, 2, 0, 0]]).stdout)[0][3] == "cpu level 2"


def test_a_higher_level_than_the_cpu_has_changes_nothing(built: linked.Built) -> None:
    for level in ("6", "v4-amx", "cpu-x86-64-v4-amx", ""):
        assert json.loads(ask(built, level, [[2, 2, 2, 0, 0]]).stdout)[0][3] == f"cpu level {cpu_level()}"


@pytest.mark.parametrize("level", ["0", "7", "16", "avx2", "2 ", "v5", "v6", "v4-avx", "bf16", "v4-bf16 "])
def test_a_bad_level_is_an_error_of_the_call(built: linked.Built, level: str) -> None:
    asked = ask(built, level, [[2, 2, 2, 0, 0]])
    assert (
        f"CallError: AOT_TUNE_CPU_LEVEL is '{level}', wanted 1 to 6 (v1, v2, v3, v4, v4-bf16, v4-amx)" in asked.stderr
    )


def test_explain_names_path_and_guards(built: linked.Built) -> None:
    asked = """
import linked, json, sys
from pathlib import Path
ops = linked.load_module(Path(sys.argv[1]))
print(json.dumps([ops.explain("gemm", M=64, N=8, K=6), ops.explain("gemm", M=3, N=8, K=6),
                  ops.explain("gemm", M=0, N=8, K=6), ops.explain("gemm", M=2, N=8, K=0)]))
"""
    path = os.pathsep.join([str(ROOT), str(SHARED)])
    out = subprocess.run(
        [sys.executable, "-c", asked, str(built.module)],
        text=True,
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, "AOT_TUNE_CPU_LEVEL": "2"},
    ).stdout
    guarded, small, empty, hollow = json.loads(out)
    assert guarded["path"] == ["M > 16", "M <= 1000"]
    assert guarded["rejected"] == ["packed_2: ((K % 4) == 0)"]
    assert (guarded["variant"], guarded["target"], guarded["kernel"]) == ("small_2", "cpu-x86-64-v2", "small")
    assert guarded["object"] == built.spec.operators[0].variants[1].object_digest
    assert guarded["why"] == "first of the variants ranked for such calls whose guards hold"
    assert guarded["dims"] == {"M": 64, "N": 8, "K": 6}
    assert guarded["attributes"] == {"activation": "none"}
    assert guarded["tensors"][0] == "a f32 [M, K], strides (6, 1), aligned to 64 bytes"
    assert small["path"] == ["M <= 16"]
    assert empty["why"] == "no output has elements, so nothing runs"
    assert (hollow["variant"], hollow["why"]) == ("plain", "generic: an input has no elements")


def test_is_tuned_knows_the_measured_problems(built: linked.Built) -> None:
    asked = """
import linked, json, sys
import numpy as np
from pathlib import Path
ops = linked.load_module(Path(sys.argv[1]))
def f(m, n, k, transposed=False):
    b = np.zeros((n, k), np.float32).T if transposed else np.zeros((k, n), np.float32)
    return np.zeros((m, k), np.float32), b
wide = np.zeros((8, 16), np.float32)[:, :8]
print(json.dumps([
    ops.is_tuned("gemm", M=8, N=8, K=8), ops.is_tuned("gemm", *f(8, 8, 8)),
    ops.is_tuned("gemm", *f(64, 8, 8, True)), ops.is_tuned("gemm", wide, wide),
    ops.is_tuned("gemm", *f(64, 8, 8)), ops.is_tuned("gemm", *f(8, 8, 8, True)), ops.is_tuned("gemm", M=8, N=8, K=9),
    ops.is_tuned("gemm", M=8, N=8, K=8, bias=True), ops.is_tuned("gemm", M=8, N=8, K=8, activation="relu"),
    ops.is_tuned("rms_norm", M=8, N=8), ops.is_tuned("gemm", M=0, N=8, K=8),
    ops.is_tuned("gemm", wide[:, ::2], wide[::2]),
]))
"""
    path = os.pathsep.join([str(ROOT), str(SHARED)])
    out = subprocess.run(
        [sys.executable, "-c", asked, str(built.module)],
        text=True,
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, "AOT_TUNE_CPU_LEVEL": "2"},
    ).stdout
    assert json.loads(out) == [True] * 4 + [False] * 8


def test_an_empty_reduction_gets_the_generic_variant(ops: ModuleType) -> None:
    out = ops.gemm(np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32), np.full(3, 5, np.float32))
    assert np.array_equal(out, np.full((2, 3), 5, np.float32))


def test_questions_say_what_is_wrong(ops: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"ops has no operator 'gem'; it has \('gemm', 'rms_norm'\)"):
        ops.explain("gem", M=1)
    with pytest.raises(TypeError, match=r"1 of 3 dims were given; state each of \('M', 'N', 'K'\)"):
        ops.is_tuned("gemm", M=1)
    with pytest.raises(TypeError, match="wants the operator's name"):
        ops.is_tuned()
    with pytest.raises(ValueError, match="axis 0 has the extent -1"):
        ops.explain("gemm", M=-1, N=1, K=1)
    with pytest.raises(TypeError, match="'bias' can only be True or False"):
        ops.explain("gemm", M=1, N=1, K=1, bias=3)
    with pytest.raises(OverflowError, match="dim 'M' is 1180591620717411303424, wanted a whole number of 64"):
        ops.explain("gemm", M=2**70, N=1, K=1)
    with pytest.raises(ValueError, match="spans more than the address space"):
        ops.explain("gemm", M=2**62, N=1, K=2**40)


def test_absent_tensors_have_the_strides_that_their_facts_say() -> None:
    _, op = load_operators([bundled_templates()], ["rms_norm"])["rms_norm"]
    shown = fact_printer(op)
    assert shown("stride.residual.1").endswith(": INT64_C(1))")
    assert shown("stride.residual.0").endswith(": c.d_D)")
    facts = op.facts(problem(R=3, D=5))
    assert (facts["stride.residual.0"], facts["stride.residual.1"]) == (5, 1)
