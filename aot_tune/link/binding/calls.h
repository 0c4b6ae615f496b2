// The arguments of one call from Python.
#ifndef AOT_TUNE_LINK_CALLS_H_
#define AOT_TUNE_LINK_CALLS_H_

#include "binding.h"

namespace aot_tune::python {

struct Parsed {
  bool accept_dims = false;  // dims, dtypes and a device by keyword, for questions about a problem
  PyObject* tensors[kMaxTensors];
  Scalar scalars[kMaxScalars];
  uint32_t scalars_given;  // a bit each
  int32_t attributes[kMaxAttributes];
  int64_t dims[kMaxDims];
  int dims_given;
  int32_t dtypes[kMaxVariables];  // of a stated problem
  PyObject* stream;               // this and the next: NULL or None when not given
  PyObject* workspace;
  PyObject* device;
};

// The tensors of one call: borrowed from the arguments, or made for outputs that were not passed.
struct CallTensors {
  explicit CallTensors(int tensor_count) : count(tensor_count) {
    for (int i = 0; i < count; ++i) {
      given[i] = nullptr;
      made[i] = nullptr;
    }
  }
  ~CallTensors();
  CallTensors(const CallTensors&) = delete;
  CallTensors& operator=(const CallTensors&) = delete;

  // Both: false with an exception set.
  bool take(State* state, const Operator& op, int index, PyObject* object);
  bool take_given(State* state, const Operator& op, const Parsed& parsed);

  // The memory of an object as the call's workspace; false with an exception set.
  bool take_workspace(State* state, const Operator& op, PyObject* object, aot_tune_exec* exec);

  // The first tensor that is there, as an index; `count` when there is none.
  int first() const;

  int count;
  Stream stream;
  const DLTensor* given[kMaxTensors];
  PyObject* made[kMaxTensors];
  Borrowed held[kMaxTensors];
  Borrowed workspace;
  bool has_workspace = false;
};

bool parse(State* state, int index, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords,
           Parsed* out);

// Whether the scalars without a default were passed; false with an exception set.
bool all_scalars(State* state, int index, const Parsed& parsed);

// The dtype of a tensor in a call, that of its variable taken from the tensors that are there.
const DType& type_of(const Operator& op, int tensor, Tensors given);

// Whether an output that got `value` from the caller is to be made: optional ones only when asked for by
// True.
bool wants_allocation(const TensorArgument& argument, PyObject* value);

// The text of a function's signature: "(a, b, bias=None, *, activation='none', out=None)".
const char* signature_of(int index);

}  // namespace aot_tune::python

#endif  // AOT_TUNE_LINK_CALLS_H_
