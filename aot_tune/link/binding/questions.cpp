// is_tuned and explain: questions about tensors, or about a problem stated by its dims.
#include <cstdlib>
#include <cstring>

#include "calls.h"

namespace aot_tune::python {
namespace {

// The library does not touch the data of tensors that are asked about.
void put_nowhere(DLTensor* tensor) {
  alignas(64) static char address[64];
  tensor->data = address;
}

// A row-major tensor.
void imagine(const Operator& op, int index, const DType& type, const DLDevice& device, const int64_t* dims,
             Imagined* out) {
  const TensorInfo& info = op.tensors[index];
  op.shape(index, dims, out->shape);
  int64_t step = 1;
  for (int axis = info.rank - 1; axis >= 0; --axis) {
    int64_t& extent = out->shape[axis];
    if (extent == kNoExtent) extent = -1;  // the library refuses it
    out->strides[axis] = step;
    step = static_cast<int64_t>(static_cast<uint64_t>(step) * static_cast<uint64_t>(extent > 0 ? extent : 1));
  }
  out->tensor = {nullptr, device, info.rank, {type.code, type.bits, 1}, out->shape, out->strides, 0};
  put_nowhere(&out->tensor);
}

int find_operator(State* state, PyObject* name) {
  if (PyUnicode_Check(name)) {
    for (int i = 0; i < kLibrary.operator_count; ++i) {
      if (PyUnicode_CompareWithASCIIString(name, kLibrary.operators[i].name) == 0) return i;
    }
  }
  const Ref known = operator_names();
  refuse(state->value_error, "%s has no operator %R; it has %R", kLibrary.name, name, known.get());
  return -1;
}

// Sets the dims of integers that were passed under a scalar's name, and the scalars of dims.
void share_bound_dims(const Operator& op, Parsed* parsed) {
  for (int i = 0; i < op.scalar_count; ++i) {
    const ScalarInfo& argument = op.scalars[i];
    if (argument.binds < 0) continue;
    if ((parsed->scalars_given >> i & 1u) != 0) {
      parsed->dims[argument.binds] = dim_of(argument, parsed->scalars[i]);
      parsed->dims_given += 1;
    } else {
      // If its type cannot hold the dim, it is another number, which the library refuses.
      parsed->scalars[i] = parsed->dims[argument.binds];
    }
  }
}

bool imagine_problem(State* state, const Operator& op, const Parsed& parsed, Imagined* imagined,
                     const DLTensor** given) {
  if (parsed.dims_given != op.dim_count) {
    const Ref wanted =
        make_tuple(op.dim_count, [&](Py_ssize_t i) { return PyUnicode_FromString(op.dims[i]); });
    return refuse(state->type_error, "%s: %d of %d dims were given; state each of %R, or pass tensors",
                  op.name, parsed.dims_given, op.dim_count, wanted.get());
  }
  DLDevice device = {kDLCPU, 0};
  if (parsed.device != nullptr && !parse_device(state, parsed.device, &device)) return false;
  for (int i = 0; i < op.tensor_count; ++i) {
    PyObject* value = parsed.tensors[i];
    if (value != nullptr && value != Py_True && value != Py_False && value != Py_None)
      return refuse(state->type_error, "%s: with dims given, '%s' can only be True or False", op.name,
                    op.tensors[i].name);
    if (op.tensors[i].optional && value != Py_True) continue;
    const int8_t variable = op.tensors[i].variable;
    const DType& type =
        variable < 0 ? op.tensors[i].type : op.variables[variable].types[parsed.dtypes[variable]];
    imagine(op, i, type, device, parsed.dims, &imagined[i]);
    given[i] = &imagined[i].tensor;
  }
  return true;
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
  const DLTensor* given[kMaxTensors] = {};
  Imagined folded[kMaxTensors];
  CallTensors tensors(op.tensor_count);
  tensors.folded = folded;
  if (parsed.dims_given > 0) {
    share_bound_dims(op, &parsed);
    if (!imagine_problem(state, op, parsed, imagined, given)) return nullptr;
  } else {
    if (!tensors.take_given(state, op, parsed)) return nullptr;
    DLTensor* made[kMaxTensors];
    bool any = false;
    for (int i = 0; i < op.tensor_count; ++i) any |= leads(op.tensors[i], tensors.given[i]);
    if (!imagine_outputs(state, op, parsed, tensors, any, imagined, made)) return nullptr;
    for (int i = 0; i < op.tensor_count; ++i) {
      if (made[i] == nullptr) continue;
      put_nowhere(made[i]);
      tensors.given[i] = made[i];
    }
    if (any) tensors.take_folded(op);
    for (int i = 0; i < op.tensor_count; ++i) given[i] = tensors.given[i];
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
  const Ref name = PyUnicode_FromStringAndSize(text, equals - text);
  const Ref value =
      number ? PyLong_FromLongLong(std::strtoll(equals + 1, nullptr, 10))
             : PyUnicode_FromStringAndSize(equals + 1, text + static_cast<Py_ssize_t>(length) - equals - 1);
  return name != nullptr && value != nullptr && PyDict_SetItem(inner, name, value) == 0;
}

bool is_key(const char* line, size_t length, const char* key) {
  return std::strlen(key) == length && std::strncmp(line, key, length) == 0;
}

// The name of the list for lines with a key, or null.
const char* list_of(const char* line, size_t key) {
  if (is_key(line, key, "tensor")) return "tensors";
  static const char* const lists[] = {"expected", "rejected"};
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
  const Ref value = is_key(line, key, "tuned") ? PyBool_FromLong(is_key(text, size, "yes"))
                    : is_key(line, key, "workspace")
                        ? PyLong_FromLongLong(std::strtoll(text, nullptr, 10))
                        : PyUnicode_FromStringAndSize(text, static_cast<Py_ssize_t>(size));
  if (value == nullptr) return false;
  if (const char* list = list_of(line, key)) return add_to_list(dict, list, value);
  const Ref name = PyUnicode_FromStringAndSize(line, static_cast<Py_ssize_t>(key));
  return name != nullptr && PyDict_SetItem(dict, name, value) == 0;
}

PyObject* to_dict(const char* text) {
  PyObject* dict = Py_BuildValue("{s:{},s:{},s:{},s:[],s:[],s:[]}", "dims", "dtypes", "attributes", "tensors",
                                 "expected", "rejected");
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
