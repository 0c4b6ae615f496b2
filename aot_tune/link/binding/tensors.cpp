// Reading tensors from Python objects, and making new ones.
#include "binding.h"
#include "exchange.h"

namespace aot_tune::python {
namespace {

const ExchangeApi* exchange_api(State* state, PyObject* type) {
  const Ref capsule = PyObject_GetAttr(type, state->words[kWordExchange]);
  if (capsule == nullptr) PyErr_Clear();
  const ExchangeApi* api = nullptr;
  if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
    api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  }
  while (api != nullptr && api->version.major > 1) api = api->previous;
  return api != nullptr && api->version.major == 1 ? api : nullptr;
}

// If C defines an attribute of a type, no object of the type can hide it. So its getter can be called without
// a search along the type's bases at each call.
void learn_gradient(State* state, TypeEntry* entry) {
  entry->gradient = PyObject_GetAttr(entry->type, state->words[kWordRequiresGrad]);
  if (entry->gradient == nullptr) {
    PyErr_Clear();
  } else if (Py_TYPE(entry->gradient) == &PyGetSetDescr_Type) {
    entry->read_gradient =
        reinterpret_cast<descrgetfunc>(PyType_GetSlot(&PyGetSetDescr_Type, Py_tp_descr_get));
  }
}

// A subclass of torch's tensors may compute its shape in Python code.
bool is_plain(PyObject* type) {
  constexpr const char* kTypes[][2] = {{"torch", "Tensor"}, {"torch.nn.parameter", "Parameter"}};
  for (const auto& names : kTypes) {
    if (attribute_of(imported(names[0]), names[1]) == type) return true;
  }
  return false;
}

bool is_subtype(PyObject* type, PyObject* base) {
  return PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), reinterpret_cast<PyTypeObject*>(base)) != 0;
}

bool borrow_exchange(State* state, PyObject* object, const TypeEntry& entry, const Place& place,
                     Shared* shared, Borrowed* out) {
  if (entry.api->view_from_object != nullptr) {
    if (entry.api->view_from_object(object, &out->tensor) != 0) return cannot_read(state, object, place);
  } else {
    if (entry.api->managed_from_object(object, &out->managed) != 0) return cannot_read(state, object, place);
    out->tensor = out->managed->tensor;
    out->read_only = (out->managed->flags & kReadOnly) != 0;
    out->copied = (out->managed->flags & kCopied) != 0;
  }
  copy_layout(&out->tensor, out);
  if (entry.torch && !entry.plain) find_memory(object, &out->tensor);
  if (!find_stream(entry.current_stream, out->tensor.device, &shared->stream))
    return cannot_read(state, object, place);
  if (entry.gradient == nullptr) return true;
  if (shared->gradients == Gradients::kUnknown && !find_gradients(state, place, shared)) return false;
  return check_flags(state, object, entry, place, *shared, out->tensor);
}

// A tensor of the operator, or NULL for a workspace.
const TensorInfo* info_of(const Place& place) {
  const Operator& op = *place.op;
  for (int i = 0; i < op.tensor_count; ++i) {
    if (op.tensors[i].name == place.name) return &op.tensors[i];
  }
  return nullptr;
}

// The dtypes that the tensor may have, for people.
const char* dtypes_taken(const Place& place) {
  const TensorInfo* const info = info_of(place);
  return info == nullptr ? "numbers" : info->variable < 0 ? info->type.framework : info->dtype;
}

// The code of a dtype that numpy does not have itself, such as ml_dtypes' bfloat16, if the tensor may have
// it. Else -1.
__attribute__((cold)) int extension_code(State* state, PyObject* object, const Place& place) {
  const TensorInfo* const info = info_of(place);
  const Ref dtype = PyObject_GetAttr(object, state->words[kWordDtype]);
  const Ref name = attribute_of(dtype, "name");
  PyErr_Clear();
  if (info == nullptr || name == nullptr || !PyUnicode_Check(name)) return -1;
  const VariableInfo* const variable = info->variable < 0 ? nullptr : &place.op->variables[info->variable];
  for (int i = 0; i < (variable != nullptr ? variable->count : 1); ++i) {
    const DType& type = variable != nullptr ? variable->types[i] : info->type;
    if (PyUnicode_CompareWithASCIIString(name, type.framework) == 0) return type.code;
  }
  return -1;
}

