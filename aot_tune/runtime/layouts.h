// The order of a tensor's axes in memory.
#ifndef AOT_TUNE_RUNTIME_LAYOUTS_H_
#define AOT_TUNE_RUNTIME_LAYOUTS_H_

#include <cstdint>

#include "tables.h"

namespace aot_tune {

// The axes of a tensor from the slowest to the fastest. False if they are in that order already, or if some
// are broadcast. An axis of extent 1 counts as in a row-major tensor.
inline bool axes_in_memory(const DLTensor* tensor, int* order) {
  if (tensor == nullptr || tensor->shape == nullptr || tensor->strides == nullptr || tensor->ndim > kMaxRank)
    return false;
  uint64_t steps[kMaxRank];
  bool other = false;
  for (int axis = tensor->ndim - 1; axis >= 0; --axis) {
    const int64_t stride = tensor->strides[axis];
    const bool last = axis == tensor->ndim - 1;
    steps[axis] = stride < 0 ? 0 - static_cast<uint64_t>(stride) : static_cast<uint64_t>(stride);
    if (tensor->shape[axis] == 1)
      steps[axis] = last ? 1 : static_cast<uint64_t>(tensor->shape[axis + 1]) * steps[axis + 1];
    else if (stride == 0)
      return false;
  }
  for (int axis = 0; axis < tensor->ndim; ++axis) {
    int place = axis;
    for (; place > 0 && steps[order[place - 1]] < steps[axis]; --place) order[place] = order[place - 1];
    order[place] = axis;
    other = other || place != axis;
  }
  return other;
}

// The first `count` axes as one. False if there is no single distance from each of its elements to the next.
inline bool as_one(const DLTensor& tensor, int count, int64_t* extent, int64_t* stride) {
  int64_t elements = 1, step = 0;
  bool known = false, whole = true;
  for (int i = count - 1; i >= 0; --i) {
    const int64_t n = tensor.shape[i];
    int64_t next = 0;
    if (tensor.strides != nullptr && n != 1) {
      if (known)
        whole &= !__builtin_mul_overflow(step, elements, &next) && tensor.strides[i] == next;
      else
        step = tensor.strides[i];
      known = true;
    }
    whole &= !__builtin_mul_overflow(elements, n, &elements);
  }
  for (int i = 0; i < count; ++i) {
    if (tensor.shape[i] == 0) elements = 0, whole = true;
  }
  *extent = elements;
  *stride = step;
  return whole;
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_LAYOUTS_H_
