"""Calls from Python: what is taken, what comes back, and what is refused with which error."""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import linked
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

Array = np.ndarray


def rms(x: Array, weight: Array, residual: Array | None = None, eps: float = 1e-5) -> Array:
    x = x if residual is None else x + residual
    return x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(eps)) * weight


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


@pytest.fixture
def weight() -> Array:
    return np.random.default_rng(1).standard_normal(6).astype(np.float32)


class Wrapped:
    """Has nothing but __dlpack__."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)


class Old:
    """A producer from before DLPack 1.0: no max_version, an unversioned capsule."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, *, stream: object = None) -> object:
        return self.array.__dlpack__(stream=stream)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, Wrapped, Old, lambda a: memoryview(a) and a.view(Sub)])
def test_any_tensor(ops: ModuleType, x: Array, weight: Array, make: Callable[[Array], object]) -> None:
    out = np.empty_like(x)
    given_out = make(out)
    assert ops.rms_norm(make(x), make(weight), out=given_out) is given_out
    np.testing.assert_allclose(out, rms(x, weight), rtol=1e-5)
    made = ops.rms_norm(make(x), make(weight))
    np.testing.assert_allclose(np.asarray(made), rms(x, weight), rtol=1e-5)


class Sub(np.ndarray):
    """A subclass is read through __dlpack__."""


def test_frameworks_may_be_mixed(ops: ModuleType, x: Array, weight: Array) -> None:
    made = ops.rms_norm(torch.from_numpy(x), weight)
    assert type(made) is torch.Tensor
    assert type(ops.rms_norm(x, torch.from_numpy(weight))) is np.ndarray


def test_a_new_torch_tensor_is_an_ordinary_one(ops: ModuleType, x: Array, weight: Array) -> None:
    made = ops.rms_norm(torch.from_numpy(x), torch.from_numpy(weight))
    assert made.shape == (4, 6)
    assert made.is_contiguous()
    assert made.dtype == torch.float32
    assert not made.requires_grad
    weak = weakref.ref(made)
    del made
    gc.collect()
    assert weak() is None


def test_optional_tensors_and_outputs(ops: ModuleType, x: Array, weight: Array) -> None:
    residual = np.ones_like(x)
    np.testing.assert_allclose(ops.rms_norm(x, weight, residual), rms(x, weight, residual), rtol=1e-5)
    out, total = ops.rms_norm(x, weight, residual=residual, residual_out=True, eps=0.5)
    np.testing.assert_allclose(out, rms(x, weight, residual, 0.5), rtol=1e-5)
    np.testing.assert_array_equal(total, x + residual)
    mine = np.empty_like(x)
    both = ops.rms_norm(x, weight, residual, residual_out=mine)
    assert both[1] is mine
    for absent in (None, False):
        assert type(ops.rms_norm(x, weight, residual, residual_out=absent)) is np.ndarray


def test_read_only_arrays_are_inputs_only(ops: ModuleType, x: Array, weight: Array) -> None:
    x.flags.writeable = weight.flags.writeable = False
    for make in (np.asarray, Wrapped):
        out = np.zeros((4, 6), np.float32)
        ops.rms_norm(make(x), make(weight), out=out)
        np.testing.assert_allclose(out, rms(x, weight), rtol=1e-5)
        out[:] = 7
        out.flags.writeable = False
        with pytest.raises(ops.ArgumentValueError, match="output 'out' is read-only"):
            ops.rms_norm(x, weight, out=make(out))
        assert (out == 7).all()


@given(st.data())
def test_any_strides(ops: ModuleType, data: st.DataObject) -> None:
    m, n = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))

    def view() -> Array:
        base = np.random.default_rng(3).standard_normal((4 * m, 4 * n)).astype(np.float32)
        base = base.T.copy().T if data.draw(st.booleans()) else base
        step, sign = data.draw(st.integers(1, 3)), data.draw(st.sampled_from((1, -1)))
        return base[:: data.draw(st.integers(1, 3))][:m, :: sign * step][:, :n]

    x, out = view(), view()
    weight = np.ones(n, np.float32)
    before = out.base.copy() if out.base is not None else out.copy()
    ops.rms_norm(x, weight, out=out)
    np.testing.assert_allclose(out, rms(x, weight), rtol=1e-5)
    changed = (out.base if out.base is not None else out) != before
    assert changed.sum() <= m * n


