// Calls of the installed library on tensors of one element, or a few, timed from C. Compiled against its
// header.
#include <aot_tune/ops.h>
#include <time.h>

#include <cstdlib>
#include <initializer_list>

namespace {

double now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

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

// Mean time of a call in ns; -1 if one fails.
template <typename Call>
double time_calls(int64_t count, Call call) {
  int32_t failed = 0;
  const double begin = now_ns();
  for (int64_t i = 0; i < count; ++i) failed |= call();
  const double spent = now_ns() - begin;
  return failed != 0 ? -1 : spent / static_cast<double>(count);
}

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

// Validation without memory checks, dispatch, and the variant's workspace function. No kernel runs.
double calls_gemm_workspace(int64_t m, int64_t n, int64_t k, int64_t count) {
  Tensor a, b, out;
  a.shape[0] = m, a.shape[1] = a.strides[0] = k;
  b.shape[0] = b.strides[1] = k, b.shape[1] = n;
  out.shape[0] = m, out.shape[1] = out.strides[0] = n;
  size_t size = 0;
  return time_calls(count, [&] {
    return aot_tune_gemm_workspace(&a.view, &b.view, nullptr, nullptr, &out.view, 0, 0, &size);
  });
}

// Validation and dispatch of products of many sizes (M, N, K each), with b stored by columns, once each in
// turn. Tensors need no memory, because none is read.
double calls_gemm_sizes(int32_t device, int32_t code, int32_t bits, const int64_t* sizes, int64_t count) {
  Tensor a, b, out;
  for (Tensor* t : {&a, &b, &out}) {
    t->view.device.device_type = static_cast<DLDeviceType>(device);
    t->view.dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
  }
  b.strides[0] = out.strides[1] = a.strides[1] = 1;
  size_t size = 0;
  const int64_t* next = sizes;
  return time_calls(count, [&] {
    const int64_t m = next[0], n = next[1], k = next[2];
    next += 3;
    a.shape[0] = m, a.shape[1] = a.strides[0] = b.shape[0] = b.strides[1] = k;
    b.shape[1] = n, out.shape[0] = m, out.shape[1] = out.strides[0] = n;
    return aot_tune_gemm_workspace(&a.view, &b.view, nullptr, nullptr, &out.view, 0, 0, &size);
  });
}

}  // extern "C"
