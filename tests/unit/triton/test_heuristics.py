"""Heuristics and configs that are easily read wrongly: read as the JIT would, or refused."""

from __future__ import annotations

from triton_installed import EACH_TRITON, ask, integer, pointer, request

from aot_tune.spec import Declarations, Expr, TritonFunction, device, dims, parameter
from aot_tune.triton.triton_messages import FunctionRequest, Given, ProblemFacts

N = dims("N")[0]
ARGUMENTS = {"x": pointer("x", N), "n": integer(N)}


def read(search: list[str], *asked: FunctionRequest) -> list[Declarations]:
    found = [(a.inspection, a.fault) for a in ask(search, "cuda-sm_90a", *asked)]
    assert [fault for _, fault in found if fault] == []
    return [inspection for inspection, _ in found if inspection is not None]


@EACH_TRITON
def test_a_heuristic_may_give_a_launch_option(search: list[str]) -> None:
    (found,) = read(search, request("odd.py:warps_by_size", ARGUMENTS))
    warps = Expr.of(found.heuristics["num_warps"])
    assert [warps.evaluate({"N": n}) for n in (1, 1024, 1025)] == [4, 4, 8]
    assert [c["BLOCK"] for c in found.configs] == [64, 128]
    assert not any("num_warps" in c for c in found.configs), "the JIT lets the heuristic have the last word"


@EACH_TRITON
def test_a_heuristic_sees_what_the_author_passes_in_place_of_a_configs_value(search: list[str]) -> None:
    asked = request("odd.py:even", ARGUMENTS, problems=[ProblemFacts(id="64", facts={"N": 64, "stride.x.0": 1})])
    passed = request("odd.py:even", {**ARGUMENTS, "BLOCK": Given(kind="constant", value=1024)})
    twice = {**ARGUMENTS, "BLOCK": integer(parameter("BLOCK") * 2)}
    own = request("odd.py:even", twice, parameters=["BLOCK"], problems=asked.problems)
    found = read(search, asked, passed, own)
    even = [Expr.of(f.heuristics["EVEN"]).key() for f in found]
    assert even == [
        "((N % parameter.BLOCK) == 0)", "((N % 1024) == 0)", "((N % (parameter.BLOCK * 2)) == 0)"
    ]  # fmt: skip
    assert found[0].pruned == {"64": [0]}
    assert (found[2].configs, found[2].pruned) == ((), {}), "the kernel has a space of its own"
    assert [f.booleans for f in found] == [("EVEN",)] * 3


@EACH_TRITON
def test_booleans_are_told_from_integers(search: list[str]) -> None:
    (found,) = read(search, request("odd.py:flagged", ARGUMENTS))
    assert (list(found.heuristics), found.booleans) == (["EVEN", "PARTS"], ("EVEN",))


@EACH_TRITON
def test_a_loop_over_quotients_is_followed(search: list[str]) -> None:
    (found,) = read(search, request("odd.py:by_waves", ARGUMENTS))
    block, even = (Expr.of(found.heuristics[n]) for n in ("BLOCK", "EVEN"))
    wanted = {1: 1, 132: 1, 133: 2, 1000: 8, 100_000: 1024, 10_000_000: 2048}
    assert {n: block.evaluate({"N": n}) for n in wanted} == wanted
    assert [even.evaluate({"N": n}) for n in (64, 65)] == [1, 0]


@EACH_TRITON
def test_a_function_of_a_class_is_found_and_compiled_from(search: list[str]) -> None:
    (found,) = read(search, request("odd.py:Holder.held", ARGUMENTS))
    assert [p.name for p in found.parameters] == ["x", "n", "BLOCK"]
    assert TritonFunction("odd.py:Holder.held", {}, (1,)).name == "Holder.held"


REFUSED = {
    "by_set": "the heuristic for 'BLOCK' of triton_functions/odd.py:by_set: the expression N was looked up in a set",
    "by_dict": "the expression N was looked up in a set, a dict or a cache",
    "by_cache": "the expression N was looked up in a set, a dict or a cache",
    "by_bits": "has ((N + 15) and -16), where (N + 15) is a number",
    "by_loop": "has more than 64 paths",
    "by_type": "its expression 128",
    "of_nothing": "the heuristic for 'block' of triton_functions/odd.py:of_nothing is not for an argument",
    "none_for_default": "a config of triton_functions/odd.py:none_for_default has BLOCK='None'",
    "changes_configs": "pruning the configs of triton_functions/odd.py:changes_configs for 777 changes them",
    "waits_for_all": "a config of triton_functions/odd.py:waits_for_all has 'launch_cooperative_grid'",
}


@EACH_TRITON
def test_what_would_be_read_wrongly_is_refused(search: list[str]) -> None:
    """Each would give another number than Python's, or never end."""
    problems = [ProblemFacts(id="777", facts={"N": 777, "stride.x.0": 1})]
    asked = [request(f"odd.py:{name}", ARGUMENTS, problems=problems) for name in REFUSED]
    for name, answer in zip(REFUSED, ask(search, "cuda-sm_90a", *asked), strict=True):
        assert answer.fault is not None, name
        assert REFUSED[name] in answer.fault.what
        assert answer.fault.fix


@EACH_TRITON
def test_an_odd_config_is_no_matter_where_the_kernel_has_its_own(search: list[str]) -> None:
    (found,) = read(search, request("odd.py:waits_for_all", ARGUMENTS, parameters=["BLOCK"]))
    assert found.configs == ()


@EACH_TRITON
def test_defaults_are_the_same_text_in_every_process(search: list[str]) -> None:
    asked = [request(f"odd.py:{name}", {"x": pointer("x", N)}) for name in ("fills", "calls_default")]
    first, second = (read(search, *asked) for _ in range(2))
    assert first == second
    assert not any("0x" in str(found.parameters) for found in first)


@EACH_TRITON
def test_configs_of_a_function_on_descriptors_are_pruned(search: list[str]) -> None:
    """Their blocks are not known before a config is chosen, nor is what only the device knows."""
    tensor = ARGUMENTS["x"].tensor
    described = Given(kind="descriptor", tensor=tensor, block=[parameter("BLOCK").data()])
    problems = [ProblemFacts(id=str(n), facts={"N": n, "stride.x.0": 1}) for n in (64, 128)]
    given = {**ARGUMENTS, "x": described, "processors": integer(device("multiprocessors"))}
    (found,) = read(search, request("odd.py:on_blocks", given, problems=problems))
    assert found.pruned == {"64": [0], "128": [0, 1]}
