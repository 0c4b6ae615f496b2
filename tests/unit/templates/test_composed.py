"""Composed kernels: a vendor's product, or a stage of its own, then the operator's epilogue; run on the host."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bundled import OPERATORS
from composed_on_host import Calls, OnHost
from cublaslt_stand_in import build_stub
from places import SHARED
from ptx import compiled
from rounded_products import RoundedProducts
from rows_on_host import HOPPER, TARGET

from aot_tune.bench.devices.family import policy_for
from aot_tune.bench.host.odd_problems import checks_for
from aot_tune.bench.protocol.measurement_records import Policy
from aot_tune.bench.worker.reference_results import logical_inputs, read_truth, write_truth
from aot_tune.render import Rendered, Renderer, candidate_for, requirements
from aot_tune.spec import Operator, all_of, problem
from aot_tune.spec.load_operators import bundled_templates, load_operator, without_backends

OURS = SHARED / "composed_templates"
GEMM = OPERATORS["gemm"]
MIXED, FORMED = (load_operator(OURS / name) for name in ("mixed", "formed"))
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
IN_PLACE, F32 = "cublaslt_then_epilogue", "cublaslt_f32_then_epilogue"
CASES = [(IN_PLACE, 1, "bf16"), (F32, 2, "f16")]
TYPES = {"f16": 2, "bf16": 14}  # of the vendor's library


def render(op: Operator, name: str, vectors: int, dtype: str, target: str = HOPPER.name) -> Rendered:
    kernel, chosen = op.kernel(name), TARGET[target]
    (config,) = (c for c in kernel.configs(chosen.facts) if c["VECTORS"] == vectors)
    candidate = candidate_for(op, kernel, config, chosen, None, {"T": dtype})
    return Renderer([bundled_templates(), OURS]).render(op, candidate, chosen)


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def composed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[OnHost, str]:
    name, vectors, dtype = request.param
    return OnHost(tmp_path_factory.mktemp("composed"), render(GEMM, name, vectors, dtype), bundled_templates()), name


def matrices(m: int, n: int, k: int, **other: Any) -> dict[str, Any]:
    return {"dims": {"M": m, "N": n, "K": k}, **other}


def epilogues(m: int, n: int, k: int) -> Calls:
    """Every activation with and without bias and residual."""
    given: list[list[str]] = [[], ["bias"], ["residual"], ["bias", "residual"]]
    return [matrices(m, n, k, present=p, attributes={"activation": a}) for a in ACTIVATIONS for p in given]


def test_every_epilogue_is_right_on_odd_sizes(composed: tuple[OnHost, str], stub: Path) -> None:
    """Widths of whole pieces, of less than one, of no whole number; rows of no whole block; one row, one column."""
    shapes = ((13, 64, 5), (5, 37, 3), (9, 1, 2), (3, 1031, 2), (2, 4104, 1))
    calls = [call for shape in shapes for call in epilogues(*shape)]
    for one, answer in zip(calls, composed[0].call(calls, stub), strict=True):
        assert (answer["preload"], answer["workspace"], answer["launch"]) == (0, 0, 0), one
        assert answer["off"] <= 1.01, (one, answer)
        assert answer["clean"], one
        assert answer["workspace_kept"], one


def test_what_is_added_may_lie_in_any_way(composed: tuple[OnHost, str], stub: Path) -> None:
    host, name = composed
    both = {"present": ["bias", "residual"], "attributes": {"activation": "silu"}}
    layouts: list[dict[str, Any]] = [
        {"residual": (72, 1)},
        {"residual": (67, 1), "bias": (1,)},
        {"residual": (1, 40)},
        {"residual": (0, 1), "bias": (3,)},
        {"residual": (-64, 1), "bias": (-1,)},
        {"residual": (64, 0), "bias": (0,)},
        {"out": (80, 1), "residual": (1, 40)},
        {"out": (67, 1)},
    ]
    narrow = [matrices(9, 37, 2, present=p, strides=dict.fromkeys(("out", *p), (40, 1))) for p in ([], ["residual"])]
    unaligned = [matrices(9, 64, 2, present=[t], shifted=[t]) for t in ("bias", "residual")]
    layouts += [{"out": (1, 48)}, {"out": (3, 200), "residual": (0, 0)}] if name == F32 else []
    calls = [matrices(40, 64, 3, strides=one, **both) for one in layouts]
    calls += [one | {"attributes": {"activation": "relu"}} for one in (*narrow, *unaligned)]
    for one, answer in zip(calls, host.call(calls, stub), strict=True):
        assert answer["launch"] == 0
        assert answer["off"] <= 1.01, (one, answer)
        assert answer["clean"], one


def test_nan_and_infinities_come_through(composed: tuple[OnHost, str], stub: Path) -> None:
    """Where the product is finite; activations of them are their limits."""
    residual = [np.nan, np.inf, -np.inf, 0.0, 1.0, -1.0, 2.0, 65504.0] * 2
    calls = [
        matrices(2, 8, 2, present=["residual"], attributes={"activation": a}, given={"residual": residual})
        for a in ACTIVATIONS
    ]
    calls += [
        matrices(2, 8, 2, present=["bias"], attributes={"activation": a}, given={"bias": residual[:8]})
        for a in ACTIVATIONS
    ]
    for one, answer in zip(calls, composed[0].call(calls, stub), strict=True):
        assert answer["off"] <= 1.01, (one, answer)


def test_the_product_is_rounded_where_it_is_said_to_be(composed: tuple[OnHost, str], stub: Path) -> None:
    """2049 is none of f16 and 257 none of bf16: what is left of it beside the residual tells."""
    host, name = composed
    whole = {"bf16": 256, "f16": 2048}[host.dtype]
    given = {"a": [1, 1], "b": [whole] * 8 + [1] * 8, "residual": [-whole] * 8}
    [answer] = host.call([matrices(1, 8, 2, present=["residual"], given=given)], stub)
    assert answer["first"] == [0.0 if name == IN_PLACE else 1.0] * 8


def test_scratch_is_part_of_the_workspace(composed: tuple[OnHost, str], stub: Path) -> None:
    """The stand-in's own algorithm takes 1024 bytes; rows of f32 begin at whole 32 bytes."""
    host, name = composed
    given: dict[str, Any] = {"present": ["bias"], "attributes": {"activation": "gelu"}}
    calls = [matrices(5, 13, 3, **given), matrices(33, 64, 3, **given), matrices(5, 13, 3, room=1023, **given)]
    first, second, short = host.call(calls, stub)
    scratch = (0, 0) if name == IN_PLACE else (512, 33 * 64 * 4)
    assert (first["bytes"], second["bytes"]) == tuple(1024 + s for s in scratch)
    [ran] = [line for line in first["log"] if line.startswith("matmul")]
    assert " epilogue=1 workspace=1024 " in ran
    assert f" type={0 if name == F32 else TYPES[host.dtype]} " in ran
    assert short["launch"] == 7
    assert not [line for line in short["log"] if line.startswith("matmul")]


