"""Which variant a call gets: the same from C, from Python and by a model of the tables, on every level of the CPU."""

import json
import math
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import forked
import linked
import pytest

from aot_tune.compile.device_targets import cpu_level as from_cpuinfo
from aot_tune.link import OperatorTable, TargetTable
from aot_tune.spec import Facts, all_of
from aot_tune.spec.targets import TILES_LEVEL

CALLS = """
found = []
for m, n, k, transposed in {shapes}:
    a = np.zeros((m, k), np.float32)
    b = np.zeros((n, k), np.float32).T if transposed else np.zeros((k, n), np.float32)
    told = ops.explain("gemm", a, b)
    try:
        mark = int(ops.gemm(a, b)[0, 0])
    except ops.CallError as error:
        mark = str(error)
    stated = None if transposed else ops.explain("gemm", M=m, N=n, K=k)["variant"]
    found.append([told["variant"], mark, stated, told["device"]])
"""
MARKS = {"plain": 0, "small_2": 10, "packed_2": 20, "packed_3": 30}


def model(table: OperatorTable, target: TargetTable | None, facts: Facts) -> str:
    """What the tables say, walked in Python."""
    generic = table.variants[table.generics("cpu")[0]].name
    if target is None:
        return generic

    def serves(index: int) -> bool:
        return all_of(table.variants[index].requires, facts)

    row = min((p for p, _ in target.surveyed), key=lambda p: abs(math.log2(p.dims["M"] / facts["M"])), default=None)
    tried = [*next((v for p, v in target.surveyed if p is row), ()), *target.rest]
    return next((table.variants[i].name for i in tried if serves(i)), generic)


def ask(built: linked.Built, level: str, code: str) -> Any:
    """What a program leaves in `found`, on a level."""
    code = f"ops = linked.load_module(Path({str(built.module)!r}))\n{code}\nprint(json.dumps(found))"
    return json.loads(forked.python(code, AOT_TUNE_CPU_LEVEL=level))


def cpu_level() -> int:
    """The level of this CPU for a library without variants that use tiles."""
    return min(from_cpuinfo(Path("/proc/cpuinfo").read_text()), TILES_LEVEL - 1)


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_three_ways_to_ask_agree_on_many_shapes(built: linked.Built, level: int) -> None:
    if level > cpu_level():
        pytest.skip(f"this CPU has level {cpu_level()}")
    table = built.spec.operators[0]
    target = max((t for t in table.tables if t.level <= level), key=lambda t: t.level, default=None)
    draw = random.Random(level)
    extents = (1, 2, 3, 4, 8, 15, 16, 17, 33)
    shapes = [
        [draw.choice((*extents, 1001)), draw.choice(extents), draw.choice(extents), draw.randint(0, 1)]
        for _ in range(1000)
    ]
    found = ask(built, str(level), CALLS.format(shapes=shapes))
    for (m, n, k, transposed), (told, mark, stated, device) in zip(shapes, found, strict=True):
        step = k if transposed and n > 1 else 1  # where k is 1 the matrix is contiguous however it came about
        facts = {"M": m, "N": n, "K": k, "stride.b.1": step}
        wanted = model(table, target, facts)
        assert told == wanted, (m, n, k, transposed)
        failed = "gemm: variant broken for cpu-x86-64-v2: launch returned 7"
        assert mark == (failed if wanted == "broken" else MARKS[wanted])
        assert stated in (None, model(table, target, {**facts, "stride.b.1": 1}))
        assert device == f"cpu level {level}"


def test_explain_names_the_nearest_problem_and_guards(built: linked.Built) -> None:
    code = 'found = [ops.explain("gemm", M=m, N=8, K=k) for m, k in ((64, 6), (3, 6), (0, 6), (2, 0))]'
    guarded, small, empty, hollow = ask(built, "2", code)
    assert guarded["nearest"] == "M=64 N=8 K=8, dims differ by up to 1.33 times"
    assert guarded["rejected"] == ["packed_2: ((K % 4) == 0)"]
    assert (guarded["variant"], guarded["target"], guarded["kernel"]) == ("small_2", "cpu-x86-64-v2", "small")
    assert guarded["object"] == built.spec.operators[0].variants[1].made.digest
    assert guarded["why"] == "first of the variants ranked for such calls whose guards hold"
    assert guarded["dims"] == {"M": 64, "N": 8, "K": 6}
    assert guarded["attributes"] == {"activation": "none"}
    assert guarded["tensors"][0] == "a f32 [M, K], strides (6, 1), aligned to 64 bytes"
    assert small["nearest"] == "M=4 N=8 K=8, dims differ by up to 1.33 times"
    assert empty["why"] == "no output has elements, so nothing runs"
    assert (hollow["variant"], hollow["why"]) == ("plain", "generic: an input has no elements")


def test_is_tuned_knows_the_measured_problems(built: linked.Built) -> None:
    code = """
def f(m, n, k, transposed=False):
    b = np.zeros((n, k), np.float32).T if transposed else np.zeros((k, n), np.float32)
    return np.zeros((m, k), np.float32), b
wide = np.zeros((8, 16), np.float32)[:, :8]
found = [
    ops.is_tuned("gemm", M=8, N=8, K=8), ops.is_tuned("gemm", *f(8, 8, 8)),
    ops.is_tuned("gemm", *f(64, 8, 8, True)), ops.is_tuned("gemm", wide, wide),
    ops.is_tuned("gemm", *f(64, 8, 8)), ops.is_tuned("gemm", *f(8, 8, 8, True)), ops.is_tuned("gemm", M=8, N=8, K=9),
    ops.is_tuned("gemm", M=8, N=8, K=8, bias=True), ops.is_tuned("gemm", M=8, N=8, K=8, activation="relu"),
    ops.is_tuned("rms_norm", M=8, N=8), ops.is_tuned("gemm", M=0, N=8, K=8),
    ops.is_tuned("gemm", wide[:, ::2], wide[::2]),
]
"""
    assert ask(built, "2", code) == [True] * 4 + [False] * 8


def test_questions_say_what_is_wrong(ops: ModuleType) -> None:
    for kind, message, ask_, given, dims in (
        (ValueError, r"ops has no operator 'gem'; it has \('gemm', 'rms_norm'\)", ops.explain, ["gem"], {"M": 1}),
        (TypeError, r"1 of 3 dims were given; state each of \('M', 'N', 'K'\)", ops.is_tuned, ["gemm"], {"M": 1}),
        (TypeError, "wants the operator's name", ops.is_tuned, [], {}),
        (ValueError, "axis 0 has the extent -1", ops.explain, ["gemm"], {"M": -1, "N": 1, "K": 1}),
        (TypeError, "'bias' can only be True or False", ops.explain, ["gemm"], {"M": 1, "N": 1, "K": 1, "bias": 3}),
        (
            OverflowError,
            "dim 'M' is 1180591620717411303424, wanted a whole number of 64",
            ops.explain,
            ["gemm"],
            {"M": 2**70, "N": 1, "K": 1},
        ),
        (ValueError, "spans more than the address space", ops.explain, ["gemm"], {"M": 2**62, "N": 1, "K": 2**40}),
    ):
        with pytest.raises(kind, match=message):
            ask_(*given, **dims)
