"""Triton kernels of the bundled operators: what they declare fits, and they compile for every target.

That they are right is verified by each build on a GPU.
"""

from __future__ import annotations

import importlib.util

import pytest
from triton_bundled import NAMES, OF_EACH, OPERATORS, built_apart, home, looked_up, starts_early

from aot_tune.link.generate import check_guard
from aot_tune.render.triton.specialize import guards, plain_pins, specialized_pins
from aot_tune.spec import all_of

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")


@pytest.mark.parametrize("operator", NAMES)
def test_kernels_are_for_some_of_the_workload_and_their_guards_hold_there(operator: str) -> None:
    op, known = OPERATORS[operator], set[str]()
    for kernel in (k for k in op.kernels if k.triton is not None):
        meant = [p for p in op.workload_for("cuda") if all_of((*kernel.requires, *kernel.worthwhile), op.facts(p))]
        choices = [list(c.values()) for c in op.dtype_choices(kernel)]
        meant = [p for p in meant if [p.dtypes.get(v, c[0]) for v, c in op.dtypes.items()] in choices]
        assert meant, f"there is nothing to tune {kernel.name} on"
        on = home(kernel)
        configs = list(kernel.configs(on.facts))
        assert 1 <= len(configs) <= 6
        for config in {id(c): c for c in (configs[0], configs[-1])}.values():
            for one in meant:
                facts = op.facts(one)
                for pins in (specialized_pins, plain_pins):
                    found = pins(op.concrete(one.dtypes), kernel, config, one, on.name)
                    assumed = guards(op.concrete(one.dtypes), kernel, config, found, on.name)
                    assert all_of(assumed, facts), (config, one.id)
                    for guard in (g for g in assumed if g.key() not in known):
                        known.add(guard.key())
                        check_guard(guard, op, f"{operator}.{kernel.name} {config}")


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("operator", "name"), OF_EACH)
def test_kernels_compile(operator: str, name: str) -> None:
    """The first config as the JIT would compile it for a problem; some kernels also for other GPUs."""
    built = built_apart(operator, name)
    _, kernel = looked_up(operator, name)
    assert built
    for made, said in built.items():
        room = {"gfx942": 64, "80": 163}.get(made, 227)
        assert said["shared"] <= room * 1024, made
        assert not said["float64"], made
        early = starts_early(kernel, home(kernel)) and made == "90"
        assert (said["waits"], said["lets others start"]) == (early, early), made
