"""Calls one after the other: none is taken for another, whatever was called before and whatever runs in between."""

import gc
import random
from pathlib import Path
from types import ModuleType

import forked
import linked
import numpy as np
import pytest
import torch
from tensors import Array, Wrapped

from aot_tune.link import LibrarySpec, OperatorTable, TargetTable
from aot_tune.spec import problem

CODE = """
import random

ops = linked.load_module(Path({module!r}))
MARKS = {{"plain": 0, "small_2": 10, "packed_2": 20, "packed_3": 30}}
chosen = random.Random({seed})
buffer = np.random.default_rng(0).standard_normal(1 << 16).astype("f4")


def matrix(rows, columns, turned=False):
    start = chosen.randrange(0, 40)
    flat = buffer[start:start + rows * columns]
    return flat.reshape(columns, rows).T if turned else flat.reshape(rows, columns)


def refused(a, b, given):
    "A call that is like those before but for one thing, which is wrong with it."
    (m, k), n = a.shape, b.shape[1]
    apart = np.zeros(4 * m * k + 8, np.uint8)[1:1 + 4 * m * k].view("f4").reshape(m, k)
    shared = np.lib.stride_tricks.as_strided(given["out"], strides=(0, 4) if m > 1 else (4, 0))
    a, b, changes = chosen.choice([
        (a.astype("f8"), b, {{}}),
        (a, matrix(k + 1, n), {{}}),
        (apart, b, {{}}),
        (a, b, {{"bias": matrix(1, n + 1)[0]}}),
        (a, b, {{"out": np.empty((m, n + 1), "f4")}}),
        (a, b, {{"activation": "rely"}}),
        *[(a, b, {{"out": shared}})] * (m * n > 1),
    ])
    for _ in range(2):
        try:
            ops.gemm(a, b, **{{**given, **changes}})
        except (ValueError, TypeError):
            continue
        raise SystemExit(f"taken: {{a.shape}} {{b.shape}} {{changes}}")


seen = set()
for _ in range(400):
    m, n, k = chosen.choice([(4, 5, 3), (4, 5, 4), (20, 5, 8), (20, 8, 5), (1, 1, 1)])
    a, b = matrix(m, k, chosen.random() < 0.3), matrix(k, n, chosen.random() < 0.5)
    given = {{"activation": chosen.choice(["none", "relu"])}}
    wanted = a @ b
    if chosen.random() < 0.3:
        given["bias"] = matrix(1, n)[0]
        wanted = wanted + given["bias"]
    if given["activation"] == "relu":
        wanted = np.maximum(wanted, 0)
    if chosen.random() < 0.3:
        given["residual"] = matrix(m, n)
        wanted = wanted + given["residual"]
    given["out"] = out = np.empty((m, n), "f4")
    if chosen.random() < 0.3:
        size = chosen.choice([64, 192])
        memory = np.zeros(size + 64, np.uint8)
        start = -memory.ctypes.data % 64
        given["workspace"] = memory[start:start + size]
    if chosen.random() < 0.1:
        given["out"] = a if a.shape == (m, n) else given.get("residual", out)
        try:
            ops.gemm(a, b, **given)
        except ValueError as error:
            assert "overlaps" in str(error)
            continue
        assert given["out"] is out
    if chosen.random() < 0.3:
        refused(a, b, given)
    found = ops.gemm(a, b, **given)
    variant = ops.explain("gemm", a, b, **given)["variant"]
    assert found is out
    np.testing.assert_allclose(out, wanted + MARKS[variant], rtol=1e-4, atol=1e-4)
    seen.add(variant)
print(" ".join(sorted(seen)))
"""


def test_random_calls_in_any_order(built: linked.Built) -> None:
    for level, wanted in {"1": "plain", "2": "packed_2 plain small_2", "3": "packed_3 plain"}.items():
        code = CODE.format(seed=level, module=str(built.module))
        assert forked.python(code, AOT_TUNE_CPU_LEVEL=level).strip() == wanted


@pytest.mark.parametrize(("launches", "marks"), [(0, "4 4 4 4"), (2, "24 24 4 4")])
def test_what_fails_when_it_is_launched_is_left_to_the_next_variant(tmp_path: Path, launches: int, marks: str) -> None:
    """As a vendor's library may. That call is served, and later ones, also one that is like those before."""
    source = (
        linked.GEMM.replace("#define ARGS", f"static int left = {launches};\n#define ARGS", 1)
        .replace("return 0;\n}\nEXPORT", "return left < 0 ? -100 : 0;\n}\nEXPORT", 1)
        .replace("  if (size", "  if (left-- == 0) return -100;\n  if (size", 1)
    )
    tires = linked.variant(tmp_path, source, "tires", mark="20")
    table = TargetTable(target="cpu-x86-64", level=1, rest=(1,), tuned=(problem(M=8, N=8, K=8),))
    plain = linked.variant(tmp_path, linked.GEMM, "plain", generic=True)
    gemm = OperatorTable(operator=linked.gemm_operator(), variants=(plain, tires), tables=(table,))
    built = linked.link_library(LibrarySpec(output="tired", operators=(gemm,)), tmp_path / "out")
    code = f"""
ops = linked.load_module(Path({str(built.module)!r}))
a = np.ones((4, 4), np.float32)
print(*[int(ops.gemm(a, a)[0, 0]) for _ in range(4)], ops.explain("gemm", a, a)["variant"])
"""
    assert forked.python(code, AOT_TUNE_CPU_LEVEL="1").strip() == f"{marks} plain"


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


