"""CUDA kernels for rows of any width and alignment: how rows are cut, and what comes out when they run on the host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
from flat_rows import build, rendered_for_hopper
from places import SHARED
from rows_on_host import ABSENT, HOPPER, OPERATORS, TEMPLATES, check

from aot_tune.compile.cuda.gpu_targets import code_flags
from aot_tune.spec import Config, problem

pytestmark = pytest.mark.slow

CUTS = TEMPLATES / "common" / "peel.cuh.j2"


def what_is_wrong(folder: Path, source: str) -> str:
    """What a program that goes through all cuts says of them; nothing, if they are right."""
    (folder / "peel.h").write_text(source)
    checks = SHARED / "cuda_rows_on_host" / "check_peel.cpp"
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Werror",
        "-I",
        str(folder),
        str(checks),
        "-o",
        "checks",
    ]
    subprocess.run(command, cwd=folder, check=True)
    done = subprocess.run([folder / "checks"], capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(done.stdout)
    return done.stdout


def test_every_element_is_taken_once_and_nothing_beside_the_row(tmp_path: Path) -> None:
    assert what_is_wrong(tmp_path, CUTS.read_text()) == ""


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("(Lanes - past) % Lanes", "past % Lanes", "an unaligned piece"),
        ("next < n ? next : n", "next", "beside the row"),
        ("before = peel.pieces > 0 ? 1 : 0", "before = 0", "a piece that touches another row"),
        ("behind = peel.pieces > 1 ? 1 : 0", "behind = 0", "a piece that touches another row"),
        ("thread - 2 * Lanes", "thread - Lanes", "an element that is not taken once"),
        ("(turn * blocks + rank) * threads", "(turn + rank) * threads", "an element that is not taken once"),
        ("thread / 32 * (32 * Pieces)", "thread / 32 * 32", "an element that is not taken once"),
        ("blocks * threads * Pieces - 1", "blocks * threads * Pieces", "registers hold it"),
        ("lanes * 4 < n", "lanes * 8 < n", "lanes that are too few"),
    ],
)
def test_wrong_cuts_are_noticed(old: str, new: str, wrong: str, tmp_path: Path) -> None:
    source = CUTS.read_text()
    assert source.count(old) == 1
    assert wrong in what_is_wrong(tmp_path, source.replace(old, new))


# -- on the host -----------------------------------------------------------------------------------------------------

ROWS: tuple[tuple[Config, str], ...] = (
    ({"CLUSTER": 1, "VECTORS": 1}, "bf16"),
    ({"CLUSTER": 1, "VECTORS": 4}, "f32"),
    ({"CLUSTER": 8, "VECTORS": 8}, "f16"),
    ({"CLUSTER": 2}, "bf16"),
    ({"CLUSTER": 8, "VECTORS": 2}, "f32"),
)


@pytest.mark.parametrize(("config", "dtype"), ROWS)
@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm"])
def test_rows_on_the_host(name: str, config: Config, dtype: str, tmp_path: Path) -> None:
    op = OPERATORS[name]
    call = build(tmp_path, rendered_for_hopper(name, "cuda_peeled", config, dtype))
    for rows, width in ((1, 1), (70, 3), (37, 5), (13, 37), (9, 128), (9, 129), (7, 777), (5, 2056), (3, 9223)):
        check(op, call, dtype, {"R": rows, "D": width})
    for width in (5, 37, 777):
        check(op, call, dtype, {"R": 13, "D": width}, special=True)
    for layout, to in (((1000, 1), 779), ((777, 1), 776), ((-779, 1), 780), ((0, 1), 791)):
        check(op, call, dtype, {"R": 9, "D": 776}, strides={"x": layout, "out": (to, 1)})
    check(op, call, dtype, {"R": 3, "D": 37}, strides={"x": (1001, 1), "out": (90, 1)})


@pytest.mark.parametrize(("config", "dtype"), [({"CLUSTER": 1, "VECTORS": 1}, "bf16"), ({"CLUSTER": 2}, "f32")])
@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm"])
def test_rows_that_registers_do_not_hold_on_the_host(name: str, config: Config, dtype: str, tmp_path: Path) -> None:
    op = OPERATORS[name]
    call = build(tmp_path, rendered_for_hopper(name, "cuda_peeled", config, dtype))
    for width in (50257, 140008):
        check(op, call, dtype, {"R": 3, "D": width})
    check(op, call, dtype, {"R": 3, "D": 50257}, special=True)
    check(op, call, dtype, {"R": 3, "D": 50257}, strides={"x": (50304, 1)})


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm", "silu_mul"])
def test_tensors_that_begin_anywhere_on_the_host(name: str, dtype: str, tmp_path: Path) -> None:
    op = OPERATORS[name]
    call = build(tmp_path, rendered_for_hopper(name, "cuda_peeled", {"VECTORS": 2}, dtype))
    names = [t.name for t in op.tensors]
    for tensor in names:
        check(op, call, dtype, {"R": 5, "D": 1000}, skipped={tensor: 1})
    for width in (1, 37, 1003, 1008):
        check(op, call, dtype, {"R": 9, "D": width}, skipped={n: 1 + 2 * i for i, n in enumerate(names)})
        check(op, call, dtype, {"R": 9, "D": width}, skipped=dict.fromkeys(names, 3))


@pytest.mark.parametrize(("config", "dtype"), ROWS[:3])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_what_may_be_left_out_on_the_host(name: str, config: Config, dtype: str, tmp_path: Path) -> None:
    op = OPERATORS[name]
    call = build(tmp_path, rendered_for_hopper(name, "cuda_peeled", config, dtype))
    for absent in ABSENT[name]:
        for width in (33, 1031, 40001):
            check(op, call, dtype, {"R": 5, "D": width}, absent=absent)
        check(op, call, dtype, {"R": 5, "D": 1000}, absent=absent, skipped={"x": 3, "weight": 1, "bias": 5})
    for apart in ("residual", "residual_out") if name == "rms_norm" else ():
        check(op, call, dtype, {"R": 5, "D": 1031}, strides={apart: (1034, 1)})


def test_masked_rows_on_the_host(tmp_path: Path) -> None:
    """Rows that are -inf here and there, wholly, or all the lowest number: even a warp's whole part."""
    op = OPERATORS["softmax"]
    call = build(tmp_path, rendered_for_hopper("softmax", "cuda_peeled", {"CLUSTER": 2}, "bf16"))
    for width in (101, 4103):
        values = np.random.default_rng(3).standard_normal((7, width)) * 3
        values[0, 90:] = -np.inf
        values[1, :] = -np.inf
        values[2, :] = -3.38953139e38
        values[3, :-1] = -np.inf
        values[4, 7] = 3.0e38
        values[5, :] += 30000.0
        values[6, 1:] = -np.inf
        check(op, call, "bf16", {"R": 7, "D": width}, given={"x": values})


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_rows_far_from_zero_on_the_host(name: str, tmp_path: Path) -> None:
    op = OPERATORS[name]
    call = build(tmp_path, rendered_for_hopper(name, "cuda_peeled", {"CLUSTER": 2}, "f16"))
    for width in (99, 4103):
        values = np.random.default_rng(3).standard_normal((3, width)) + np.array([[0.0], [50.0], [-300.0]])
        check(op, call, "f16", {"R": 3, "D": width}, given={"x": values})


