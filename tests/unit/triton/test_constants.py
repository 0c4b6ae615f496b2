"""Constants all the way, from what an operator declares to the code, which is that of the JIT."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import triton_launch as tl
from elftools.elf.elffile import ELFFile
from places import SHARED
from triton_compiled import compiled
from triton_installed import EACH_TRITON, ONE_TRITON, ask, jit_of, request

from aot_tune.render import Renderer, candidates_for, resolved
from aot_tune.render.triton.recipe import Recipe, read_recipe
from aot_tune.spec import Operator, Problem, TritonFunction, problem
from aot_tune.support.errors import SpecError
from aot_tune.triton.read_declarations import requests_of, with_declarations

TARGET = tl.SM_90A
INFINITE, NO_NUMBER = float("-inf"), float("nan")
X = {"dtype": "fp32", "address": 256, "size": 1 << 20}


CASES: dict[str, tuple[str, dict[str, Any], Problem]] = {
    "no number": ("fills", {"FIRST": NO_NUMBER, "SECOND": 1.0}, problem(M=4, N=64)),
    "booleans of heuristics": ("flagged", {"n": tl.N}, problem(M=4, N=33)),
    "assertions": ("asserts", {"n": tl.N}, problem(M=4, N=32)),
    "large": ("fills", {"FIRST": 2**70, "PAIR": (1.0, (INFINITE, None))}, problem(M=4, N=8)),
    "tuples": ("fills", {"FIRST": 1.0, "PAIR": (1.0, (INFINITE, 2))}, problem(M=4, N=8)),
}
RECIPES: dict[str, dict[str, Recipe]] = {}


def recipe_of(search: list[str], case: str) -> Recipe:
    """What the JIT's candidate of a problem is compiled from, read, with all others, and rendered as a build does."""
    if search[0] not in RECIPES:
        operators = {}
        for number, (name, arguments, one) in enumerate(CASES.values()):
            function = TritonFunction(f"triton_functions/odd.py:{name}", {"x": "out", **arguments}, (1,))
            op = tl.operator(function, (), workload=(one,))
            kernel = replace(op.kernel("triton"), triton=function)
            operators[f"scale{number}"] = replace(op, name=f"scale{number}", kernels=(op.kernel("generic"), kernel))
        answers = ask(search, TARGET.name, *requests_of(operators, TARGET))
        known = {a.name: {TARGET.name: a.inspection} for a in answers if a.inspection is not None}
        assert len(known) == len(CASES), [a.fault for a in answers]
        found = (with_declarations(op, known, ["cuda"]) for op in operators.values())
        RECIPES[search[0]] = dict(zip(CASES, (read_recipe(source_of(op)) for op in found), strict=True))
    return RECIPES[search[0]][case]


def source_of(op: Operator) -> str:
    kernel = resolved(op.kernel("triton"), TARGET.name)
    config = dict(next(iter(kernel.configs(TARGET.facts))))
    op = replace(op, kernels=(op.kernel("generic"), kernel))
    return Renderer([]).render(op, next(iter(candidates_for(op, kernel, config, TARGET))), TARGET).source


def sections(image: bytes) -> dict[str, str]:
    wanted = (".text", ".nv.constant", ".nv.shared", ".rodata")
    found = (s for s in ELFFile(io.BytesIO(image)).iter_sections() if s.name.startswith(wanted) and s.data_size)
    return {s.name: hashlib.sha256(s.data()).hexdigest() for s in found}


PASSED: dict[str, dict[str, Any]] = {
    "no number": {"FIRST": {"number": "nan"}, "SECOND": 1.0},
    "booleans of heuristics": {"n": 33, "EVEN": False, "PARTS": 1},
}


@pytest.mark.slow
@EACH_TRITON
def test_the_code_is_that_of_the_jit(search: list[str], tmp_path: Path) -> None:
    jit = jit_of(search)
    for case, passed in PASSED.items():
        outcome, _ = compiled(search, recipe_of(search, case), TARGET.name, tmp_path / case)
        assert outcome.status == "ok", outcome.log
        said = jit(
            function=f"triton_functions/odd.py:{CASES[case][0]}",
            target=("cuda", 90, 32),
            arguments={"x": X, **passed},
            options={"enable_fp_fusion": True},
            compile=True,
        )
        assert sections((tmp_path / case / "kernel.bin").read_bytes()) == said["code"], case


@EACH_TRITON
def test_assertions_are_kept_where_a_function_says_debug(search: list[str], tmp_path: Path) -> None:
    one = recipe_of(search, "assertions")
    assert one.options == {"debug": True}
    outcome, _ = compiled(search, one, TARGET.name, tmp_path)
    assert outcome.status == "ok", outcome.log
    assert b"n is small" in (tmp_path / "kernel.bin").read_bytes()


@EACH_TRITON
def test_numbers_that_json_cannot_hold_and_tuples_in_tuples(search: list[str], tmp_path: Path) -> None:
    one = recipe_of(search, "large")
    assert one.signature == {
        "x": "*fp32", "FIRST": "constexpr", "SECOND": "constexpr", "third": "fp32", "PAIR": "constexpr"
    }  # fmt: skip
    assert one.constexprs == {
        "FIRST": {"number": str(2**70)}, "SECOND": {"number": "-inf"}, "PAIR": [1.0, [{"number": "-inf"}, None]]
    }  # fmt: skip
    outcome, _ = compiled(search, recipe_of(search, "tuples"), TARGET.name, tmp_path)
    assert outcome.status == "ok", outcome.log


@ONE_TRITON
def test_a_digest_is_of_what_a_constant_object_holds(search: list[str], tmp_path: Path) -> None:
    text = (SHARED / "triton_functions" / "odd.py").read_text()
    digests = []
    for width in (64, 32):
        folder = tmp_path / str(width) / "triton_functions"
        folder.mkdir(parents=True)
        (folder / "odd.py").write_text(text.replace("Sizes(width=64)", f"Sizes(width={width})"))
        (answer,) = ask(search, TARGET.name, request("odd.py:calls_default", {}), root=folder.parent)
        assert answer.inspection is not None, answer.fault
        digests.append(answer.inspection.digest)
    assert len(set(digests)) == 2


@pytest.mark.parametrize("given", [{"a": 1}, object(), ("x", {"a": 1}), b"x"])
def test_an_argument_of_another_kind_is_refused(given: Any) -> None:
    with pytest.raises(SpecError, match=r"(?s)argument 'n' is .*tuples of constants.*convert it"):
        TritonFunction("rows.py:rows", {"n": given}, (1,))