@pytest.fixture
def weight() -> Array:
    return np.random.default_rng(1).standard_normal(6).astype(np.float32)


def rms(x: Array, weight: Array, eps: float = 1e-5) -> Array:
    return x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(eps)) * weight


def test_a_number_that_calls_again_by_other_keywords(ops: ModuleType, x: Array, weight: Array) -> None:
    inner, out, total = np.empty_like(x), np.empty_like(x), np.empty_like(x)

    class Number:
        def __float__(self) -> float:
            ops.rms_norm(weight=weight, x=x, out=inner, eps=0.5)
            return 3.0

    for _ in range(3):
        found = ops.rms_norm(x, weight, eps=Number(), residual_out=total, out=out, residual=x)
        assert found[0] is out
        assert found[1] is total
        np.testing.assert_allclose(inner, rms(x, weight, 0.5), rtol=1e-5)
        np.testing.assert_allclose(out, rms(x + x, weight, 3.0), rtol=1e-5)


def test_keywords_of_many_places(ops: ModuleType, x: Array, weight: Array) -> None:
    given = {"x": x, "weight": weight, "out": np.empty_like(x), "eps": 0.25, "stream": None, "workspace": None}
    chosen = random.Random(0)
    for _ in range(50):
        order = sorted(given, key=lambda _: chosen.random())
        given["out"][:] = 0
        assert ops.rms_norm(**{name: given[name] for name in order}) is given["out"]
        np.testing.assert_allclose(given["out"], rms(x, weight, 0.25), rtol=1e-5)
    with pytest.raises(TypeError, match="has no argument 'other'"):
        ops.rms_norm(**given, other=1)
    with pytest.raises(TypeError, match="has no argument 'more0'"):
        ops.rms_norm(**given, **{f"more{i}": 1 for i in range(100)})
    with pytest.raises(TypeError, match="got 'x' twice"):
        ops.rms_norm(x, **given)


@pytest.mark.parametrize("flags", [False, True])
def test_a_tensor_that_another_one_resizes(ops: ModuleType, x: Array, weight: Array, flags: bool) -> None:
    tensor = torch.tensor(x)
    wanted = rms(x, weight)

    class Resizing(Wrapped):
        def __dlpack__(self, **options: object) -> object:
            tensor.resize_(2, 3)
            return super().__dlpack__(**options)

    with torch.set_grad_enabled(flags):
        for _ in range(20):  # until torch was asked whether there are gradients
            ops.rms_norm(tensor, weight, out=torch.empty(4, 6))
        found = ops.rms_norm(tensor, Resizing(weight), out=torch.empty(4, 6))
    assert tensor.shape == (2, 3)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)  # as it was when it was read


def test_a_name_that_calls_when_it_is_forgotten(ops: ModuleType, x: Array, weight: Array) -> None:
    inner, out = np.empty_like(x), np.empty_like(x)
    given = {"x": x, "out": out}
    called = []

    class Name(str):
        def __del__(self) -> None:
            called.append(str(self))
            ops.rms_norm(weight=weight, x=x, out=inner, eps=0.5, stream=None)

    for _ in range(3):
        ops.rms_norm(**{Name("x"): x, "weight": weight})
        assert ops.rms_norm(weight=weight, **given) is out
    assert called
    np.testing.assert_allclose(inner, rms(x, weight, 0.5), rtol=1e-5)
    np.testing.assert_allclose(out, rms(x, weight), rtol=1e-5)


def test_the_mode_is_that_of_the_library_whose_function_torch_names(
    ops: ModuleType, x: Array, weight: Array, monkeypatch: pytest.MonkeyPatch, built: linked.Built
) -> None:
    alone = linked.load_module(built.module)  # one that has not asked yet
    tensor = torch.tensor(x, requires_grad=True)
    monkeypatch.setattr(torch, "is_grad_enabled", gc.isenabled)  # as little of libc10.so's as that of a static torch
    gc.disable()
    try:
        with torch.enable_grad():
            alone.rms_norm(tensor, torch.tensor(weight), out=torch.empty(4, 6))
    finally:
        gc.enable()
    with torch.no_grad(), pytest.raises(ValueError, match="requires a gradient"):
        alone.rms_norm(tensor, torch.tensor(weight), out=torch.empty(4, 6))
