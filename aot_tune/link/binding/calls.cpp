// Calls of operators from Python: arguments, outputs, results.
#include "calls.h"

namespace aot_tune::python {
namespace {

struct Names {
  PyObject** tensors;
  PyObject** scalars;
  PyObject** attributes;
  PyObject** dims;
  PyObject** variables;
  PyObject** choices;  // of all attributes, then of all variables
};

Names names_of(State* state, int index) {
  const Operator& op = kLibrary.operators[index];
  Names names;
  names.tensors = state->names + state->first_name[index];
  names.scalars = names.tensors + op.tensor_count;
  names.attributes = names.scalars + op.scalar_count;
  names.dims = names.attributes + op.attribute_count;
  names.variables = names.dims + op.dim_count;
  names.choices = names.variables + op.variable_count;
  return names;
}

int find(PyObject* const* names, int count, PyObject* key) {
  for (int i = 0; i < count; ++i) {
    if (names[i] == key) return i;
  }
  for (int i = 0; i < count; ++i) {
    if (PyUnicode_Compare(names[i], key) == 0) return i;
  }
  return -1;
}

// The index of a value among the choices. `kind` and `name` say which choices, for messages.
bool parse_choice(State* state, const Operator& op, const char* kind, const char* name,
                  PyObject* const* choices, int32_t count, PyObject* value, int32_t* out) {
  *out = PyUnicode_Check(value) ? find(choices, count, value) : -1;
  if (*out >= 0) return true;
  const Ref known = make_tuple(count, [&](Py_ssize_t i) { return Py_NewRef(choices[i]); });
  return refuse(state->value_error, "%s: %s '%s' is %R, wanted one of %R", op.name, kind, name, value,
                known.get());
}

// The arguments that all operators have. NULL if it is none of them.
PyObject** common_argument(State* state, PyObject* key, Parsed* out) {
  PyObject* words[] = {state->words[kWordStream], state->words[kWordWorkspace], state->words[kWordDevice]};
  PyObject** values[] = {&out->stream, &out->workspace, &out->device};
  const int i = find(words, out->accept_dims ? 3 : 2, key);
  return i >= 0 ? values[i] : nullptr;
}

void unknown_argument(State* state, int index, const Names& names, PyObject* key, bool accept_dims) {
  const Operator& op = kLibrary.operators[index];
  const int count = accept_dims ? op.dim_count + op.variable_count : 0;  // they are adjacent
  const Ref more = make_tuple(count, [&](Py_ssize_t i) { return Py_NewRef(names.dims[i]); });
  if (more == nullptr) return;
  if (accept_dims) {
    PyErr_Format(state->type_error,
                 "%s() has no argument %R; it is called as %s%s, or stated by %R, 'device' and 'workspace'",
                 op.name, key, op.name, signature_of(index), more.get());
  } else {
    PyErr_Format(state->type_error, "%s() has no argument %R; it is called as %s%s", op.name, key, op.name,
                 signature_of(index));
  }
}

bool parse_positional(State* state, int index, PyObject* const* arguments, Py_ssize_t count, Parsed* out) {
  const Operator& op = kLibrary.operators[index];
  const Positions positions = positions_of(op);
  for (int i = 0; i < positions.count && i < count; ++i) out->tensors[positions.tensors[i]] = arguments[i];
  if (count <= positions.count) return true;
  return refuse(state->type_error,
                "%s() takes at most %d positional arguments, %zd were given; it is called as %s%s", op.name,
                positions.count, count, op.name, signature_of(index));
}

}  // namespace

bool parse_keyword(State* state, int index, PyObject* key, PyObject* value, Parsed* out) {
  const Operator& op = kLibrary.operators[index];
  const Names names = names_of(state, index);
  const int named = op.tensor_count + op.scalar_count + op.attribute_count;
  int i = find(names.tensors, named + (out->accept_dims ? op.dim_count + op.variable_count : 0), key);
  if (i < 0) {
    if (PyObject** common = common_argument(state, key, out)) {
      *common = value;
      return true;
    }
    unknown_argument(state, index, names, key, out->accept_dims);
    return false;
  }
  if (i < op.tensor_count) {
    if (out->tensors[i] != nullptr)
      return refuse(state->type_error, "%s() got '%s' twice", op.name, op.tensors[i].name);
    out->tensors[i] = value;
    return true;
  }
  i -= op.tensor_count;
  if (i < op.scalar_count) {
    out->scalars_given |= 1u << i;
    return parse_scalar(state, op, op.scalars[i], value, &out->scalars[i]);
  }
  i -= op.scalar_count;
  PyObject** choices = names.choices;
  if (i < op.attribute_count) {
    const AttributeInfo& argument = op.attributes[i];
    for (int k = 0; k < i; ++k) choices += op.attributes[k].count;
    return parse_choice(state, op, "attribute", argument.name, choices, argument.count, value,
                        &out->attributes[i]);
  }
  i -= op.attribute_count;
  if (i < op.dim_count) {
    out->dims[i] = PyLong_AsLongLong(value);
    out->dims_given += 1;
    if (PyErr_Occurred() == nullptr) return true;
    PyObject* kind = PyErr_ExceptionMatches(PyExc_OverflowError) ? PyExc_OverflowError : state->type_error;
    PyErr_Clear();
    return refuse(kind, "%s: dim '%U' is %R, wanted a whole number of 64 bits", op.name, names.dims[i],
                  value);
  }
  i -= op.dim_count;
  for (int k = 0; k < op.attribute_count; ++k) choices += op.attributes[k].count;
  for (int k = 0; k < i; ++k) choices += op.variables[k].count;
  return parse_choice(state, op, "dtype", op.variables[i].name, choices, op.variables[i].count, value,
                      &out->dtypes[i]);
}

bool learn_keywords(State* state, int index, PyObject* names) {
  const Operator& op = kLibrary.operators[index];
  PyObject* const* const tensors = state->names + state->first_name[index];
  const Py_ssize_t count = PyTuple_Size(names);
  Keywords found{names, count, {}};
  if (count > kMaxKeywords) return false;
  for (Py_ssize_t k = 0; k < count; ++k) {
    PyObject* const key = PyTuple_GetItem(names, k);
    if (!PyUnicode_CheckExact(key)) return false;  // freeing such a name may run Python code
    const int i = find(tensors, op.tensor_count, key);
    found.places[k] = static_cast<int8_t>(i >= 0                                ? i
                                          : key == state->words[kWordStream]    ? kStreamPlace
                                          : key == state->words[kWordWorkspace] ? kWorkspacePlace
                                                                                : -1);
  }
  Keywords& known = state->keywords[index];
  Py_INCREF(names);  // held, so that no other tuple can get the same address
  Py_XDECREF(known.names);
  known = found;
  return true;
}

bool parse(State* state, int index, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords,
           Parsed* out) {
  clear(kLibrary.operators[index], out);
  if (!parse_positional(state, index, arguments, count, out)) return false;
  const Py_ssize_t named = keywords != nullptr ? PyTuple_Size(keywords) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    if (!parse_keyword(state, index, PyTuple_GetItem(keywords, i), arguments[count + i], out)) return false;
  }
  return true;
}

