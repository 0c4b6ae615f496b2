"""C++ that calls a function of the author's: conversions, which never lose a bit of an integer, and launches."""

from __future__ import annotations

from aot_tune.render.template_functions import TENSOR

__all__ = ["CUDA_INCLUDES", "CUDA_LAUNCH", "FP8_INCLUDE", "INCLUDES", "NAMESPACE", "PASSING", "UNSIGNED"]

NAMESPACE = "aot_tune_glue"

INCLUDES = """\
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>
"""

CUDA_INCLUDES = """\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

"""

FP8_INCLUDE = "#include <cuda_fp8.h>\n"
"""For tensors of f8, in front of the others."""

PASSING = f"""\
namespace {NAMESPACE} {{

{TENSOR}
constexpr int32_t unavailable = -100;  // AOT_TUNE_UNAVAILABLE: the next variant serves

[[maybe_unused]] inline int64_t next_power_of_2(int64_t n) {{
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}}

// What is passed: each becomes the type that the function takes.
struct Pointer {{
  const void* data;
  template <typename T>
  static constexpr bool fits = std::is_pointer_v<T>;
  template <typename T>
  T to(bool*) const {{
    return (T)data;
  }}
}};
struct Integer {{
  int64_t value;
  template <typename T>
  static constexpr bool fits = !std::is_pointer_v<T>;
  template <typename T>
  T to(bool* lost) const {{
    if constexpr (std::is_enum_v<T>) {{
      return static_cast<T>(to<std::underlying_type_t<T>>(lost));
    }} else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {{
      const T one = static_cast<T>(value);
      if (static_cast<int64_t>(one) != value || (value < 0 && !std::is_signed_v<T>)) *lost = true;
      return one;
    }} else if constexpr (std::is_arithmetic_v<T>) {{
      return static_cast<T>(value);
    }} else {{
      return T(static_cast<float>(value));
    }}
  }}
}};
struct Real {{
  double value;
  template <typename T>
  static constexpr bool fits = !std::is_pointer_v<T> && !std::is_integral_v<T>;
  template <typename T>
  T to(bool*) const {{
    if constexpr (std::is_arithmetic_v<T>) {{
      return static_cast<T>(value);
    }} else {{
      return T(static_cast<float>(value));
    }}
  }}
}};
template <typename V>
struct Value {{
  V value;
  template <typename T>
  static constexpr bool fits = std::is_constructible_v<T, V>;
  template <typename T>
  T to(bool*) const {{
    return static_cast<T>(value);
  }}
}};
template <typename V>
Value(V) -> Value<V>;

// The types of a function's parameters.
template <typename F>
struct Signature;
template <typename R, typename... P>
struct Signature<R (*)(P...)> {{
  static constexpr size_t count = sizeof...(P);
  using Values = std::tuple<std::decay_t<P>...>;
  template <size_t I>
  using Type = std::tuple_element_t<I, Values>;
}};
#ifdef __cpp_noexcept_function_type
template <typename R, typename... P>
struct Signature<R (*)(P...) noexcept> : Signature<R (*)(P...)> {{}};
#endif

template <typename F, size_t I, typename A>
constexpr bool takes = A::template fits<typename Signature<F>::template Type<I>>;

template <typename F, typename... A, size_t... I>
typename Signature<F>::Values converted(bool* lost, std::index_sequence<I...>, const A&... arguments) {{
  return typename Signature<F>::Values{{arguments.template to<typename Signature<F>::template Type<I>>(lost)...}};
}}

// A field of a struct that is passed.
template <typename T, typename A>
void assign(T& field, const A& argument, bool* lost) {{
  field = argument.template to<std::remove_cv_t<T>>(lost);
}}

// Calls a function of the host; what it returns, if anything, is a status.
template <typename F, typename... A>
int32_t call_function(F function, const A&... arguments) {{
  bool lost = false;
  auto values = converted<F>(&lost, std::index_sequence_for<A...>{{}}, arguments...);
  if (lost) return unavailable;
#ifdef __cpp_exceptions
  try {{
#endif
    if constexpr (std::is_void_v<decltype(std::apply(function, values))>) {{
      std::apply(function, values);
      return 0;
    }} else {{
      return static_cast<int32_t>(std::apply(function, values));
    }}
#ifdef __cpp_exceptions
  }} catch (...) {{
    return -1;
  }}
#endif
}}

}}  // namespace {NAMESPACE}

"""

