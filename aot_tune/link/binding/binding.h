// The Python face of a library: the tables that generated code fills in, and the functions that read them.
#ifndef AOT_TUNE_LINK_BINDING_H_
#define AOT_TUNE_LINK_BINDING_H_

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#include "aot_tune/base.h"

namespace aot_tune::python {

constexpr int kMaxRank = 8;
constexpr int kMaxTensors = 16;
constexpr int kMaxScalars = 8;
constexpr int kMaxAttributes = 8;
constexpr int kMaxDims = 16;

struct TensorArgument {
  const char* name;
  const char* dtype;  // as numpy and the array API spell it: "float32"
  int8_t rank;
  uint8_t code;
  uint8_t bits;
  bool output;
  bool optional;
};

union Scalar {
  float f32;
  double f64;
  int32_t i32;
  int64_t i64;
};

struct ScalarArgument {
  const char* name;
  enum Kind : uint8_t { kF32, kF64, kI32, kI64 } kind;
  Scalar value;  // when the caller gives none
};

struct AttributeArgument {
  const char* name;
  const char* const* choices;
  int32_t count;
};

using Tensors = const DLTensor* const*;

struct Operator {
  const char* name;
  const TensorArgument* tensors;
  int tensor_count;
  const ScalarArgument* scalars;
  int scalar_count;
  const AttributeArgument* attributes;
  int attribute_count;
  const char* const* dims;
  int dim_count;
  int32_t (*call)(Tensors, const Scalar*, const int32_t*, const aot_tune_exec*);
  int32_t (*explain)(Tensors, const Scalar*, const int32_t*, char*, size_t);
  int32_t (*is_tuned)(Tensors, const Scalar*, const int32_t*, int32_t*);
  // Reads the dims off the inputs; false when one has too few axes for that.
  bool (*bind)(Tensors, int64_t* dims);
  void (*shape)(int tensor, const int64_t* dims, int64_t* extents);
};

struct Library {
  const char* name;
  const Operator* operators;
  int operator_count;
  const char* (*last_error)();
  const char* (*manifest)();
};

// Generated; one per module.
extern const Library kLibrary;

// ---- Module state
// --------------------------------------------------------------------------------------------------

// How tensors of a Python type are read.
enum class Kind : uint8_t { kExchange, kArrayStruct, kDlpack };

struct ExchangeApi;

struct TypeEntry {
  PyObject* type;
  const ExchangeApi* api;
  Kind kind;
  bool differentiable;  // has `requires_grad`
};

enum Word {
  kWordExchange,
  kWordArrayStruct,
  kWordDlpack,
  kWordMaxVersion,
  kWordRequiresGrad,
  kWordIsNeg,
  kWordNamespace,
  kWordDevice,
  kWordDtype,
  kWordEmpty,
  kWordCount
};

constexpr int kTypeEntries = 8;

struct State {
  PyObject* words[kWordCount];
  PyObject** names;  // of all operators' arguments and choices, interned, in the order of their tables
  int name_count;
  int* first_name;  // per operator
  TypeEntry types[kTypeEntries];
  int next_type;
  PyObject* array_type;  // numpy.ndarray once numpy was seen
  PyObject* array_empty;
  PyObject* version_arguments;  // {"max_version": (1, 0)}
  PyObject* no_arguments;
  PyObject* error;  // base of the three below
  PyObject* type_error;
  PyObject* value_error;
  PyObject* runtime_error;
};

State* state_of(PyObject* module);

// ---- Tensors
// -------------------------------------------------------------------------------------------------------

struct Managed;

// A tensor borrowed from a Python object; released when it goes out of scope.
struct Borrowed {
  DLTensor tensor;
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];
  PyObject* keep = nullptr;
  Managed* managed = nullptr;
  bool read_only = false;
  void release();
};

// What is being read, for messages.
struct Place {
  const Operator* op;
  const char* name;
};

const TypeEntry* find_type(State* state, PyObject* object);

// Fills `out`; false with a Python exception set when the object is no tensor that can be read.
bool borrow(State* state, PyObject* object, const Place& place, Borrowed* out);

// A new tensor of the framework that `like` belongs to, on its device; NULL with an exception set.
PyObject* allocate(State* state, PyObject* like, const DLDevice& device, const TensorArgument& argument,
                   const int64_t* extents);

// The stream that the framework of `object` works on; NULL on a CPU.
bool current_stream(State* state, PyObject* object, const DLDevice& device, void** stream);

// ---- Calls
// ---------------------------------------------------------------------------------------------------------

// Raises the exception that fits a status, with the library's message; returns NULL.
PyObject* raise_status(State* state, int32_t status);

PyObject* call(PyObject* module, int op, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords);

// The module from its generated methods (one per operator, name and signature) and doc.
PyObject* make_module(const char* doc, PyMethodDef* operators);

PyObject* explain(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords);
PyObject* is_tuned(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords);

}  // namespace aot_tune::python

#endif  // AOT_TUNE_LINK_BINDING_H_
