"""Triton kernels of the bundled operators: what they declare fits, they are right, and they compile for every target.

The kernels run in Triton's interpreter, on tensors of sizes that are multiples of no block, in processes of their own.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton_bundled
from triton_bundled import (
    DESCRIPTORS,
    KERNELS,
    NAMES,
    OF_EACH,
    OPERATORS,
    TARGET,
    TEMPLATES,
    builds,
    declared,
    home,
    looked_up,
    rendered,
    starts_early,
)
from triton_problems import odd_problems

import aot_tune
from aot_tune.link.check.check_tables import check_guard
from aot_tune.render.triton.recipe import read_recipe
from aot_tune.render.triton.specialize import guards, plain_pins, specialized_pins
from aot_tune.spec import all_of

PACKAGE = Path(aot_tune.__file__).resolve().parent
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


class Program:
    """`triton_bundled.py`, running: an operator, a kernel and perhaps more in, what is found of them out."""

    def __init__(self, what: str, folder: Path) -> None:
        path = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path} | ({"TRITON_INTERPRET": "1"} if what == "interpret" else {})
        self.errors = folder / f"{what}.log"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, triton_bundled.__file__, what],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )

    def __call__(self, *arguments: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        before = self.errors.stat().st_size
        print(json.dumps(arguments), file=self.process.stdin, flush=True)
        answer = status = ""
        for line in self.process.stdout:
            if re.fullmatch(r"-?\d+\n", line):
                status = line.strip()
                break
            answer += line
        assert status == "0", answer[-2000:] + self.errors.read_bytes()[before:].decode()[-4000:]
        return json.loads(answer)

    def close(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def interpret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    program = Program("interpret", tmp_path_factory.mktemp("interpret"))
    yield program
    program.close()


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    program = Program("build", tmp_path_factory.mktemp("build"))
    yield program
    program.close()


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("operator", "name"), OF_EACH)
def test_kernels_are_right_in_the_interpreter(interpret: Program, operator: str, name: str) -> None:
    said = interpret(operator, name)
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
def test_the_interpreter_notices_a_fault(interpret: Program, operator: str, name: str, change: str) -> None:
    assert interpret(operator, name, change)["faults"]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("operator", "name"), OF_EACH)
def test_kernels_compile(build: Program, operator: str, name: str) -> None:
    """Configs as the JIT would compile them for a problem; some also for other GPUs."""
    built = build(operator, name)
    _, kernel = looked_up(operator, name)
    on = home(kernel)
    config = next(iter(kernel.configs(on.facts)))
    assert list(built) == list(builds(operator, name))
    for build, said in built.items():
        room = {"gfx942": 64, "80": 163}.get(build.partition(" ")[0], 227)
        assert said["shared"] <= room * 1024, build
        assert "float64" not in said["uses"], build
        hinted = "twice" in name and build.startswith("90")
        assert {"stays in L2", "leaves L2 first"} <= set(said["uses"]) or not hinted
        early = starts_early(kernel, on) and build.startswith("90")
        assert (said["waits"], said["lets others start"]) == (early, early), build
    said = built["90 config 0"]
    assert said["warps"] == int(config["num_warps"]) * (3 if "specialized" in name else 1)
    products = operator in ("gemm", "flash_attention") and int(config.get("BLOCK_M", 0)) >= 64
    assert ("wgmma" in said["uses"]) == products
    assert ("tensormaps" in said["uses"]) == any(d in name for d in DESCRIPTORS)
