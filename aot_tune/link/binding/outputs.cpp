// New tensors for outputs that the caller did not pass.
#include <cstring>

#include "binding.h"
#include "exchange.h"

namespace aot_tune::python {
namespace {

void set_error(void*, const char*, const char* message) { PyErr_SetString(PyExc_RuntimeError, message); }

// A framework's new tensor with its axes in another order. Releasing this releases the tensor.
struct Permuted {
  Managed managed;
  Managed* original;
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];
};

void delete_permuted(Managed* managed) {
  auto* permuted = static_cast<Permuted*>(managed->context);
  if (permuted->original->deleter != nullptr) permuted->original->deleter(permuted->original);
  delete permuted;
}

// The tensor whose axis order[i] is axis i of the original.
Managed* permute(Managed* original, const int* order) {
  auto* permuted = new Permuted{*original, original, {}, {}};
  DLTensor& tensor = permuted->managed.tensor;
  int64_t step = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    permuted->shape[order[i]] = tensor.shape[i];
    permuted->strides[order[i]] = tensor.strides != nullptr ? tensor.strides[i] : step;
    step *= tensor.shape[i];
  }
  tensor.shape = permuted->shape;
  tensor.strides = permuted->strides;
  permuted->managed.context = permuted;
  permuted->managed.deleter = delete_permuted;
  return &permuted->managed;
}

// The array whose axis order[i] is axis i of this one.
PyObject* transpose(PyObject* array, int rank, const int* order) {
  int64_t places[kMaxRank];
  for (int i = 0; i < rank; ++i) places[order[i]] = i;
  const Ref axes = array != nullptr ? tuple_of(rank, places) : nullptr;
  return axes != nullptr ? PyObject_CallMethod(array, "transpose", "O", axes.get()) : nullptr;
}

PyObject* allocate_exchange(const TypeEntry& entry, const DLDevice& device, const DType& type, int rank,
                            const int64_t* extents, const int* order) {
  int64_t shape[kMaxRank];
  for (int i = 0; i < rank; ++i) shape[i] = extents[i];
  DLTensor prototype{};
  prototype.device = device;
  prototype.ndim = rank;
  prototype.dtype = {type.code, type.bits, 1};
  prototype.shape = shape;
  Managed* managed = nullptr;
  void* object = nullptr;
  if (entry.api->allocate(&prototype, &managed, nullptr, set_error) != 0) return nullptr;
  if (order != nullptr) managed = permute(managed, order);
  if (entry.api->object_from_managed(managed, &object) != 0) return nullptr;
  return static_cast<PyObject*>(object);
}

// The functions of the framework of an object: those of the array API standard, or CuPy's. NULL without an
// exception if it names none.
PyObject* namespace_of(State* state, PyObject* like) {
  PyObject* const space = PyObject_CallMethodObjArgs(like, state->words[kWordNamespace], nullptr);
  if (space != nullptr) return space;
  PyErr_Clear();
  const Ref home = attribute_of(reinterpret_cast<PyObject*>(Py_TYPE(like)), "__module__");
  const char* text = home != nullptr ? PyUnicode_AsUTF8AndSize(home, nullptr) : nullptr;
  PyErr_Clear();
  return Py_XNewRef(text != nullptr && std::strncmp(text, "cupy", 4) == 0 ? imported("cupy") : nullptr);
}