UNSIGNED = f"""\
namespace {NAMESPACE} {{

// An integer of 64 bits without a sign.
struct Unsigned {{
  uint64_t value;
  template <typename T>
  static constexpr bool fits = !std::is_pointer_v<T>;
  template <typename T>
  T to(bool* lost) const {{
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {{
      const T one = static_cast<T>(value);
      if (static_cast<uint64_t>(one) != value || (std::is_signed_v<T> && value > uint64_t{{INT64_MAX}})) *lost = true;
      return one;
    }} else {{
      return static_cast<T>(value);
    }}
  }}
}};

}}  // namespace {NAMESPACE}

"""
"""Behind `PASSING`, where a scalar of u64 is passed."""

CUDA_LAUNCH = f"""\
namespace {NAMESPACE} {{

struct Shape {{
  int64_t grid[3], block[3], cluster[3], shared;
  bool cooperative;
}};

inline bool fits(const int64_t (&extents)[3], int64_t x, int64_t y, int64_t z) {{
  return extents[0] <= x && extents[1] <= y && extents[2] <= z;
}}

inline dim3 as_dim3(const int64_t (&extents)[3]) {{
  return {{static_cast<unsigned>(extents[0]), static_cast<unsigned>(extents[1]), static_cast<unsigned>(extents[2])}};
}}

[[maybe_unused]] inline int64_t count_multiprocessors() {{
  int device = 0, found = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device);
  return found;
}}

// Asks for more dynamic shared memory than every kernel may have, once for each device.
template <typename F>
cudaError_t allow_shared(F kernel, int64_t bytes) {{
  constexpr int devices = 64;
  static int64_t allowed[devices];
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const bool known = device < devices;
  if (known && __atomic_load_n(&allowed[device], __ATOMIC_ACQUIRE) >= bytes) return cudaSuccess;
  error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
  if (error == cudaSuccess && known) __atomic_store_n(&allowed[device], bytes, __ATOMIC_RELEASE);
  return error;
}}

// Launches a kernel. Returns a cudaError_t, which is not kept as the last error.
template <typename F, typename... A>
int32_t launch_function(F kernel, const Shape& shape, void* stream, const A&... arguments) {{
  constexpr int64_t large = 2147483647, few = 65535;
  if (!fits(shape.grid, large, few, few) || !fits(shape.block, 1024, 1024, 64) ||
      shape.block[0] * shape.block[1] * shape.block[2] > 1024)
    return unavailable;
  for (int axis = 0; axis < 3; ++axis)
    if (shape.grid[axis] <= 0) return cudaSuccess;  // nothing to do
  bool lost = false;
  auto values = converted<F>(&lost, std::index_sequence_for<A...>{{}}, arguments...);
  if (lost) return unavailable;
  cudaError_t error = cudaSuccess;
  if (shape.shared > 48 * 1024) error = allow_shared(kernel, shape.shared);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {{}};
  config.gridDim = as_dim3(shape.grid);
  config.blockDim = as_dim3(shape.block);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  if (shape.cluster[0] * shape.cluster[1] * shape.cluster[2] > 1) {{
    cudaLaunchAttribute& one = attributes[config.numAttrs++];
    one.id = cudaLaunchAttributeClusterDimension;
    one.val.clusterDim.x = static_cast<unsigned>(shape.cluster[0]);
    one.val.clusterDim.y = static_cast<unsigned>(shape.cluster[1]);
    one.val.clusterDim.z = static_cast<unsigned>(shape.cluster[2]);
  }}
  if (shape.cooperative) {{
    cudaLaunchAttribute& one = attributes[config.numAttrs++];
    one.id = cudaLaunchAttributeCooperative;
    one.val.cooperative = 1;
  }}
  if (error == cudaSuccess)
    error = std::apply([&](auto&... value) {{ return cudaLaunchKernelEx(&config, kernel, value...); }}, values);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}}

// Loads a kernel on the current device.
template <typename F>
int32_t load_function(F kernel) {{
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}}

// What launches of the author's have left as the last error, which is not kept.
[[maybe_unused]] inline int32_t last_error(int32_t status) {{
  const cudaError_t error = cudaGetLastError();
  return status != 0 ? status : static_cast<int32_t>(error);
}}

}}  // namespace {NAMESPACE}

"""
