// is_tuned and explain: questions about tensors, or about a problem stated by its dims.
#include <cstdlib>
#include <cstring>

#include "calls.h"

namespace aot_tune::python {
namespace {

// Tensors that have a shape but no memory. For these questions, the library does not touch data.
struct Imagined {
  DLTensor tensor;
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];

  void make(const TensorArgument& argument, const DType& type, const DLDevice& device,
            const DLTensor* layout) {
    alignas(64) static char address[64];
    tensor = {address, device, argument.rank, {type.code, type.bits, 1}, shape, strides, 0};
    int64_t step = 1;
    int order[kMaxRank];
    const bool other = axes_in_memory(layout, order);
    for (int place = argument.rank - 1; place >= 0; --place) {
      const int axis = other ? order[place] : place;
      strides[axis] = step;
      step = static_cast<int64_t>(static_cast<uint64_t>(step) *
                                  static_cast<uint64_t>(shape[axis] > 0 ? shape[axis] : 1));
    }
  }
};

int find_operator(State* state, PyObject* name) {
  if (PyUnicode_Check(name)) {
    for (int i = 0; i < kLibrary.operator_count; ++i) {
      if (PyUnicode_CompareWithASCIIString(name, kLibrary.operators[i].name) == 0) return i;
    }
  }
  PyObject* known = PyTuple_New(kLibrary.operator_count);
  for (int i = 0; known != nullptr && i < kLibrary.operator_count; ++i) {
    PyTuple_SetItem(known, i, PyUnicode_FromString(kLibrary.operators[i].name));
  }
  if (known != nullptr) {
    PyErr_Format(state->value_error, "%s has no operator %R; it has %R", kLibrary.name, name, known);
  }
  Py_XDECREF(known);
  return -1;
}

// The integer of a scalar as a dim.
int64_t dim_of(const ScalarArgument& argument, const Scalar& scalar) {
  switch (argument.kind) {
    case ScalarArgument::kI8:
      return scalar.i8;
    case ScalarArgument::kI16:
      return scalar.i16;
    case ScalarArgument::kI32:
      return scalar.i32;
    case ScalarArgument::kU8:
      return scalar.u8;
    case ScalarArgument::kU16:
      return scalar.u16;
    case ScalarArgument::kU32:
      return scalar.u32;
    default:
      return scalar.i64;
  }
}

// A dim as the integer of a scalar. If the type cannot hold it, the result is another number, which the
// library refuses.
Scalar scalar_of(const ScalarArgument& argument, int64_t dim) {
  switch (argument.kind) {
    case ScalarArgument::kI8:
      return static_cast<int8_t>(dim);
    case ScalarArgument::kI16:
      return static_cast<int16_t>(dim);
    case ScalarArgument::kI32:
      return static_cast<int32_t>(dim);
    case ScalarArgument::kU8:
      return static_cast<uint8_t>(dim);
    case ScalarArgument::kU16:
      return static_cast<uint16_t>(dim);
    case ScalarArgument::kU32:
      return static_cast<uint32_t>(dim);
    default:
      return dim;
  }
}

// Sets the dims of integers that were passed under a scalar's name, and the scalars of dims.
void share_bound_dims(const Operator& op, Parsed* parsed) {
  for (int i = 0; i < op.scalar_count; ++i) {
    const ScalarArgument& argument = op.scalars[i];
    if (argument.binds < 0) continue;
    if ((parsed->scalars_given >> i & 1u) != 0) {
      parsed->dims[argument.binds] = dim_of(argument, parsed->scalars[i]);
      parsed->dims_given += 1;
    } else {
      parsed->scalars[i] = scalar_of(argument, parsed->dims[argument.binds]);
    }
  }
}

bool imagine_problem(State* state, const Operator& op, const Parsed& parsed, Imagined* imagined,
                     CallTensors* tensors) {
  if (parsed.dims_given != op.dim_count) {
    PyObject* wanted = PyTuple_New(op.dim_count);
    for (int i = 0; wanted != nullptr && i < op.dim_count; ++i) {
      PyTuple_SetItem(wanted, i, PyUnicode_FromString(op.dims[i]));
    }
    if (wanted != nullptr) {
      PyErr_Format(state->type_error, "%s: %d of %d dims were given; state each of %R, or pass tensors",
                   op.name, parsed.dims_given, op.dim_count, wanted);
    }
    Py_XDECREF(wanted);
    return false;
  }
  DLDevice device = {kDLCPU, 0};
  if (parsed.device != nullptr && !parse_device(state, parsed.device, &device)) return false;
  for (int i = 0; i < op.tensor_count; ++i) {
    PyObject* value = parsed.tensors[i];
    if (value != nullptr && value != Py_True && value != Py_False && value != Py_None) {
      PyErr_Format(state->type_error, "%s: with dims given, '%s' can only be True or False", op.name,
                   op.tensors[i].name);
      return false;
    }
    if (op.tensors[i].optional && value != Py_True) continue;
    op.shape(i, parsed.dims, imagined[i].shape);
    const int8_t variable = op.tensors[i].variable;
    const DType& type =
        variable < 0 ? op.tensors[i].type : op.variables[variable].choices[parsed.dtypes[variable]].type;
    imagined[i].make(op.tensors[i], type, device, nullptr);
    tensors->given[i] = &imagined[i].tensor;
  }
  return true;
}

bool imagine_outputs(const Operator& op, const Parsed& parsed, Imagined* imagined, CallTensors* tensors,
                     const DLTensor** given) {
  int64_t dims[kMaxDims];
  const int first = tensors->first();
  const bool bound = op.bind(tensors->given, parsed.scalars, dims);
  for (int i = 0; i < op.tensor_count; ++i) {
    given[i] = tensors->given[i];
    if (given[i] != nullptr || !op.tensors[i].output || !wants_allocation(op.tensors[i], parsed.tensors[i]))
      continue;
    if (!bound) continue;
    op.shape(i, dims, imagined[i].shape);
    imagined[i].make(op.tensors[i], type_of(op, i, tensors->given), tensors->given[first]->device,
                     tensors->layout_for(op.tensors[i]));
    given[i] = &imagined[i].tensor;
  }
  return bound;
}

// Calls `ask(op, tensors, scalars, attributes)` for the problem that the arguments describe.
template <typename Ask>
PyObject* question(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords,
                   const char* name, Ask ask) {
  State* state = state_of(module);
  if (count < 1) {
    PyErr_Format(state->type_error, "%s() wants the operator's name, then tensors or dims by keyword", name);
    return nullptr;
  }
  const int index = find_operator(state, arguments[0]);
  if (index < 0) return nullptr;
  const Operator& op = kLibrary.operators[index];
  Parsed parsed;
  parsed.accept_dims = true;
  if (!parse(state, index, arguments + 1, count - 1, keywords, &parsed)) return nullptr;
  Imagined imagined[kMaxTensors];
  const DLTensor* given[kMaxTensors];
  CallTensors tensors(op.tensor_count);
  if (parsed.dims_given > 0) {
    share_bound_dims(op, &parsed);
    CallTensors none(op.tensor_count);
    const bool made = imagine_problem(state, op, parsed, imagined, &none);
    for (int i = 0; i < op.tensor_count; ++i) {
      given[i] = none.given[i];
      none.given[i] = nullptr;  // nothing was borrowed
    }
    if (!made) return nullptr;
  } else {
    if (!tensors.take_given(state, op, parsed)) return nullptr;
    imagine_outputs(op, parsed, imagined, &tensors, given);
  }
  aot_tune_exec exec{nullptr, nullptr, 0};
  if (parsed.workspace != nullptr && PyLong_Check(parsed.workspace)) {
    exec.workspace = reinterpret_cast<void*>(64);  // the question is only about its size
    exec.workspace_size = PyLong_AsSize_t(parsed.workspace);
    if (PyErr_Occurred() != nullptr) return nullptr;
  } else if (!tensors.take_workspace(state, op, parsed.workspace, &exec)) {
    return nullptr;
  }
  return ask(state, op, given, parsed.scalars, parsed.attributes, exec);
}

bool add_to_list(PyObject* dict, const char* key, PyObject* value) {
  PyObject* list = PyDict_GetItemString(dict, key);  // borrowed
  return list != nullptr && PyList_Append(list, value) == 0;
}

// Adds "M=16" to the dict `dict[key]`, as a number if it is one.
bool add_to_dict(PyObject* dict, const char* key, const char* text, size_t length, bool number) {
  PyObject* inner = PyDict_GetItemString(dict, key);  // borrowed
  const auto* equals = static_cast<const char*>(std::memchr(text, '=', length));
  if (inner == nullptr || equals == nullptr) return false;
  PyObject* name = PyUnicode_FromStringAndSize(text, equals - text);
  PyObject* value =
      number ? PyLong_FromLongLong(std::strtoll(equals + 1, nullptr, 10))
             : PyUnicode_FromStringAndSize(equals + 1, text + static_cast<Py_ssize_t>(length) - equals - 1);
  const bool added = name != nullptr && value != nullptr && PyDict_SetItem(inner, name, value) == 0;
  Py_XDECREF(name);
  Py_XDECREF(value);
  return added;
}

bool is_key(const char* line, size_t length, const char* key) {
  return std::strlen(key) == length && std::strncmp(line, key, length) == 0;
}

// The name of the list for lines with a key, or null.
const char* list_of(const char* line, size_t key) {
  if (is_key(line, key, "tensor")) return "tensors";
  static const char* const lists[] = {"expected", "path", "rejected"};
  for (const char* list : lists) {
    if (is_key(line, key, list)) return list;
  }
  return nullptr;
}

bool add_line(PyObject* dict, const char* line, size_t length) {
  const auto* colon = static_cast<const char*>(std::memchr(line, ':', length));
  if (colon == nullptr || colon + 2 > line + length) return true;
  const auto key = static_cast<size_t>(colon - line);
  const char* text = colon + 2;
  const size_t size = length - key - 2;
  if (is_key(line, key, "dim")) return add_to_dict(dict, "dims", text, size, true);
  if (is_key(line, key, "dtype")) return add_to_dict(dict, "dtypes", text, size, false);
  if (is_key(line, key, "attribute")) return add_to_dict(dict, "attributes", text, size, false);
  PyObject* value = is_key(line, key, "tuned") ? PyBool_FromLong(is_key(text, size, "yes"))
                    : is_key(line, key, "workspace")
                        ? PyLong_FromLongLong(std::strtoll(text, nullptr, 10))
                        : PyUnicode_FromStringAndSize(text, static_cast<Py_ssize_t>(size));
  if (value == nullptr) return false;
  bool added;
  const char* list = list_of(line, key);
  if (list != nullptr) {
    added = add_to_list(dict, list, value);
  } else {
    PyObject* name = PyUnicode_FromStringAndSize(line, static_cast<Py_ssize_t>(key));
    added = name != nullptr && PyDict_SetItem(dict, name, value) == 0;
    Py_XDECREF(name);
  }
  Py_DECREF(value);
  return added;
}

PyObject* to_dict(const char* text) {
  PyObject* dict = Py_BuildValue("{s:{},s:{},s:{},s:[],s:[],s:[],s:[]}", "dims", "dtypes", "attributes",
                                 "tensors", "expected", "path", "rejected");
  while (dict != nullptr && *text != '\0') {
    const char* end = std::strchr(text, '\n');
    const size_t length = end != nullptr ? static_cast<size_t>(end - text) : std::strlen(text);
    if (!add_line(dict, text, length)) Py_CLEAR(dict);
    text += length + (end != nullptr ? 1 : 0);
  }
  return dict;
}

}  // namespace

PyObject* explain(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  const auto ask = [](State* state, const Operator& op, Tensors tensors, const Scalar* scalars,
                      const int32_t* attributes, const aot_tune_exec& exec) -> PyObject* {
    constexpr size_t kSize = 1 << 16;
    auto* buffer = static_cast<char*>(PyMem_Malloc(kSize));
    if (buffer == nullptr) return PyErr_NoMemory();
    const int32_t status = op.explain(tensors, scalars, attributes, &exec, buffer, kSize);
    PyObject* result = status == AOT_TUNE_OK ? to_dict(buffer) : raise_status(state, status);
    PyMem_Free(buffer);
    return result;
  };
  return question(module, arguments, count, keywords, "explain", ask);
}

PyObject* is_tuned(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords) {
  const auto ask = [](State* state, const Operator& op, Tensors tensors, const Scalar* scalars,
                      const int32_t* attributes, const aot_tune_exec&) -> PyObject* {
    int32_t tuned = 0;
    const int32_t status = op.is_tuned(tensors, scalars, attributes, &tuned);
    return status == AOT_TUNE_OK ? PyBool_FromLong(tuned) : raise_status(state, status);
  };
  return question(module, arguments, count, keywords, "is_tuned", ask);
}

}  // namespace aot_tune::python
