// Reading tensors from Python objects, and making new ones.
#include <initializer_list>

#include "binding.h"
#include "exchange.h"

namespace aot_tune::python {
namespace {

// A module that somebody has imported already, or NULL without an exception.
PyObject* imported(const char* name) {
  PyObject* modules = PyImport_GetModuleDict();                               // borrowed
  return modules != nullptr ? PyDict_GetItemString(modules, name) : nullptr;  // borrowed
}

bool learn_numpy(State* state) {
  if (state->array_type != nullptr) return true;
  PyObject* numpy = imported("numpy");
  if (numpy == nullptr) return false;
  state->array_type = PyObject_GetAttrString(numpy, "ndarray");
  state->array_empty = PyObject_GetAttrString(numpy, "empty");
  if (state->array_type == nullptr || state->array_empty == nullptr) {
    PyErr_Clear();
    Py_CLEAR(state->array_type);
    Py_CLEAR(state->array_empty);
    return false;
  }
  return true;
}

const ExchangeApi* exchange_api(State* state, PyObject* type) {
  PyObject* capsule = PyObject_GetAttr(type, state->words[kWordExchange]);
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const ExchangeApi* api = nullptr;
  if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
    api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  }
  Py_DECREF(capsule);
  while (api != nullptr && api->version.major > 1) api = api->previous;
  return api != nullptr && api->version.major == 1 ? api : nullptr;
}

void copy_layout(Borrowed* out) {
  const int rank = out->tensor.ndim;
  if (rank < 0 || rank > kMaxRank) return;  // the library refuses the rank and reads no further
  for (int i = 0; i < rank; ++i) out->shape[i] = out->tensor.shape[i];
  out->tensor.shape = out->shape;
  if (out->tensor.strides == nullptr) return;
  for (int i = 0; i < rank; ++i) out->strides[i] = out->tensor.strides[i];
  out->tensor.strides = out->strides;
}

// A negated view of torch's (the imaginary part of a conjugate) has strides that are all even; others are not
// asked.
bool may_be_negated(const DLTensor& tensor) {
  if (tensor.strides == nullptr || tensor.ndim > kMaxRank) return false;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] > 1 && tensor.strides[i] % 2 != 0) return false;
  }
  return true;
}

// Raises the error of a framework anew, as one of ours with the first line of its message, and itself as the
// cause.
bool cannot_read(State* state, const Place& place) {
  PyObject* type = nullptr;
  PyObject* cause = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &cause, &trace);
  PyErr_NormalizeException(&type, &cause, &trace);
  PyObject* text = cause != nullptr ? PyObject_Str(cause) : nullptr;
  PyObject* lines = text != nullptr ? PyUnicode_Splitlines(text, 0) : nullptr;
  PyObject* first =
      lines != nullptr && PyList_Size(lines) > 0 ? PyList_GetItem(lines, 0) : nullptr;  // borrowed
  PyErr_Clear();
  PyErr_Format(state->value_error, "%s: tensor '%s' cannot be read through DLPack: %S", place.op->name,
               place.name, first != nullptr ? first : Py_None);
  PyObject* new_type = nullptr;
  PyObject* error = nullptr;
  PyObject* new_trace = nullptr;
  PyErr_Fetch(&new_type, &error, &new_trace);
  PyErr_NormalizeException(&new_type, &error, &new_trace);
  if (cause != nullptr) PyException_SetCause(error, cause);  // takes the reference
  PyErr_Restore(new_type, error, new_trace);
  for (PyObject* object : {type, trace, text, lines}) Py_XDECREF(object);
  return false;
}

bool gradients_enabled() {
  PyObject* torch = imported("torch");
  if (torch == nullptr) return true;
  PyObject* answer = PyObject_CallMethod(torch, "is_grad_enabled", nullptr);
  const bool enabled = answer != Py_False;
  if (answer == nullptr) PyErr_Clear();
  Py_XDECREF(answer);
  return enabled;
}

bool check_flags(State* state, PyObject* object, const Place& place, const Borrowed& out) {
  PyObject* grad = PyObject_GetAttr(object, state->words[kWordRequiresGrad]);
  if (grad == nullptr) return cannot_read(state, place);
  const bool wanted = grad == Py_True;
  Py_DECREF(grad);
  if (wanted && gradients_enabled()) {
    PyErr_Format(state->value_error,
                 "%s: tensor '%s' requires a gradient, which this function does not compute; call it under "
                 "torch.no_grad() or pass %s.detach()",
                 place.op->name, place.name, place.name);
    return false;
  }
  if (!may_be_negated(out.tensor)) return true;
  PyObject* negated = PyObject_CallMethodObjArgs(object, state->words[kWordIsNeg], nullptr);
  if (negated == nullptr) {
    PyErr_Clear();
    return true;
  }
  const bool is_negated = negated == Py_True;
  Py_DECREF(negated);
  if (is_negated) {
    PyErr_Format(state->value_error,
                 "%s: tensor '%s' is a view with its negative bit set; pass %s.resolve_neg()", place.op->name,
                 place.name, place.name);
  }
  return !is_negated;
}

