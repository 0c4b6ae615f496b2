"""The short way through the checks of a call, and a call that is taken for one before it.

The short way takes only what the full one takes, and reads the same from it. What is remembered passes all checks, and
kernels get it as if nothing was remembered.
"""

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
#include "known.h"
namespace aot_tune {
int32_t fail(int32_t code, const char*, ...) noexcept { return code; }
void Text::add(const char*, ...) noexcept {}
namespace {
constexpr DTypeInfo kChoices[] = {{"bf16", 4, 16}, {"f32", 2, 32}};
constexpr VariableInfo kVariables[] = {{"T", kChoices, 2}};
// The last number of `out`: the inputs whose memory it may be.
#define TENSORS(SCALE_RANK, ALIASES) \\
  {{"x", "", "", 4, 16, 2, false, false, 0}, {"bias", "", "", 4, 16, 1, false, true, 0}, \\
   {"scale", "", "", 2, 64, SCALE_RANK, false, true, -1}, {"out", "", "", 4, 16, 2, true, false, 0, false, ALIASES}, \\
   {"more", "", "", 4, 16, 2, true, true, 0}}
constexpr TensorInfo kMatrices[] = TENSORS(3, 0), kOnto[] = TENSORS(3, 1);
constexpr TensorInfo kScaled[] = TENSORS(0, 0), kScaledOnto[] = TENSORS(0, 1);
constexpr OperatorInfo kPlain = {"test", kMatrices, 5, kVariables, 1}, kPlainOnto = {"test", kOnto, 5, kVariables, 1};
constexpr OperatorInfo kKnown = {"test", kScaled, 5, kVariables, 1};
constexpr OperatorInfo kKnownOnto = {"test", kScaledOnto, 5, kVariables, 1};
const Backend backend = {"test", 2, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};

bool same(const View& a, const View& b) {
  bool same = a.low == b.low && a.high == b.high && a.empty == b.empty && a.tensor.data == b.tensor.data &&
              same_device(a.tensor.device, b.tensor.device) && a.tensor.ndim == b.tensor.ndim &&
              is_dtype(a.tensor.dtype, b.tensor.dtype.code, b.tensor.dtype.bits) && a.tensor.dtype.lanes == 1 &&
              a.tensor.shape == b.tensor.shape && a.tensor.strides == a.strides && a.tensor.byte_offset == 0;
  for (int i = 0; i < a.tensor.ndim; ++i) same &= a.strides[i] == b.strides[i];
  return same;
}
// Whether all that guards and variants read of two tensors is the same; of memory that is its alignment.
bool alike(const DLTensor& a, const DLTensor& b) {
  bool same = same_device(a.device, b.device) && a.ndim == b.ndim && a.byte_offset == 0 && b.byte_offset == 0 &&
              is_dtype(a.dtype, b.dtype.code, b.dtype.bits) && a.dtype.lanes == 1 &&
              alignment_of(a.data) == alignment_of(b.data);
  for (int i = 0; same && i < a.ndim; ++i) same = a.shape[i] == b.shape[i] && a.strides[i] == b.strides[i];
  return same;
}
// 0 when the short way leaves a call to the full one; 1 when it reads it, 2 when both refuse its memory, 3 when it
// takes it.
template <const OperatorInfo& kOperator>
int32_t read_both_ways(const DLTensor* const* given) {
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

// Of two calls: 0 when the first is not remembered, 1 when the second is not like it, 2 when it is; else negative.
template <const OperatorInfo& kOperator>
int32_t call_twice(const DLTensor* const* first, const DLTensor* const* second, float factor, float other) {
  static Known<kOperator, 1, int (*)()> known;
  known = {};
  const uint64_t options[] = {bits_of(factor)}, others[] = {bits_of(other)};
  View before[5], full[5], out[5];
  int32_t dtype, full_dtype;
  if (known.recall(first, options)) return -1;
  if (!read_plainly<kOperator>(first, before, &dtype) || !has_plain_memory<kOperator>(first, before)) return 0;
  known.keep(first, options, before);
  known.backend = &backend;
  if (!known.recall(first, options)) return -2;
  if (!known.recall(second, others)) return 1;
  if (options[0] != others[0]) return -3;
  if (read_tensors(kOperator, second, full, &full_dtype) != 0 || dtype != full_dtype) return -4;
  if (check_memory(kOperator, second, full) != 0) return -5;
  for (int i = 0; i < 5; ++i) {
    if ((first[i] == nullptr) != (second[i] == nullptr)) return -6;
    if (first[i] == nullptr) continue;
    const DLTensor& got = known.tensors[i].tensor;
    if (!alike(before[i].tensor, full[i].tensor) || !alike(got, full[i].tensor)) return -7;
    if (got.data != full[i].tensor.data || got.shape != second[i]->shape) return -8;
    known.view(static_cast<size_t>(i), &out[i]);
    if (out[i].low != full[i].low || out[i].high != full[i].high || out[i].empty) return -9;
  }
  return 2;
}
}  // namespace
}  // namespace aot_tune

using namespace aot_tune;
extern "C" int32_t plain(bool in_place, const DLTensor* const* given) {
  return in_place ? read_both_ways<kPlainOnto>(given) : read_both_ways<kPlain>(given);
}

extern "C" int32_t known(bool in_place, const DLTensor* const* first, const DLTensor* const* second, float factor,
                         float other) {
  return in_place ? call_twice<kKnownOnto>(first, second, factor, other)
                  : call_twice<kKnown>(first, second, factor, other);
}

// Calls by their numbers: 0 when one is like another before it, 1 when it is remembered, else 2.
extern "C" void simulate(const uint64_t* numbers, int32_t count, int32_t* said) {
  static aot_tune::KnownCalls<uint64_t> calls;
  calls = {};
  for (int32_t i = 0; i < count; ++i) {
    uint64_t* const found = calls.find(numbers[i]);
    said[i] = found != nullptr && *found == numbers[i] ? 0 : 2;
    if (said[i] == 0) calls.missed = 0;
    if (said[i] == 0) continue;
    if (uint64_t* const place = calls.room(numbers[i])) *place = numbers[i], said[i] = 1;
  }
}
"""
LEFT, READ, REFUSED, TAKEN = range(4)
FORGOTTEN, OTHER, LIKE = range(3)
Call = tuple[Given | None, ...]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = ctypes.CDLL(str(compiled(tmp_path_factory.mktemp("known"), SHIM, "-Wall", "-Wextra", "-shared", "-fPIC")))
    library.plain.argtypes = (ctypes.c_bool, ctypes.c_void_p)
    library.known.argtypes = (ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_float)
    return library


def compiled(folder: Path, source: str, *flags: str) -> Path:
    (folder / "shim.cpp").write_text(source)
    includes = [f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}"]
    subprocess.run(["g++", "-std=c++17", *flags, *includes, "shim.cpp", "-o", "shim"], cwd=folder, check=True)
    return folder / "shim"


def pointers(tensors: Call) -> ctypes.Array[ctypes._Pointer[Tensor]]:
    row = (ctypes.POINTER(Tensor) * 5)()
    for place, t in enumerate(tensors):
        if t is not None:
            row[place] = ctypes.pointer(t.tensor)
    return row


# ---- The short way


def read(shim: ctypes.CDLL, *tensors: Given | None, in_place: bool = False) -> int:
    said: int = shim.plain(in_place, pointers(tensors))
    return said


def odd_tensors(rank: int, dtype: tuple[int, int]) -> st.SearchStrategy[Given]:
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
odd_calls = st.tuples(
    odd_tensors(2, BF16),
    st.none() | odd_tensors(1, BF16),
    st.none() | odd_tensors(3, F64),
    odd_tensors(2, BF16),
    st.none() | odd_tensors(2, BF16),
)


@given(odd_calls, st.booleans())
@example((X, ROW, None, COLUMNS, None), False)
def test_it_takes_no_more_and_reads_the_same(shim: ctypes.CDLL, call: Call, same: bool) -> None:
    assert read(shim, *call) >= 0
    assert read(shim, *call[:3], call[0] if same else call[3], call[4], in_place=True) >= 0


def test_what_is_taken(shim: ctypes.CDLL) -> None:
    for call, wanted in (
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
    ):
        assert read(shim, *call) == wanted, call


def test_an_output_in_an_input_s_memory(shim: ctypes.CDLL) -> None:
    for call, wanted in (
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
    ):
        assert read(shim, *call, in_place=True) == wanted, call


# ---- Calls that are remembered


def ask(
    shim: ctypes.CDLL, first: Call, second: Call, factor: float = 1.0, other: float = 1.0, *, in_place: bool = False
) -> int:
    said: int = shim.known(in_place, pointers(first), pointers(second), factor, other)
    return said


def tensors(rank: int, dtype: tuple[int, int], place: int) -> st.SearchStrategy[Given]:
    """Few different ones, so that two are often alike but for one thing."""
    shapes = [(2,) * rank, (1,) * rank, (1, 2)[:rank], (0, 2)[:rank]]
    return st.builds(
        Given,
        st.sampled_from([4096, 4096 + 1024, 4104, 4128, 4097, 0]).map(lambda data: data and data + place),
        st.sampled_from([shapes[0]] * 6 + shapes),
        st.sampled_from([None, None, (2, 1)[:rank], (1, 1)[:rank], (4, 1)[:rank], (-2, 1)[:rank], (0, 1)[:rank]]),
        st.sampled_from([dtype] * 12 + [F32]),
        st.sampled_from([1] * 20 + [2]),
        st.sampled_from([0] * 20 + [1]),
        st.sampled_from([0] * 5 + [8, 64]),
    )


def calls() -> st.SearchStrategy[Call]:
    return st.tuples(
        tensors(2, BF16, 0),
        st.none() | tensors(1, BF16, 65536),
        st.none() | tensors(0, F64, 0),
        st.sampled_from([131072, 131072, 131072, 0]).flatmap(lambda place: tensors(2, BF16, place)),
        st.none() | tensors(2, BF16, 262144),
    )


def x(data: int = 4096, strides: tuple[int, ...] | None = None, **more: int) -> Given:
    return Given(data, (4, 8), strides, **more)


PLAIN: Call = (x(), None, None, x(8192), None)


@given(calls(), calls(), st.sampled_from([1.0, 1.0, 1.0, 2.0]), st.booleans(), st.booleans())
@example(PLAIN, PLAIN, 1.0, True, False)
@example(PLAIN, PLAIN, 1.0, False, True)
def test_what_is_like_another_call_passes_the_checks(
    shim: ctypes.CDLL, first: Call, second: Call, other: float, one: bool, two: bool
) -> None:
    assert ask(shim, first, second, 1.0, other) >= 0
    assert ask(shim, first, first) in (FORGOTTEN, LIKE)
    first, second = ((*c[:3], c[0], c[4]) if same else c for c, same in ((first, one), (second, two)))
    assert ask(shim, first, second, in_place=True) >= 0
    assert ask(shim, first, first, in_place=True) in (FORGOTTEN, LIKE)


def test_what_makes_a_call_another_one(shim: ctypes.CDLL) -> None:
    for second, wanted in (
        (PLAIN, LIKE),
        ((x(16384), None, None, x(), None), LIKE),  # elsewhere
        ((x(4032, offset=64), None, None, x(8192, (8, 1)), None), LIKE),
        ((x(4096 + 8), None, None, x(8192), None), OTHER),  # aligned less
        ((x(4096, (9, 1)), None, None, x(8192), None), OTHER),
        ((x(device=1), None, None, x(8192, device=1), None), OTHER),
        ((x(lanes=2), None, None, x(8192), None), OTHER),
        ((Given(4096, (8, 4), None), None, None, x(8192), None), OTHER),
        ((Given(4096, (4, 8), None, F32), None, None, Given(8192, (4, 8), None, F32), None), OTHER),
        ((x(), Given(256, (8,), None), None, x(8192), None), OTHER),
        ((x(), None, None, None, None), OTHER),
        ((x(), None, None, x(8192), x(12288)), OTHER),
        ((x(0), None, None, x(8192), None), OTHER),
        ((x(), None, None, x(), None), OTHER),  # the output in the input
        ((x(), None, None, x(4096 + 32), None), OTHER),
        ((x(), None, None, x(4096 + 64), None), LIKE),  # behind it
    ):
        assert ask(shim, PLAIN, second) == wanted, second
    assert ask(shim, PLAIN, PLAIN, 0.0, -0.0) == OTHER  # numbers are compared by their bits
    assert ask(shim, PLAIN, PLAIN, float("nan"), float("nan")) == LIKE


def simulate(shim: ctypes.CDLL, numbers: list[int]) -> list[int]:
    said = (ctypes.c_int32 * len(numbers))()
    shim.simulate((ctypes.c_uint64 * len(numbers))(*numbers), len(numbers), said)
    return list(said)


def test_as_many_calls_as_there_is_room_for_are_all_known(shim: ctypes.CDLL) -> None:
    assert simulate(shim, [*range(1, 8)] * 3) == [1] * 7 + [0] * 14


def test_calls_that_are_always_new_are_hardly_remembered(shim: ctypes.CDLL) -> None:
    said = simulate(shim, [*range(1, 1001)])
    assert said[:7] == [1] * 7
    assert said.count(0) == 0
    assert said.count(1) == 7 + 1000 // 16


def test_a_new_call_takes_the_place_of_old_ones_when_it_comes_again(shim: ctypes.CDLL) -> None:
    assert simulate(shim, [*range(1, 8), 9, 9, 9, 9]) == [1] * 7 + [2, 1, 0, 0]
    said = simulate(shim, [*range(1, 8)] + [*range(11, 16)] * 40)
    assert said[-5:] == [0] * 5  # others by and by


WIDE = """
#include "check.cpp"
#include "known.h"
namespace aot_tune {
int32_t fail(int32_t code, const char*, ...) noexcept { return code; }
void Text::add(const char*, ...) noexcept {}
constexpr TensorInfo kTensors[] = {{"x", "", "", 2, 32, 4, false, false, -1},
                                   {"out", "", "", 2, 32, 1, true, false, -1}};
constexpr OperatorInfo kOperator = {"test", kTensors, 2, nullptr, 0};
const Backend backend = {"test", 1, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
}  // namespace aot_tune

int main() {
  using namespace aot_tune;
  alignas(64) static float data[2][16];
  int64_t shape[] = {1 << 27, 1 << 27, 1 << 27, 16}, broadcast[] = {0, 0, 0, 1};
  DLTensor x = {data[0], {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, shape, broadcast, 0};
  DLTensor out = {data[1], {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape + 3, nullptr, 0};
  const DLTensor* given[] = {&x, &out};
  const uint64_t options[] = {0};
  View seen[2];
  static Known<kOperator, 1, int (*)()> known;
  if (!read_plainly<kOperator>(given, seen, nullptr) || !has_plain_memory<kOperator>(given, seen)) return 1;
  known.keep(given, options, seen);
  known.backend = &backend;
  if (!known.recall(given, options)) return 2;
  x.strides = nullptr;
  return known.recall(given, options) ? 3 : 0;
}
"""


def test_a_broadcast_tensor_of_more_elements_than_64_bits_count(tmp_path: Path) -> None:
    subprocess.run([compiled(tmp_path, WIDE, "-fsanitize=undefined", "-fno-sanitize-recover=all")], check=True)


def test_calls_in_place_are_remembered_as_long_as_they_are_exactly_so(shim: ctypes.CDLL) -> None:
    here: Call = (x(), None, None, x(), None)
    assert ask(shim, here, here, in_place=True) == LIKE
    assert ask(shim, here, PLAIN, in_place=True) == LIKE
    assert ask(shim, PLAIN, (x(12288), None, None, x(12288), None), in_place=True) == LIKE
    rows, far = (8, 1), (64, 1)
    apart: Call = (x(4096, far), None, None, x(65536, far), None)
    assert ask(shim, apart, (x(4096, far), None, None, x(4096 + 128, far), None), in_place=True) == OTHER
    assert ask(shim, apart, (x(4096, far), None, None, x(4096, far), None), in_place=True) == LIKE
    wide: Call = (x(4096, (16, 1)), None, None, x(65536, rows), None)
    assert ask(shim, wide, (x(4096, (16, 1)), None, None, x(4096, rows), None), in_place=True) == OTHER
