// The Python face of a library: functions that read the tables which generated code fills in.
#ifndef AOT_TUNE_LINK_BINDING_H_
#define AOT_TUNE_LINK_BINDING_H_

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "arithmetic.h"
#include "layouts.h"
#include "tables.h"

namespace aot_tune::python {

// Generated; one per module.
extern const Library kLibrary;

// ---- Python objects

// A reference that is given back at the end of its scope. It may be NULL.
class Ref {
 public:
  Ref() = default;
  Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(other.take()) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  operator PyObject*() const { return object_; }
  PyObject* get() const { return object_; }  // for functions with `...`
  PyObject** place() { return &object_; }
  // The caller gives it back.
  PyObject* take() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_ = nullptr;
};

// A new tuple of `count` objects. `make(i)` gives a new reference to each. NULL with an exception set.
template <typename Make>
PyObject* make_tuple(Py_ssize_t count, Make make) {
  PyObject* tuple = PyTuple_New(count);
  for (Py_ssize_t i = 0; tuple != nullptr && i < count; ++i) {
    PyObject* const item = make(i);
    if (item == nullptr || PyTuple_SetItem(tuple, i, item) != 0) Py_CLEAR(tuple);
  }
  return tuple;
}

// The same of integers.
inline PyObject* tuple_of(Py_ssize_t count, const int64_t* values) {
  return make_tuple(count, [&](Py_ssize_t i) { return PyLong_FromLongLong(values[i]); });
}

// Raises an exception, unless one of its objects is NULL, and so an exception is set. Returns false.
template <typename... Values>
__attribute__((cold)) bool refuse(PyObject* type, const char* format, Values... values) {
  const auto is_there = [](auto value) {
    if constexpr (std::is_same_v<decltype(value), PyObject*>) return value != nullptr;
    return true;
  };
  if ((is_there(values) && ...)) PyErr_Format(type, format, values...);
  return false;
}

// A module that is imported already, or NULL without an exception. Borrowed.
PyObject* imported(const char* name);

// An attribute of an object, or NULL without an exception if there is none. The object may be NULL.
Ref attribute_of(PyObject* object, const char* name);

// ---- Module state

// How tensors of a Python type are read.
enum class Kind : uint8_t { kExchange, kArrayStruct, kMasked, kDlpack };

struct ExchangeApi;

struct TypeEntry {
  PyObject* type;
  const ExchangeApi* api;
  Kind kind;
  PyObject* gradient;          // the type's `requires_grad`, or NULL
  descrgetfunc read_gradient;  // how the type reads it, if that can never change
  bool plain;                  // C alone tells what tensors of the type are
  bool torch;                  // a type of torch: gradients are recorded, and versions counted
  // Functions of `api`. The first may be NULL.
  int (*view)(void* object, DLTensor* out);
  int (*current_stream)(DLDeviceType type, int32_t id, void** stream);
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
  kWordDlpackDevice,
  kWordStream,
  kWordWorkspace,
  kWordCudaStream,
  kWordCurrentLevel,
  kWordCount
};

constexpr int kTypeEntries = 8;
constexpr int kArrayTypes = 8;
constexpr int kMaxKeywords = kMaxTensors + kMaxScalars + kMaxAttributes + 2;

// The keywords of an operator's last call, and which argument each is for. -1 if it is no object that is
// passed on.
struct Keywords {
  PyObject* names;  // a tuple, or NULL
  Py_ssize_t count;
  int8_t places[kMaxKeywords];
};

// A dtype of numpy in the machine's order, and what it is.
struct ArrayType {
  PyObject* dtype;
  DLDataType type;
};

struct State {
  PyObject* words[kWordCount];
  PyObject** names;  // of all operators' arguments and choices, interned, in the order of their tables
  int name_count;
  int* first_name;     // per operator
  Keywords* keywords;  // per operator
  TypeEntry types[kTypeEntries];
  int next_type;
  PyObject* array_type;  // numpy.ndarray, once numpy was seen
  PyObject* array_empty;
  ArrayType array_types[kArrayTypes];
  int next_array_type;
  PyObject* version_arguments;  // {"max_version": (1, 0)}
  PyObject* no_arguments;
  PyObject* current_stream;         // torch.cuda.current_stream, once it was needed
  PyObject* is_grad_enabled;        // torch's, once it was needed
  PyCFunction ask_gradients;        // the C function that it calls, if that can never change
  PyObject* gradients_self;         // what this is called with; borrowed
  bool (*gradient_mode)();          // the function that answers in the end, or NULL
  bool gradients_off;               // the last answer
  const void* const* (*tracing)();  // torch::jit::tracer's state, which may hold NULL; or NULL
  int64_t (*dispatch_modes)();      // how many modes watch what torch does; or NULL
  bool (*inference_mode)();         // or NULL
  PyObject* forward_ad;             // the module, once torch was seen; borrowed
  PyObject* increment_version;      // torch's, once it was needed
  PyObject* increment_all;          // what that calls with a tuple of tensors, or NULL
  PyCFunction ask_negated;          // the C function of a plain tensor's method, once it was needed
  uint8_t calls_without_asking;
  PyObject* error;  // base of the three below
  PyObject* type_error;
  PyObject* value_error;
  PyObject* runtime_error;
};

State* state_of(PyObject* module);

// ---- Tensors

struct Managed;

// A tensor that `borrow` got from a Python object. Whoever asked must release it. Nothing is set before,
// because a call has room for many more tensors than it passes.
struct Borrowed {
  DLTensor tensor;
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];
  PyObject* keep;
  Managed* managed;
  bool read_only;
  bool copied;       // its owner made a copy, so nobody sees what is written
  bool unversioned;  // its owner does not say if it may be written, unless it is torch's
  void release() {
    if (keep != nullptr || managed != nullptr) give_back();
  }
  void give_back();
};

