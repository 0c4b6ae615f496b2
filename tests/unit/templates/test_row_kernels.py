"""CUDA row kernels: they render for every target, compile without spills, and are right when run on the host."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from flat_rows import build, cluster_of_two, rendered_for_hopper
from numpy.typing import NDArray
from places import SHARED
from ptx import compiled, faults
from rows_on_host import ABSENT, HOPPER, KERNELS, OPERATORS, TARGET, TEMPLATES, check, config_like, pairs, render

from aot_tune.spec import Config, Operator, problem

pytestmark = pytest.mark.slow

HOPPER_ON = ("cuda_flat", "cuda_rows_few")
EARLY = ("cuda_rows", "cuda_rows_few", "cuda_flat", "cuda_wave", "cuda_peeled")


# -- what is declared and rendered -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cuda-sm_80", "cuda-sm_90a", "cuda-sm_120"])
def test_every_config_renders(target: str) -> None:
    """Only kernels that wait are launched early, where there are such launches; not with loads past the caches.

    On Hopper nothing leaves L2 first: what such loads and stores take depends on what ran before.
    """
    on = TARGET[target]
    for op, kernel in KERNELS:
        configs = list(kernel.configs(on.facts))
        assert len(configs) <= 24
        assert bool(configs) == (kernel.name not in HOPPER_ON or on.level >= 90)
        for config in configs:
            source = render(op, kernel, on, config, "bf16").source
            early = kernel.name in EARLY and on.facts["capability"] >= 90 and not config.get("STREAM", False)
            assert ("return launch_early(" in source) == early
            first = re.findall(r"(?<!=)= Cache::first|<Cache::first>|bytes\.L2::cache_hint", source)
            assert not first or on is not HOPPER
        for wanted in kernel.order if on is HOPPER else ():
            config_like(kernel, HOPPER, wanted)


@pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)
def test_the_workload_is_small_enough_and_every_kernel_is_for_some_of_it(op: Operator) -> None:
    problems = op.workload_for("cuda")
    assert 20 <= len(problems) <= 60
    for one in problems:
        assert op.compulsory_bytes(one) <= 4 * 1.2e9
    for kernel in (k for k in op.kernels if k.backend == "nvcc" and not k.generic):
        meant = [p for p in problems if all(e.evaluate(op.facts(p)) for e in (*kernel.requires, *kernel.worthwhile))]
        assert meant, kernel.name


def test_few_problems_for_cpus_are_narrow_and_f16_can_follow_bf16() -> None:
    of: dict[str, list[str]] = {"f32": [], "bf16": [], "f16": []}
    for op in OPERATORS.values():
        for on in op.workload_for("cpu"):
            of[on.dtypes.get("T", "f32")].append(f"{op.name} {msgspec.structs.replace(on, dtypes={}).id}")
    assert 3 * (len(of["bf16"]) + len(of["f16"])) <= len(of["f32"])
    assert set(of["f16"]) <= set(of["bf16"])
    assert {p.split()[0] for p in of["f16"]} == set(OPERATORS)


def test_which_may_work_in_place() -> None:
    assert pairs("softmax") == pairs("layer_norm") == [{"out": "x"}]
    assert pairs("silu_mul") == [{"out": "gate"}, {"out": "up"}]
    assert pairs("rms_norm") == [
        {"out": "x", "residual_out": "residual"},
        {"out": "x"},
        {"residual_out": "residual"},
    ]


@pytest.mark.parametrize("name", OPERATORS)
def test_peeled_rows_are_what_others_cannot_read_in_whole_pieces(name: str) -> None:
    op = OPERATORS[name]
    kernel, tensor = op.kernel("cuda_peeled"), op.tensors[0].name
    uneven = ({"D": 50257}, {"D": 12300}, {"D": 1}, {"D": 4096, "strides": {tensor: (4099, 1)}})
    for dims in ({"D": 4096}, *uneven):
        facts = op.facts(problem(R=5, dtypes={"T": "bf16"}, **dims))
        assert all(e.evaluate(facts) for e in kernel.requires)
        assert all(e.evaluate(facts) for e in kernel.worthwhile) == (dims in uneven)
    facts = op.facts(problem(R=5, D=37, dtypes={"T": "bf16"}, strides={tensor: (1, 5)}))
    assert not all(e.evaluate(facts) for e in kernel.requires)


# -- compiled --------------------------------------------------------------------------------------------------------

# One kernel of each kind.
COMPILED = (
    ("layer_norm", "cuda_generic"),
    ("softmax", "cuda_split"),
    ("rms_norm", "cuda_rows"),
    ("layer_norm", "cuda_rows_few"),
    ("softmax", "cuda_flat"),
    ("silu_mul", "cuda_wave"),
    ("softmax", "cuda_peeled"),
)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("name", "kernel"), COMPILED)
def test_what_takes_most_registers_compiles_without_spills(name: str, kernel: str, tmp_path: Path) -> None:
    """Nothing is read or written before earlier kernels have ended: but few rows have their weights brought to L2."""
    op = OPERATORS[name]
    configs = [c for c in op.kernel(kernel).configs(HOPPER.facts) if not c.get("STREAM", False)]
    widest = max(configs, key=lambda c: (c.get("VECTORS", 0), c.get("THREADS", 0)))
    source = render(op, op.kernel(kernel), HOPPER, widest, "bf16").source
    ptx, _ = compiled(source, tmp_path)
    if kernel in EARLY:
        assert not faults(ptx, "AHEAD" in widest)
        assert faults(ptx.replace("griddepcontrol.wait;", ""), "AHEAD" in widest)
    if kernel == "cuda_rows_few":
        weights = [t.name for t in op.inputs if t.name in ("weight", "bias")]
        assert re.findall(r"prefetch_tile<V>\(args\.(\w+), ", source) == weights
        for entry in (e for e in ptx.split(".entry ")[1:] if "_any" not in e.partition("(")[0]):
            assert (
                entry.partition("griddepcontrol.wait")[0].count("prefetch.global.L2")
                == len(weights) * widest["VECTORS"]
            )


# -- on the host -----------------------------------------------------------------------------------------------------

# One kernel of each kind; a build verifies all.
WHOLE: tuple[tuple[str, str, Config, str], ...] = (  # read in pieces of 16 bytes
    ("layer_norm", "cuda_rows", {"VECTORS": 4, "RESIDENT": 0, "STREAM": True}, "bf16"),
    ("rms_norm", "cuda_rows_few", {"VECTORS": 1}, "f16"),
    ("softmax", "cuda_flat", {"CLUSTER": 2}, "bf16"),
    ("softmax", "cuda_split", {"SPLIT": 16, "VECTORS": 4}, "f32"),
    ("silu_mul", "cuda_wave", {"VECTORS": 3, "RESIDENT": 1536}, "bf16"),
)
ANY: tuple[tuple[str, str, Config, str], ...] = (
    ("softmax", "cuda_generic", {}, "f16"),
    ("softmax", "cuda_peeled", {"CLUSTER": 2}, "bf16"),
    ("layer_norm", "cuda_peeled", {"CLUSTER": 2}, "f16"),
)


def masked_rows(width: int) -> NDArray[np.float64]:
    """Rows that are -inf here and there, wholly, or all the lowest number: even a warp's whole part."""
    values = np.random.default_rng(3).standard_normal((7, width)) * 3
    values[0, 90:] = -np.inf
    values[1, :] = -np.inf
    values[2, :] = -3.38953139e38
    values[3, :-1] = -np.inf
    values[4, 7] = 3.0e38
    values[5, :] += 30000.0
    values[6, 1:] = -np.inf
    return values


