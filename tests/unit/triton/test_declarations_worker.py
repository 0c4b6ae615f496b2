"""Reading decorated functions: configs, heuristics as expressions, pruners, answers for devices, what is refused.

One process of each Triton reads all functions of `ASKED`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from triton_installed import EACH_TRITON, FUNCTIONS, ONE_TRITON, ask, integer, pointer, request

from aot_tune.spec import Declarations, Expr, dims, stride
from aot_tune.support.errors import SentError, ToolchainError
from aot_tune.triton.ask_declarations import inspect
from aot_tune.triton.triton_messages import Answer, FunctionRequest, Given, InspectRequest, ProblemFacts

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
SHORT = {"x": pointer("x", N), "n": integer(N)}


def problem(n: int, bias: int = 0, dtype: int = 0) -> ProblemFacts:
    facts = {**FACTS, "N": n, "stride.x.0": n, "stride.y.0": n, "present.bias": bias, "dtype.T": dtype}
    return ProblemFacts(id=f"N={n}", facts=facts)


def short(*sizes: int) -> list[ProblemFacts]:
    return [ProblemFacts(id=str(n), facts={"N": n, "stride.x.0": 1}) for n in sizes]


REFUSED = {
    "wrong.py:reads_data": ("'BLOCK'", "reads elements of the tensor 'x'", "`arguments` of TritonFunction"),
    "wrong.py:reads_address": ("'BLOCK'", "reads 'data_ptr' of the tensor 'x'", "`arguments` of TritonFunction"),
    "wrong.py:outer_reads_config": ("'BLOCK'", "reads the argument 'BM', which is not passed", "name 'BM'"),
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


ODD = {
    "by_set": "the heuristic for 'BLOCK' of triton_functions/odd.py:by_set: the expression N was looked up in a set",
    "by_bits": "has ((N + 15) and -16), where (N + 15) is a number",
    "by_loop": "has more than 64 paths",
    "by_type": "its expression 128",
    "of_nothing": "the heuristic for 'block' of triton_functions/odd.py:of_nothing is not for an argument",
    "changes_configs": "pruning the configs of triton_functions/odd.py:changes_configs for 777 changes them",
}


ASKED: dict[str, FunctionRequest] = {
    **{f: request(f, ARGUMENTS, problems=[problem(64)]) for f in REFUSED},
    **{f: request(f"odd.py:{f}", SHORT, problems=short(777)) for f in ODD},
    "with_heuristics": request("rows.py:with_heuristics", ARGUMENTS),
    "tuned": request("rows.py:tuned", ARGUMENTS, problems=[problem(n) for n in (64, 300, 4096)]),
    "modelled": request("rows.py:modelled", ARGUMENTS, problems=[problem(n) for n in (50, 130)]),
    "no pruners": request("wrong.py:fails_to_prune", ARGUMENTS, problems=[problem(64)], pruners=False),
    "passed": request("rows.py:with_heuristics", {**ARGUMENTS, "BLOCK": integer(N * 2)}),
    "hooked": request("wrong.py:hooked", ARGUMENTS),
}
ANSWERS: dict[str, dict[str, Answer]] = {}


def answered(search: list[str], name: str) -> Answer:
    if search[0] not in ANSWERS:
        ANSWERS[search[0]] = dict(zip(ASKED, ask(search, "cuda-sm_90a", *ASKED.values()), strict=True))
    return ANSWERS[search[0]][name]


def read(search: list[str], name: str) -> Declarations:
    answer = answered(search, name)
    assert answer.inspection is not None, answer.fault
    return answer.inspection


def refused(search: list[str], name: str) -> SentError:
    """Why a function was not read."""
    fault = answered(search, name).fault
    assert fault is not None, name
    return fault


@EACH_TRITON
def test_heuristics_become_expressions(search: list[str]) -> None:
    found = {name: Expr.of(data) for name, data in read(search, "with_heuristics").heuristics.items()}
    for n in (1, 2, 3, 1000, 1024, 1025, 4095, 4096, 5000):
        for bias in (0, 1):
            for dtype in (0, 1):
                for m in (1, 132, 133, 2000, 10**6):
                    facts = {**problem(n, bias, dtype).facts, "M": m}
                    block = 1 << max(n - 1, 0).bit_length()
                    wide = block >= (4096, 2048)[dtype]
                    truth = {"BLOCK": block, "HAS_BIAS": bias, "WIDE": wide, "ROWS": max(1, min(8, -(-m // 132)))}
                    assert {name: e.evaluate(facts) for name, e in found.items()} == truth
    passed = read(search, "passed").heuristics  # what the author passes stands above heuristics
    assert "BLOCK" not in passed
    assert [Expr.of(passed["WIDE"]).evaluate({"N": n, "dtype.T": 0}) for n in (2047, 2048)] == [0, 1]


@EACH_TRITON
def test_an_autotuned_function(search: list[str]) -> None:
    found = read(search, "tuned")
    assert [(c["BLOCK"], c["num_warps"], c["num_stages"], c["num_ctas"]) for c in found.configs] == [
        (128, 2, 3, 1), (512, 4, 3, 1), (2048, 8, 3, 1)
    ]  # fmt: skip
    assert not any("maxnreg" in c for c in found.configs)
    assert (found.keys, found.reset_to_zero, found.restore_value, found.hooks) == (("n",), ("total",), ("y",), False)
    assert found.pruned == {"N=64": [0], "N=300": [0, 1], "N=4096": [0, 1, 2]}
    assert Expr.of(found.heuristics["EVEN"]).key() == "((N % 16) == 0)"
    assert Expr.of(found.heuristics["FULL"]).key() == "(((N % parameter.BLOCK) == 0) and (parameter.num_warps > 2))"
    assert read(search, "hooked").hooks


@EACH_TRITON
def test_pruners(search: list[str]) -> None:
    """By a model of performance; none at an author's word."""
    assert read(search, "modelled").pruned == {"N=50": [0], "N=130": [1]}
    assert "pruners=False" in refused(search, "wrong.py:fails_to_prune").fix
    found = read(search, "no pruners")
    assert (found.pruned, len(found.configs)) == ({}, 2)


