// Scalars of calls from Python: numbers of each kind, and what is wrong with other values.
#include <cstdint>
#include <limits>

#include "calls.h"

namespace aot_tune::python {
namespace {

using Number = ScalarInfo::Kind;

int bits_of(Number kind) { return 8 * static_cast<int>(kScalarBytes[kind]); }

// Raises that a value is no such scalar, if it was found to be none. Returns false.
bool wrong_scalar(State* state, const Operator& op, const ScalarInfo& argument, PyObject* value) {
  const bool large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
  if (!large && !PyErr_ExceptionMatches(PyExc_TypeError)) return false;
  PyErr_Clear();
  PyObject* const type = large ? PyExc_OverflowError : state->type_error;
  const int bits = bits_of(argument.kind);
  if (argument.kind == Number::kBool) {
    PyErr_Format(type, "%s: '%s' is %R, wanted True or False", op.name, argument.name, value);
  } else if (argument.kind == Number::kF32 || argument.kind == Number::kF64) {
    PyErr_Format(type, "%s: '%s' is %R, wanted a number of %d bits", op.name, argument.name, value, bits);
  } else if (argument.kind >= Number::kU8) {
    const unsigned long long most = std::numeric_limits<uint64_t>::max() >> (64 - bits);
    PyErr_Format(type, "%s: '%s' is %R, wanted a whole number of %d bits, from 0 to %llu", op.name,
                 argument.name, value, bits, most);
  } else {
    const long long most = std::numeric_limits<int64_t>::max() >> (64 - bits);
    PyErr_Format(type, "%s: '%s' is %R, wanted a whole number of %d bits, from %lld to %lld", op.name,
                 argument.name, value, bits, -most - 1, most);
  }
  return false;
}

// Raises that a number is too large or too small. Returns false.
bool no_single(const Operator& op, const ScalarInfo& argument, double wide) {
  const Ref number = PyFloat_FromDouble(wide);
  return refuse(PyExc_OverflowError, "%s: '%s' is %R, which is %s as a number of 32 bits", op.name,
                argument.name, number.get(), static_cast<float>(wide) == 0 ? "0" : "infinite");
}

// All that follow return the value, or set an exception that does not describe the argument.
long long parse_signed(PyObject* value, int bits) {
  const long long found = PyLong_AsLongLong(value);
  const long long most = std::numeric_limits<int64_t>::max() >> (64 - bits);
  if (found > most || found < -most - 1) PyErr_SetNone(PyExc_OverflowError);
  return found;
}

unsigned long long parse_unsigned(PyObject* value, int bits) {
  const Ref index = PyNumber_Index(value);
  if (index == nullptr) return 0;
  const unsigned long long found = PyLong_AsUnsignedLongLong(index);
  const bool failed = found == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr;
  if (!failed && found > std::numeric_limits<uint64_t>::max() >> (64 - bits))
    PyErr_SetNone(PyExc_OverflowError);
  return found;
}

// numpy's booleans are not numbers: they have no __index__.
bool is_numpy_bool(PyObject* value) {
  const Ref name = attribute_of(reinterpret_cast<PyObject*>(Py_TYPE(value)), "__qualname__");
  return name != nullptr && PyUnicode_Check(name) &&
         (PyUnicode_CompareWithASCIIString(name, "bool") == 0 ||
          PyUnicode_CompareWithASCIIString(name, "bool_") == 0);
}

// True and False, also those of numpy, and the numbers 1 and 0.
bool parse_bool(PyObject* value) {
  if (value == Py_True || value == Py_False) return value == Py_True;
  if (is_numpy_bool(value)) return PyObject_IsTrue(value) == 1;
  return parse_unsigned(value, 1) != 0;
}

}  // namespace

bool parse_scalar(State* state, const Operator& op, const ScalarInfo& argument, PyObject* value,
                  Scalar* out) {
  const int bits = bits_of(argument.kind);
  if (!PyFloat_Check(value) && !PyLong_Check(value) && !check_number(state, value, {&op, argument.name}))
    return false;
  if (argument.kind == Number::kF32) {
    const double wide = PyFloat_AsDouble(value);
    out->f32 = static_cast<float>(wide);
    if (__builtin_expect(!fits_f32(wide), 0)) return no_single(op, argument, wide);
  } else if (argument.kind == Number::kF64) {
    out->f64 = PyFloat_AsDouble(value);
  } else if (argument.kind == Number::kBool) {
    out->truth = parse_bool(value);
  } else if (argument.kind >= Number::kU8) {
    *out = uint64_t{parse_unsigned(value, bits)};  // a smaller integer is at the beginning of a larger one
  } else {
    *out = int64_t{parse_signed(value, bits)};
  }
  return PyErr_Occurred() == nullptr || wrong_scalar(state, op, argument, value);
}

}  // namespace aot_tune::python
