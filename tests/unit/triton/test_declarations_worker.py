"""Reading decorated functions: configs, heuristics as expressions, pruners, answers for devices, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from triton_installed import EACH_TRITON, FUNCTIONS, ask, integer, pointer, request

from aot_tune.spec import Expr, dims, stride
from aot_tune.support.errors import ToolchainError
from aot_tune.triton.client import inspect
from aot_tune.triton.triton_messages import Given, InspectRequest, ProblemFacts

M, N = dims("M N")
ARGUMENTS = {
    "x": pointer("x", M, N, dtypes=("bf16", "f32")),
    "y": pointer("y", M, N, dtypes=("bf16", "f32")),
    "bias": pointer("bias", N, optional=True),
    "total": Given(kind="buffer"),
    "n": integer(N),
    "step": integer(stride("x", 0)),
    "scale": Given(kind="scalar", value=1.0),
}
FACTS = {"M": 300, "present.x": 1, "present.y": 1, "stride.x.1": 1, "stride.y.1": 1, "stride.bias.0": 1}


def problem(n: int, bias: int = 0, dtype: int = 0) -> ProblemFacts:
    facts = {**FACTS, "N": n, "stride.x.0": n, "stride.y.0": n, "present.bias": bias, "dtype.T": dtype}
    return ProblemFacts(id=f"N={n}", facts=facts)


@EACH_TRITON
def test_a_plain_function(search: list[str]) -> None:
    plain, marked = (request(f"rows.py:{name}", ARGUMENTS) for name in ("plain", "marked"))
    first, second = (a.inspection for a in ask(search, "cuda-sm_90a", plain, marked))
    assert first is not None
    assert [(p.name, p.constexpr) for p in first.parameters] == [
        ("x", False), ("y", False), ("n", False), ("step", False), ("BLOCK", True)
    ]  # fmt: skip
    assert (first.configs, first.keys, first.hooks, first.heuristics, first.pruned) == ((), (), False, {}, {})
    assert second is not None
    found = {p.name: p for p in second.parameters}
    assert {n for n, p in found.items() if not p.special} == {"a"}
    assert {n for n, p in found.items() if not p.align} == {"b", "q"}
    assert found["c"].annotation == "i64"
    assert not any(found[n].annotation for n in "abd")
    assert [(found[n].has_default, found[n].default) for n in ("d", "MODE", "KIND")] == [
        (False, None), (True, "sum"), (True, {"own": "fp32"})
    ]  # fmt: skip


@EACH_TRITON
def test_heuristics_become_expressions(search: list[str]) -> None:
    (answer,) = ask(search, "cuda-sm_90a", request("rows.py:with_heuristics", ARGUMENTS))
    assert answer.inspection is not None, answer.fault
    found = {name: Expr.of(data) for name, data in answer.inspection.heuristics.items()}
    for n in (1, 2, 3, 1000, 1024, 1025, 4095, 4096, 5000):
        for bias in (0, 1):
            for dtype in (0, 1):
                for m in (1, 132, 133, 2000, 10**6):
                    facts = {**problem(n, bias, dtype).facts, "M": m}
                    block = 1 << max(n - 1, 0).bit_length()
                    wide = block >= (4096, 2048)[dtype]
                    truth = {"BLOCK": block, "HAS_BIAS": bias, "WIDE": wide, "ROWS": max(1, min(8, -(-m // 132)))}
                    assert {name: e.evaluate(facts) for name, e in found.items()} == truth


@EACH_TRITON
def test_an_autotuned_function(search: list[str]) -> None:
    asked = request("rows.py:tuned", ARGUMENTS, problems=[problem(n) for n in (64, 300, 4096)])
    (answer,) = ask(search, "cuda-sm_90a", asked)
    found = answer.inspection
    assert found is not None, answer.fault
    assert [(c["BLOCK"], c["num_warps"], c["num_stages"], c["num_ctas"]) for c in found.configs] == [
        (128, 2, 3, 1), (512, 4, 3, 1), (2048, 8, 3, 1)
    ]  # fmt: skip
    assert not any("maxnreg" in c for c in found.configs)
    assert (found.keys, found.reset_to_zero, found.restore_value, found.hooks) == (("n",), ("total",), ("y",), False)
    assert found.pruned == {"N=64": [0], "N=300": [0, 1], "N=4096": [0, 1, 2]}
    assert Expr.of(found.heuristics["EVEN"]).key() == "((N % 16) == 0)"
    assert Expr.of(found.heuristics["FULL"]).key() == "(((N % parameter.BLOCK) == 0) and (parameter.num_warps > 2))"


@EACH_TRITON
def test_pruning_by_a_model_of_performance(search: list[str]) -> None:
    asked = request("rows.py:modelled", ARGUMENTS, problems=[problem(n) for n in (50, 130)])
    (answer,) = ask(search, "cuda-sm_90a", asked)
    assert answer.inspection is not None, answer.fault
    assert answer.inspection.pruned == {"N=50": [0], "N=130": [1]}


@EACH_TRITON
def test_pruners_that_cannot_be_asked_are_left_out_where_the_author_says_so(search: list[str]) -> None:
    asked = request("wrong.py:fails_to_prune", ARGUMENTS, problems=[problem(64)])
    failed, answer = ask(search, "cuda-sm_90a", asked, msgspec.structs.replace(asked, pruners=False))
    assert failed.fault is not None
    assert "pruners=False" in failed.fault.fix
    assert answer.inspection is not None, answer.fault
    assert (answer.inspection.pruned, len(answer.inspection.configs)) == ({}, 2)


@EACH_TRITON
def test_what_the_author_passes_stands_above_heuristics_and_configs(search: list[str]) -> None:
    given = {**ARGUMENTS, "BLOCK": integer(N * 2)}
    (answer,) = ask(search, "cuda-sm_90a", request("rows.py:with_heuristics", given))
    assert answer.inspection is not None, answer.fault
    assert "BLOCK" not in answer.inspection.heuristics
    wide = Expr.of(answer.inspection.heuristics["WIDE"])
    assert [wide.evaluate({"N": n, "dtype.T": 0}) for n in (2047, 2048)] == [0, 1]


@EACH_TRITON
def test_hooks_are_told(search: list[str]) -> None:
    (answer,) = ask(search, "cuda-sm_90a", request("wrong.py:hooked", ARGUMENTS))
    assert answer.inspection is not None
    assert answer.inspection.hooks


REFUSED = {
    "wrong.py:reads_data": ("'BLOCK'", "reads elements of the tensor 'x'", "`arguments` of TritonFunction"),
    "wrong.py:reads_scalar": ("'BLOCK'", "reads the value of 'scale'", "`arguments` of TritonFunction"),
    "wrong.py:reads_address": ("'BLOCK'", "reads 'data_ptr' of the tensor 'x'", "`arguments` of TritonFunction"),
    "wrong.py:outer_reads_config": ("'BLOCK'", "reads the argument 'BM', which is not passed", "name 'BM'"),
    "wrong.py:uses_bits": ("'POWER'", "(N and (N - 1)), where N is a number", "use // and %"),
    "wrong.py:divides": ("'BLOCK'", "int((N / 2)) is not a number here", "`arguments` of TritonFunction"),
    "wrong.py:gives_text": ("'BLOCK'", "gives 'wide'", "`arguments` of TritonFunction"),
    "wrong.py:invents_configs": ("N=64", "a config that is not listed", "`parameters`"),
    "wrong.py:fails_to_prune": ("N=64", "KeyError: 'not_there'", "`parameters`"),
    "wrong.py:odd_config": ("tested", "BLOCK='0.5'", "`parameters`"),
    "wrong.py:not_compiled": ("wrong.py:not_compiled", "is a function, not a Triton function", "@triton.jit"),
    "wrong.py:hookedd": ("wrong.py:hookedd", "has no 'hookedd'", "did you mean 'hooked'?"),
    "absent.py:f": ("triton_functions/absent.py", "there is no file", "below the templates"),
    "fails.py:f": ("fails.py:f", "RuntimeError: no device (fails.py:7)", "needs a device"),
    "needs_package.py:f": ("needs_package.py:f", "No module named 'package_not_there'", "install package_not_there"),
}


@EACH_TRITON
def test_what_cannot_be_known_ahead_is_refused(search: list[str]) -> None:
    """Each with the kernel or function, what is wrong, and what to do; the others are read all the same."""
    asked = [request(f, ARGUMENTS, problems=[problem(64)]) for f in REFUSED]
    answers = ask(search, "cuda-sm_90a", *asked, request("rows.py:plain", ARGUMENTS))
    for function, answer in zip(REFUSED, answers, strict=False):
        who, what, fix = REFUSED[function]
        assert answer.fault is not None, function
        assert who in answer.fault.what, function
        assert what in answer.fault.what, function
        assert fix in answer.fault.fix, function
    assert answers[-1].inspection is not None


@EACH_TRITON
def test_a_link_out_of_the_templates_is_refused(search: list[str], tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "linked.py").symlink_to(FUNCTIONS / "matmul.py")
    asked = request("rows.py:plain", {})
    moved = msgspec.structs.replace(asked, function="linked.py:product")
    (answer,) = ask(search, "cuda-sm_90a", moved, root=tmp_path / "root")
    assert answer.fault is not None
    assert "leads outside its root" in answer.fault.what


@EACH_TRITON
def test_a_file_that_is_no_module_says_why(search: list[str], tmp_path: Path) -> None:
    for place in ("v1.2/rows.py", "old.rows.py", "v-1/rows.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text((FUNCTIONS / "matmul.py").read_text())
    asked = [
        msgspec.structs.replace(request("rows.py:plain", {}), function=f"{place}:product")
        for place in ("v1.2/rows.py", "old.rows.py", "v-1/rows.py")
    ]
    first, second, third = ask(search, "cuda-sm_90a", *asked, root=tmp_path)
    assert (first.fault, third.fault) == (None, None)
    assert second.fault is not None
    assert (second.fault.what, second.fault.fix) == ("old.rows.py: 'old.rows' has a dot", "rename it")


@pytest.mark.slow
@EACH_TRITON
def test_a_device_is_answered_for_each_target(search: list[str]) -> None:
    """Configs, globals and heuristics that ask torch and Triton for the device get that of the target."""
    pytest.importorskip("torch")
    found = {}
    for target in ("cuda-sm_80", "cuda-sm_90a", "hip-gfx942"):
        (answer,) = ask(search, target, request("by_device.py:chosen", ARGUMENTS))
        assert answer.inspection is not None, answer.fault
        found[target] = answer.inspection
    assert [[c["BLOCK"] for c in i.configs] for i in found.values()] == [[32], [64, 128], [32]]
    assert [i.configs[0]["AMD"] for i in found.values()] == [False, False, True]
    assert len({i.digest for i in found.values()}) == 2, "a global holds the capability: 8, 9 and 9"


@EACH_TRITON
def test_files_of_the_projects_modules_are_told(search: list[str], tmp_path: Path) -> None:
    """Not those of Triton, nor of Python: a build watches these."""
    package = tmp_path / "own_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("SIZE = 64\n")
    (package / "copies.py").write_text(
        "import triton\nimport triton.language as tl\nfrom own_kernels.sizes import SIZE\n\n"
        "@triton.jit\ndef copy(x, n, BLOCK: tl.constexpr = SIZE):\n    tl.store(x, tl.load(x))\n"
    )
    asked = msgspec.structs.replace(request("", ARGUMENTS), function="own_kernels.copies:copy")
    (answer,) = ask([str(tmp_path), *search], "cuda-sm_90a", asked)
    assert answer.inspection is not None, answer.fault
    assert answer.imported == [str(package / name) for name in ("__init__.py", "copies.py", "sizes.py")]


def test_without_triton_the_error_says_what_to_install(tmp_path: Path) -> None:
    asked = InspectRequest(target="cuda-sm_90a", roots=[], functions=[])
    with pytest.raises(ToolchainError) as caught:
        inspect(asked, os.environ, search=[str(tmp_path)])
    assert "not installed" in caught.value.what
    assert "pip install 'triton" in caught.value.fix


@pytest.mark.slow
@EACH_TRITON
def test_a_module_that_ends_the_process_or_never_ends_is_named(search: list[str]) -> None:
    for name, words in (("exits.py:f", "ended with status"), ("endless.py:f", "took longer than 5 s")):
        asked = InspectRequest(
            target="cuda-sm_90a", roots=[str(FUNCTIONS.parent)], functions=[request(name, ARGUMENTS)]
        )
        with pytest.raises(ToolchainError) as caught:
            inspect(asked, os.environ, timeout=5.0 if "endless" in name else 60.0, search=search)
        assert words in caught.value.what
        assert name in caught.value.why
