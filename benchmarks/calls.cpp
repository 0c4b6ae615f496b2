// Calls of the installed library on tensors of one element, or a few, timed from C. Compiled against its
// header.
#include <aot_tune/ops.h>

#include <cstdlib>
#include <initializer_list>

#include "timing.h"

namespace {

constexpr size_t kWorkspace = size_t{64} << 20;

struct Tensor {
  alignas(64) float value[16] = {1.0f};
  int64_t shape[2] = {1, 1};
  int64_t strides[2] = {1, 1};
  DLTensor view{};

  Tensor() {
    view.data = value;
    view.device.device_type = kDLCPU;
    view.ndim = 2;
    view.dtype = {kDLFloat, 32, 1};
    view.shape = shape;
    view.strides = strides;
  }
};

Tensor first, second, square, result;

typedef int32_t (*SiluMulLaunch)(const DLTensor*, const DLTensor*, const DLTensor*, void*, size_t, void*);
typedef int32_t (*GemmLaunch)(const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
                              const DLTensor*, int32_t, int32_t, void*, size_t, void*);

void* workspace() {
  static void* const memory = std::aligned_alloc(64, kWorkspace);
  return memory;
}

}  // namespace

extern "C" {

// From now on tensors have this many columns, at most 4, and second factors as many rows.
void calls_columns(int64_t columns) {
  for (Tensor* t : {&first, &second, &square, &result}) t->shape[1] = t->strides[0] = columns;
  square.shape[0] = columns;
}

double calls_silu_mul(int64_t count) {
  return time_calls(count,
                    [] { return aot_tune_silu_mul(&first.view, &second.view, &result.view, nullptr); });
}

double calls_gemm(int64_t count) {
  return time_calls(count, [] {
    return aot_tune_gemm(&first.view, &square.view, nullptr, nullptr, &result.view, 0, 0, nullptr);
  });
}

// The kernel that the library would call, without the library.
double calls_silu_mul_kernel(void* launch, int64_t count) {
  const auto kernel = reinterpret_cast<SiluMulLaunch>(launch);
  return time_calls(count, [kernel] {
    return kernel(&first.view, &second.view, &result.view, workspace(), kWorkspace, nullptr);
  });
}

double calls_gemm_kernel(void* launch, int64_t count) {
  const auto kernel = reinterpret_cast<GemmLaunch>(launch);
  return time_calls(count, [kernel] {
    return kernel(&first.view, &square.view, nullptr, nullptr, &result.view, 0, 0, workspace(), kWorkspace,
                  nullptr);
  });
}

}  // extern "C"
