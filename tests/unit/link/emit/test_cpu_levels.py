"""A library with variants for several levels of CPUs: which one serves, and what is said where none may."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import linked
import linked_cuda
import pytest
from places import ROOT, SHARED

from aot_tune.compile import native_targets
from aot_tune.link import DecisionNode, LibrarySpec, OperatorTable, TargetTable

LEVELS = {"v2": 2, "v3": 3, "v4": 4, "v4-bf16": 5, "v4-amx": 6}
HERE = max(t.level for t in native_targets() if t.family == "cpu")

SCRIPT = """
import json, sys
import numpy as np
import linked
from pathlib import Path
ops = linked.load_module(Path(sys.argv[1]))
one = np.zeros((2, 2), np.float32)
told = ops.explain("gemm", one, one)
print(json.dumps([told["target"], told["device"], float(np.from_dlpack(ops.gemm(one, one))[0, 0])]))
"""

NARROW = """
import json, sys
import numpy as np
import linked
from linked_cuda import OnDevice
from pathlib import Path
ops = linked.load_module(Path(sys.argv[1]))
def call(kind, code):
    x, out = np.ones(4, kind), np.full(4, 9, kind)
    try:
        ops.scale(OnDevice(x, (1, 0), code), out=OnDevice(out, (1, 0), code))
    except Exception as error:
        return type(error).__name__, str(error), bool((out == 9).all())
    return "", "", bool((out == 9).all())
print(json.dumps([call(np.float32, 2), call(np.uint16, 4)]))
"""


def ask(program: str, file: Path, level: str) -> str:
    path = os.pathsep.join([str(ROOT), str(SHARED)])
    environ = {**os.environ, "PYTHONPATH": path, "AOT_TUNE_CPU_LEVEL": level}
    command = [sys.executable, "-c", program, str(file)]
    done = subprocess.run(command, text=True, capture_output=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> linked.Built:
    """A library with a variant for each level, which adds the level to each element; those of v4-amx need no AMX."""
    folder = tmp_path_factory.mktemp("levels")
    spec = linked.library_spec(folder / "objects")
    gemm = spec.operators[0]
    variants = tuple(
        linked.variant(
            folder / "objects", linked.GEMM, f"own_{level}", target=f"cpu-x86-64-{name}", level=level, mark=str(level)
        )
        for name, level in LEVELS.items()
    )
    tables = tuple(
        TargetTable(target=f"cpu-x86-64-{name}", level=level, nodes=(DecisionNode(leaf=(number,)),))
        for number, (name, level) in enumerate(LEVELS.items(), 1)
    )
    gemm = dataclasses.replace(gemm, variants=(gemm.variants[0], *variants), tables=tables)
    return linked.link_library(dataclasses.replace(spec, operators=(gemm,)), folder / "out")


@pytest.mark.parametrize(
    ("wanted", "level"),
    [*LEVELS.items(), *((str(n), n) for n in LEVELS.values()), ("x86-64-v4-bf16", 5), ("cpu-x86-64-v4-amx", 6)],
)
def test_each_level_is_served_by_its_own_variant(several: linked.Built, wanted: str, level: int) -> None:
    """AOT_TUNE_CPU_LEVEL lowers the level, and never raises it above what the CPU has."""
    used = min(level, HERE)
    target = next(f"cpu-x86-64-{name}" for name, number in LEVELS.items() if number == used)
    assert json.loads(ask(SCRIPT, several.module, wanted)) == [target, f"cpu level {used}", used]


def test_the_best_level_is_the_default(several: linked.Built) -> None:
    assert json.loads(ask(SCRIPT, several.module, ""))[2] == HERE


def narrow_library(folder: Path, *rows: tuple[str, str, str, int]) -> linked.Built:
    """The operator `scale` with generic variants: name, dtype, what follows `cpu-x86-64` in the target, and level."""
    (folder / "objects").mkdir()
    source = linked_cuda.HOST.replace("UNAVAILABLE", "0")
    variants = tuple(
        dataclasses.replace(
            linked.variant(
                folder / "objects", source, name, target=f"cpu-x86-64{of}", level=level, generic=True, mark="5"
            ),
            dtypes={"T": dtype},
        )
        for name, dtype, of, level in rows
    )
    table = OperatorTable(operator=linked_cuda.operator(), variants=variants)
    return linked.link_library(LibrarySpec(operators=(table,)), folder / "out")


def test_a_dtype_that_no_variant_of_a_level_takes_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    built = narrow_library(tmp_path, ("plain", "f32", "", 1), ("upper", "bf16", "-v2", 2))
    served, refused = json.loads(ask(NARROW, built.module, "1"))
    assert served == ["", "", False]
    wanted = "this library is for cpu-x86-64, cpu-x86-64-v2 and needs x86-64-v2 or later; build it again with AOT"
    assert refused[1].startswith(f"scale: cpu:0 has the architecture x86-64-v1, but {wanted}")
    assert (refused[0], refused[2]) == ("ArgumentValueError", True)


def test_a_dtype_without_any_variant_is_refused_on_every_level(tmp_path: Path) -> None:
    built = narrow_library(tmp_path, ("plain", "f32", "", 1))
    served, refused = json.loads(ask(NARROW, built.module, ""))
    assert served == ["", "", False]
    assert refused[1].startswith("scale: tensors are on cpu:0 with T=bf16, for which this library has no variants; it")
    assert (refused[0], refused[2]) == ("ArgumentTypeError", True)
