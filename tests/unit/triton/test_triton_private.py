"""What is read from Triton, and that specialisation is that of its own binder."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundled import OPERATORS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_operators import make_operator
from triton_installed import EACH_TRITON, FUNCTIONS, ONE_TRITON, VERSIONS, ask, integer, jit_of, request

from aot_tune.compile import target_by_name
from aot_tune.render.triton.specialize import specialized_pins
from aot_tune.spec import Config, Declarations, Kernel, Operator, Problem, Scalar, Tensor, TritonFunction, dims, problem
from aot_tune.spec.load_operators import bundled_templates
from aot_tune.support.errors import ToolchainError
from aot_tune.triton.ask_declarations import read_functions
from aot_tune.triton.installed import check_version

N = dims("N")[0]


def test_other_versions_are_refused_with_the_range_and_the_remedy() -> None:
    for version in ("3.6.0", "3.9.0", "3.9.1+local"):
        check_version(version)
    for version in ("3.5.1", "3.10.0", "4.0.0", "unknown"):
        with pytest.raises(
            ToolchainError, match=rf"{re.escape(version)}(.|\n)*3\.6 to 3\.9(.|\n)*'triton>=3\.6,<3\.10'"
        ):
            check_version(version)


@pytest.mark.slow
@ONE_TRITON
def test_a_digest_is_of_what_code_is_made_of(search: list[str], tmp_path: Path) -> None:
    """Each change below gives another one; moving a function in its file, or a folder, does not."""
    copies = {}

    def digest_after(file: str = "rows.py", old: str = "", new: str = "") -> str:
        root = tmp_path / str(len(copies))
        shutil.copytree(FUNCTIONS, root / "triton_functions")
        path = root / "triton_functions" / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new) if old else new + path.read_text())
        (answer,) = ask(search, "cuda-sm_90a", request("rows.py:plain", {"n": integer(N)}), root=root)
        assert answer.inspection is not None, answer.fault
        assert answer.inspection.files == ("triton_functions/parts.py", "triton_functions/rows.py")
        copies[root] = answer.inspection.digest
        return answer.inspection.digest

    first = digest_after()
    assert digest_after(new="# moved\nUNUSED = 3\n") == first
    assert (
        digest_after(
            "rows.py", "def keep_small", "def kept_small\n    pass\n\n\ndef keep_small".replace("small\n", "small():\n")
        )
        == first
    )
    different = [
        digest_after("rows.py", "other=0.0).to(tl.float32)\n    tl.store", "other=1.0).to(tl.float32)\n    tl.store"),
        digest_after("parts.py", "SCALE = tl.constexpr(2.0)", "SCALE = tl.constexpr(3.0)"),
        digest_after("parts.py", "tl.maximum(value, 0.0,", "tl.maximum(value, 0.5,"),
        digest_after("parts.py", "tl.PropagateNan.NONE", "tl.PropagateNan.ALL"),
        digest_after("parts.py", "@triton.jit\ndef clamp", "@triton.jit(noinline=True)\ndef clamp"),
    ]
    assert len({first, *different}) == 6


SEVERAL = pytest.mark.skipif(len(VERSIONS) < 2, reason="one Triton alone: name folders in AOT_TUNE_TEST_TRITON")


@pytest.mark.slow
@SEVERAL
def test_bundled_functions_are_known_again_in_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of one version is replayed with another: what differs is the code, not the source."""
    target = target_by_name("cuda-sm_90a")
    digests: list[dict[str, str]] = []
    for search in VERSIONS.values():
        monkeypatch.setattr(sys, "path", search)
        operators = dict(OPERATORS)
        found, fault = read_functions(operators, [target], [], [bundled_templates()], os.environ)
        assert not fault
        digests.append({name: on[target.name].digest for name, on in found.items()})
    assert len(digests[0]) >= 20
    assert digests[1:] == digests[:1] * (len(VERSIONS) - 1)


