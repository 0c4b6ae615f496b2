// Tensors in memory that a program has, for C++17, and errors of calls as exceptions. There is nothing to
// link.
//
//   std::vector<float> x(6), y(6);
//   const aot_tune::Tensor in = aot_tune::contiguous(x, {2, 3}), out = aot_tune::contiguous(y, {2, 3});
//   aot_tune::check(aot_tune_softmax(in, out, nullptr), aot_tune_last_error);
//
// A tensor is a view. The memory belongs to the program, and must live as long as the view. If a program is
// compiled without exceptions, an error is written to stderr and ends the program.
#ifndef AOT_TUNE_TENSOR_HPP_
#define AOT_TUNE_TENSOR_HPP_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#if __has_include(<stdfloat>)
#include <stdfloat>
#endif

#include "aot_tune/base.h"

namespace aot_tune {

// ---- Errors

// A call that failed: the library's own words, and its aot_tune_status.
class Error : public std::runtime_error {
 public:
  Error(int32_t status, const std::string& text) : std::runtime_error(text), status_(status) {}
  int32_t status() const noexcept { return status_; }

 private:
  int32_t status_;
};

namespace detail {

template <class Failure>
[[noreturn]] inline void raise(const Failure& failure) {
#ifdef __cpp_exceptions
  throw failure;
#else
  std::fprintf(stderr, "aot_tune: %s\n", failure.what());
  std::abort();
#endif
}

[[noreturn]] inline void refuse(const std::string& text) { raise(std::invalid_argument("tensor: " + text)); }

template <class>
constexpr bool kNever = false;

}  // namespace detail

// Throws Error if a call failed. `last_error` is the function <prefix>_last_error of the called library.
inline void check(int32_t status, const char* (*last_error)()) {
  if (status != AOT_TUNE_OK) detail::raise(Error(status, last_error()));
}

// ---- Devices

constexpr DLDevice cpu() noexcept { return {kDLCPU, 0}; }
constexpr DLDevice cuda(int32_t id = 0) noexcept { return {kDLCUDA, id}; }
constexpr DLDevice rocm(int32_t id = 0) noexcept { return {kDLROCM, id}; }

// ---- Dtypes

constexpr DLDataType dtype(int code, int bits) noexcept {
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
}

// DLPack's codes as numbers, because a copy of dlpack.h may be older than those of 8 bits.
inline constexpr DLDataType f64 = dtype(2, 64), f32 = dtype(2, 32), f16 = dtype(2, 16), bf16 = dtype(4, 16);
inline constexpr DLDataType f8e4m3 = dtype(10, 8), f8e5m2 = dtype(12, 8), boolean = dtype(6, 8);
inline constexpr DLDataType i8 = dtype(0, 8), i16 = dtype(0, 16), i32 = dtype(0, 32), i64 = dtype(0, 64);
inline constexpr DLDataType u8 = dtype(1, 8), u16 = dtype(1, 16), u32 = dtype(1, 32), u64 = dtype(1, 64);

// The dtype of a C++ type. To give a type of your own a dtype, specialise:
//   template <> struct aot_tune::dtype_of<Half> { static constexpr DLDataType value = aot_tune::f16; };
template <class T, class = void>
struct dtype_of {
  static_assert(
      detail::kNever<T>,
      "aot_tune: this type of elements has no dtype. Specialise aot_tune::dtype_of for it, or name the "
      "dtype: aot_tune::contiguous(pointer, aot_tune::bf16, shape). CUDA's types have one where their "
      "headers were included before aot_tune/tensor.hpp");
};

template <class T>
struct dtype_of<T, std::enable_if_t<std::is_integral_v<T>>> {
  static constexpr DLDataType value =
      std::is_same_v<T, bool> ? boolean : dtype(std::is_unsigned_v<T> ? 1 : 0, int{sizeof(T)} * 8);
};

template <class T>
struct dtype_of<T, std::enable_if_t<std::is_same_v<T, float> || std::is_same_v<T, double>>> {
  static constexpr DLDataType value = dtype(2, int{sizeof(T)} * 8);
};

#ifdef __STDCPP_FLOAT16_T__
template <>
struct dtype_of<std::float16_t> {
  static constexpr DLDataType value = f16;
};
#endif
#ifdef __STDCPP_BFLOAT16_T__
template <>
struct dtype_of<std::bfloat16_t> {
  static constexpr DLDataType value = bf16;
};
#endif
#if defined(__FLT16_MANT_DIG__) && !defined(__STDCPP_FLOAT16_T__) && defined(__GNUC__) && !defined(__CUDACC__)
template <>
struct dtype_of<_Float16> {
  static constexpr DLDataType value = f16;
};
#endif
#ifdef __CUDA_FP16_TYPES_EXIST__
template <>
struct dtype_of<__half> {
  static constexpr DLDataType value = f16;
};
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
template <>
struct dtype_of<__nv_bfloat16> {
  static constexpr DLDataType value = bf16;
};
#endif
#ifdef __CUDA_FP8_TYPES_EXIST__
template <>
struct dtype_of<__nv_fp8_e4m3> {
  static constexpr DLDataType value = f8e4m3;
};
template <>
struct dtype_of<__nv_fp8_e5m2> {
  static constexpr DLDataType value = f8e5m2;
};
#endif

// ---- Tensors

constexpr size_t kMostAxes = 8;  // the most axes of any operator

// Extents or strides: {2, 3}, or any array of int64_t that has data() and size().
class Sizes {
 public:
  Sizes(std::initializer_list<int64_t> given) noexcept : Sizes(given.begin(), given.size()) {}
  Sizes(const int64_t* data, size_t count) noexcept : count_(count) {
    for (size_t i = 0; i < count && i < kMostAxes; ++i) values_[i] = data[i];
  }
  template <class Array, class = std::enable_if_t<std::is_convertible_v<
                             decltype(std::declval<const Array&>().data()), const int64_t*>>>
  Sizes(const Array& array) noexcept : Sizes(array.data(), array.size()) {}