bool all_scalars(State* state, int index, const Parsed& parsed) {
  const Operator& op = kLibrary.operators[index];
  for (int i = 0; i < op.scalar_count; ++i) {
    if (!op.scalars[i].required || (parsed.scalars_given >> i & 1u) != 0) continue;
    return refuse(state->type_error, "%s() needs '%s'; it is called as %s%s", op.name, op.scalars[i].name,
                  op.name, signature_of(index));
  }
  return true;
}

bool imagine_outputs(State* state, const Operator& op, const Parsed& parsed, const CallTensors& tensors,
                     bool leads, Imagined* imagined, DLTensor** made) {
  DLTensor* taken[kMaxTensors];
  Imagined* folded = tensors.folded;
  for (int i = 0; i < op.tensor_count; ++i) {
    const bool wanted = op.tensors[i].output && wants_allocation(op.tensors[i], parsed.tensors[i]);
    made[i] = wanted ? (imagined++)->place() : nullptr;
    taken[i] = leads && op.tensors[i].folds ? (folded++)->place() : nullptr;
  }
  const int32_t status = op.infer(tensors.given, parsed.scalars, parsed.attributes, made, taken);
  return status == AOT_TUNE_OK || raise_status(state, status) != nullptr;
}

void CallTensors::take_folded(const Operator& op) {
  Imagined* next = folded;
  for (int i = 0; i < count; ++i) {
    if (!op.tensors[i].folds) continue;
    DLTensor& taken = (next++)->tensor;
    if (!leads(op.tensors[i], given[i])) continue;
    taken.data = given[i]->data;
    taken.byte_offset = given[i]->byte_offset;
    given[i] = &taken;
  }
}

bool prepare(State* state, const Operator& op, const Parsed& parsed, CallTensors* tensors, bool leads,
             Imagined* imagined) {
  DLTensor* made[kMaxTensors];
  if (!imagine_outputs(state, op, parsed, *tensors, leads, imagined, made)) return false;
  PyObject* const like = parsed.tensors[tensors->first()];
  for (int i = 0; i < op.tensor_count; ++i) {
    if (made[i] == nullptr) continue;
    tensors->settle();
    tensors->made[i] = allocate(state, like, {&op, op.tensors[i].name}, type_of(op, i, tensors->given),
                                *made[i], op.tensors[i].layout_of >= 0);
    if (tensors->made[i] == nullptr) return false;
    tensors->owned |= CallTensors::kMade;
    if (!tensors->take(state, op, i, tensors->made[i])) return false;
  }
  if (leads) tensors->take_folded(op);
  return true;
}

PyObject* results(const Operator& op, const Parsed& parsed, const CallTensors& tensors) {
  PyObject* found[kMaxTensors];
  int count = 0;
  for (int i = 0; i < op.tensor_count; ++i) {
    if (!op.tensors[i].output || tensors.given[i] == nullptr) continue;
    found[count++] = tensors.made[i] != nullptr ? tensors.made[i] : parsed.tensors[i];
  }
  if (count == 1) return Py_NewRef(found[0]);
  if (output_count(op) == 0) Py_RETURN_NONE;
  return make_tuple(count, [&](Py_ssize_t i) { return Py_NewRef(found[i]); });
}

PyObject* raise_call(State* state, const Operator& op, const Parsed& parsed, const CallTensors& tensors,
                     int32_t status) {
  for (int i = 0; status == AOT_TUNE_ERROR_NULL && i < op.tensor_count; ++i) {
    if (tensors.given[i] == nullptr || tensors.given[i]->data != nullptr || tensors.made[i] != nullptr)
      continue;
    const Ref told = type_told(state, parsed.tensors[i]);
    const Ref more =
        told != nullptr && PyUnicode_GetLength(told) > 0
            ? PyUnicode_FromFormat(
                  "; '%s' is%U, which stands for a tensor and has no memory: make the call where there "
                  "are tensors, or wrap it as a custom operator (torch.library.custom_op)",
                  op.tensors[i].name, told.get())
            : nullptr;
    PyErr_Clear();
    return raise_status(state, status, more);
  }
  return raise_status(state, status);
}

}  // namespace aot_tune::python
