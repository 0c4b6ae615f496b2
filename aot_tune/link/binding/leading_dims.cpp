// Leading dims for which an operator declares one axis. They are treated as one axis, without a copy.
#include <cstring>

#include "calls.h"

namespace aot_tune::python {
namespace {

bool cannot_fold(State* state, const Operator& op, const TensorArgument& argument, const DLTensor& tensor) {
  const Ref shape = tuple_of(tensor.ndim, tensor.shape);
  const Ref strides = tuple_of(tensor.strides != nullptr ? tensor.ndim : 0, tensor.strides);
  if (shape != nullptr && strides != nullptr) {
    PyErr_Format(
        state->value_error,
        argument.written()
            ? "%s: the leading dims of '%s' cannot be taken as one: shape %R, strides %R in elements; "
              "pass a contiguous tensor"
            : "%s: the leading dims of '%s' cannot be taken as one without a copy: shape %R, strides %R "
              "in elements; pass %s.contiguous(), of numpy numpy.ascontiguousarray(%s)",
        op.name, argument.name, shape.get(), strides.get(), argument.name, argument.name);
  }
  return false;
}

bool other_dims(State* state, const Operator& op, int index, const DLTensor& tensor, int count, int first,
                const int64_t* lead, int leading) {
  const Ref mine = tuple_of(count, tensor.shape);
  const Ref others = tuple_of(leading, lead);
  if (mine != nullptr && others != nullptr) {
    PyErr_Format(state->value_error, "%s: '%s' has the leading dims %R, '%s' has %R; wanted the same of both",
                 op.name, op.tensors[index].name, mine.get(), op.tensors[first].name, others.get());
  }
  return false;
}

}  // namespace

bool CallTensors::fold(State* state, const Operator& op) {
  settle();  // from now on all layouts are in `held`
  int first = -1;
  for (int i = 0; i < op.tensor_count; ++i) {
    const TensorArgument& argument = op.tensors[i];
    if (!argument.folds || given[i] == nullptr) continue;
    const DLTensor& tensor = *given[i];
    const int count = tensor.ndim - (argument.rank - 1);
    if (tensor.ndim > kMaxRank || count < 0) return true;  // the library refuses it
    if (first < 0) {
      first = i;
      leading = count;
      for (int k = 0; k < count; ++k) lead[k] = tensor.shape[k];
    }
    bool same = count == leading;
    for (int k = 0; same && k < count; ++k) same = tensor.shape[k] == lead[k];
    if (!same) return other_dims(state, op, i, tensor, count, first, lead, leading);
    if (!fold_one(state, op, i)) return false;
  }
  return true;
}

bool CallTensors::fold_one(State* state, const Operator& op, int index) {
  settle();
  const TensorArgument& argument = op.tensors[index];
  DLTensor& tensor = (owned >> index & 1) != 0 ? held[index].tensor : views[index];
  const int rest = argument.rank - 1, count = tensor.ndim - rest;
  if (count == 1) return true;
  int64_t extent, stride;
  if (!as_one(tensor, count, &extent, &stride)) return cannot_fold(state, op, argument, tensor);
  Borrowed& place = held[index];
  std::memmove(place.shape + 1, place.shape + count, sizeof(int64_t) * static_cast<size_t>(rest));
  place.shape[0] = extent;
  if (tensor.strides != nullptr) {
    std::memmove(place.strides + 1, place.strides + count, sizeof(int64_t) * static_cast<size_t>(rest));
    place.strides[0] = stride;
  }
  tensor.ndim = argument.rank;
  return true;
}

bool CallTensors::unfold(State* state, const Operator& op, int index, int* rank, int64_t* extents) const {
  const int rest = *rank - 1;
  if (leading + rest > kMaxRank) {
    PyErr_Format(state->value_error, "%s: output '%s' would have %d axes, wanted %d at most", op.name,
                 op.tensors[index].name, leading + rest, kMaxRank);
    return false;
  }
  std::memmove(extents + leading, extents + 1, sizeof(int64_t) * static_cast<size_t>(rest));
  std::memcpy(extents, lead, sizeof(int64_t) * static_cast<size_t>(leading));
  *rank = leading + rest;
  return true;
}

}  // namespace aot_tune::python