// Allocates with a framework's `empty`. NULL without an exception if it lacks that function or the dtype.
PyObject* allocate_in(State* state, PyObject* space, PyObject* like, const DType& wanted, PyObject* shape) {
  const Ref empty = PyObject_GetAttr(space, state->words[kWordEmpty]);
  const Ref type = attribute_of(empty != nullptr ? space : nullptr, wanted.framework);
  const Ref device = type != nullptr ? PyObject_GetAttr(like, state->words[kWordDevice]) : nullptr;
  if (device == nullptr) PyErr_Clear();
  const Ref arguments = type != nullptr ? PyTuple_Pack(1, shape) : nullptr;
  const Ref named = arguments != nullptr ? PyDict_New() : nullptr;
  PyObject* result = nullptr;
  if (named != nullptr && PyDict_SetItem(named, state->words[kWordDtype], type) == 0) {
    if (device != nullptr) PyDict_SetItem(named, state->words[kWordDevice], device);
    result = PyObject_Call(empty, arguments, named);
    if (result == nullptr && device != nullptr && PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();  // CuPy's `empty` uses the current device
      PyDict_DelItem(named, state->words[kWordDevice]);
      result = PyObject_Call(empty, arguments, named);
    }
  }
  return result;
}

// An array of numpy. NULL without an exception if that is impossible: numpy itself lacks some dtypes, which
// an array of another package may have.
PyObject* allocate_array(State* state, PyObject* like, const DLDevice& device, const DType& wanted,
                         PyObject* shape) {
  if (device.device_type != kDLCPU) return nullptr;
  const Ref own = wanted.standard() ? Ref() : attribute_of(like, "dtype");
  const Ref name = attribute_of(own, "name");
  const bool named = name != nullptr && PyUnicode_Check(name) &&
                     PyUnicode_CompareWithASCIIString(name, wanted.framework) == 0;
  if (!wanted.standard() && !named) return nullptr;
  const Ref numpy = PyImport_ImportModule("numpy");
  if (numpy == nullptr || !learn_numpy(state)) return nullptr;
  if (named) return PyObject_CallFunctionObjArgs(state->array_empty, shape, own.get(), nullptr);
  return PyObject_CallFunction(state->array_empty, "Os", shape, wanted.framework);
}

// The axes of a new tensor without gaps from the slowest to the fastest. False if they are in that order.
bool axes_of_new(const DLTensor& made, int* order) {
  // An axis of extent 1 has the stride of the axis that it comes behind.
  const auto slower = [&made](int one, int two) {
    const int64_t first = made.strides[one], second = made.strides[two];
    return first != second ? first > second : made.shape[one] != 1 && made.shape[two] == 1;
  };
  bool other = false;
  for (int axis = 0; axis < made.ndim; ++axis) {
    int place = axis;
    for (; place > 0 && slower(axis, order[place - 1]); --place) order[place] = order[place - 1];
    order[place] = axis;
    other = other || place != axis;
  }
  return other;
}

}  // namespace

PyObject* allocate(State* state, PyObject* like, const Place& place, const DType& type,
                   const DLTensor& wanted, bool is_ordered) {
  const TypeEntry entry = *find_type(state, like);
  const DLDevice& device = wanted.device;
  const int rank = wanted.ndim;
  const int64_t* extents = wanted.shape;
  int order[kMaxRank];
  int64_t ordered[kMaxRank];
  const bool other = is_ordered && entry.kind != Kind::kDlpack && axes_of_new(wanted, order);
  for (int i = 0; other && i < rank; ++i) ordered[i] = extents[order[i]];
  if (other) extents = ordered;
  if (entry.kind == Kind::kExchange) {
    return allocate_exchange(entry, device, type, rank, extents, other ? order : nullptr);
  }
  const Ref shape = tuple_of(rank, extents);
  if (shape == nullptr) return nullptr;
  const Ref space = entry.kind != Kind::kArrayStruct ? namespace_of(state, like) : nullptr;
  Ref result = space != nullptr ? allocate_in(state, space, like, type, shape)
                                : allocate_array(state, like, device, type, shape);
  if (result == nullptr && PyErr_Occurred() == nullptr) {
    PyErr_Format(state->type_error,
                 "%s: output '%s' of %s cannot be made for arrays of this kind; pass %s=, a tensor of a "
                 "framework that has that dtype and device",
                 place.op->name, place.name, type.framework, place.name);
  }
  return other ? transpose(result, rank, order) : result.take();
}

}  // namespace aot_tune::python
