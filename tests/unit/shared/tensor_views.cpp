// What the headers for tensors of programs make, and refuse; and calls of a linked library with them.
#include <aot_tune/tensor.hpp>
#include <array>
#include <cstdio>
#include <cstring>
#include <vector>

#include "aot_tune/ops.h"
#include "aot_tune/tensor.h"

namespace {

struct Half {
  uint16_t bits;
};

int failures = 0;

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("not so: %s\n", what);
  ++failures;
}

#define EXPECT(what) expect(what, #what)

// The exception's words, empty where there was none.
template <class Function>
std::string said(Function function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

bool is(DLDataType dtype, int code, int bits) {
  return dtype.code == code && dtype.bits == bits && dtype.lanes == 1;
}

template <class T>
bool has(int code) {
  return is(aot_tune::dtype_of<T>::value, code, sizeof(T) * 8);
}

}  // namespace

template <>
struct aot_tune::dtype_of<Half> {
  static constexpr DLDataType value = aot_tune::f16;
};

using aot_tune::contiguous;
using aot_tune::strided;
using aot_tune::Tensor;

void views() {
  std::vector<float> x(24);
  const Tensor made = contiguous(x, {2, 3, 4});
  const DLTensor* view = made;
  EXPECT(view->data == x.data() && view->ndim == 3 && is(view->dtype, 2, 32) && view->byte_offset == 0);
  EXPECT(view->device.device_type == kDLCPU && view->device.device_id == 0);
  EXPECT(view->shape[0] == 2 && view->shape[1] == 3 && view->shape[2] == 4);
  EXPECT(view->strides[0] == 12 && view->strides[1] == 4 && view->strides[2] == 1);
  EXPECT(made.axes() == 3 && made.extent(1) == 3 && made.stride(1) == 4 && made.reach() == 24);

  Tensor copy = contiguous(x, {24});
  copy = made.transposed(0, 2);
  view = copy;
  EXPECT(view->ndim == 3 && view->shape[0] == 4 && view->strides[0] == 1 && view->strides[2] == 12);
  const DLTensor* first = made;
  EXPECT(first->shape[0] == 2 && view->shape != first->shape && view->strides != first->strides);
  std::vector<Tensor> many(5, made);  // copies have their own extents
  for (const Tensor& one : many) {
    const DLTensor* its = one;
    EXPECT(its->shape[2] == 4 && its->shape != first->shape);
  }

  const std::array<int64_t, 2> shape{2, 3};
  const std::vector<int64_t> strides{12, 4};
  const float* constant = x.data();
  view = nullptr;
  const Tensor rows = strided(constant, shape, strides, aot_tune::cuda(3));
  view = rows;
  EXPECT(view->strides[0] == 12 && view->device.device_type == kDLCUDA && view->device.device_id == 3);
  EXPECT(rows.reach() == 21);
  const Tensor backwards = strided(x.data() + 23, {24}, {-1});
  EXPECT(backwards.stride(0) == -1);
  const Tensor scalar = contiguous(x.data(), aot_tune::Sizes(nullptr, 0));
  EXPECT(scalar.axes() == 0 && scalar.reach() == 1);
  const Tensor empty = contiguous(static_cast<double*>(nullptr), {0, 5});
  EXPECT(empty.reach() == 0);
  const Tensor named = contiguous(static_cast<const void*>(x.data()), aot_tune::bf16, {48}, aot_tune::rocm());
  view = named;
  EXPECT(is(view->dtype, 4, 16) && view->device.device_type == kDLROCM);
  const Tensor both = strided(x.data(), aot_tune::i32, {2}, {3});
  view = both;
  EXPECT(is(view->dtype, 0, 32) && view->strides[0] == 3);
}

void dtypes() {
  EXPECT(has<float>(2) && has<double>(2) && has<Half>(2) && has<bool>(6));
  EXPECT(has<int8_t>(0) && has<int16_t>(0) && has<int32_t>(0) && has<int64_t>(0) && has<long long>(0));
  EXPECT(has<uint8_t>(1) && has<uint16_t>(1) && has<uint32_t>(1) && has<uint64_t>(1));
#if defined(__FLT16_MANT_DIG__)
  EXPECT(has<_Float16>(2));
#endif
  EXPECT(is(aot_tune::f8e4m3, 10, 8) && is(aot_tune::f8e5m2, 12, 8));
  EXPECT(is(AOT_TUNE_F8E4M3, 10, 8) && is(AOT_TUNE_F8E5M2, 12, 8) && is(AOT_TUNE_BOOL, 6, 8));
  EXPECT(is(AOT_TUNE_F64, 2, 64) && is(AOT_TUNE_F32, 2, 32) && is(AOT_TUNE_F16, 2, 16) &&
         is(AOT_TUNE_BF16, 4, 16));
  EXPECT(is(AOT_TUNE_I8, 0, 8) && is(AOT_TUNE_I16, 0, 16) && is(AOT_TUNE_I32, 0, 32) &&
         is(AOT_TUNE_I64, 0, 64));
  EXPECT(is(AOT_TUNE_U8, 1, 8) && is(AOT_TUNE_U16, 1, 16) && is(AOT_TUNE_U32, 1, 32) &&
         is(AOT_TUNE_U64, 1, 64));
}

void refusals() {
  std::vector<float> x(10);
  std::puts(said([&] { contiguous(x, {2, 6}); }).c_str());
  std::puts(said([&] { contiguous(x, {1, 1, 1, 1, 1, 1, 1, 1, 1}); }).c_str());
  std::puts(said([&] { contiguous(x, {2, -1}); }).c_str());
  std::puts(said([&] { strided(x, {2, 2}, {1}); }).c_str());
  std::puts(said([&] { strided(x, {2}, {-1}); }).c_str());
  std::puts(said([&] { strided(x, {3}, {INT64_MAX}); }).c_str());
  std::puts(said([&] { contiguous(static_cast<float*>(nullptr), {2}); }).c_str());
  std::puts(said([&] { contiguous(reinterpret_cast<char*>(x.data()) + 2, aot_tune::f32, {2}); }).c_str());
  std::puts(said([&] { contiguous(x.data(), {INT64_C(1) << 32, INT64_C(1) << 32}); }).c_str());
  std::puts(said([&] { contiguous(x, {2, 5}).transposed(0, 2); }).c_str());
}

void calls() {
  std::vector<float> a{1, 2, 3, 4, 5, 6}, b{1, 0, 0, 1, 1, 1}, y(4);
  const Tensor out = contiguous(y, {2, 2});
  aot_tune::check(
      aot_tune_gemm(contiguous(a, {2, 3}), contiguous(b, {3, 2}), nullptr, nullptr, out, 0, nullptr),
      aot_tune_last_error);
  EXPECT((y == std::vector<float>{4, 5, 10, 11}));
  const Tensor turned = contiguous(a, {3, 2}).transposed(0, 1);
  aot_tune::check(aot_tune_gemm(turned, contiguous(b, {3, 2}), nullptr, nullptr, out, 0, nullptr),
                  aot_tune_last_error);
  EXPECT((y == std::vector<float>{6, 8, 8, 10}));
  try {
    aot_tune::check(aot_tune_gemm(turned, turned, nullptr, nullptr, out, 0, nullptr), aot_tune_last_error);
    EXPECT(false);
  } catch (const aot_tune::Error& error) {
    EXPECT(error.status() == AOT_TUNE_ERROR_SHAPE);
    std::puts(error.what());
  }
}

int main() {
  views();
  dtypes();
  refusals();
  calls();
  return failures == 0 ? 0 : 1;
}
