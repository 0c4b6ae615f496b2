"""Calls from Python: what is taken, what comes back, and what is refused with which error."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from dltensors import OnDevice
from hypothesis import given
from hypothesis import strategies as st
from tensors import Array, Deleted, Freed, Old, Wrapped
from torch._subclasses.fake_tensor import FakeTensorMode


def rms(x: Array, weight: Array, residual: Array | None = None, eps: float = 1e-5) -> Array:
    x = x if residual is None else x + residual
    return x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(eps)) * weight


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


@pytest.fixture
def weight() -> Array:
    return np.random.default_rng(1).standard_normal(6).astype(np.float32)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, Wrapped, lambda a: memoryview(a) and a.view(Sub)])
def test_any_tensor(ops: ModuleType, x: Array, weight: Array, make: Callable[[Array], object]) -> None:
    out = np.empty_like(x)
    given_out = make(out)
    assert ops.rms_norm(make(x), make(weight), out=given_out) is given_out
    np.testing.assert_allclose(out, rms(x, weight), rtol=1e-5)
    made = ops.rms_norm(make(x), make(weight))
    np.testing.assert_allclose(np.asarray(made), rms(x, weight), rtol=1e-5)


class Sub(np.ndarray):
    """As numpy.matrix and numpy.memmap are."""


class Exporting(np.ndarray):
    """A subclass with an export of its own is read through that."""

    def __dlpack__(self, **_options: object) -> object:  # type: ignore[override]
        raise BufferError("not for others")


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
    for make in (np.asarray, Wrapped, lambda a: a.view(Sub), lambda a: a.view(np.recarray)):
        out = np.zeros((4, 6), np.float32)
        ops.rms_norm(make(x), make(weight), out=out)
        np.testing.assert_allclose(out, rms(x, weight), rtol=1e-5)
        out[:] = 7
        out.flags.writeable = False
        with pytest.raises(ops.ArgumentValueError, match="output 'out' is read-only"):
            ops.rms_norm(x, weight, out=make(out))
        assert (out == 7).all()


class Copying(Wrapped):
    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options, copy=True)


def test_copies_are_inputs_only(ops: ModuleType, x: Array, weight: Array) -> None:
    np.testing.assert_allclose(ops.rms_norm(Copying(x), Copying(weight)), rms(x, weight), rtol=1e-5)
    with pytest.raises(ops.ArgumentValueError, match="output 'out' is a copy that its __dlpack__ made; wanted"):
        ops.rms_norm(x, weight, out=Copying(np.empty_like(x)))


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


def test_arrays_of_known_dtypes_are_what_numpy_says_of_them(ops: ModuleType) -> None:
    """From the second call on, they are read in memory."""
    x, weight = np.ones((4, 6), np.float32), np.ones(6, np.float32)
    fixed, warned = np.zeros_like(x), np.broadcast_arrays(weight, x)[0]  # numpy warns who writes to the second
    fixed.setflags(write=False)
    for _ in range(3):
        np.testing.assert_allclose(ops.rms_norm(x, weight), rms(x, weight), rtol=1e-5)
        for out in (fixed, warned):
            with pytest.raises(ops.ArgumentValueError, match="output 'out' is read-only"):
                ops.rms_norm(x, weight, out=out)
        again = x.copy()
        again.dtype = np.dtype(np.int32)
        with pytest.raises(ops.ArgumentTypeError, match="'x' has dtype i32"):
            ops.rms_norm(again, weight)
        narrow = np.zeros((4, 6), np.dtype([("a", "f4"), ("b", "u1")]))["a"]
        with pytest.raises(ops.ArgumentTypeError, match="strides that are not whole elements"):
            ops.rms_norm(narrow, weight)
    held = sys.getrefcount(x.dtype)
    for _ in range(100):
        ops.rms_norm(x, weight, out=again.view(np.float32))
    assert sys.getrefcount(x.dtype) <= held + 1


BAD: list[tuple[str, str, str, Callable[[Array, Array], dict[str, object]]]] = [
    ("rank", "ArgumentValueError", r"'weight' has 2 axes, wanted 1: \[N\]", lambda x, w: {"weight": x}),
    ("no axes", "ArgumentValueError", r"'x' has 0 axes, wanted 2: \[M, N\]", lambda x, w: {"x": np.array(x[0, 0])}),
    ("dtype", "ArgumentTypeError", "'x' has dtype f64, wanted f32", lambda x, w: {"x": x.astype(np.float64)}),
    ("integer", "ArgumentTypeError", "'weight' has dtype i32", lambda x, w: {"weight": w.astype(np.int32)}),
    ("swapped", "ArgumentTypeError", "'x' has swapped bytes", lambda x, w: {"x": x.astype(">f4")}),
    ("strings", "ArgumentTypeError", r"'x' has dtype \|S4, wanted float32", lambda x, w: {"x": x.astype("S4")}),
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
    (
        "fake",
        "ArgumentTypeError",
        "'x' has no data.*; 'x' is of type FakeTensor, which stands for",
        lambda x, w: {"x": fake()},
    ),
    ("fake view", "ArgumentTypeError", "'x' is of type FakeTensor, which stands for", lambda x, w: {"x": fake(1)}),
    ("freed", "ArgumentTypeError", "'x' has no data: its pointer is NULL but for an", lambda x, w: {"x": freed()}),
    ("many axes", "ArgumentValueError", "'x' has 9 axes, wanted 8 at most", lambda x, w: {"x": x[(None,) * 7]}),
    ("stream", "ArgumentTypeError", "rms_norm: stream is 'fast', wanted a number", lambda x, w: {"stream": "fast"}),
    ("no shape", "ArgumentValueError", "'x' has -1 axes, wanted 2", lambda x, w: {"x": shapeless(x)}),
    ("unknown", "ArgumentTypeError", r"no argument 'z'; it is called as rms_norm\(x, weight", lambda x, w: {"z": 1}),
    ("scalar", "ArgumentTypeError", "'eps' is 'small', wanted a number", lambda x, w: {"eps": "small"}),
    ("learnable scalar", "ArgumentValueError", "'eps' requires a gradient", lambda x, w: {"eps": graded(x[:1, 0])}),
    ("subclass", "ArgumentTypeError", "'x' has swapped bytes", lambda x, w: {"x": x.astype(">f4").view(Sub)}),
    ("own export", "ArgumentValueError", "Exporting .*not for others", lambda x, w: {"x": x.view(Exporting)}),
    ("masked", "ArgumentTypeError", "'x' is a masked array.*x.filled", lambda x, w: {"x": np.ma.masked_less(x, 0)}),
    ("deleted", "ArgumentValueError", "'x' of type Deleted was deleted", lambda x, w: {"x": Deleted()}),
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


def shapeless(x: Array) -> OnDevice:
    tensor = OnDevice(x, (1, 0))
    tensor.tensor.shape = None
    return tensor


def fake(first: int = 0) -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(4 + first, 6)[first:]


def freed() -> torch.Tensor:
    """A view whose storage was given up: torch says that it lies at its offset."""
    view = torch.zeros(5, 6)[1:]
    view.untyped_storage().resize_(0)
    return view


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


def test_positional_arguments(ops: ModuleType, x: Array, weight: Array) -> None:
    with pytest.raises(TypeError, match=r"rms_norm\(\) needs the tensor 'weight'"):
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


def test_an_array_without_a_version_is_read_but_no_output(ops: ModuleType, x: Array, weight: Array) -> None:
    """FAULTS.md, row 68: it does not tell whether it may be written; JAX's, which may not, are such."""
    np.testing.assert_allclose(np.asarray(ops.rms_norm(Old(x), Old(weight))), rms(x, weight), rtol=1e-5)
    out = np.zeros_like(x)
    with pytest.raises(ops.ArgumentValueError, match="output 'out' is passed by a DLPack capsule without a version"):
        ops.rms_norm(x, weight, out=Old(out))
    assert not out.any()