@pytest.mark.parametrize(("name", "kernel", "config", "dtype"), WHOLE)
def test_rows_of_whole_pieces_on_the_host(name: str, kernel: str, config: Config, dtype: str, tmp_path: Path) -> None:
    """Rows of few and many pieces, more than registers hold, apart, with what may be left out, and in place."""
    op = OPERATORS[name]
    call = build(tmp_path, rendered_for_hopper(name, kernel, config, dtype))
    for rows, width in ((1, 8), (70, 72), (37, 2056), (3, 40008)):
        check(op, call, dtype, {"R": rows, "D": width})
    apart = {op.tensors[0].name: (9232, 1), "out": (9240, 1)}
    if kernel != "cuda_split":
        check(op, call, dtype, {"R": 5, "D": 9224}, strides=apart)
    for rows, width in ((13, 40), (4, 40008)):
        check(op, call, dtype, {"R": rows, "D": width}, special=True)
    for absent in ABSENT.get(name, ()):
        check(op, call, dtype, {"R": 5, "D": 1032}, absent=absent)
    for aliases in pairs(name):
        check(op, call, dtype, {"R": 9, "D": 1032}, aliases=aliases)
    for width in (104, 4104) if kernel == "cuda_flat" else ():
        check(op, call, dtype, {"R": 7, "D": width}, given={"x": masked_rows(width)})


