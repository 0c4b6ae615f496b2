#include "shapes.h"

#include <cinttypes>
#include <cstring>

namespace aot_tune {
namespace {

// Integers as Python shows a tuple of them.
struct Tuple {
  char text[200];
  Tuple(const int64_t* values, int count) noexcept {
    Text out(text, sizeof text);
    for (int i = 0; i < count; ++i) out.add("%s%" PRId64, i > 0 ? ", " : "(", values[i]);
    out.add(count == 0 ? "()" : count == 1 ? ",)" : ")");
  }
};

__attribute__((cold)) int32_t cannot_fold(const OperatorInfo& op, const TensorInfo& info,
                                          const DLTensor& tensor) noexcept {
  const Tuple shape(tensor.shape, tensor.ndim);
  const Tuple strides(tensor.strides, tensor.strides != nullptr ? tensor.ndim : 0);
  if (info.written()) {
    return fail(
        AOT_TUNE_ERROR_LAYOUT,
        "%s: the leading dims of '%s' cannot be taken as one: shape %s, strides %s in elements; pass a "
        "contiguous tensor",
        op.name, info.name, shape.text, strides.text);
  }
  return fail(AOT_TUNE_ERROR_LAYOUT,
              "%s: the leading dims of '%s' cannot be taken as one without a copy: shape %s, strides %s in "
              "elements; pass %s.contiguous(), of numpy numpy.ascontiguousarray(%s)",
              op.name, info.name, shape.text, strides.text, info.name, info.name);
}

void copy(int64_t* to, const int64_t* from, int count) noexcept {
  std::memmove(to, from, sizeof(int64_t) * static_cast<size_t>(count));
}

int32_t fold_one(const OperatorInfo& op, const TensorInfo& info, int count, const DLTensor** given,
                 DLTensor* taken) noexcept {
  const DLTensor& tensor = **given;
  int64_t* const shape = taken->shape;
  int64_t* const strides = taken->strides;
  if (!as_one(tensor, count, shape, strides)) return cannot_fold(op, info, tensor);
  copy(shape + 1, tensor.shape + count, info.rank - 1);
  if (tensor.strides != nullptr) copy(strides + 1, tensor.strides + count, info.rank - 1);
  *taken = tensor;
  taken->ndim = info.rank;
  taken->shape = shape;
  taken->strides = strides;
  if (tensor.strides == nullptr) lay_out(shape, info.rank, strides);
  *given = taken;
  return AOT_TUNE_OK;
}

__attribute__((cold)) int32_t no_room(const OperatorInfo& op, const TensorInfo& info) noexcept {
  return fail(AOT_TUNE_ERROR_NULL, "%s: infer has nowhere to write '%s' to: its place in 'taken' is NULL",
              op.name, info.name);
}

bool is_same(const Leading& leading, int count, const int64_t* shape) noexcept {
  if (leading.count != count) return false;
  for (int i = 0; i < count; ++i) {
    if (leading.extents[i] != shape[i]) return false;
  }
  return true;
}

}  // namespace

int32_t fold(const OperatorInfo& op, const DLTensor** tensors, DLTensor* const* taken,
             Leading* leading) noexcept {
  int first = -1;
  for (int i = 0; i < op.tensor_count; ++i) {
    const TensorInfo& info = op.tensors[i];
    if (!info.folds || tensors[i] == nullptr) continue;
    const DLTensor& tensor = *tensors[i];
    const int count = tensor.ndim - (info.rank - 1);
    if (tensor.ndim > kMaxRank || count < 0 || tensor.shape == nullptr) return AOT_TUNE_OK;
    if (first < 0) {
      first = i;
      *leading = {tensor.shape, count};
    }
    if (!is_same(*leading, count, tensor.shape)) {
      return fail(AOT_TUNE_ERROR_SHAPE,
                  "%s: '%s' has the leading dims %s, '%s' has %s; wanted the same of both", op.name,
                  info.name, Tuple(tensor.shape, count).text, op.tensors[first].name,
                  Tuple(leading->extents, leading->count).text);
    }
    if (count == 1) continue;
    if (taken[i] == nullptr) return no_room(op, info);
    if (int32_t status = fold_one(op, info, count, tensors + i, taken[i])) return status;
  }
  return AOT_TUNE_OK;
}

int32_t unfold(const OperatorInfo& op, const Leading& leading, DLTensor* const* made,
               DLTensor* const* taken) noexcept {
  for (int i = 0; i < op.tensor_count; ++i) {
    const TensorInfo& info = op.tensors[i];
    if (made[i] == nullptr || !info.output || !info.folds || leading.count < 0) continue;
    if (taken[i] == nullptr) return no_room(op, info);
    DLTensor &out = *made[i], &one = *taken[i];
    int64_t* const shape = one.shape;
    int64_t* const strides = one.strides;
    one = out;
    one.shape = shape;
    one.strides = strides;
    copy(one.shape, out.shape, info.rank);
    lay_out(one.shape, one.ndim, one.strides);
    out.ndim = leading.count + info.rank - 1;
    if (out.ndim > kMaxRank) {
      return fail(AOT_TUNE_ERROR_RANK, "%s: output '%s' would have %d axes, wanted %d at most", op.name,
                  info.name, static_cast<int>(out.ndim), kMaxRank);
    }
    copy(out.shape + leading.count, out.shape + 1, info.rank - 1);
    copy(out.shape, leading.extents, leading.count);
    lay_out(out.shape, out.ndim, out.strides);
  }
  return AOT_TUNE_OK;
}

int32_t no_shape(const OperatorInfo& op, int tensor) noexcept {
  return fail(AOT_TUNE_ERROR_SHAPE,
              "%s: output '%s' has no shape here: an extent is negative, divides by zero or needs more than "
              "64 bits",
              op.name, op.tensors[tensor].name);
}

void lay_out_like(const DLTensor* like, DLTensor* made) noexcept {
  int order[kMaxRank];
  if (like == nullptr || like->ndim != made->ndim || !axes_in_memory(like, order))
    return lay_out(made->shape, made->ndim, made->strides);
  uint64_t step = 1;
  for (int place = made->ndim - 1; place >= 0; --place) {
    const int axis = order[place];
    made->strides[axis] = static_cast<int64_t>(step);
    step *= static_cast<uint64_t>(made->shape[axis] > 1 ? made->shape[axis] : 1);
  }
}

}  // namespace aot_tune