// Raises what is wrong with an array whose elements no kernel reads. Returns false.
__attribute__((cold)) bool wrong_array(State* state, PyObject* object, const Place& place,
                                       const ArrayInterface& array, int code) {
  const char* const op = place.op->name;
  if (array.ndim > kMaxRank)
    return refuse(state->value_error, "%s: tensor '%s' has %d axes, wanted %d at most", op, place.name,
                  array.ndim, kMaxRank);
  if (code >= 0 && (array.flags & kArrayNativeOrder) != 0) {
    return refuse(
        state->type_error,
        "%s: tensor '%s' has strides that are not whole elements of %d bytes; wanted whole ones, as "
        "numpy.ascontiguousarray(%s) has",
        op, place.name, array.itemsize, place.name);
  }
  const Ref dtype = PyObject_GetAttr(object, state->words[kWordDtype]);
  return refuse(state->type_error,
                code < 0
                    ? "%s: tensor '%s' has dtype %S, wanted %s"
                    : "%s: tensor '%s' has swapped bytes (dtype %S); wanted %s in the order of this machine",
                op, place.name, dtype.get(), dtypes_taken(place));
}

// Fills in the layout of a numpy array. Returns whether its strides are not whole elements.
template <typename Array>
bool set_layout(const Array& array, DLDataType type, Borrowed* out) {
  const int size = type.bits >= 8 ? type.bits / 8 : 1;
  out->tensor.data = array.data;
  out->tensor.device = {kDLCPU, 0};
  out->tensor.ndim = array.ndim;
  out->tensor.dtype = type;
  out->tensor.shape = out->shape;
  out->tensor.strides = out->strides;
  out->tensor.byte_offset = 0;
  bool wrong = false;
  for (int i = 0; i < array.ndim; ++i) {
    out->shape[i] = array.shape[i];
    out->strides[i] = array.strides[i] / size;
    wrong |= array.strides[i] % size != 0 && array.shape[i] > 1;
  }
  return wrong;
}

// From now on, arrays of this dtype are read in memory, if what is there is what numpy says of this one.
void learn_array(State* state, PyObject* object, const ArrayInterface& array, DLDataType type) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != state->array_type) return;
  const auto* memory = reinterpret_cast<const ArrayObject*>(object);
  Ref dtype = PyObject_GetAttr(object, state->words[kWordDtype]);
  PyErr_Clear();
  bool equal = dtype == memory->dtype && memory->data == array.data && memory->ndim == array.ndim &&
               ((memory->flags ^ array.flags) & kArrayWriteable) == 0;
  for (int i = 0; equal && i < array.ndim; ++i)
    equal = memory->shape[i] == array.shape[i] && memory->strides[i] == array.strides[i];
  if (!equal) return;
  ArrayType& slot = state->array_types[state->next_array_type];
  state->next_array_type = (state->next_array_type + 1) % kArrayTypes;
  Py_XDECREF(slot.dtype);
  slot = {dtype.take(), type};
}

bool borrow_array(State* state, PyObject* object, const Place& place, Borrowed* out) {
  const Ref capsule = PyObject_GetAttr(object, state->words[kWordArrayStruct]);  // the caller keeps the array
  if (capsule == nullptr) return false;
  const auto* array = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule, nullptr));
  if (array == nullptr) return false;
  const char kind = array->kind;
  const bool foreign = kind == 'V' || (kind == 'f' && array->itemsize == 1);
  const int code = foreign       ? extension_code(state, object, place)
                   : kind == 'f' ? kDLFloat
                   : kind == 'i' ? kDLInt
                   : kind == 'u' ? kDLUInt
                   : kind == 'b' ? kDLBool
                                 : -1;
  const DLDataType type{static_cast<uint8_t>(code), static_cast<uint8_t>(array->itemsize * 8), 1};
  out->read_only = (array->flags & kArrayWriteable) == 0;
  const bool known = array->ndim <= kMaxRank && code >= 0 && (array->flags & kArrayNativeOrder) != 0;
  if (!known || set_layout(*array, type, out)) return wrong_array(state, object, place, *array, code);
  if (!foreign) learn_array(state, object, *array, type);
  return true;
}

// The device of another framework's object, or the CPU if it does not tell.
bool dlpack_device(State* state, PyObject* object, DLDevice* device) {
  *device = {kDLCPU, 0};
  const Ref pair = PyObject_CallMethodObjArgs(object, state->words[kWordDlpackDevice], nullptr);
  if (pair == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
    PyErr_Clear();
    return true;
  }
  const Ref type = PySequence_GetItem(pair, 0);
  const Ref id = PySequence_GetItem(pair, 1);
  const Ref number = type != nullptr ? PyNumber_Index(type) : nullptr;  // numpy's and torch's are enums
  if (number != nullptr && id != nullptr) {
    *device = {static_cast<DLDeviceType>(PyLong_AsLong(number)), static_cast<int32_t>(PyLong_AsLong(id))};
  }
  return PyErr_Occurred() == nullptr;
}

