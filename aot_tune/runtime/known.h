// Calls like earlier ones: what a thread's calls got as arguments, and which variants they got. A new call
// may be like one of them in everything that checks, guards and the variants' workspaces depend on. Then it
// gets the same variant without new checks. Only the places of its memory differ, and are checked at each
// call.
#ifndef AOT_TUNE_RUNTIME_KNOWN_H_
#define AOT_TUNE_RUNTIME_KNOWN_H_

#include <cstring>
#include <utility>

#include "plain.h"

namespace aot_tune {

template <const OperatorInfo& Op>
constexpr size_t axes_before(size_t tensor) {
  size_t count = 0;
  for (size_t i = 0; i < tensor; ++i) count += static_cast<size_t>(Op.tensors[i].rank);
  return count;
}

// The bits of a scalar or an attribute.
template <typename Value>
uint64_t bits_of(Value value) noexcept {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

inline uint64_t bits_of(const ScalarInfo& info, const Scalar& scalar) noexcept {
  switch (info.kind) {
    case ScalarInfo::kF32:
      return bits_of(scalar.f32);
    case ScalarInfo::kF64:
      return bits_of(scalar.f64);
    case ScalarInfo::kBool:
      return bits_of(scalar.truth);
    default:
      return static_cast<uint64_t>(dim_of(info, scalar));
  }
}

// Rank and dtype. They are adjacent.
inline uint64_t kind_of(const DLTensor& tensor) noexcept {
  static_assert(offsetof(DLTensor, dtype) == offsetof(DLTensor, ndim) + 4 && sizeof(DLDataType) == 4, "");
  uint64_t kind;
  std::memcpy(&kind, reinterpret_cast<const char*>(&tensor) + offsetof(DLTensor, ndim), sizeof kind);
  return kind;
}

// The offset of a tensor's beginning within 64 bytes.
inline uint64_t place_of(const DLTensor& tensor) noexcept {
  return (reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset) & 63;
}

// A tensor as kernels get it, without data and shape, which differ between calls.
struct Argument {
  DLTensor tensor;  // it has -1 axes if none is passed
  uintptr_t mask;   // the bits of an address that tell its alignment
  uintptr_t alignment;
  uintptr_t below;  // bytes from the first element to the begin and the end of its memory
  uintptr_t above;
  bool row_major;
};

// A remembered call. One of zeros is like no call. `Launch` is the type of the variants' functions.
template <const OperatorInfo& Op, size_t Options, typename Launch>
struct Known {
  static constexpr size_t kCount = static_cast<size_t>(Op.tensor_count);
  static constexpr size_t kAxes = axes_before<Op>(kCount);
  using Tensors = std::make_index_sequence<kCount>;

  const Backend* backend;
  void* context;  // the thread's context, from its backend, when it ran
  Launch launch;  // the variant's function
  size_t size;    // of the workspace
  int32_t variant;
  bool settled;  // its workspace only depends on the call, and it loads nothing more
  bool direct;   // and it has no workspace, and the context is known
  bool alone;    // it gets one thread
  uint64_t options[Options];
  Argument tensors[kCount];
  int64_t shape[kAxes + 1];
  int64_t strides[kAxes + 1];
  int64_t views[kAxes + 1];  // strides as kernels get them

  // Whether a call is like this one. If so, `tensors` are its tensors.
  __attribute__((always_inline)) bool recall(const DLTensor* const* given, const uint64_t* passed) noexcept {
    uint64_t other = 0;
    for (size_t i = 0; i < Options; ++i) other |= options[i] ^ passed[i];
    return other == 0 && backend != nullptr && recall_all(given, Tensors());
  }

  // Whether it can be launched in the thread's present state: nothing is loaded, no memory is allocated.
  __attribute__((always_inline)) bool is_ready() const noexcept {
    return direct && backend->context() == context;
  }

  // The memory of tensor `i` of a recalled call.
  void view(size_t i, View* out) const noexcept {
    const Argument& mine = tensors[i];
    out->low = reinterpret_cast<uintptr_t>(mine.tensor.data) + mine.below;
    out->high = reinterpret_cast<uintptr_t>(mine.tensor.data) + mine.above;
    out->empty = false;
  }

  // Remembers the arguments of a call whose views are plain. The caller fills in the rest.
  void keep(const DLTensor* const* given, const uint64_t* passed, const View* seen) noexcept {
    for (size_t i = 0; i < Options; ++i) options[i] = passed[i];
    for (size_t i = 0; i < kCount; ++i) keep_one(i, given[i], seen[i]);
  }

 private:
  template <size_t I>
  __attribute__((always_inline)) bool recall_one(const DLTensor* tensor) noexcept {
    constexpr size_t at = axes_before<Op>(I);
    constexpr int rank = Op.tensors[I].rank;
    Argument& mine = tensors[I];
    if (tensor == nullptr) return Op.tensors[I].optional && mine.tensor.ndim < 0;
    if (bits_of(tensor->device) != bits_of(mine.tensor.device) || kind_of(*tensor) != kind_of(mine.tensor) ||
        tensor->shape == nullptr || is_nowhere(tensor->data))
      return false;
    uint64_t other = 0;
#pragma GCC unroll 8
    for (int i = 0; i < rank; ++i) other |= static_cast<uint64_t>(tensor->shape[i] ^ shape[at + i]);
    if (tensor->strides == nullptr) {
      if (!mine.row_major) return false;
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < rank; ++i) other |= static_cast<uint64_t>(tensor->strides[i] ^ strides[at + i]);
    }
    uintptr_t address;
    if (!first_element(*tensor, address)) return false;
    if ((other | ((address & mine.mask) ^ mine.alignment)) != 0) return false;
    mine.tensor.data = reinterpret_cast<void*>(address);
    mine.tensor.shape = tensor->shape;
    return true;
  }

  template <size_t... I>
  __attribute__((always_inline)) bool recall_all(const DLTensor* const* given,
                                                 std::index_sequence<I...> all) noexcept {
    return (recall_one<I>(given[I]) && ...) && (is_alone<I>(given, all) && ...);
  }

  // Whether an output shares no memory with other tensors. If that is not obvious, the answer is no.
  template <size_t I, size_t... Others>
  __attribute__((always_inline)) bool is_alone(const DLTensor* const* given,
                                               std::index_sequence<Others...>) const noexcept {
    if constexpr (!Op.tensors[I].written()) return true;
    return given[I] == nullptr || (is_beside<I, Others>(given) && ...);
  }

  template <size_t Output, size_t Other>
  __attribute__((always_inline)) bool is_beside(const DLTensor* const* given) const noexcept {
    if constexpr (Output == Other || (Op.tensors[Other].written() && Other > Output)) return true;
    if (given[Other] == nullptr) return true;
    const Argument &a = tensors[Output], &b = tensors[Other];
    const auto first = reinterpret_cast<uintptr_t>(a.tensor.data);
    const auto second = reinterpret_cast<uintptr_t>(b.tensor.data);
    if constexpr (may_alias(Op, Output, Other)) {
      if (first == second && same_strides<Output, Other>()) return true;
    }
    return first + a.below >= second + b.above || second + b.below >= first + a.above;
  }

  // For two tensors of the same shape.
  template <size_t One, size_t Other>
  bool same_strides() const noexcept {
    constexpr size_t size = static_cast<size_t>(Op.tensors[One].rank) * sizeof views[0];
    return std::memcmp(views + axes_before<Op>(One), views + axes_before<Op>(Other), size) == 0;
  }

  void keep_one(size_t tensor, const DLTensor* given, const View& seen) noexcept {
    Argument& mine = tensors[tensor];
    const size_t at = axes_before<Op>(tensor);
    mine.tensor.ndim = -1;
    if (given == nullptr) return;
    const auto data = reinterpret_cast<uintptr_t>(seen.tensor.data);
    const auto alignment = static_cast<uintptr_t>(alignment_of(seen.tensor.data));
    mine.tensor = seen.tensor;
    mine.tensor.strides = views + at;
    mine.mask = alignment < 64 ? 2 * alignment - 1 : 63;  // 64 also stands for every better alignment
    mine.alignment = data & mine.mask;
    mine.below = seen.low - data;
    mine.above = seen.high - data;
    mine.row_major = true;
    uint64_t step = 1;  // of a row-major tensor; that of a broadcast one may not fit 64 bits
    for (int i = Op.tensors[tensor].rank - 1; i >= 0; --i) {
      const size_t axis = at + static_cast<size_t>(i);
      shape[axis] = given->shape[i];
      strides[axis] = given->strides != nullptr ? given->strides[i] : static_cast<int64_t>(step);
      views[axis] = seen.strides[i];
      mine.row_major &= strides[axis] == static_cast<int64_t>(step);
      step *= static_cast<uint64_t>(given->shape[i]);
    }
  }
};

// Memory of zeros, aligned to 64 bytes, that lives as long as the thread. `place`, which is also the
// thread's, points to it, and is NULL afterwards. Returns NULL if there is no memory. A thread_local of that
// size would take stack from each thread of a program that is linked with the library.
void* thread_memory(size_t size, void** place) noexcept;

// The calls of an operator that a thread remembers. Each has a number that tells most calls apart. It is
// never 0.
template <typename Call>
struct alignas(64) KnownCalls {
  static constexpr uint32_t kCalls = 7;
  static constexpr uint32_t kRare = 16;

  uint64_t numbers[kCalls];
  uint64_t missed;  // the number of the last call, if it was like none
  uint32_t misses;
  uint32_t next;  // the next one to replace
  Call calls[kCalls];

  Call* find(uint64_t number) noexcept {
    for (uint32_t i = 0; i < kCalls; ++i) {
      if (numbers[i] == number) return calls + i;
    }
    return nullptr;
  }

  // The place for a call that was like none. NULL if it is not to be remembered. Remembering takes longer
  // than it saves the next call. So a call only replaces others if it comes twice in a row. A few more are
  // let in, so that calls that no longer come do not stay for ever.
  Call* room(uint64_t number) noexcept {
    const bool worthwhile = missed == number || ++misses % kRare == 0;
    missed = number;
    if (!worthwhile && numbers[kCalls - 1] != 0) return nullptr;
    if (Call* const mine = find(number)) return worthwhile ? mine : nullptr;
    const uint32_t place = next;
    next = (next + 1) % kCalls;
    numbers[place] = number;
    return calls + place;
  }
};

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_KNOWN_H_