BAD: list[tuple[str, str, str, Callable[[Array, Array], dict[str, object]]]] = [
    ("rank", "ArgumentValueError", r"'x' has 1 axes, wanted 2: \[M, N\]", lambda x, w: {"x": x[0]}),
    ("dtype", "ArgumentTypeError", "'x' has dtype f64, wanted f32", lambda x, w: {"x": x.astype(np.float64)}),
    ("integer", "ArgumentTypeError", "'weight' has dtype i32", lambda x, w: {"weight": w.astype(np.int32)}),
    ("swapped", "ArgumentTypeError", "'x' has swapped bytes", lambda x, w: {"x": x.astype(">f4")}),
    ("strings", "ArgumentTypeError", "'x' has a dtype that no operator takes", lambda x, w: {"x": x.astype("S4")}),
    ("dims", "ArgumentValueError", "'weight': axis 0 has extent 5, wanted N = 6", lambda x, w: {"weight": w[:5]}),
    ("out dims", "ArgumentValueError", "'out': axis 0 has extent 3, wanted M = 4", lambda x, w: {"out": x[1:].copy()}),
    ("optional dims", "ArgumentValueError", "'residual': axis 1", lambda x, w: {"residual": x[:, :5]}),
    ("missing", "ArgumentTypeError", "'weight' is missing", lambda x, w: {"weight": None}),
    ("no tensor", "ArgumentTypeError", "'weight' is of type list", lambda x, w: {"weight": [1.0]}),
    ("in place", "ArgumentValueError", "'out' overlaps input 'x'", lambda x, w: {"out": x}),
    ("overlap", "ArgumentValueError", "'out' overlaps input 'weight'", lambda x, w: overlapping()),
    ("two outputs", "ArgumentValueError", "'residual_out' overlaps output 'out'", lambda x, w: twice()),
    ("broadcast out", "ArgumentValueError", "'out' has elements that share memory", lambda x, w: {"out": spread(0)}),
    ("windows out", "ArgumentValueError", "'out' has elements that share memory", lambda x, w: {"out": spread(4)}),
    ("unaligned", "ArgumentValueError", "'x' is at an address that is not a multiple of 4", lambda x, w: bent(x)),
    ("meta", "ArgumentValueError", "'x' cannot be read through DLPack", lambda x, w: {"x": meta()}),
    ("sparse", "ArgumentValueError", "'x' cannot be read", lambda x, w: {"x": torch.from_numpy(x).to_sparse()}),
    ("gradient", "ArgumentValueError", "'x' requires a gradient", lambda x, w: {"x": graded(x)}),
    ("negative", "ArgumentValueError", "'x' is a view with its negative bit", lambda x, w: {"x": negative()}),
    ("fake", "ArgumentTypeError", "'x' has no data", lambda x, w: {"x": fake()}),
    ("unknown", "ArgumentTypeError", r"no argument 'z'; it is called as rms_norm\(x, weight", lambda x, w: {"z": 1}),
    ("scalar", "TypeError", "must be real number", lambda x, w: {"eps": "small"}),
]


def overlapping() -> dict[str, object]:
    memory = np.zeros(40, np.float32)
    return {"weight": memory[20:26], "out": memory[:24].reshape(4, 6)}


def twice() -> dict[str, object]:
    memory = np.zeros(40, np.float32)
    return {"out": memory[:24].reshape(4, 6), "residual_out": memory[8:32].reshape(4, 6)}


def spread(step: int) -> Array:
    return np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), (4, 6), (step * 4, 4))


def bent(x: Array) -> dict[str, object]:
    raw = np.zeros(x.nbytes + 8, np.uint8)
    return {"x": raw[1 : 1 + x.nbytes].view(np.float32).reshape(x.shape)}


