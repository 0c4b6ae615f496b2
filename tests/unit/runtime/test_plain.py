"""The short way through the checks of a call takes only what the full one takes, and reads the same from it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from dltensors import BF16, F32, F64, Given, Tensor
from hypothesis import example, given
from hypothesis import strategies as st

from aot_tune.support.installed_paths import RUNTIME

SHIM = """
#include "check.cpp"
namespace aot_tune {
int32_t fail(int32_t code, const char*, ...) noexcept { return code; }
void Text::add(const char*, ...) noexcept {}
namespace {
constexpr DTypeInfo kChoices[] = {{"bf16", 4, 16}, {"f32", 2, 32}};
constexpr VariableInfo kVariables[] = {{"T", kChoices, 2}};
constexpr TensorInfo kTensors[] = {{"x", "", "", 4, 16, 2, false, false, 0},
                                   {"bias", "", "", 4, 16, 1, false, true, 0},
                                   {"scale", "", "", 2, 64, 3, false, true, -1},
                                   {"out", "", "", 4, 16, 2, true, false, 0},
                                   {"more", "", "", 4, 16, 2, true, true, 0}};
constexpr OperatorInfo kOperator = {"test", kTensors, 5, kVariables, 1};

bool same(const View& a, const View& b) {
  bool same = a.low == b.low && a.high == b.high && a.empty == b.empty && a.tensor.data == b.tensor.data &&
              same_device(a.tensor.device, b.tensor.device) && a.tensor.ndim == b.tensor.ndim &&
              is_dtype(a.tensor.dtype, b.tensor.dtype.code, b.tensor.dtype.bits) && a.tensor.dtype.lanes == 1 &&
              a.tensor.shape == b.tensor.shape && a.tensor.strides == a.strides && a.tensor.byte_offset == 0;
  for (int i = 0; i < a.tensor.ndim; ++i) same &= a.strides[i] == b.strides[i];
  return same;
}
}  // namespace
}  // namespace aot_tune