  int64_t operator[](size_t axis) const noexcept { return values_[axis]; }
  size_t size() const noexcept { return count_; }

 private:
  int64_t values_[kMostAxes]{};
  size_t count_;
};

// A view of memory. It is passed where a library takes a `const DLTensor*`. It contains its extents and
// strides, and may be copied. The functions below make it.
class Tensor {
 public:
  // Throws std::invalid_argument if no call could take the tensor. Without strides, it is row-major.
  Tensor(const void* data, DLDataType dtype, DLDevice device, Sizes shape, const Sizes* strides = nullptr) {
    if (shape.size() > kMostAxes) {
      detail::refuse("it has " + std::to_string(shape.size()) + " axes, and operators have at most 8");
    }
    if (strides != nullptr && strides->size() != shape.size()) {
      detail::refuse("it has " + std::to_string(shape.size()) + " extents and " +
                     std::to_string(strides->size()) + " strides: give one stride for each axis");
    }
    view_ = {const_cast<void*>(data), device, static_cast<int32_t>(shape.size()), dtype, shape_, strides_, 0};
    int64_t dense = 1;
    for (size_t axis = shape.size(); axis-- > 0;) {
      const int64_t extent = shape[axis];
      if (extent < 0) {
        detail::refuse("axis " + std::to_string(axis) + " has the extent " + std::to_string(extent));
      }
      shape_[axis] = extent;
      strides_[axis] = strides != nullptr ? (*strides)[axis] : dense;
      if (extent > 0 && dense > std::numeric_limits<int64_t>::max() / extent) {
        detail::refuse("the product of its extents is above 2^63");
      }
      dense *= extent;
      if (extent == 0) empty_ = true;
    }
    const uintptr_t size = dtype.bits / 8u;
    if (data == nullptr && !empty_) detail::refuse("its data is NULL: pass a pointer to its first element");
    if (size > 1 && reinterpret_cast<uintptr_t>(data) % size != 0) {
      detail::refuse("its data is not aligned to the " + std::to_string(size) + " bytes of an element");
    }
  }