@pytest.mark.parametrize(("name", "kernel", "config", "dtype"), ANY)
def test_rows_of_any_width_on_the_host(name: str, kernel: str, config: Config, dtype: str, tmp_path: Path) -> None:
    """Also of tensors that begin anywhere; the generic kernels take any strides."""
    op = OPERATORS[name]
    first, names = op.tensors[0].name, [t.name for t in op.tensors]
    call = build(tmp_path, rendered_for_hopper(name, kernel, config, dtype))
    for rows, width in ((1, 1), (70, 3), (13, 37), (9, 129), (7, 777), (3, 9223), (2, 50257)):
        check(op, call, dtype, {"R": rows, "D": width})
    for layout, to in (((1000, 1), 779), ((-779, 1), 780), ((0, 1), 791)):
        check(op, call, dtype, {"R": 9, "D": 776}, strides={first: layout, "out": (to, 1)})
    for layout in ((1, 13), (80, -2)) if kernel == "cuda_generic" else ():
        check(op, call, dtype, {"R": 13, "D": 37}, strides={first: layout, "out": (90, 2)})
    check(op, call, dtype, {"R": 13, "D": 777}, special=True)
    for width in (1, 37, 1008):
        check(op, call, dtype, {"R": 9, "D": width}, skipped={n: 1 + 2 * i for i, n in enumerate(names)})
    for absent in ABSENT.get(name, ()):
        check(op, call, dtype, {"R": 5, "D": 1031}, absent=absent)
    for aliases in pairs(name):
        behind = {n: 1 + 2 * place for place, both in enumerate(aliases.items()) for n in both}
        check(op, call, dtype, {"R": 9, "D": 777}, skipped=behind, aliases=aliases)
    for width in (104, 4104) if (name, kernel) == ("softmax", "cuda_peeled") else ():
        check(op, call, dtype, {"R": 7, "D": width}, given={"x": masked_rows(width)})
    for width in (99, 4103) if name == "layer_norm" else ():  # rows far from zero
        values = np.random.default_rng(3).standard_normal((3, width)) + np.array([[0.0], [50.0], [-300.0]])
        check(op, call, dtype, {"R": 3, "D": width}, given={"x": values})


@pytest.mark.parametrize(
    ("kernel", "old", "new"),
    [
        ("cuda_rows", "  __syncthreads();\n", ""),
        ("cuda_peeled", "told.found[i] + mine", "told.found[i] + mine % warps"),
    ],
)
def test_the_host_notices_faults(kernel: str, old: str, new: str, tmp_path: Path) -> None:
    op = OPERATORS["softmax"]
    rendered = rendered_for_hopper("softmax", kernel, {"CLUSTER": 2} if "peeled" in kernel else {"VECTORS": 2}, "bf16")
    assert rendered.source.count(old) == 1
    call = build(tmp_path, msgspec.structs.replace(rendered, source=rendered.source.replace(old, new)))
    with pytest.raises(AssertionError, match="out"):
        check(op, call, "bf16", {"R": 9, "D": 4103 if "peeled" in kernel else 8200})


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import flat_rows
flat_rows.run(Path(sys.argv[2]))
"""


def test_the_host_notices_a_fault_that_ends_it(tmp_path: Path) -> None:
    """In a process of its own."""
    source, old = cluster_of_two().source, "  barrier_wait<(blocks_of_row > 1)>(&told.all, 0);\n"
    assert source.count(old) == 1
    (tmp_path / "source.cpp").write_text(source.replace(old, ""))
    command = [sys.executable, "-c", CHILD, str(SHARED), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr or "cuda_rows_on_host:" in done.stderr, done.stderr


def test_every_element_of_a_row_is_taken_once_and_nothing_beside_it(tmp_path: Path) -> None:
    """A program goes through all cuts; it notices wrong ones."""
    cuts = (TEMPLATES / "common" / "peel.cuh.j2").read_text()
    checks = SHARED / "cuda_rows_on_host" / "check_peel.cpp"
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-I", str(tmp_path), str(checks), "-o", "checks"]
    for old, new, wrong in (
        ("", "", ""),
        ("next < n ? next : n", "next", "beside the row"),
        ("(turn * blocks + rank) * threads", "(turn + rank) * threads", "an element that is not taken once"),
    ):
        assert not old or cuts.count(old) == 1
        (tmp_path / "peel.h").write_text(cuts.replace(old, new) if old else cuts)
        subprocess.run(command, cwd=tmp_path, check=True)
        done = subprocess.run([tmp_path / "checks"], capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == bool(done.stdout) == bool(old)
        assert wrong in done.stdout
