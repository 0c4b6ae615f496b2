// The checks of check.cpp for calls without anything unusual. The compiler knows the operator. Most calls are
// like that, and otherwise the checks would take most of a call's time. Everything else is left to check.cpp,
// which also finds out what is wrong.
#ifndef AOT_TUNE_RUNTIME_PLAIN_H_
#define AOT_TUNE_RUNTIME_PLAIN_H_

#include <utility>

#include "runtime.h"

namespace aot_tune {

// An axis of extent 1 gets stride 1 if that makes some axis contiguous (the last such axis). Otherwise it
// gets the stride of a row-major tensor. No element's address changes. So guards on strides see one form of
// each layout.
__attribute__((always_inline)) inline void canonical_strides(const int64_t* shape, int rank,
                                                             int64_t* strides) noexcept {
  bool unit = false;
#pragma GCC unroll 8
  for (int i = 0; i < rank; ++i) unit |= shape[i] != 1 && strides[i] == 1;
#pragma GCC unroll 8
  for (int i = rank - 1; i >= 0; --i) {
    if (shape[i] != 1) continue;
    if (!unit || i == rank - 1) {
      strides[i] = 1;
      unit = true;
    } else {
      strides[i] =
          static_cast<int64_t>(static_cast<uint64_t>(shape[i + 1]) * static_cast<uint64_t>(strides[i + 1]));
    }
  }
}

inline bool is_dtype(const DLDataType& given, uint8_t code, uint8_t bits) noexcept {
  return given.code == code && given.bits == bits && given.lanes == 1;
}

// Whether a pointer is NULL, perhaps with an offset. torch has such pointers in views whose storage was
// freed. No allocator returns addresses below 64 KiB.
inline bool is_nowhere(const void* data) noexcept { return reinterpret_cast<uintptr_t>(data) < 65536; }

// The address of a tensor's first element, or of no element if its pointer is NULL. False if there is no such
// address.
inline bool first_element(const DLTensor& given, uintptr_t& address) noexcept {
  address = reinterpret_cast<uintptr_t>(given.data);
  return given.data == nullptr || !__builtin_add_overflow(address, given.byte_offset, &address);
}

inline bool same_device(const DLDevice& a, const DLDevice& b) noexcept {
  return a.device_type == b.device_type && a.device_id == b.device_id;
}

// Whether a tensor has the dtype of its variable. The first tensor of a variable decides the choice.
__attribute__((always_inline)) inline bool is_choice(const VariableInfo& variable, const DLDataType& given,
                                                     int32_t& chosen) noexcept {
  if (chosen >= 0) return is_dtype(given, variable.types[chosen].code, variable.types[chosen].bits);
  for (int32_t i = 0; i < variable.count; ++i) {
    if (!is_dtype(given, variable.types[i].code, variable.types[i].bits)) continue;
    chosen = i;
    return true;
  }
  return false;
}

// The view of a tensor of `Rank` axes that has elements, and whose extents and strides are far from the
// limits of 64 bits. False for others.
template <int Rank>
bool view_plainly(const DLTensor& given, View& view) noexcept {
  uint64_t wide = 0;
  uint64_t step = 1;  // of a row-major tensor; if it does not fit 64 bits, `wide` has shown that already
  int64_t below = 0;
  int64_t above = 0;
  bool single = false;
#pragma GCC unroll 8
  for (int i = Rank - 1; i >= 0; --i) {
    const int64_t extent = given.shape[i];
    const int64_t stride = given.strides != nullptr ? given.strides[i] : static_cast<int64_t>(step);
    step *= static_cast<uint64_t>(extent);
    view.strides[i] = stride;
    wide |= (static_cast<uint64_t>(extent) - 1) | static_cast<uint64_t>(stride ^ (stride >> 63));
    if (wide >> 28 != 0) return false;  // this includes extents of 0 or less
    const int64_t span = (extent - 1) * stride;
    (span < 0 ? below : above) += span;
    single |= extent == 1;
  }
  if (single) canonical_strides(given.shape, Rank, view.strides);
  uintptr_t data;
  if (!first_element(given, data)) return false;
  const int64_t size = given.dtype.bits / 8;
  view.tensor = {
      reinterpret_cast<void*>(data), given.device, Rank, given.dtype, given.shape, view.strides, 0};
  view.low = data + static_cast<uintptr_t>(below * size);
  view.high = data + static_cast<uintptr_t>((above + 1) * size);
  view.empty = false;
  return true;
}

template <const OperatorInfo& Op, size_t I>
bool read_one(const DLTensor* const* given, View* views, int32_t* dtypes, const DLTensor*& first) noexcept {
  constexpr TensorInfo info = Op.tensors[I];
  const DLTensor* const tensor = given[I];
  if (tensor == nullptr) return info.optional;
  if (tensor->ndim != info.rank || tensor->shape == nullptr) return false;
  if constexpr (info.variable >= 0) {
    if (!is_choice(Op.variables[info.variable], tensor->dtype, dtypes[info.variable])) return false;
  } else {
    if (!is_dtype(tensor->dtype, info.type.code, info.type.bits)) return false;
  }
  if (first == nullptr) first = tensor;
  return same_device(tensor->device, first->device) && view_plainly<info.rank>(*tensor, views[I]);
}

template <const OperatorInfo& Op, size_t... I>
bool read_all(const DLTensor* const* given, View* views, int32_t* dtypes,
              std::index_sequence<I...>) noexcept {
  const DLTensor* first = nullptr;
  return (read_one<Op, I>(given, views, dtypes, first) && ...);
}

// Does what `read_tensors` does, or returns false. Then `read_tensors` must be called.
template <const OperatorInfo& Op>
bool read_plainly(const DLTensor* const* given, View* views, int32_t* dtypes) noexcept {
  for (int32_t i = 0; i < Op.variable_count; ++i) dtypes[i] = -1;
  return read_all<Op>(given, views, dtypes, std::make_index_sequence<Op.tensor_count>());
}

// Whether each axis, from the last on, steps over everything that the axes after it reach.
template <int Rank>
bool is_row_major(const View& view) noexcept {
  int64_t reach = 0;
#pragma GCC unroll 8
  for (int i = Rank - 1; i >= 0; --i) {
    const int64_t extent = view.tensor.shape[i];
    if (extent != 1 && view.strides[i] <= reach) return false;
    reach += (extent - 1) * view.strides[i];
  }
  return true;
}

template <const OperatorInfo& Op, size_t Output, size_t Other>
bool is_apart(const DLTensor* const* given, const View* views) noexcept {
  if constexpr (Output == Other || (Op.tensors[Other].written() && Other > Output)) return true;
  if constexpr (may_alias(Op, Output, Other)) {
    if (given[Other] != nullptr && are_same(views[Output], views[Other])) return true;
  }
  return given[Other] == nullptr || views[Output].low >= views[Other].high ||
         views[Other].low >= views[Output].high;
}

template <const OperatorInfo& Op, size_t I, size_t... Others>
bool is_plain_memory(const DLTensor* const* given, const View* views,
                     std::index_sequence<Others...>) noexcept {
  constexpr TensorInfo info = Op.tensors[I];
  if (given[I] == nullptr) return true;
  const DLTensor& tensor = views[I].tensor;
  const uintptr_t beyond = reinterpret_cast<uintptr_t>(tensor.data) & (tensor.dtype.bits / 8u - 1u);
  if (is_nowhere(tensor.data) || beyond != 0) return false;
  if constexpr (info.written()) {
    return is_row_major<info.rank>(views[I]) && (is_apart<Op, I, Others>(given, views) && ...);
  }
  return true;
}

template <const OperatorInfo& Op, size_t... I>
bool are_plain_memory(const DLTensor* const* given, const View* views,
                      std::index_sequence<I...> all) noexcept {
  return (is_plain_memory<Op, I>(given, views, all) && ...);
}

// Whether `check_memory` cannot object to tensors that `read_plainly` took. If false, it must be called.
template <const OperatorInfo& Op>
bool has_plain_memory(const DLTensor* const* given, const View* views) noexcept {
  return are_plain_memory<Op>(given, views, std::make_index_sequence<Op.tensor_count>());
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_PLAIN_H_