def test_what_frees_a_tensor_may_be_python_code(ops: ModuleType, x: Array, weight: Array) -> None:
    """FAULTS.md, row 94: it must not see the error of the call, and the error must be told all the same."""
    np.testing.assert_allclose(np.asarray(ops.rms_norm(Freed(x), Freed(weight))), rms(x, weight), rtol=1e-5)
    for bad in ({"weight": x}, {"weight": [1]}, {"out": Freed(x)}, {"workspace": Freed(x)}, {"workspace": 3}):
        with pytest.raises(ops.Error, match="rms_norm: "):
            ops.rms_norm(**{"x": Freed(x), "weight": Freed(weight), **bad})
    with pytest.raises(ops.Error, match="rms_norm: "):
        ops.explain("rms_norm", Freed(x), x)
    assert not Freed.kept


def test_a_backward_pass_that_needs_what_was_overwritten_says_so(ops: ModuleType, x: Array, weight: Array) -> None:
    """FAULTS.md, row 67."""
    factor = torch.ones(4, 6, requires_grad=True)
    kept = torch.from_numpy(x.copy())
    total = (factor * kept).sum()
    before = kept._version
    assert ops.rms_norm(torch.from_numpy(x), torch.from_numpy(weight), out=kept) is kept
    assert kept._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_versions_are_counted_where_torch_counts_them(ops: ModuleType, x: Array, weight: Array, mode: Any) -> None:
    ordinary = torch.zeros(4, 6)
    with mode():
        own = torch.zeros(4, 6)
        for out in (own, ordinary):
            ops.rms_norm(torch.from_numpy(x), torch.from_numpy(weight), out=out)
            np.testing.assert_allclose(out.numpy(), rms(x, weight), rtol=1e-5)
    assert ordinary._version == 1
    assert ops.rms_norm(torch.from_numpy(x), torch.from_numpy(weight))._version == 0  # a new one was never another


def test_forward_mode_gradients_are_refused(ops: ModuleType, x: Array, weight: Array) -> None:
    """FAULTS.md, row 69: what nobody computes is no zero."""
    plain, factors = torch.from_numpy(x), torch.from_numpy(weight)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(plain, torch.ones_like(plain))
        for forbid in (torch.no_grad, torch.enable_grad):
            with forbid(), pytest.raises(ops.ArgumentValueError, match="'x' carries a forward-mode gradient"):
                ops.rms_norm(dual, factors)
            with forbid(), pytest.raises(ops.ArgumentValueError, match="'eps' carries a forward-mode gradient"):
                ops.rms_norm(plain, factors, eps=dual[0, 0])
        assert ops.rms_norm(plain, factors).shape == (4, 6)
    assert ops.rms_norm(plain, factors).shape == (4, 6)


def test_what_traces_a_call_is_told(ops: ModuleType, x: Array, weight: Array) -> None:
    plain, factors = torch.from_numpy(x), torch.from_numpy(weight)

    def call(given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = ops.rms_norm(given, factors)
        return found

    from torch.fx.experimental.proxy_tensor import make_fx

    with pytest.raises(ops.CallError, match="torch traces this call"):
        torch.jit.trace(call, (plain,))
    with pytest.raises(ops.CallError, match="torch traces this call"):
        make_fx(call)(plain)
    assert call(plain).shape == (4, 6)
