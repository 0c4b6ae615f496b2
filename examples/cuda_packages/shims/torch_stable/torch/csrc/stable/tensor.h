// The names of PyTorch that vllm's host functions use, so that sources with kernels compile without it.
// Nobody calls these functions: the library launches the kernels itself. Checks and dispatch by dtype are
// left out, and so are the kernels that they would compile.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#define STD_TORCH_CHECK(...) (void)0
#define THO_DISPATCH_SWITCH(...) (void)0
#define TORCH_ERROR_CODE_CHECK(...) (void)0

// Globals of vllm's host code would be constructed when the library is loaded. No kernel's object may have
// such globals, so they become pointers.
#define device_flags (*device_flags)
#define device_properties (*device_properties)

namespace torch {
namespace headeronly {
// Types that replace the toolkit's and convert to float themselves. `Of` gives the type for a toolkit's type.
template <typename T>
struct alignas(2) Narrow {
  T x;
  Narrow() = default;
  __host__ __device__ Narrow(float value) : x(value) {}
  __host__ __device__ operator float() const { return x; }
};
using BFloat16 = Narrow<__nv_bfloat16>;
using Half = Narrow<__half>;
template <typename T>
using Of = std::conditional_t<std::is_same_v<T, float>, float, Narrow<T>>;
struct Float8_e4m3fn {
  Float8_e4m3fn() = default;
  struct from_bits {};
  __host__ __device__ explicit Float8_e4m3fn(float) {}
  __host__ __device__ Float8_e4m3fn(uint8_t bits, from_bits) : x(bits) {}
  uint8_t x;
};
struct Float8_e4m3fnuz {
  uint8_t x;
};
using IntHeaderOnlyArrayRef = std::vector<int64_t>;
enum class ScalarType { Int, Long, Float, Half, BFloat16, Float8_e4m3fn };
}  // namespace headeronly

namespace stable {
struct Device {
  bool is_cuda() const { return true; }
};
struct Tensor {
  int64_t dim() const { return 0; }
  int64_t numel() const { return 0; }
  int64_t size(int64_t) const { return 0; }
  int64_t stride(int64_t) const { return 0; }
  int64_t element_size() const { return 0; }
  int get_device_index() const { return 0; }
  bool is_contiguous() const { return true; }
  Device device() const { return {}; }
  headeronly::ScalarType scalar_type() const { return {}; }
  std::vector<int64_t> sizes() const { return {}; }
  std::vector<int64_t> strides() const { return {}; }
  template <typename T = void>
  T* mutable_data_ptr() const {
    return nullptr;
  }
  template <typename T = void>
  const T* const_data_ptr() const {
    return nullptr;
  }
};
template <typename... A>
Tensor from_blob(const A&...) {
  return {};
}
namespace accelerator {
struct DeviceGuard {
  explicit DeviceGuard(int) {}
};
}  // namespace accelerator
}  // namespace stable
}  // namespace torch

namespace c10 = torch::headeronly;

template <typename T>
__device__ c10::Narrow<T> __ldg(const c10::Narrow<T>* place) {
  return *place;
}