A, B, C, D, E = dims("A B C D E")
TENSORS = (
    Tensor("p", (A, B), "bf16"),
    Tensor("q", (C, D, E), "f32", optional=True),
    Tensor("all", (C, D, E), "f32"),
    Tensor("out", (A,), "bf16", output=True),
)
OPERATOR = make_operator(name="marked", extents="A B C D E", tensors=TENSORS, scalars=(Scalar("scale"),))
TARGETS = {"cuda-sm_90a": ("cuda", 90, 32), "hip-gfx942": ("hip", "gfx942", 64)}


EXTENT = st.one_of(
    st.integers(0, 40),
    st.integers(1, 4096).map(lambda n: n * 16),
    st.integers(1, 2**20),
    st.integers(2**31 - 40, 2**31 + 40),
    st.integers(2**31, 2**40),
)
ALIGNMENT = st.integers(0, 6).map(lambda power: 1 << power)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Calls of the operator: extents around every limit, tensors of any alignment, with and without the optional."""
    extents = {name: draw(EXTENT) for name in OPERATOR.dims}
    present = ("q",) if draw(st.booleans()) else ()
    return problem(present=present, alignment={"p": draw(ALIGNMENT), "q": draw(ALIGNMENT)}, **extents)


def _span(operator: Operator, one: Problem, name: str) -> int:
    tensor = operator.tensor(name)
    shape, strides = operator.shape(one, tensor), operator.strides(one, tensor)
    return (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * tensor.dtype.itemsize


def _kernel(inspections: dict[str, Declarations]) -> Kernel:
    arguments: dict[str, Any] = {"a": A, "b": B, "c": C, "d": D, "flag": True}
    function = TritonFunction("triton_functions/rows.py:marked", arguments, grid=(1,), inspections=inspections)
    return Kernel(name="marked", backend="triton", triton=function)


@pytest.mark.slow
@pytest.mark.parametrize("target", list(TARGETS))
@EACH_TRITON
def test_specialisation_is_that_of_the_jit(search: list[str], target: str) -> None:
    """60 random calls: the types, constants and marks of the binder are those that a candidate's pins say."""
    jit = jit_of(search)
    given_arguments = {n: integer(e) for n, e in {"a": A, "b": B, "c": C, "d": D}.items()}
    (answer,) = ask(search, target, request("rows.py:marked", given_arguments))
    assert answer.inspection is not None, answer.fault
    kernel = _kernel({target: answer.inspection})
    operator = replace(OPERATOR, kernels=(*OPERATOR.kernels, kernel))
    config: Config = {}

    @given(problems())
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def same(one: Problem) -> None:
        pins = specialized_pins(operator, kernel, config, one, target)
        arguments: dict[str, Any] = {name: one.dims[name.upper()] for name in "abcd"}
        for name in "pq":
            dtype = {"p": "bf16", "q": "fp32"}[name]
            here = operator.is_present(one, operator.tensor(name))
            alignment = one.alignment.get(name, 64)
            made = {"dtype": dtype, "address": alignment, "size": _span(operator, one, name)}
            arguments[name] = made if here else None
        said = jit(
            function="triton_functions/rows.py:marked",
            target=TARGETS[target],
            arguments={**arguments, "flag": True, "scale": 0.5},
        )
        signature = {"p": "*bf16", "q": "constexpr" if pins["q.none"] else "*fp32", "flag": "u1", "scale": "fp32"}
        signature |= {"MODE": "constexpr", "KIND": "constexpr"}
        for name in "abcd":
            width = "i64" if pins.get(f"{name}.bits") == 64 or name == "c" else "i32"
            signature[name] = "constexpr" if name in pins else width
        assert said["signature"] == signature, one
        marks: dict[str, list[str]] = {}
        for name in "pqabcd":
            found = ["tt.divisibility"] * (f"{name}%16" in pins) + ["tt.pointer_range"] * (f"{name}.range" in pins)
            if found:
                marks[name] = found
        assert said["marks"] == marks, one
        assert {n: said["constexprs"][n] for n in "abcd" if n in said["constexprs"]} == {
            n: "1" for n in "abcd" if n in pins
        }

    same()