@pytest.mark.parametrize(
    ("config", "dtype"), [({"VECTORS": 1}, "bf16"), ({"VECTORS": 2, "BLOCK": 256}, "f32"), ({"VECTORS": 2}, "f16")]
)
def test_silu_mul_on_the_host(config: Config, dtype: str, tmp_path: Path) -> None:
    op = OPERATORS["silu_mul"]
    call = build(tmp_path, rendered_for_hopper("silu_mul", "cuda_peeled", config, dtype))
    for rows, width in ((1, 1), (3, 5), (64, 2049), (5, 1032), (300, 4001)):
        check(op, call, dtype, {"R": rows, "D": width})
    for width in (3, 37, 1001):
        check(op, call, dtype, {"R": 7, "D": width}, strides={"gate": (2 * width, 1), "up": (2 * width, 1)})
        check(op, call, dtype, {"R": 7, "D": width}, strides={"gate": (width + 3, 1), "out": (width + 1, 1)})
    check(op, call, dtype, {"R": 9, "D": 2056}, strides={"gate": (-2057, 1), "up": (0, 1)})
    check(op, call, dtype, {"R": 13, "D": 41}, special=True)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("layer_norm", "(words & 2) ? w[i + 2]", "(words & 2) ? w[i + 1]"),
        ("layer_norm", "0x5432 : 0x3210", "0x3210 : 0x3210"),
        ("layer_norm", "  if (edge >= 0) stat.add_one(one);\n", ""),
        ("softmax", "  if (edge >= 0) row.finish_one(edge, one, given_one);\n", ""),
        ("softmax", "told.found[i] + mine", "told.found[i] + mine % warps"),
    ],
)
def test_the_host_notices_faults(name: str, old: str, new: str, tmp_path: Path) -> None:
    op = OPERATORS[name]
    rendered = rendered_for_hopper(name, "cuda_peeled", {"CLUSTER": 2}, "bf16")
    assert rendered.source.count(old) == 1
    call = build(tmp_path, msgspec.structs.replace(rendered, source=rendered.source.replace(old, new)))
    with pytest.raises(AssertionError, match="out"):
        check(op, call, "bf16", {"R": 9, "D": 4103})


# -- what is declared ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm", "silu_mul"])
def test_it_is_for_what_others_cannot_read_in_whole_pieces(name: str) -> None:
    op = OPERATORS[name]
    kernel, tensor = op.kernel("cuda_peeled"), op.tensors[0].name
    uneven = ({"D": 50257}, {"D": 12300}, {"D": 1}, {"D": 4096, "strides": {tensor: (4099, 1)}})
    for dims in ({"D": 4096}, *uneven):
        facts = op.facts(problem(R=5, dtypes={"T": "bf16"}, **dims))
        assert all(e.evaluate(facts) for e in kernel.requires)
        assert all(e.evaluate(facts) for e in kernel.worthwhile) == (dims in uneven)
    facts = op.facts(problem(R=5, D=37, dtypes={"T": "bf16"}, strides={tensor: (1, 5)}))
    assert not all(e.evaluate(facts) for e in kernel.requires)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(("name", "dtype"), [(n, "bf16") for n in OPERATORS] + [("layer_norm", "f32")])
def test_what_takes_most_registers_compiles_without_spills(name: str, dtype: str, tmp_path: Path) -> None:
    configs = OPERATORS[name].kernel("cuda_peeled").configs(HOPPER.facts)
    widest = max(configs, key=lambda c: (c["VECTORS"], c.get("THREADS", 0)))
    (tmp_path / "candidate.cu").write_text(rendered_for_hopper(name, "cuda_peeled", widest, dtype).source)
    command = ["nvcc", "-std=c++17", "-O3", *code_flags(HOPPER), "-Xptxas", "-v", "-diag-suppress", "177", "-cubin"]
    done = subprocess.run([*command, "candidate.cu"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    assert done.stderr.count("spill stores") == done.stderr.count(" 0 bytes spill stores") > 0, done.stderr