extern "C" int32_t shim(const DLTensor* const* given) {
  using namespace aot_tune;
  View plain[5], full[5];
  int32_t plain_dtype, full_dtype;
  if (!read_plainly<kOperator>(given, plain, &plain_dtype)) return 0;
  if (read_tensors(kOperator, given, full, &full_dtype) != 0 || plain_dtype != full_dtype) return -1;
  for (int i = 0; i < 5; ++i) {
    if (given[i] != nullptr && !same(plain[i], full[i])) return -2;
  }
  const bool taken = check_memory(kOperator, given, full) == 0;
  if (!has_plain_memory<kOperator>(given, plain)) return taken ? 1 : 2;
  return taken ? 3 : -3;
}
"""
LEFT, READ, REFUSED, TAKEN = range(4)


IN_PLACE = ('"out", "", "", 4, 16, 2, true, false, 0', ", false, 0x1")
"""What makes `out` an output that may be the memory of `x`."""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return built(tmp_path_factory.mktemp("plain"), SHIM)


@pytest.fixture(scope="module")
def shim_in_place(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    assert IN_PLACE[0] in SHIM
    return built(tmp_path_factory.mktemp("in_place"), SHIM.replace(IN_PLACE[0], "".join(IN_PLACE)))


def built(folder: Path, source: str) -> ctypes.CDLL:
    (folder / "shim.cpp").write_text(source)
    runtime = RUNTIME
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", f"-I{runtime}", f"-I{runtime / 'include'}"]
    subprocess.run(["g++", *flags, str(folder / "shim.cpp"), "-o", str(folder / "shim.so")], check=True)
    return ctypes.CDLL(str(folder / "shim.so"))


def ask(shim: ctypes.CDLL, *tensors: Given | None) -> int:
    row = (ctypes.POINTER(Tensor) * 5)()
    for place, t in enumerate(tensors):
        if t is not None:
            row[place] = ctypes.pointer(t.tensor)
    said: int = shim.shim(row)
    return said


def tensors(rank: int, dtype: tuple[int, int]) -> st.SearchStrategy[Given]:
    """Mostly ordinary tensors close to each other in memory, and all that may be odd about one."""
    near = st.integers(0, 60).map(lambda i: i * 8)
    extents = st.one_of(st.integers(1, 6), st.sampled_from([1, 1, 0, -1, 1 << 27, 1 << 28, 1 << 40, (1 << 63) - 1]))
    steps = st.one_of(st.integers(1, 40), st.sampled_from([0, 1, 1, -1, -7, 1 << 28, -(1 << 28), -(1 << 63)]))
    shape = st.tuples(*[extents] * rank)
    return st.builds(
        Given,
        st.one_of(near.map(lambda i: 4096 + i), st.sampled_from([0, 4097])),
        shape,
        st.one_of(st.none(), st.tuples(*[steps] * rank)),
        st.sampled_from([dtype] * 9 + [F32]),
        st.sampled_from([1] * 30 + [2]),
        st.sampled_from([0] * 30 + [1]),
        st.sampled_from([0] * 10 + [8]),
    )


X, ROW, COLUMNS = Given(4096, (4, 8), (8, 1)), Given(8192, (8,), None), Given(4096, (4, 8), (16, 1))


@given(
    st.tuples(
        tensors(2, BF16),
        st.none() | tensors(1, BF16),
        st.none() | tensors(3, F64),
        tensors(2, BF16),
        st.none() | tensors(2, BF16),
    )
)
@example((X, ROW, None, COLUMNS, None))
def test_it_takes_no_more_and_reads_the_same(shim: ctypes.CDLL, given_: tuple[Given | None, ...]) -> None:
    assert ask(shim, *given_) >= 0


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ((X, None, None, Given(8192, (4, 8), None), None), TAKEN),
        ((X, ROW, Given(256, (1, 1, 1), (9, 9, 9), F64), Given(12288, (1, 8), (99, 1)), None), TAKEN),
        ((X, None, None, Given(8192, (4, 8), (-8, 1)), None), READ),  # rows from the last up
        ((X, None, None, Given(8192, (4, 8), (1, 4)), None), READ),  # by columns
        ((COLUMNS, None, None, Given(4096 + 16, (4, 8), (16, 1)), None), READ),  # beside it in the same rows
        ((X, None, None, X, None), REFUSED),
        ((X, None, None, Given(8192, (4, 8), (0, 1)), None), REFUSED),
        ((X, None, None, Given(8192, (4, 8), None), Given(8200, (4, 8), None)), REFUSED),
        ((X, None, None, Given(8193, (4, 8), None), None), REFUSED),
        ((X, None, None, Given(0, (4, 8), None), None), REFUSED),
        ((X, None, None, None, None), LEFT),
        ((X, None, None, Given(8192, (0, 8), None), None), LEFT),
        ((X, None, None, Given(8192, (1 << 29, 8), None), None), LEFT),
        ((X, None, None, Given(8192, (4, 8), None, F32), None), LEFT),
        ((X, None, None, Given(8192, (4, 8), None, device=1), None), LEFT),
        ((X, None, None, Given(8192, (4, 8), None, lanes=2), None), LEFT),
        ((X, X, None, Given(8192, (4, 8), None), None), LEFT),  # of another rank
    ],
)
def test_what_is_taken(shim: ctypes.CDLL, given_: tuple[Given | None, ...], wanted: int) -> None:
    assert ask(shim, *given_) == wanted


@given(
    st.tuples(
        tensors(2, BF16),
        st.none() | tensors(1, BF16),
        st.none(),
        tensors(2, BF16) | st.none(),
        st.none() | tensors(2, BF16),
    ),
    st.booleans(),
)
def test_in_place_it_takes_no_more_and_reads_the_same(
    shim_in_place: ctypes.CDLL, given_: tuple[Given | None, ...], same: bool
) -> None:
    x, bias, scale, out, more = given_
    assert ask(shim_in_place, x, bias, scale, x if same else out, more) >= 0


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ((X, None, None, X, None), TAKEN),
        ((X, None, None, Given(4096, (4, 8), None), None), TAKEN),  # the same strides, not written down
        ((Given(4096, (1, 8), (77, 1)), None, None, Given(4096, (1, 8), (99, 1)), None), TAKEN),
        ((Given(4096, (4, 4), (-4, 1)), None, None, Given(4096, (4, 4), (-4, 1)), None), READ),
        ((X, None, None, Given(8192, (4, 8), None), None), TAKEN),
        ((X, None, None, Given(4096 + 2, (4, 8), None), None), REFUSED),
        ((X, None, None, COLUMNS, None), REFUSED),
        ((Given(4096, (8, 8), (8, 1)), None, None, Given(4096, (8, 8), (1, 8)), None), REFUSED),
        ((X, None, None, Given(4096, (2, 8), None), None), REFUSED),
        ((X, None, None, X, X), REFUSED),  # of two outputs
        ((X, None, None, Given(8192, (4, 8), None), X), REFUSED),
        ((X, Given(4096, (8,), None), None, X, None), REFUSED),
    ],
)
def test_an_output_in_an_input_s_memory(
    shim_in_place: ctypes.CDLL, given_: tuple[Given | None, ...], wanted: int
) -> None:
    assert ask(shim_in_place, *given_) == wanted