@EACH_TRITON
def test_what_cannot_be_known_ahead_is_refused(search: list[str]) -> None:
    """Each with the kernel or function, what is wrong, and what to do; the others are read all the same."""
    for function, (who, what, fix) in REFUSED.items():
        fault = refused(search, function)
        assert who in fault.what, function
        assert what in fault.what, function
        assert fix in fault.fix, function
    for name, what in ODD.items():  # each would give another number than Python's, or never end
        fault = refused(search, name)
        assert what in fault.what
        assert fault.fix


@pytest.mark.slow
@ONE_TRITON
def test_a_device_is_answered_for_each_target(search: list[str]) -> None:
    """Configs, globals and heuristics that ask torch and Triton for the device get that of the target."""
    pytest.importorskip("torch")
    found = []
    for target in ("cuda-sm_90a", "cuda-sm_80", "hip-gfx942"):
        (answer,) = ask(search, target, request("by_device.py:chosen", ARGUMENTS))
        assert answer.inspection is not None, answer.fault
        found.append(answer.inspection)
    assert [[c["BLOCK"] for c in i.configs] for i in found] == [[64, 128], [32], [32]]
    assert [i.configs[0]["AMD"] for i in found] == [False, False, True]
    assert len({i.digest for i in found}) == 2, "a global holds the capability: 9, 8 and 9"


def test_without_triton_the_error_says_what_to_install(tmp_path: Path) -> None:
    asked = InspectRequest(target="cuda-sm_90a", roots=[], functions=[])
    with pytest.raises(ToolchainError) as caught:
        inspect(asked, os.environ, search=[str(tmp_path)])
    assert "not installed" in caught.value.what
    assert "pip install 'triton" in caught.value.fix


@pytest.mark.slow
@ONE_TRITON
def test_a_module_that_ends_the_process_or_never_ends_is_named(search: list[str]) -> None:
    for name, words in (("exits.py:f", "ended with status"), ("endless.py:f", "took longer than 5 s")):
        asked = InspectRequest(
            target="cuda-sm_90a", roots=[str(FUNCTIONS.parent)], functions=[request(name, ARGUMENTS)]
        )
        with pytest.raises(ToolchainError) as caught:
            inspect(asked, os.environ, timeout=5.0 if "endless" in name else 60.0, search=search)
        assert words in caught.value.what
        assert name in caught.value.why