// Calls `__dlpack__` in such a way that the tensor's data is ready for work on the call's stream.
PyObject* export_capsule(State* state, PyObject* object, PyObject* method, Stream* stream) {
  DLDevice device;
  if (!dlpack_device(state, object, &device)) return nullptr;
  const bool on_gpu = device.device_type == kDLCUDA || device.device_type == kDLROCM;
  const Ref number = on_gpu ? stream_argument(state, object, device, stream) : nullptr;
  const Ref named = on_gpu ? PyDict_Copy(state->version_arguments) : Py_NewRef(state->version_arguments);
  if (named == nullptr ||
      (on_gpu && (number == nullptr || PyDict_SetItem(named, state->words[kWordStream], number) != 0)))
    return nullptr;
  PyObject* capsule = PyObject_Call(method, state->no_arguments, named);
  if (capsule == nullptr && PyErr_ExceptionMatches(PyExc_TypeError)) {  // it does not know max_version
    PyErr_Clear();
    if (on_gpu) PyDict_DelItem(named, state->words[kWordMaxVersion]);
    capsule = PyObject_Call(method, state->no_arguments, on_gpu ? named.get() : nullptr);
  }
  return capsule;
}

bool borrow_dlpack(State* state, PyObject* object, const Place& place, Stream* stream, Borrowed* out) {
  const Ref method = PyObject_GetAttr(object, state->words[kWordDlpack]);
  if (method == nullptr) {
    PyErr_Clear();
    const Ref type = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__");
    return refuse(state->type_error,
                  "%s: '%s' is of type %S, wanted a tensor with __dlpack__ (numpy, torch, ...)",
                  place.op->name, place.name, type != nullptr ? type.get() : Py_None);
  }
  PyObject* capsule = export_capsule(state, object, method, stream);
  if (capsule == nullptr) return cannot_read(state, object, place);
  out->keep = capsule;  // the capsule frees the tensor, because it is not renamed as used
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const auto* managed = static_cast<const Managed*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->version.major != 1)
      return refuse(state->type_error, "%s: tensor '%s' comes with DLPack version %u, wanted 1",
                    place.op->name, place.name, static_cast<unsigned>(managed->version.major));
    out->tensor = managed->tensor;
    out->read_only = (managed->flags & kReadOnly) != 0;
    out->copied = (managed->flags & kCopied) != 0;
  } else {
    const auto* managed = static_cast<const LegacyManaged*>(PyCapsule_GetPointer(capsule, "dltensor"));
    if (managed == nullptr) return cannot_read(state, object, place);
    out->tensor = managed->tensor;
    out->unversioned = true;
  }
  copy_layout(&out->tensor, out);
  return true;
}

}  // namespace

bool read_array(const State* state, PyObject* object, Borrowed* out) {
  const auto& array = *reinterpret_cast<const ArrayObject*>(object);
  for (const ArrayType& known : state->array_types) {
    if (known.dtype != array.dtype) continue;
    if (known.dtype == nullptr || array.ndim > kMaxRank || set_layout(array, known.type, out)) return false;
    out->read_only = (array.flags & kArrayWriteable) == 0 || (array.flags & kArrayWarnOnWrite) != 0;
    out->copied = false;
    out->unversioned = false;
    return true;
  }
  return false;
}

void copy_layout(DLTensor* tensor, Borrowed* out) {
  const int rank = tensor->ndim;
  if (rank < 0 || rank > kMaxRank) return;  // the library refuses the rank and reads no further
  const int64_t* const shape = tensor->shape;
  const int64_t* const strides = tensor->strides;
  if (shape == nullptr && rank > 0) {
    tensor->ndim = -1;  // a rank that no operator takes
    return;
  }
  tensor->shape = out->shape;
  if (strides == nullptr) {
    for (int i = 0; i < rank; ++i) out->shape[i] = shape[i];
    return;
  }
  for (int i = 0; i < rank; ++i) {
    out->shape[i] = shape[i];
    out->strides[i] = strides[i];
  }
  tensor->strides = out->strides;
}

void find_memory(PyObject* object, DLTensor* tensor) {
  const Ref offset = PyObject_CallMethod(object, "storage_offset", nullptr);
  const long long elements = offset != nullptr ? PyLong_AsLongLong(offset) : -1;
  const uint64_t bytes = static_cast<uint64_t>(elements) * (tensor->dtype.bits / 8u);
  if (PyErr_Occurred() != nullptr || reinterpret_cast<uintptr_t>(tensor->data) == bytes)
    tensor->data = nullptr;
  PyErr_Clear();
}

PyObject* type_told(State* state, PyObject* object) {
  const TypeEntry entry = *find_type(state, object);
  if (entry.plain || entry.kind == Kind::kArrayStruct) return PyUnicode_FromString("");
  const Ref name = PyObject_GetAttrString(entry.type, "__name__");
  return name != nullptr ? PyUnicode_FromFormat(" of type %S", name.get()) : nullptr;
}

