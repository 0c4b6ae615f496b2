"""Triton kernels of the bundled operators: what they declare fits, they are right, and they compile for every target.

The kernels run in Triton's interpreter, on tensors of sizes that are multiples of no block, in processes of their own.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from triton_bundled import (
    DESCRIPTORS,
    KERNELS,
    NAMES,
    OF_EACH,
    OPERATORS,
    TARGET,
    TEMPLATES,
    apart,
    build,
    builds,
    declared,
    home,
    interpret,
    looked_up,
    rendered,
    starts_early,
)
from triton_problems import odd_problems

from aot_tune.link.check.check_tables import check_guard
from aot_tune.render.triton.recipe import read_recipe
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


@pytest.mark.parametrize("operator", NAMES)
def test_launchers_are_written_for_all_that_a_problem_may_assume(operator: str) -> None:
    op = OPERATORS[operator]
    for kernel in (k for k in op.kernels if k.triton is not None):
        given = odd_problems(op, kernel, op.dtype_choices(kernel)[0]["T"])[0]
        for config in kernel.configs(home(kernel).facts):
            for pins in (specialized_pins, plain_pins):
                dtypes = given.dtypes or op.dtype_choices(kernel)[0]
                recipe = read_recipe(rendered(op, kernel, config, given, dtypes, pins))
                assert kernel.triton is not None
                assert list(recipe.signature) == [p.name for p in declared(kernel.triton.function).parameters]
                assert recipe.options["num_warps"] == config["num_warps"]
                assert recipe.options.get("launch_pdl", False) == starts_early(kernel, home(kernel))


def test_kernels_on_descriptors_are_for_hopper_and_later() -> None:
    for operator, name in KERNELS:
        _, kernel = looked_up(operator, name)
        assert kernel.triton is not None
        text = (TEMPLATES / kernel.triton.place).read_text()
        body = re.split(r"^@triton", text[text.index(f"def {kernel.triton.name}(") :], flags=re.MULTILINE)[0]
        assert bool(list(kernel.configs(TARGET["cuda-sm_80"].facts))) == (".load([" not in body)


def functions_of(operator: str) -> Path:
    """The one file of an operator's Triton functions."""
    kernels = (k for k in OPERATORS[operator].kernels if k.triton is not None)
    (place,) = {k.triton.place for k in kernels}
    return TEMPLATES / place


@pytest.mark.parametrize("operator", NAMES)
def test_files_of_kernels_import_triton_alone_and_have_no_number_beyond_float32(operator: str) -> None:
    """Triton 3.6 takes a larger one for a float64, and with it all that it is compared with."""
    tree = ast.parse(functions_of(operator).read_text())
    imported = {ast.unparse(n) for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))}
    assert imported == {"import triton", "import triton.language as tl"}
    assert "import triton" not in (functions_of(operator).parent / "triton_kernels.py").read_text()
    numbers = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, float)]
    assert numbers
    assert all(abs(n) <= float(np.finfo(np.float32).max) for n in numbers)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("operator", "name"), OF_EACH)
def test_kernels_are_right_in_the_interpreter(operator: str, name: str) -> None:
    said = apart(interpret, [operator, name], TRITON_INTERPRET="1")
    assert said["calls"] >= 3
    assert said["faults"] == []


_EARLIER = "eviction_policy=FIRST).to(tl.float32)\n        squares "
_LAST_PART_ONLY = f"{_EARLIER}+= total * total => {_EARLIER}= total * total"


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(
    ("operator", "name", "change"),
    [
        ("flash_attention", "triton_64", "keys[None, :] < N"),
        ("gemm", "triton_gemv", "k + first < whole"),
        ("rms_norm", "triton_twice", _LAST_PART_ONLY),
        ("layer_norm", "triton_twice", "counts * apart * apart => 0.0 * apart"),
    ],
)
def test_the_interpreter_notices_a_fault(operator: str, name: str, change: str) -> None:
    assert apart(interpret, [operator, name, change], TRITON_INTERPRET="1")["faults"]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("operator", "name"), OF_EACH)
def test_kernels_compile(operator: str, name: str) -> None:
    """Configs as the JIT would compile them for a problem; some also for other GPUs."""
    built = apart(build, [operator, name])
    _, kernel = looked_up(operator, name)
    on = home(kernel)
    config = next(iter(kernel.configs(on.facts)))
    assert list(built) == list(builds(operator, name))
    for made, said in built.items():
        room = {"gfx942": 64, "80": 163}.get(made.partition(" ")[0], 227)
        assert said["shared"] <= room * 1024, made
        assert "float64" not in said["uses"], made
        hinted = "twice" in name and made.startswith("90")
        assert {"stays in L2", "leaves L2 first"} <= set(said["uses"]) or not hinted
        early = starts_early(kernel, on) and made.startswith("90")
        assert (said["waits"], said["lets others start"]) == (early, early), made
    said = built["90 config 0"]
    assert said["warps"] == int(config["num_warps"]) * (3 if "specialized" in name else 1)
    products = operator in ("gemm", "flash_attention") and int(config.get("BLOCK_M", 0)) >= 64
    assert ("wgmma" in said["uses"]) == products
    assert ("tensormaps" in said["uses"]) == any(d in name for d in DESCRIPTORS)
