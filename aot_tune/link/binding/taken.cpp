// The tensors of one call: how they are taken from its arguments and given back.
#include <cstring>

#include "calls.h"

namespace aot_tune::python {
namespace {

// At most 2^40. 0 for a tensor with too many axes.
int64_t elements_of(const DLTensor& tensor) {
  if (tensor.ndim > kMaxRank) return 0;
  uint64_t count = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) count *= static_cast<uint64_t>(tensor.shape[axis]);
  return static_cast<int64_t>(count < (uint64_t{1} << 40) ? count : uint64_t{1} << 40);
}

}  // namespace

inline void CallTensors::took(const DLTensor& tensor) {
  elements += elements_of(tensor);
  on_gpu |= tensor.device.device_type != kDLCPU;
}

// Between the view of a plain tensor and the call, nothing may run that could change the tensor. Otherwise
// its layout is copied first.
bool CallTensors::take(State* state, const Operator& op, int index, PyObject* object) {
  const TypeEntry* const entry = known_type(state, object);
  if (entry == nullptr || entry->view == nullptr) return take_any(state, op, index, object);
  const auto view = entry->view;
  const auto current_stream = entry->current_stream;
  const bool has_flags = entry->gradient != nullptr;
  const bool plain = entry->plain;
  const bool torch = entry->torch;
  if (has_flags && shared.gradients == Gradients::kUnknown) {
    settle();
    if (!find_gradients(state, {&op, op.tensors[index].name}, &shared)) return false;
  }
  if (!plain) settle();
  DLTensor& tensor = views[index];
  if (view(object, &tensor) != 0) return cannot_read(state, object, {&op, op.tensors[index].name});
  if (tensor.shape == nullptr && tensor.ndim > 0) tensor.ndim = -1;  // a rank that no operator takes
  given[index] = &tensor;
  lent |= uint32_t{1} << index;
  took(tensor);
  if (torch && !plain) {
    settle();
    find_memory(object, &tensor);
  }
  if (!find_stream(current_stream, tensor.device, &shared.stream))
    return cannot_read(state, object, {&op, op.tensors[index].name});
  if (torch && op.tensors[index].written()) versioned |= uint32_t{1} << index;
  if (!has_flags || (shared.gradients == Gradients::kOff && !shared.forward && !may_be_negated(tensor)))
    return true;
  settle();
  return check_flags(state, object, *find_type(state, object), {&op, op.tensors[index].name}, shared, tensor);
}

bool CallTensors::take_any(State* state, const Operator& op, int index, PyObject* object) {
  settle();
  Borrowed& place = held[index];
  given[index] = &place.tensor;
  owned |= uint32_t{1} << index;
  if (!borrow(state, object, {&op, op.tensors[index].name}, &shared, &place)) return false;
  took(place.tensor);
  if (!op.tensors[index].written()) return true;
  if (find_type(state, object)->torch) versioned |= uint32_t{1} << index;
  if (made[index] != nullptr) place.unversioned = false;  // it is new, so nobody else has seen it
  return !(place.read_only || place.copied || place.unversioned) || is_read_only(state, op, index);
}

void CallTensors::copy_layouts() {
  for (int i = 0; i < count; ++i) {
    if ((lent >> i & 1) != 0) copy_layout(&views[i], &held[i]);
  }
  lent = 0;
}

void CallTensors::bump_versions(State* state, const Parsed& parsed) const {
  for (int i = 0; i < count; ++i) {
    if ((versioned >> i & 1) != 0 && made[i] == nullptr) bump_version(state, parsed.tensors[i]);
  }
}

void CallTensors::give_back() {
  for (int i = 0; i < count; ++i) {
    if ((owned >> i & 1) != 0) held[i].release();
    Py_XDECREF(made[i]);
  }
  if ((owned & kWorkspace) != 0) workspace.release();
}

bool CallTensors::is_missing(State* state, const Operator& op, int index) {
  return refuse(state->type_error,
                op.tensors[index].output
                    ? "%s() needs the output '%s': its shape, dtype or device tells what to compute"
                    : "%s() needs the tensor '%s'",
                op.name, op.tensors[index].name);
}

bool CallTensors::is_read_only(State* state, const Operator& op, int index) const {
  return refuse(state->value_error, "%s: %s '%s' is %s; wanted a tensor that can be written", op.name,
                op.tensors[index].inout ? "tensor" : "output", op.tensors[index].name,
                held[index].read_only ? "read-only"
                : held[index].copied  ? "a copy that its __dlpack__ made"
                                      : "passed by a DLPack capsule without a version, which does not tell "
                                        "whether it may be written (JAX's arrays may not)");
}