def negative() -> torch.Tensor:
    return torch.zeros(4, 6, dtype=torch.complex64).conj().imag


def meta() -> torch.Tensor:
    return torch.empty(4, 6, device="meta")


def graded(x: Array) -> torch.Tensor:
    return torch.from_numpy(x).requires_grad_()


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(4, 6)


@pytest.mark.parametrize(("name", "kind", "message", "change"), BAD, ids=[b[0] for b in BAD])
def test_bad_arguments(
    ops: ModuleType,
    x: Array,
    weight: Array,
    name: str,
    kind: str,
    message: str,
    change: Callable[[Array, Array], dict[str, object]],
) -> None:
    arguments: dict[str, object] = {"x": x, "weight": weight, "out": np.full_like(x, 7), **change(x, weight)}
    out = arguments["out"]
    before = np.array(out)
    with pytest.raises(getattr(ops, kind, TypeError), match=message):
        ops.rms_norm(**arguments)
    np.testing.assert_array_equal(np.asarray(out), before)


def test_errors_are_of_two_kinds(ops: ModuleType) -> None:
    kinds = {ops.ArgumentTypeError: TypeError, ops.ArgumentValueError: ValueError, ops.CallError: RuntimeError}
    for kind, builtin in kinds.items():
        assert issubclass(kind, ops.Error)
        assert issubclass(kind, builtin)


def test_positional_arguments(ops: ModuleType, x: Array, weight: Array) -> None:
    with pytest.raises(TypeError, match=r"rms_norm\(\) misses the tensor 'weight'"):
        ops.rms_norm(x)
    with pytest.raises(TypeError, match="takes at most 3 positional arguments, 4 were given"):
        ops.rms_norm(x, weight, x, x)
    with pytest.raises(TypeError, match="got 'x' twice"):
        ops.rms_norm(x, weight, x=x)


def test_attributes(ops: ModuleType) -> None:
    a, b = np.eye(3, dtype=np.float32), -np.ones((3, 3), np.float32)
    plain = ops.gemm(a, b, activation="none")
    rectified = ops.gemm(a, b, activation="".join(("re", "lu")))  # not the interned string
    assert (rectified - plain == 1).all()
    for bad in ("gelu", 1, None):
        with pytest.raises(ValueError, match=rf"attribute 'activation' is {bad!r}, wanted one of \('none', 'relu'\)"):
            ops.gemm(a, b, activation=bad)


def test_column_blocks_of_one_buffer_are_separate(ops: ModuleType, weight: Array) -> None:
    buffer = np.random.default_rng(2).standard_normal((4, 13)).astype(np.float32)
    wanted = rms(buffer[:, :6].copy(), weight)
    ops.rms_norm(buffer[:, :6], weight, out=buffer[:, 7:])
    np.testing.assert_allclose(buffer[:, 7:], wanted, rtol=1e-5)
    with pytest.raises(ValueError, match="overlaps"):
        ops.rms_norm(buffer[:, :6], weight, out=buffer[:, 5:11])
    with pytest.raises(ValueError, match="overlaps"):
        ops.rms_norm(buffer[:, 5:11], weight, out=buffer[:, :6])
    with pytest.raises(ValueError, match="overlaps"):  # the last columns of a row and the first of the next
        ops.rms_norm(buffer.reshape(-1)[:48].reshape(4, 12)[:, :6], weight, out=buffer.reshape(-1)[10:34].reshape(4, 6))


def test_no_elements(ops: ModuleType, weight: Array) -> None:
    empty = np.empty((0, 6), np.float32)
    assert ops.rms_norm(empty, weight, out=empty) is empty
    assert ops.rms_norm(torch.empty(0, 6), torch.from_numpy(weight)).shape == (0, 6)
    assert ops.rms_norm(np.empty((4, 0), np.float32), weight[:0]).shape == (4, 0)
    with pytest.raises(ValueError, match="axis 0 has extent 6, wanted N = 5"):
        ops.rms_norm(empty[:, :5], weight)