def test_the_note_tells_of_both_launches(composed: tuple[OnHost, str], stub: Path) -> None:
    [answer] = composed[0].call([matrices(5, 8, 3, present=["bias"])], stub)
    assert answer["note"] == "cuBLASLt 13.1.0: its own heuristic, then the epilogue in a kernel of its own"


@pytest.mark.parametrize(("op", "dtype", "vectors"), [(MIXED, "bf16", 3), (FORMED, "f32", 1)], ids=["mixed", "formed"])
def test_other_operators_have_the_stage_too(op: Operator, dtype: str, vectors: int, tmp_path: Path) -> None:
    """Three axes, a stage of its own, tensors added along every choice of them, and formulas."""
    host = OnHost(tmp_path, render(op, "doubled_then_epilogue", vectors, dtype), OURS)
    added = ["of_rows", "turned", "of_columns", "every"]
    calls: Calls = []
    for b, m, n in ((2, 3, 16), (3, 2, 11), (1, 1, 1), (2, 40, 8), (5, 1, 264)):
        dims = {"B": b, "M": m, "N": n}
        for present in ([], *([t] for t in added), added):
            calls.append({"dims": dims, "present": present, "attributes": {"activation": "silu"}})
        calls.append({"dims": dims, "present": added, "strides": {"out": (1, b, b * m), "every": (0, 1, m)}})
        calls.append({"dims": dims, "present": added, "strides": {"turned": (1, n), "of_rows": (1, b)}})
    for one, answer in zip(calls, host.call(calls, None), strict=True):
        assert (answer["launch"], answer["bytes"]) == (0, 4 * int(np.prod(list(one["dims"].values())))), one
        assert answer["off"] <= 1.01, (one, answer)
        assert answer["clean"], one
        assert answer["workspace_kept"], one