  Tensor(const Tensor& other) noexcept { *this = other; }
  Tensor& operator=(const Tensor& other) noexcept {
    view_ = other.view_;
    empty_ = other.empty_;
    view_.shape = shape_;
    view_.strides = strides_;
    for (int32_t axis = 0; axis < view_.ndim; ++axis) {
      shape_[axis] = other.shape_[axis];
      strides_[axis] = other.strides_[axis];
    }
    return *this;
  }

  operator const DLTensor*() const noexcept { return &view_; }

  size_t axes() const noexcept { return static_cast<size_t>(view_.ndim); }
  int64_t extent(size_t axis) const noexcept { return shape_[axis]; }
  int64_t stride(size_t axis) const noexcept { return strides_[axis]; }

  // The view of the same memory with two axes exchanged.
  Tensor transposed(size_t one, size_t other) const {
    if (one >= axes() || other >= axes()) {
      detail::refuse("transposed(" + std::to_string(one) + ", " + std::to_string(other) + ") of " +
                     std::to_string(axes()) + " axes");
    }
    Tensor made = *this;
    std::swap(made.shape_[one], made.shape_[other]);
    std::swap(made.strides_[one], made.strides_[other]);
    return made;
  }

  // How many elements of memory it spans from data on. Throws std::invalid_argument if it begins before data.
  uint64_t reach() const {
    if (empty_) return 0;
    uint64_t last = 0;
    for (size_t axis = 0; axis < axes(); ++axis) {
      if (strides_[axis] < 0 && shape_[axis] > 1) {
        detail::refuse("axis " + std::to_string(axis) + " has the stride " + std::to_string(strides_[axis]) +
                       ", which leads out of the container: pass a pointer to the first element");
      }
      if (shape_[axis] == 1) continue;
      const auto step = static_cast<uint64_t>(strides_[axis]);
      const auto steps = static_cast<uint64_t>(shape_[axis] - 1);
      constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
      if (step > (kMost - last) / steps) detail::refuse("it reaches over more than 2^63 elements");
      last += steps * step;
    }
    return last + 1;
  }

 private:
  DLTensor view_{};
  int64_t shape_[kMostAxes]{};
  int64_t strides_[kMostAxes]{};
  bool empty_ = false;
};

// Row-major, at a typed pointer.
template <class T, class = std::enable_if_t<!std::is_void_v<T>>>
Tensor contiguous(T* data, Sizes shape, DLDevice device = cpu()) {
  return Tensor(data, dtype_of<std::remove_cv_t<T>>::value, device, shape);
}

// Row-major, of a named dtype.
inline Tensor contiguous(const void* data, DLDataType dtype, Sizes shape, DLDevice device = cpu()) {
  return Tensor(data, dtype, device, shape);
}

// With any strides, in elements, at a typed pointer.
template <class T, class = std::enable_if_t<!std::is_void_v<T>>>
Tensor strided(T* data, Sizes shape, Sizes strides, DLDevice device = cpu()) {
  return Tensor(data, dtype_of<std::remove_cv_t<T>>::value, device, shape, &strides);
}

// With any strides, in elements, of a named dtype.
inline Tensor strided(const void* data, DLDataType dtype, Sizes shape, Sizes strides,
                      DLDevice device = cpu()) {
  return Tensor(data, dtype, device, shape, &strides);
}

namespace detail {

template <class Container>
using Element = std::remove_pointer_t<decltype(std::declval<Container&>().data())>;

inline Tensor within(const Tensor& tensor, size_t held) {
  if (tensor.reach() > held) {
    refuse("it needs " + std::to_string(tensor.reach()) + " elements, and the container holds " +
           std::to_string(held));
  }
  return tensor;
}

}  // namespace detail

// From a container of the host, such as std::vector, std::array or std::span. Throws std::invalid_argument if
// the container is too small.
template <class Container, class T = detail::Element<Container>>
Tensor contiguous(Container& container, Sizes shape) {
  return detail::within(contiguous(static_cast<T*>(container.data()), shape), container.size());
}

template <class Container, class T = detail::Element<Container>>
Tensor strided(Container& container, Sizes shape, Sizes strides) {
  return detail::within(strided(static_cast<T*>(container.data()), shape, strides), container.size());
}

}  // namespace aot_tune

#endif  // AOT_TUNE_TENSOR_HPP_
