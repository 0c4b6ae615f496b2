"""What is surveyed: shapes in an order that leaves no kind without, and the candidates that a few shapes choose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aot_tune.pipeline.shipping.surveyed_parts import Part, turns
from aot_tune.pipeline.surveyed_times import SurveyedTimes
from aot_tune.spec import Problem, problem
from aot_tune.spec.load_operators import bundled_templates, load_operator

GEMM = load_operator(bundled_templates() / "gemm")
SHAPES = tuple(problem(M=m, N=64, K=64) for m in range(1, 201))


def part_of(count: int, scouted: int = 0, known: tuple[Problem, ...] = (), share: float = 1.0) -> Part:
    return Part(
        cast("Any", None), (), SHAPES[:count], (), (), {}, frozenset(p.id for p in known), share, {}, SHAPES[:scouted]
    )


def rows_of(parts: list[Part], *, scouted: bool) -> list[tuple[int, int]]:
    return [(parts.index(part), one.dims["M"]) for part, one in turns(parts, scouted=scouted)]


def test_kinds_have_a_shape_each_in_turn() -> None:
    assert rows_of([part_of(3), part_of(2)], scouted=False) == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]


def test_what_is_scouted_and_what_is_known_are_no_turns_of_the_rest() -> None:
    parts = [part_of(6, scouted=2, known=(SHAPES[0], SHAPES[3]))]
    assert rows_of(parts, scouted=True) == [(0, 2)]
    assert rows_of(parts, scouted=False) == [(0, 3), (0, 5), (0, 6)]


def test_beyond_the_first_shapes_a_kind_that_weighs_more_has_more() -> None:
    order = rows_of([part_of(200), part_of(200, share=0.25)], scouted=False)
    begun = [kind for kind, _ in order[:128]]
    assert begun.count(0) == begun.count(1) == 64
    later = [kind for kind, _ in order[128:228]]
    assert 78 <= later.count(0) <= 82
    assert len(order) == 400


class StandIn:
    """An operator's evidence on GPUs: thin products of a few configs, and what times a survey gave them."""

    operator = GEMM

    def __init__(self, times: dict[str, dict[str, float]]) -> None:
        kernel = GEMM.kernel("cuda_thin")
        configs = [{p.name: p.values[0] for p in kernel.parameters} | {"NT": n} for n in (1, 2, 3)]
        self.entries = {
            f"{n} {form}": SimpleNamespace(
                candidate=SimpleNamespace(
                    id=f"{n} {form}", kernel="cuda_thin", config=config, dtypes={"T": "bf16"}, generic=False
                )
            )
            for n, config in enumerate(configs)
            for form in ("plain", "special")
        }
        self.workload = (problem(M=16, N=4096, K=4096, dtypes={"T": "bf16"}),)
        self.surveyed = SurveyedTimes(times=times)

    def choice_costs(self) -> dict[str, dict[str, float]]:
        return {self.workload[0].id: {"0 plain": 1.0, "1 plain": 1.1, "2 plain": 1.2}}

    def is_bound(self, entry: object) -> bool:
        return False

    def worth_a_try(self, entry: object, one: Problem) -> bool:
        return True

    def failed(self, candidate: str) -> bool:
        return False


def test_the_candidates_of_a_survey_are_those_that_lead_somewhere() -> None:
    """The others' times are dropped, so that a replay knows what the build knew."""
    scouted = {
        SHAPES[0].id: {"0 plain": 2.0, "0 special": 1.0, "1 plain": 1.5, "2 plain": 1.6},
        SHAPES[1].id: {"0 plain": 2.0, "1 plain": 1.0, "2 plain": 1.6},
    }
    evidence = StandIn(scouted)
    units = {n: [evidence.entries[f"{n} plain"], evidence.entries[f"{n} special"]] for n in ("0", "1", "2")}
    kind = (("dtype.T", 1), ("attribute.math", 0))
    part = Part(cast("Any", evidence), kind, SHAPES[:2], (), (), cast("Any", units), frozenset(), 1.0, {}, SHAPES[:2])
    part.settle(most=2)
    assert part.chosen == ["1 plain", "0 special"]  # in the order in which they pay off
    assert evidence.surveyed.times == {
        SHAPES[0].id: {"0 special": 1.0, "1 plain": 1.5},
        SHAPES[1].id: {"1 plain": 1.0},
    }
    assert {e.candidate.id for e in part.entries()} == {"0 special", "1 plain"}


def test_a_slow_generic_variant_is_no_reference() -> None:
    """Others are then compared with the first of them; all was verified on tuned problems."""
    evidence = StandIn({})
    generic = SimpleNamespace(candidate=SimpleNamespace(id="generic", kernel="generic", dtypes={"T": "f32"}))
    units = cast("Any", {"0": [evidence.entries["0 plain"]]})
    part = Part(
        cast("Any", evidence), (), SHAPES, (), [cast("Any", generic)], units, frozenset(), 1.0, {"generic": 0.5}, ()
    )
    small, large = problem(M=64, N=64, K=64), problem(M=4096, N=4096, K=4096)
    assert [e.candidate.id for e in part.tried(small)] == ["generic", "0 plain"]
    assert [e.candidate.id for e in part.tried(large)] == ["0 plain"]