bool borrow_exchange(State* state, PyObject* object, const TypeEntry& entry, const Place& place,
                     Borrowed* out) {
  if (entry.api->view_from_object != nullptr) {
    if (entry.api->view_from_object(object, &out->tensor) != 0) return cannot_read(state, place);
  } else {
    if (entry.api->managed_from_object(object, &out->managed) != 0) return cannot_read(state, place);
    out->tensor = out->managed->tensor;
    out->read_only = (out->managed->flags & kReadOnly) != 0;
  }
  copy_layout(out);
  return !entry.differentiable || check_flags(state, object, place, *out);
}

bool borrow_array(State* state, PyObject* object, const Place& place, Borrowed* out) {
  PyObject* capsule = PyObject_GetAttr(object, state->words[kWordArrayStruct]);
  if (capsule == nullptr) return false;
  const auto* array = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule, nullptr));
  if (array == nullptr) {
    Py_DECREF(capsule);
    return false;
  }
  const char kind = array->kind;
  const int code = kind == 'f'   ? kDLFloat
                   : kind == 'i' ? kDLInt
                   : kind == 'u' ? kDLUInt
                   : kind == 'b' ? kDLBool
                                 : -1;
  const char* wrong = array->ndim > kMaxRank                    ? "has too many axes"
                      : code < 0                                ? "has a dtype that no operator takes"
                      : (array->flags & kArrayNativeOrder) == 0 ? "has swapped bytes"
                                                                : nullptr;
  out->tensor.data = array->data;
  out->tensor.device = {kDLCPU, 0};
  out->tensor.ndim = array->ndim;
  out->tensor.dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(array->itemsize * 8), 1};
  out->tensor.shape = out->shape;
  out->tensor.strides = out->strides;
  out->tensor.byte_offset = 0;
  out->read_only = (array->flags & kArrayWriteable) == 0;
  const int size = array->itemsize > 0 ? array->itemsize : 1;
  for (int i = 0; wrong == nullptr && i < array->ndim; ++i) {
    out->shape[i] = array->shape[i];
    out->strides[i] = array->strides[i] / size;
    if (array->strides[i] % size != 0 && array->shape[i] > 1)
      wrong = "has strides that are not whole elements";
  }
  Py_DECREF(capsule);  // the array itself is kept alive by the caller
  if (wrong != nullptr)
    PyErr_Format(state->type_error, "%s: tensor '%s' %s", place.op->name, place.name, wrong);
  return wrong == nullptr;
}

bool borrow_dlpack(State* state, PyObject* object, const Place& place, Borrowed* out) {
  PyObject* method = PyObject_GetAttr(object, state->words[kWordDlpack]);
  if (method == nullptr) {
    PyErr_Clear();
    PyObject* type = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__");
    PyErr_Format(state->type_error,
                 "%s: '%s' is of type %S, wanted a tensor with __dlpack__ (numpy, torch, ...)",
                 place.op->name, place.name, type != nullptr ? type : Py_None);
    Py_XDECREF(type);
    return false;
  }
  PyObject* capsule = PyObject_Call(method, state->no_arguments, state->version_arguments);
  if (capsule == nullptr &&
      PyErr_ExceptionMatches(PyExc_TypeError)) {  // an older producer without max_version
    PyErr_Clear();
    capsule = PyObject_CallObject(method, nullptr);
  }
  Py_DECREF(method);
  if (capsule == nullptr) return cannot_read(state, place);
  out->keep = capsule;  // it frees the tensor, since it is not renamed as used
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const auto* managed = static_cast<const Managed*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->version.major != 1) {
      PyErr_Format(state->type_error, "%s: tensor '%s' comes with DLPack version %u, wanted 1",
                   place.op->name, place.name, static_cast<unsigned>(managed->version.major));
      return false;
    }
    out->tensor = managed->tensor;
    out->read_only = (managed->flags & kReadOnly) != 0;
  } else {
    const auto* managed = static_cast<const LegacyManaged*>(PyCapsule_GetPointer(capsule, "dltensor"));
    if (managed == nullptr) return cannot_read(state, place);
    out->tensor = managed->tensor;
  }
  copy_layout(out);
  return true;
}

void set_error(void*, const char*, const char* message) { PyErr_SetString(PyExc_RuntimeError, message); }

PyObject* shape_tuple(const TensorArgument& argument, const int64_t* extents) {
  PyObject* shape = PyTuple_New(argument.rank);
  for (int i = 0; shape != nullptr && i < argument.rank; ++i) {
    PyObject* extent = PyLong_FromLongLong(extents[i]);
    if (extent == nullptr || PyTuple_SetItem(shape, i, extent) != 0) Py_CLEAR(shape);
  }
  return shape;
}