bool CallTensors::take_given(State* state, const Operator& op, const Parsed& parsed) {
  if (parsed.stream != nullptr && !parse_stream(state, op.name, parsed.stream, &shared.stream)) return false;
  for (int i = 0; i < op.tensor_count; ++i) {
    if (!take_passed(state, op, i, parsed.tensors[i])) return false;
  }
  settle();
  for (int i = 0; i < op.tensor_count; ++i) {
    if (leads(op.tensors[i], given[i])) return fold(state, op);
  }
  return true;
}

bool CallTensors::take_workspace(State* state, const Operator& op, PyObject* object, aot_tune_exec* exec) {
  if (object == nullptr || object == Py_None) return true;
  settle();
  owned |= kWorkspace;
  if (!borrow(state, object, {&op, "workspace"}, &shared, &workspace)) return false;
  const DLTensor& tensor = workspace.tensor;
  int64_t elements = 1;
  bool dense = tensor.ndim <= kMaxRank;
  for (int axis = tensor.ndim - 1; dense && axis >= 0; --axis) {
    const int64_t step = elements;
    elements *= tensor.shape[axis];
    dense =
        elements == 0 || tensor.strides == nullptr || tensor.shape[axis] == 1 || tensor.strides[axis] == step;
  }
  const int other = first();
  const bool here = other == count || (tensor.device.device_type == given[other]->device.device_type &&
                                       tensor.device.device_id == given[other]->device.device_id);
  if (!dense || !here || workspace.read_only || workspace.unversioned)
    return refuse(state->value_error, "%s: the workspace %s", op.name,
                  !here    ? "is on another device than the tensors"
                  : !dense ? "has gaps; wanted a contiguous tensor"
                           : "is read-only");
  exec->workspace_size = static_cast<size_t>(elements * (tensor.dtype.bits * tensor.dtype.lanes / 8));
  // A tensor without elements may have a NULL pointer, which would ask for the library's own memory.
  exec->workspace = tensor.data != nullptr ? static_cast<char*>(tensor.data) + tensor.byte_offset
                                           : reinterpret_cast<void*>(64);
  return true;
}

// ---- Leading dims for which an operator declares one axis: treated as one axis, without a copy

namespace {

bool cannot_fold(State* state, const Operator& op, const TensorInfo& argument, const DLTensor& tensor) {
  const Ref shape = tuple_of(tensor.ndim, tensor.shape);
  const Ref strides = tuple_of(tensor.strides != nullptr ? tensor.ndim : 0, tensor.strides);
  return refuse(
      state->value_error,
      argument.written()
          ? "%s: the leading dims of '%s' cannot be taken as one: shape %R, strides %R in elements; "
            "pass a contiguous tensor"
          : "%s: the leading dims of '%s' cannot be taken as one without a copy: shape %R, strides %R "
            "in elements; pass %s.contiguous(), of numpy numpy.ascontiguousarray(%s)",
      op.name, argument.name, shape.get(), strides.get(), argument.name, argument.name);
}

bool other_dims(State* state, const Operator& op, int index, const DLTensor& tensor, int count, int first,
                const int64_t* lead, int leading) {
  const Ref mine = tuple_of(count, tensor.shape);
  const Ref others = tuple_of(leading, lead);
  return refuse(state->value_error, "%s: '%s' has the leading dims %R, '%s' has %R; wanted the same of both",
                op.name, op.tensors[index].name, mine.get(), op.tensors[first].name, others.get());
}

}  // namespace

bool CallTensors::fold(State* state, const Operator& op) {
  settle();  // from now on all layouts are in `held`
  int first = -1;
  for (int i = 0; i < op.tensor_count; ++i) {
    const TensorInfo& argument = op.tensors[i];
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
  const TensorInfo& argument = op.tensors[index];
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
  if (leading + rest > kMaxRank)
    return refuse(state->value_error, "%s: output '%s' would have %d axes, wanted %d at most", op.name,
                  op.tensors[index].name, leading + rest, kMaxRank);
  std::memmove(extents + leading, extents + 1, sizeof(int64_t) * static_cast<size_t>(rest));
  std::memcpy(extents, lead, sizeof(int64_t) * static_cast<size_t>(leading));
  *rank = leading + rest;
  return true;
}

}  // namespace aot_tune::python
