// What a call would make: shapes, strides, dtypes and devices of its outputs, whose leading dims may be
// folded.
#ifndef AOT_TUNE_RUNTIME_INFER_H_
#define AOT_TUNE_RUNTIME_INFER_H_

#include "operator.h"
#include "shapes.h"

namespace aot_tune {

// The error for tensors that are no call's.
template <typename Op>
__attribute__((noinline, cold)) int32_t refuse_tensors(const Arguments<Op>& a) noexcept {
  CallOf<Op> c;
  return read_tensors(Op::kOperator, a.tensors, c.view, c.dtypes);
}

inline DLDevice device_of(const OperatorInfo& op, Tensors given) noexcept {
  int i = 0;
  while (i < op.tensor_count && given[i] == nullptr) ++i;
  return i < op.tensor_count ? given[i]->device : DLDevice{kDLCPU, 0};
}

// Fills in what a new output has, but for its data.
template <typename Op, size_t I>
__attribute__((always_inline)) inline int32_t infer_one(const Arguments<Op>& a, const int64_t* dims,
                                                        DLTensor* out) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  constexpr TensorInfo info = op.tensors[I];
  constexpr int index = static_cast<int>(I);
  if constexpr (!info.output) return AOT_TUNE_OK;
  if (out == nullptr) return AOT_TUNE_OK;
  int64_t shape[kMaxRank];
  op.shape(index, dims, shape);
  int64_t* const extents = out->shape;
#pragma GCC unroll 8
  for (int axis = 0; axis < info.rank; ++axis) {
    if (shape[axis] < 0) return no_shape(op, index);
    extents[axis] = shape[axis];
  }
  const DType& type = info.variable < 0 ? op.tensors[I].type : type_of(op, index, a.tensors);
  out->dtype = {type.code, type.bits, 1};
  out->ndim = info.rank;
  out->byte_offset = 0;
  out->device = device_of(op, a.tensors);
  if constexpr (info.layout_of >= 0)
    lay_out_like(a.tensors[info.layout_of], out);
  else
    lay_out(shape, info.rank, out->strides);
  return AOT_TUNE_OK;
}

// Fills in what is to be made for a call whose leading dims are one axis.
template <typename Op, size_t... I>
int32_t infer_all(const Arguments<Op>& a, DLTensor* const* made, std::index_sequence<I...>) noexcept {
  int64_t dims[at_least_1(Op::kOperator.dim_count)];
  Sum unused;
  if (!(add_tensor<Op, I>(a.tensors[I], &unused) && ...)) return refuse_tensors(a);
  int32_t status = Op::bind(a.tensors, a.scalars, dims);
  if (status != AOT_TUNE_OK) {  // a call with all outputs tells first what is wrong with tensors
    const int32_t of_tensors = refuse_tensors(a);
    return of_tensors != AOT_TUNE_OK && of_tensors != AOT_TUNE_ERROR_NULL
               ? of_tensors
               : Op::bind(a.tensors, a.scalars, dims);
  }
  (void)(((status = infer_one<Op, I>(a, dims, made[I])) == AOT_TUNE_OK) && ...);
  return status;
}

template <typename Op, size_t... I>
__attribute__((always_inline)) inline bool leads(const Arguments<Op>& a, std::index_sequence<I...>) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  return ((op.tensors[I].folds && leads(op.tensors[I], a.tensors[I])) || ...);
}

template <typename Op>
__attribute__((noinline)) int32_t infer_folded(const Arguments<Op>& a, DLTensor* const* made,
                                               DLTensor* const* taken) {
  Arguments<Op> given = a;
  Leading leading;
  if (int32_t status = fold(Op::kOperator, given.tensors, taken, &leading)) return status;
  if (leads(given, TensorIndices<Op>())) return refuse_tensors(given);
  if (int32_t status = infer_all(given, made, TensorIndices<Op>())) return status;
  return unfold(Op::kOperator, leading, made, taken);
}

template <typename Op>
int32_t infer(const Arguments<Op>& a, DLTensor* const* made, DLTensor* const* taken) {
  if (made == nullptr) return no_place(Op::kOperator, "infer", "made");
  if (taken == nullptr) return no_place(Op::kOperator, "infer", "taken");
  if (__builtin_expect(leads(a, TensorIndices<Op>()), 0)) return infer_folded<Op>(a, made, taken);
  return infer_all(a, made, TensorIndices<Op>());
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_INFER_H_
