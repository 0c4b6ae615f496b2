// The arguments of one call from Python.
#ifndef AOT_TUNE_LINK_CALLS_H_
#define AOT_TUNE_LINK_CALLS_H_

#include "binding.h"

namespace aot_tune::python {

// Places of arguments that are objects but not tensors, as indices.
constexpr int kStreamPlace = kMaxTensors;
constexpr int kWorkspacePlace = kMaxTensors + 1;

struct Parsed {
  bool accept_dims = false;  // dims, dtypes and a device by keyword, for questions about a problem
  PyObject* tensors[kMaxTensors];
  Scalar scalars[kMaxScalars];
  uint32_t scalars_given;  // one bit each
  int32_t attributes[kMaxAttributes];
  int64_t dims[kMaxDims];
  int dims_given;
  int32_t dtypes[kMaxVariables];  // for a stated problem
  PyObject* stream;               // this and the next are NULL or None if not given
  PyObject* workspace;
  PyObject* device;
};

// A tensor with room for its layout.
struct Imagined {
  DLTensor tensor;
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];
  DLTensor* place() {
    tensor.shape = shape;
    tensor.strides = strides;
    return &tensor;
  }
};

// The tensors of one call. They are borrowed from the arguments, or made for outputs that were not passed.
struct CallTensors {
  static constexpr uint32_t kWorkspace = uint32_t{1} << kMaxTensors;
  static constexpr uint32_t kMade = kWorkspace << 1;

  explicit CallTensors(int tensor_count) : count(tensor_count) {
    for (int i = 0; i < count; ++i) {
      given[i] = nullptr;
      made[i] = nullptr;
    }
  }
  ~CallTensors() {
    if (owned != 0) give_back();
  }
  CallTensors(const CallTensors&) = delete;
  CallTensors& operator=(const CallTensors&) = delete;

  // All return false with an exception set. `take_passed` takes a tensor's argument, if that is a tensor.
  bool take(State* state, const Operator& op, int index, PyObject* object);
  bool take_passed(State* state, const Operator& op, int index, PyObject* object) {
    const TensorInfo& argument = op.tensors[index];
    if (object == nullptr && !argument.optional && !argument.output) return is_missing(state, op, index);
    if (argument.required && (object == nullptr || object == Py_None)) return is_missing(state, op, index);
    if (object == nullptr || object == Py_None) return true;
    if (argument.output && argument.optional && (object == Py_True || object == Py_False)) return true;
    return take(state, op, index, object);
  }
  bool take_given(State* state, const Operator& op, const Parsed& parsed);

  // Tells torch which passed outputs the call has written.
  __attribute__((noinline)) void bump_versions(State* state, const Parsed& parsed) const;

  // Takes the tensors in `folded` in place of those with leading dims.
  void take_folded(const Operator& op);

  // Must be called before anything that may change tensors: other Python code, other threads.
  void settle() {
    if (lent != 0) copy_layouts();
  }

  // The memory of an object as the call's workspace; false with an exception set.
  bool take_workspace(State* state, const Operator& op, PyObject* object, aot_tune_exec* exec);

  // Both raise what is wrong with a tensor, and return false.
  __attribute__((cold)) static bool is_missing(State* state, const Operator& op, int index);
  __attribute__((cold)) bool is_read_only(State* state, const Operator& op, int index) const;

  // The index of the first tensor that is there, or `count` if there is none.
  int first() const {
    int i = 0;
    while (i < count && given[i] == nullptr) ++i;
    return i;
  }

  int count;
  uint32_t lent = 0;       // one bit each: extents and strides are still in the framework's memory
  uint32_t owned = 0;      // one bit each: must be given back; also kWorkspace and kMade
  uint32_t versioned = 0;  // one bit each: outputs that are torch's
  int64_t elements = 0;
  bool on_gpu = false;
  Shared shared;
  const DLTensor* given[kMaxTensors];
  PyObject* made[kMaxTensors];
  DLTensor views[kMaxTensors];  // of lent tensors; their layouts are copied to `held`
  Borrowed held[kMaxTensors];
  Borrowed workspace;
  Imagined* folded = nullptr;  // room for the tensors that fold, as the library takes them

