"""A kernel that does not use the scalar which it is passed is found, also where the default makes no difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from compiled import CompiledBed

from aot_tune.compile import target_by_name
from aot_tune.render import Renderer, candidate_for, requirements
from aot_tune.spec.load_operators import bundled_templates, load_operator

pytestmark = pytest.mark.slow

TEMPLATES = bundled_templates()
TARGET = target_by_name("cpu-x86-64")
OPERATORS = {n: load_operator(TEMPLATES / n) for n in ("rms_norm", "layer_norm")}
KERNELS = [(n, k.name) for n, op in OPERATORS.items() for k in op.kernels if k.backend == "cxx"]


@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_an_epsilon_that_is_left_out_is_found(compiled_bed: Callable[..., CompiledBed], name: str, kernel: str) -> None:
    bed, op = compiled_bed(TEMPLATES / name), OPERATORS[name]
    candidate = candidate_for(op, op.kernel(kernel), next(iter(op.kernel(kernel).configs(TARGET.facts))), TARGET)
    rendered, requires = Renderer([TEMPLATES]).render(op, candidate, TARGET), requirements(op, candidate)
    assert bed.wholly(bed.build(rendered.source, rendered.symbol), requires).status == "ok"
    passed = "static_cast<double>(eps)"
    assert passed in rendered.source
    wrong = bed.build(rendered.source.replace(passed, "1e-5"), rendered.symbol)
    measured = bed.wholly(wrong, requires)
    assert measured.status == "wrong-result"
    assert ", eps 0.25" in measured.reason