def test_no_gradient_is_needed_under_no_grad(ops: ModuleType, x: Array, weight: Array) -> None:
    layer = torch.nn.Parameter(torch.from_numpy(weight))
    with torch.no_grad():
        np.testing.assert_allclose(ops.rms_norm(torch.from_numpy(x), layer), rms(x, weight), rtol=1e-5)
    with torch.inference_mode():
        ops.rms_norm(torch.from_numpy(x), layer)


def test_a_workspace_of_the_callers(built: linked.Built) -> None:
    code = f"""
import sys
import numpy as np
sys.path.insert(0, {str(Path(__file__).parent)!r})
import linked
ops = linked.load_module(linked.Path({str(built.module)!r}))
a, b = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32)
memory = np.zeros(64)
memory = memory[-memory.ctypes.data % 64 // 8 :][:32]
ops.gemm(a, b, workspace=memory)
print(memory.tobytes().count(1), ops.explain("gemm", a, b, workspace=memory)["variant"])
print(ops.explain("gemm", a, b, workspace=memory[:2])["variant"], ops.explain("gemm", a, b, workspace=99)["variant"])
for bad in ({{"workspace": 100}}, {{"device": "cpu"}}, {{"workspace": memory[::2]}}, {{"stream": "fast"}}):
    try:
        ops.gemm(a, b, **bad)
    except ops.Error as error:
        print(error)
"""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    env = {**os.environ, "AOT_TUNE_CPU_LEVEL": "2", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["100 small_2", "plain plain"], done.stderr
    wanted = (
        "'workspace' is of type int",
        "no argument 'device'",
        "the workspace has gaps",
        "stream is 'fast', wanted",
    )
    for line, part in zip(lines[2:], wanted, strict=True):
        assert part in line


def test_preload_of_a_cpu_does_nothing(ops: ModuleType) -> None:
    assert ops.preload("cpu") is None
    with pytest.raises(ops.ArgumentValueError, match="this library has no variants for cuda:0"):
        ops.preload("cuda:0")


def test_nothing_leaks(ops: ModuleType, x: Array, weight: Array) -> None:
    torch_x, torch_weight, out = torch.from_numpy(x), torch.from_numpy(weight), np.empty_like(x)

    def work() -> None:
        for make in (np.asarray, Wrapped, Old):
            ops.rms_norm(make(x), make(weight), residual_out=True)
            ops.rms_norm(make(x), make(weight), out=out)
        ops.rms_norm(torch_x, torch_weight, residual_out=True)
        ops.explain("gemm", M=3, N=4, K=5)
        for bad in ({"x": x[0]}, {"out": x}, {"z": 1}, {"weight": 3}, {"x": torch.empty(4, 6, device="meta")}):
            with pytest.raises(ops.Error):
                ops.rms_norm(**{"x": x, "weight": weight, **bad})

    held = (x, weight, out, torch_x, torch_weight, ops, np.ndarray, True)
    for _ in range(20):
        work()
    gc.collect()
    counts, blocks = [sys.getrefcount(o) for o in held], sys.getallocatedblocks()
    for _ in range(300):
        work()
    gc.collect()
    after = [sys.getrefcount(o) for o in held]
    assert max(abs(a - b) for a, b in zip(after[:-2], counts[:-2], strict=True)) <= 2
    assert sys.getallocatedblocks() - blocks < 300


def test_threads_have_their_own_messages_and_workspaces(ops: ModuleType) -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(40):
            m, n, k = (int(v) for v in rng.integers(1, 90, 3))
            a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
            out = ops.gemm(a, b)
            if not np.allclose(out - out.ravel()[0], a @ b - (a @ b).ravel()[0], atol=1e-3):
                failures.append(f"{m} {n} {k}")
            try:
                ops.gemm(a, np.zeros((k + seed + 1, n), np.float32))
            except ValueError as error:
                if f"extent {k + seed + 1}," not in str(error):
                    failures.append(str(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_lock_is_released_for_long_calls(ops: ModuleType) -> None:
    a, b = np.ones((300, 300), np.float32), np.ones((300, 300), np.float32)
    ticks, done = [0], threading.Event()
    switch = sys.getswitchinterval()

    def count() -> None:
        while not done.is_set():
            ticks[0] += 1
            time.sleep(1e-5)  # gives the lock back

    thread = threading.Thread(target=count)
    sys.setswitchinterval(100)  # nobody gets the lock unless it is given away
    try:
        thread.start()
        before = ticks[0]
        for _ in range(5):
            ops.gemm(a, b)
        during = ticks[0] - before
    finally:
        done.set()
        sys.setswitchinterval(switch)
        thread.join()
    assert during > 0


def test_what_inspect_and_help_show(ops: ModuleType) -> None:
    assert str(inspect.signature(ops.gemm)) == (
        "(a, b, bias=None, residual=None, *, activation='none', out=None, stream=None, workspace=None)"
    )
    assert str(inspect.signature(ops.rms_norm)) == (
        "(x, weight, residual=None, *, eps=1e-05, out=None, residual_out=None, stream=None, workspace=None)"
    )
    assert "out: f32 [M, N], made when not passed." in ops.gemm.__doc__
    assert ops.operators == ("gemm", "rms_norm")


def test_the_manifest_is_inside(ops: ModuleType, built: linked.Built) -> None:
    manifest = ops.manifest()
    digests = {v["name"]: v["object"] for v in manifest["operators"][0]["variants"]}
    assert digests == {v.name: v.object_digest for v in built.spec.operators[0].variants}


def test_import_needs_no_framework(built: linked.Built) -> None:
    code = f"""
import importlib.machinery, importlib.util, sys
sys.modules["numpy"] = sys.modules["torch"] = None
loader = importlib.machinery.ExtensionFileLoader("ops", {str(built.module)!r})
ops = importlib.util.module_from_spec(importlib.util.spec_from_loader("ops", loader))
loader.exec_module(ops)
print(ops.explain("gemm", M=1, N=2, K=3)["operator"])
try:
    ops.gemm(1, 2)
except TypeError as error:
    print(error)
"""
    run = [sys.executable, "-I", "-S", "-c", code]
    out = subprocess.run(run, check=True, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}).stdout
    assert out.splitlines()[0] == "gemm"
    assert "'a' is of type int" in out


def other_pythons() -> list[str]:
    """Interpreters of other versions, 3.10 and later: on the path, or installed by pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for minor in range(10, 20):
        on_path = shutil.which(f"python3.{minor}")
        for python in (*sorted(str(p) for p in pyenv.glob(f"3.{minor}.*/bin/python3")), on_path):
            run = [python, "-c", "import sys; print(sys.version_info[1])"] if python else ["false"]
            done = subprocess.run(run, capture_output=True, text=True, check=False)
            if done.stdout.strip() == str(minor) and minor != sys.version_info[1]:
                found.setdefault(minor, str(python))
    return [found[minor] for minor in sorted(found)]


def test_other_pythons_import_it(built: linked.Built, tmp_path: Path) -> None:
    others = other_pythons()
    if not others:
        pytest.skip("no other Python is installed")
    code = f"""
import array, ctypes, importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader("ops", {str(built.module)!r})
ops = importlib.util.module_from_spec(importlib.util.spec_from_loader("ops", loader))
loader.exec_module(ops)
assert ops.explain("gemm", M=1, N=2, K=3)["dims"] == {{"M": 1, "N": 2, "K": 3}}
assert ops.gemm.__text_signature__.startswith("($module, a, b")
try:
    ops.gemm([1], 2)
except ops.ArgumentTypeError as error:
    assert "is of type list" in str(error), error
else:
    raise AssertionError
"""
    for python in others:
        subprocess.run([python, "-I", "-S", "-c", code], check=True)


def test_only_the_stable_abi_is_used(built: linked.Built) -> None:
    audit = [sys.executable, "-m", "abi3audit", "--assume-minimum-abi3", "3.10", "--strict", "--report"]
    done = subprocess.run([*audit, str(built.module)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"is_abi3": true' in done.stdout