// Reads an array of numpy whose dtype is known, without running any code of numpy. False if it is not.
bool read_array(const State* state, PyObject* object, Borrowed* out);

// What is being read, for messages.
struct Place {
  const Operator* op;
  const char* name;
};

// Puts a type that was not seen lately into the state.
const TypeEntry* learn_type(State* state, PyObject* type);

// NULL if its type was not seen lately.
inline const TypeEntry* known_type(const State* state, PyObject* object) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  for (const TypeEntry& entry : state->types) {
    if (entry.type == type) return &entry;
  }
  return nullptr;
}

inline const TypeEntry* find_type(State* state, PyObject* object) {
  const TypeEntry* entry = known_type(state, object);
  return entry != nullptr ? entry : learn_type(state, reinterpret_cast<PyObject*>(Py_TYPE(object)));
}

// The stream that a call works on. The caller gives it, or the first tensor on a GPU.
struct Stream {
  void* handle = nullptr;
  bool known = false;
};

// Whether the tensors of a call may need gradients. If none are recorded, their flags are not read.
enum class Gradients : uint8_t { kUnknown, kOff, kFlags };

// What the tensors of a call share.
struct Shared {
  Stream stream;
  Gradients gradients = Gradients::kUnknown;
  bool forward = false;  // tensors may carry tangents
};

// Fills `out`, and what is not known yet of `shared`. Returns false with a Python exception set if the object
// is no tensor that can be read.
bool borrow(State* state, PyObject* object, const Place& place, Shared* shared, Borrowed* out);

// The same for the stream of a tensor on a device, if that is a GPU. False without an exception of ours.
inline bool find_stream(decltype(TypeEntry::current_stream) ask, const DLDevice& device, Stream* stream) {
  if (device.device_type == kDLCPU || stream->known) return true;
  stream->known = ask(device.device_type, device.device_id, &stream->handle) == 0;
  return stream->known;
}

// Copies a tensor's extents and strides from their owner. Nothing else may have run since they were lent.
void copy_layout(DLTensor* tensor, Borrowed* out);

// Makes the tensor's pointer NULL if a subclass of torch's has no memory, because torch adds the offset of a
// view to NULL. It may run Python code.
void find_memory(PyObject* object, DLTensor* tensor);

// Raises a framework's error as one of ours, with the first line of its message, and with the original as the
// cause. Returns false.
__attribute__((cold)) bool cannot_read(State* state, PyObject* object, const Place& place);

// " of type FakeTensor" for what is neither a plain tensor of torch nor an array of numpy, else "". A new
// text, or NULL with an exception set.
PyObject* type_told(State* state, PyObject* object);

// Finds out whether flags must be read. It asks torch, which may run Python code. False with an exception set
// if torch traces or transforms: to that, a call of ours would silently be a constant.
bool find_gradients(State* state, const Place& place, Shared* shared);

// Tells torch that a tensor was written to. Then a backward pass that needs the old contents reports it.
void bump_version(State* state, PyObject* object);

// All: false with an exception set.
bool check_tangent(State* state, PyObject* object, const Place& place);
bool check_number(State* state, PyObject* object, const Place& place);  // one that may be a tensor of torch
bool check_flags(State* state, PyObject* object, TypeEntry entry, const Place& place, const Shared& shared,
                 const DLTensor& tensor);

// A negated view of torch's (the imaginary part of a conjugate) has only even strides. Others are not asked.
inline bool may_be_negated(const DLTensor& tensor) {
  if (tensor.strides == nullptr || tensor.ndim > kMaxRank) return false;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] > 1 && tensor.strides[i] % 2 != 0) return false;
  }
  return true;
}

// Whether numpy was imported. If so, its functions are in the state.
bool learn_numpy(State* state);

// A new tensor of the framework that `like` belongs to, with the device and the shape of `wanted`, and with
// its order of axes if that `is_ordered`. NULL with an exception set.
PyObject* allocate(State* state, PyObject* like, const Place& place, const DType& type,
                   const DLTensor& wanted, bool is_ordered);

// ---- Devices and streams

// All false with an exception set.
bool parse_device(State* state, PyObject* value, DLDevice* device);
bool parse_stream(State* state, const char* who, PyObject* value, Stream* stream);

// What to pass as `stream` to __dlpack__ of an object on that device. Sets `stream` if it is not known.
PyObject* stream_argument(State* state, PyObject* object, const DLDevice& device, Stream* stream);

PyObject* preload(PyObject* module, PyObject* device);

// A new tuple of the names of the library's operators. NULL with an exception set.
PyObject* operator_names();

// ---- Calls

// Raises the exception that fits a status, with the library's message, followed by `more`. Returns NULL.
__attribute__((cold)) PyObject* raise_status(State* state, int32_t status, PyObject* more = nullptr);

// The module from its generated methods (one per operator, name and signature) and doc.
PyObject* make_module(const char* doc, PyMethodDef* operators);

PyObject* explain(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords);
PyObject* is_tuned(PyObject* module, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords);

}  // namespace aot_tune::python

#endif  // AOT_TUNE_LINK_BINDING_H_
