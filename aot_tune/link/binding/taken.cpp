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
  Borrowed& place = held[index];
  given[index] = &place.tensor;
  const bool read =
      reinterpret_cast<PyObject*>(Py_TYPE(object)) == state->array_type && read_array(state, object, &place);
  if (!read) {
    settle();
    owned |= uint32_t{1} << index;
    if (!borrow(state, object, {&op, op.tensors[index].name}, &shared, &place)) return false;
  }
  took(place.tensor);
  if (!op.tensors[index].written()) return true;
  if (!read && find_type(state, object)->torch) versioned |= uint32_t{1} << index;
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
  // What frees a tensor may be Python code, which no error of the call may disturb.
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  for (int i = 0; i < count; ++i) {
    if ((owned >> i & 1) != 0) held[i].release();
    Py_XDECREF(made[i]);
  }
  if ((owned & kWorkspace) != 0) workspace.release();
  PyErr_Restore(type, value, trace);
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
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  exec->workspace = reinterpret_cast<void*>(tensor.data != nullptr ? begin : 64);
  return true;
}

}  // namespace aot_tune::python