PyObject* allocate_exchange(const TypeEntry& entry, const DLDevice& device, const TensorArgument& argument,
                            const int64_t* extents) {
  int64_t shape[kMaxRank];
  for (int i = 0; i < argument.rank; ++i) shape[i] = extents[i];
  DLTensor prototype{};
  prototype.device = device;
  prototype.ndim = argument.rank;
  prototype.dtype = {argument.code, argument.bits, 1};
  prototype.shape = shape;
  Managed* managed = nullptr;
  void* object = nullptr;
  if (entry.api->allocate(&prototype, &managed, nullptr, set_error) != 0) return nullptr;
  if (entry.api->object_from_managed(managed, &object) != 0) return nullptr;
  return static_cast<PyObject*>(object);
}

// Through the array API standard where the object has it, else a numpy array.
PyObject* allocate_other(State* state, PyObject* like, const TensorArgument& argument, PyObject* shape) {
  PyObject* space = PyObject_CallMethodObjArgs(like, state->words[kWordNamespace], nullptr);
  if (space == nullptr) {
    PyErr_Clear();
    PyObject* numpy = PyImport_ImportModule("numpy");
    Py_XDECREF(numpy);
    if (numpy == nullptr || !learn_numpy(state)) return nullptr;
    return PyObject_CallFunction(state->array_empty, "Os", shape, argument.dtype);
  }
  PyObject* empty = PyObject_GetAttr(space, state->words[kWordEmpty]);
  PyObject* type = PyObject_GetAttrString(space, argument.dtype);
  PyObject* device = PyObject_GetAttr(like, state->words[kWordDevice]);
  PyObject* arguments = empty != nullptr ? PyTuple_Pack(1, shape) : nullptr;
  PyObject* named = type != nullptr && device != nullptr ? PyDict_New() : nullptr;
  PyObject* result = nullptr;
  if (arguments != nullptr && named != nullptr &&
      PyDict_SetItem(named, state->words[kWordDtype], type) == 0 &&
      PyDict_SetItem(named, state->words[kWordDevice], device) == 0) {
    result = PyObject_Call(empty, arguments, named);
  }
  for (PyObject* object : {space, empty, type, device, arguments, named}) Py_XDECREF(object);
  return result;
}

}  // namespace

void Borrowed::release() {
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
  Py_XDECREF(keep);
}

const TypeEntry* find_type(State* state, PyObject* object) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  for (const TypeEntry& entry : state->types) {
    if (entry.type == type) return &entry;
  }
  TypeEntry found{type, exchange_api(state, type), Kind::kDlpack, false};
  if (found.api != nullptr) {
    found.kind = Kind::kExchange;
    found.differentiable = PyObject_HasAttr(type, state->words[kWordRequiresGrad]) != 0;
  } else if (learn_numpy(state) && type == state->array_type) {
    found.kind = Kind::kArrayStruct;
  }
  TypeEntry& slot = state->types[state->next_type];
  state->next_type = (state->next_type + 1) % kTypeEntries;
  Py_INCREF(type);
  Py_XDECREF(slot.type);
  slot = found;
  return &slot;
}

bool borrow(State* state, PyObject* object, const Place& place, Borrowed* out) {
  const TypeEntry entry = *find_type(state, object);
  switch (entry.kind) {
    case Kind::kExchange:
      return borrow_exchange(state, object, entry, place, out);
    case Kind::kArrayStruct:
      return borrow_array(state, object, place, out);
    default:
      return borrow_dlpack(state, object, place, out);
  }
}

PyObject* allocate(State* state, PyObject* like, const DLDevice& device, const TensorArgument& argument,
                   const int64_t* extents) {
  const TypeEntry entry = *find_type(state, like);
  if (entry.kind == Kind::kExchange) return allocate_exchange(entry, device, argument, extents);
  if (argument.dtype[0] == '\0') {  // numpy and the array API have no such type
    PyErr_Format(state->type_error,
                 "output '%s' cannot be made for arrays of this kind; pass %s=", argument.name,
                 argument.name);
    return nullptr;
  }
  PyObject* shape = shape_tuple(argument, extents);
  if (shape == nullptr) return nullptr;
  PyObject* result = entry.kind == Kind::kArrayStruct
                         ? PyObject_CallFunction(state->array_empty, "Os", shape, argument.dtype)
                         : allocate_other(state, like, argument, shape);
  Py_DECREF(shape);
  return result;
}

bool current_stream(State* state, PyObject* object, const DLDevice& device, void** stream) {
  *stream = nullptr;
  if (device.device_type == kDLCPU) return true;
  const TypeEntry entry = *find_type(state, object);
  if (entry.kind != Kind::kExchange) return true;
  return entry.api->current_stream(device.device_type, device.device_id, stream) == 0;
}

}  // namespace aot_tune::python