namespace {

// The exception that is set, taken out.
struct Raised {
  Ref type, value, trace;
  Raised() {
    PyErr_Fetch(type.place(), value.place(), trace.place());
    PyErr_NormalizeException(type.place(), value.place(), trace.place());
  }
};

}  // namespace

bool cannot_read(State* state, PyObject* object, const Place& place) {
  Raised cause;
  const Ref text = cause.value != nullptr ? PyObject_Str(cause.value) : nullptr;
  const Ref lines = text != nullptr ? PyUnicode_Splitlines(text, 0) : nullptr;
  PyObject* first =
      lines != nullptr && PyList_Size(lines) > 0 ? PyList_GetItem(lines, 0) : Py_None;  // borrowed
  PyErr_Clear();
  const Ref deleted = PyObject_CallMethod(object, "is_deleted", nullptr);  // of JAX
  PyErr_Clear();
  const Ref told = type_told(state, object);
  PyErr_Format(
      state->value_error,
      deleted == Py_True
          ? "%s: tensor '%s'%S was deleted, or donated to a compiled function; pass one that is there"
          : "%s: tensor '%s'%S cannot be read through DLPack, wanted one with strides and memory: %S",
      place.op->name, place.name, told != nullptr ? told.get() : Py_None, first);
  Raised error;
  if (cause.value != nullptr) PyException_SetCause(error.value, cause.value.take());
  PyErr_Restore(error.type.take(), error.value.take(), error.trace.take());
  return false;
}

PyObject* imported(const char* name) {
  PyObject* modules = PyImport_GetModuleDict();                               // borrowed
  return modules != nullptr ? PyDict_GetItemString(modules, name) : nullptr;  // borrowed
}

Ref attribute_of(PyObject* object, const char* name) {
  PyObject* const found = object != nullptr ? PyObject_GetAttrString(object, name) : nullptr;
  if (found == nullptr) PyErr_Clear();
  return found;
}

bool learn_numpy(State* state) {
  if (state->array_type != nullptr) return true;
  Ref type = attribute_of(imported("numpy"), "ndarray"), empty = attribute_of(imported("numpy"), "empty");
  if (type == nullptr || empty == nullptr) return false;
  state->array_type = type.take();
  state->array_empty = empty.take();
  return true;
}

void Borrowed::give_back() {
  if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
  Py_XDECREF(keep);
}

const TypeEntry* learn_type(State* state, PyObject* type) {
  TypeEntry found{};
  found.type = type;
  found.api = exchange_api(state, type);
  found.kind = Kind::kDlpack;
  found.plain = is_plain(type);
  found.torch = found.plain;
  if (found.api != nullptr) {
    found.kind = Kind::kExchange;
    found.view = found.api->view_from_object;
    found.current_stream = found.api->current_stream;
    learn_gradient(state, &found);
    found.torch |= found.gradient != nullptr;
  } else if (learn_numpy(state) && is_subtype(type, state->array_type)) {
    const Ref masked = attribute_of(imported("numpy.ma"), "MaskedArray");
    const Ref own = attribute_of(type, "__dlpack__"), plain = attribute_of(state->array_type, "__dlpack__");
    found.kind = masked != nullptr && is_subtype(type, masked) ? Kind::kMasked
                 : own == plain.get()                          ? Kind::kArrayStruct
                                                               : Kind::kDlpack;
  }
  TypeEntry& slot = state->types[state->next_type];
  state->next_type = (state->next_type + 1) % kTypeEntries;
  Py_INCREF(type);
  Py_XDECREF(slot.type);
  Py_XDECREF(slot.gradient);
  slot = found;
  return &slot;
}

bool borrow(State* state, PyObject* object, const Place& place, Shared* shared, Borrowed* out) {
  out->keep = nullptr;
  out->managed = nullptr;
  out->read_only = false;
  out->copied = false;
  out->unversioned = false;
  const TypeEntry entry = *find_type(state, object);
  switch (entry.kind) {
    case Kind::kExchange:
      return borrow_exchange(state, object, entry, place, shared, out);
    case Kind::kArrayStruct:
      return borrow_array(state, object, place, out);
    case Kind::kMasked:
      return refuse(
          state->type_error,
          "%s: '%s' is a masked array, and no kernel reads masks; pass %s.filled(value), or %s.data",
          place.op->name, place.name, place.name, place.name);
    default:
      if (entry.torch && shared->gradients == Gradients::kUnknown && !find_gradients(state, place, shared))
        return false;
      if (entry.torch && shared->forward && !check_tangent(state, object, place)) return false;
      if (!borrow_dlpack(state, object, place, &shared->stream, out)) return false;
      out->unversioned &= !entry.torch;  // torch's tensors can be written
      return true;
  }
}

}  // namespace aot_tune::python
