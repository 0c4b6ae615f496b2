// The shapes of a call: leading dims that are taken as one, and tensors that do not exist yet.
#ifndef AOT_TUNE_RUNTIME_SHAPES_H_
#define AOT_TUNE_RUNTIME_SHAPES_H_

#include "layouts.h"
#include "runtime.h"

namespace aot_tune {

// The leading dims of a call.
struct Leading {
  const int64_t* extents = nullptr;
  int32_t count = -1;  // -1 if each tensor has exactly one axis for them
};

// Takes the leading dims of all tensors as one axis. `tensors` then point to `taken`, which has room for each
// tensor that folds. If a tensor has fewer axes than any such call, it stays: it is refused by its rank.
int32_t fold(const OperatorInfo& op, const DLTensor** tensors, DLTensor* const* taken,
             Leading* leading) noexcept;

// Gives outputs that are to be made the leading dims of a call in place of their first axis. What they were
// goes to `taken`.
int32_t unfold(const OperatorInfo& op, const Leading& leading, DLTensor* const* made,
               DLTensor* const* taken) noexcept;

// The error for an output that has no shape in a call.
int32_t no_shape(const OperatorInfo& op, int tensor) noexcept __attribute__((cold));

// Dense strides, with the axes in the order of another tensor's, if there is one.
void lay_out_like(const DLTensor* like, DLTensor* made) noexcept;

// Row-major strides.
__attribute__((always_inline)) inline void lay_out(const int64_t* shape, int rank,
                                                   int64_t* strides) noexcept {
  uint64_t step = 1;
#pragma GCC unroll 8
  for (int axis = rank - 1; axis >= 0; --axis) {
    strides[axis] = static_cast<int64_t>(step);
    step *= static_cast<uint64_t>(shape[axis] > 1 ? shape[axis] : 1);
  }
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_SHAPES_H_