 private:
  // For objects that no framework shows directly.
  __attribute__((noinline)) bool take_any(State* state, const Operator& op, int index, PyObject* object);
  void took(const DLTensor& tensor);
  __attribute__((noinline)) void copy_layouts();
  void give_back();
};

// Sets what was not passed.
inline void clear(const Operator& op, Parsed* out) {
  for (int i = 0; i < op.tensor_count; ++i) out->tensors[i] = nullptr;
  for (int i = 0; i < op.scalar_count; ++i) out->scalars[i] = op.scalars[i].value;
  out->scalars_given = 0;
  for (int i = 0; i < op.attribute_count; ++i) out->attributes[i] = 0;
  for (int i = 0; i < op.variable_count; ++i) out->dtypes[i] = 0;
  out->dims_given = 0;
  out->stream = out->workspace = out->device = nullptr;
}

// The tensors of the positional arguments, in order.
struct Positions {
  int count = 0;
  int8_t tensors[kMaxTensors] = {};
};

// First the inputs that must be passed, then the optional ones.
constexpr Positions positions_of(const Operator& op) {
  Positions found;
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < op.tensor_count; ++i) {
      if (!op.tensors[i].output && op.tensors[i].optional == (pass == 1))
        found.tensors[found.count++] = static_cast<int8_t>(i);
    }
  }
  return found;
}

// Both: false with an exception set.
bool parse(State* state, int index, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords,
           Parsed* out);
bool parse_keyword(State* state, int index, PyObject* key, PyObject* value, Parsed* out);

// Notes which arguments the keywords of a call are for. The next call from the same line of code uses this.
// False if it must not be kept.
__attribute__((cold)) bool learn_keywords(State* state, int index, PyObject* names);

// Reads a value as an argument's kind. False with an exception set if it is of another kind or out of range.
bool parse_scalar(State* state, const Operator& op, const ScalarInfo& argument, PyObject* value, Scalar* out);

// Whether the scalars without a default were passed. False with an exception set.
bool all_scalars(State* state, int index, const Parsed& parsed);

// Whether to make an output for which the caller passed `value`. Optional ones are only made if it is True.
constexpr bool wants_allocation(const TensorInfo& argument, PyObject* value) {
  return argument.optional ? value == Py_True : value == nullptr || value == Py_None;
}

// Imagines the outputs that are wanted; `made` points to them, and is NULL for others. `imagined` has room
// for each output. If a tensor `leads`, those that fold go to the call's `folded`. False with an exception
// set.
bool imagine_outputs(State* state, const Operator& op, const Parsed& parsed, const CallTensors& tensors,
                     bool leads, Imagined* imagined, DLTensor** made);

// Makes the outputs that are wanted, and takes leading dims as one axis if a tensor `leads`. False with an
// exception set.
bool prepare(State* state, const Operator& op, const Parsed& parsed, CallTensors* tensors, bool leads,
             Imagined* imagined);

// Calls with fewer elements end before another thread could take over the interpreter. A call for a GPU does
// not wait for its elements. It only waits for a place in a full queue of launches, so for other kernels.
constexpr int64_t kReleaseElements = 32768;
constexpr int64_t kReleaseElementsOfGpus = 1 << 20;

inline bool is_long(const CallTensors& tensors) {
  return tensors.elements > (tensors.on_gpu ? kReleaseElementsOfGpus : kReleaseElements);
}

constexpr int folding_count(const Operator& op) {
  int count = 0;
  for (int i = 0; i < op.tensor_count; ++i) count += op.tensors[i].folds ? 1 : 0;
  return count;
}

constexpr int output_count(const Operator& op) {
  int count = 0;
  for (int i = 0; i < op.tensor_count; ++i) count += op.tensors[i].output ? 1 : 0;
  return count;
}

// The outputs of a call: one as it is, several as a tuple, None if the operator has none.
PyObject* results(const Operator& op, const Parsed& parsed, const CallTensors& tensors);

// Raises the error of a call, and names the types of tensors that have no data. Returns NULL.
__attribute__((cold)) PyObject* raise_call(State* state, const Operator& op, const Parsed& parsed,
                                           const CallTensors& tensors, int32_t status);

// The text of a function's signature: "(a, b, bias=None, *, activation='none', out=None)".
const char* signature_of(int index);

}  // namespace aot_tune::python

#endif  // AOT_TUNE_LINK_CALLS_H_