def test_a_product_that_is_rounded_first_is_right_by_the_tolerance(tmp_path: Path) -> None:
    """As eager frameworks round it; on small integers it must be right to the last bit."""
    kernel = GEMM.kernel(IN_PLACE)
    guards = requirements(
        GEMM, candidate_for(GEMM, kernel, {"SCRATCH": False, "VECTORS": 1}, HOPPER, None, {"T": "f16"})
    )
    checks = [c for c in checks_for(GEMM, guards, policy_for("cuda", Policy()), on_host=False) if not c.special]
    seen = set()
    for number, check in enumerate(checks):
        write_truth(GEMM, check, tmp_path / str(number), seed=number)
        truth, want = read_truth(tmp_path / str(number))["out"]
        given = {n: a.astype(np.float32) for n, a in logical_inputs(GEMM, check, number).items()}
        values = {t.name: given.get(t.name) for t in GEMM.tensors}
        chosen = {a.name: check.problem.attributes.get(a.name, a.choices[0]) for a in GEMM.attributes}
        got = GEMM.reference(RoundedProducts("f16"), SimpleNamespace(**values, **chosen))["out"]
        off = np.abs(got.astype(np.float16).astype(np.float64) - want)
        assert (off <= truth.bounds.absolute + truth.bounds.relative * np.abs(want)).all(), check.place
        seen.add((chosen["activation"], check.integers))
    assert {a for a, _ in seen} == set(ACTIVATIONS)
    assert {integers for _, integers in seen} == {True, False}


def test_composed_kernels_are_tried_where_there_is_an_epilogue() -> None:
    for name in (IN_PLACE, F32):
        kernel = GEMM.kernel(name)

        def tried(**facts: Any) -> bool:
            made = problem(**{"M": 16, "N": 64, "K": 32, "dtypes": {"T": "bf16"}} | facts)
            return all_of((*kernel.requires, *kernel.worthwhile), GEMM.facts(made))  # noqa: B023

        assert not tried()
        assert not tried(attributes={"math": "tf32"})
        assert tried(present=("bias",))
        assert tried(present=("residual",), strides={"residual": (1, 16)})
        assert all(tried(attributes={"activation": a}) for a in ACTIVATIONS[1:])
        assert tried(present=("bias",), alignment={"bias": 2})
        assert not tried(present=("bias",), alignment={"a": 2})
        assert tried(present=("bias",), order={"out": (1, 0)}) == (name == F32)
        assert tried(present=("bias",), alignment={"out": 2}) == (name == F32)


def test_a_library_without_the_vendors_backend_has_none() -> None:
    without = without_backends(GEMM, ["cublaslt"])
    assert without.left_out == {IN_PLACE, F32, "cublaslt_any"}
    gone = {k.name for k in GEMM.kernels} - {k.name for k in without.kernels}
    assert gone == {"cublaslt", IN_PLACE, F32, "cublaslt_any"}
    assert not GEMM.left_out


@pytest.mark.parametrize("target", ["cuda-sm_80", "cuda-sm_90a"])
def test_only_where_kernels_may_start_early_they_do(target: str) -> None:
    source = render(GEMM, IN_PLACE, 1, "bf16", target).source
    assert ("return launch_early(" in source) == (target == "cuda-sm_90a")
    assert ("return launch_kernel(" in source) == (target == "cuda-sm_80")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_nothing_is_read_before_the_product_is_there(tmp_path: Path) -> None:
    """And the whole kernel moves 16 bytes at a time, and nothing as if nobody wrote there."""
    ptx, _ = compiled(render(GEMM, F32, 2, "bf16").source, tmp_path)
    entries = ptx.split(".entry ")[1:]
    assert len(entries) == 2
    for entry in entries:
        before, wait, after = entry.partition("griddepcontrol.wait")
        assert wait
        assert "ld.global" not in before
        assert ".global.nc" not in after
    whole = next(e for e in entries if "Lb1E" in e.partition("(")[0])
    assert "ld.global.v4" in whole
    assert "ld.global.u16" not in whole
    assert "ld.global.b16" not in whole
    assert set(re.findall(r"st\.global[\w.]*", whole)) == {"st.global.wb.v4.u32"}
