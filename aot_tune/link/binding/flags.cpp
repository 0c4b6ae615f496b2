// What torch knows of its tensors beyond what DLPack tells: gradients, negative bits, versions, tracing.
#include <dlfcn.h>

#include "binding.h"

namespace aot_tune::python {
namespace {

// How many calls to skip between two questions, if torch has recorded gradients so far.
constexpr uint8_t kCallsWithoutAsking = 15;

// Functions of the torch library that contains `asked`, or NULL. They give the answer without all that torch
// does beside. Another library in the process with such functions may have another mode.
struct Symbols {
  void* library = nullptr;
  explicit Symbols(PyCFunction asked) noexcept {
    Dl_info from;
    if (dladdr(reinterpret_cast<void*>(asked), &from) == 0 || from.dli_fname == nullptr) return;
    library = dlopen(from.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }
  ~Symbols() {
    if (library != nullptr) dlclose(library);  // torch keeps it
  }
  Symbols(const Symbols&) = delete;
  Symbols& operator=(const Symbols&) = delete;
  template <typename Function>
  void find(const char* name, Function* out) const noexcept {
    *out = library != nullptr ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
  }
};

// A C function without arguments is called directly. torch's function tells its mode without Python's help.
__attribute__((cold)) void learn_gradients(State* state) {
  state->is_grad_enabled = attribute_of(imported("torch"), "is_grad_enabled").take();
  PyObject* function = state->is_grad_enabled;
  const bool plain = function != nullptr && PyCFunction_CheckExact(function) &&
                     PyCFunction_GetFlags(function) == METH_NOARGS;
  state->ask_gradients = plain ? PyCFunction_GetFunction(function) : nullptr;
  state->gradients_self = plain ? PyCFunction_GetSelf(function) : nullptr;
  state->forward_ad = imported("torch.autograd.forward_ad");
  if (!plain) return;
  const Symbols symbols(state->ask_gradients);
  symbols.find("_ZN3c108GradMode10is_enabledEv", &state->gradient_mode);
  symbols.find("_ZN5torch3jit6tracer15getTracingStateEv", &state->tracing);
  symbols.find("_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", &state->dispatch_modes);
  symbols.find("_ZN3c1013InferenceMode10is_enabledEv", &state->inference_mode);
}

// Whether a function of a module, called with an argument or none, returns neither None nor False.
__attribute__((cold)) bool says(const char* module, const char* function, const char* argument = nullptr) {
  const Ref asked = attribute_of(imported(module), function);
  const Ref keys = argument != nullptr ? attribute_of(imported(module), "_TorchDispatchModeKey") : Ref();
  const Ref given = argument != nullptr ? attribute_of(keys, argument) : Ref();
  Ref answer;
  if (asked != nullptr && (given != nullptr || argument == nullptr))
    answer = PyObject_CallFunctionObjArgs(asked, given.get(), nullptr);
  if (answer == nullptr) PyErr_Clear();
  return answer != nullptr && answer != Py_None && answer != Py_False;
}

bool is_traced(State* state) {
  if (state->tracing != nullptr ? *state->tracing() != nullptr : says("torch.jit", "is_tracing")) return true;
  if (state->dispatch_modes != nullptr && state->dispatch_modes() == 0) return false;
  return says("torch._C", "_get_dispatch_mode", "PROXY");  // others, such as those that count, may continue
}

// Whether a level of forward-mode gradients is open. In it, tensors may carry tangents.
bool is_forward(State* state) {
  if (state->forward_ad == nullptr) return false;
  PyObject* level = PyDict_GetItemWithError(PyModule_GetDict(state->forward_ad),
                                            state->words[kWordCurrentLevel]);  // borrowed
  const long number = level != nullptr ? PyLong_AsLong(level) : -1;
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return number >= 0;
}

inline bool gradients_enabled(State* state) {
  if (state->is_grad_enabled == nullptr) learn_gradients(state);
  if (state->gradient_mode != nullptr) return state->gradient_mode();
  PyObject* function = state->is_grad_enabled;
  const Ref answer = state->ask_gradients != nullptr ? state->ask_gradients(state->gradients_self, nullptr)
                     : function != nullptr           ? PyObject_CallNoArgs(function)
                                                     : nullptr;
  state->gradients_off = answer == Py_False;
  state->calls_without_asking = 0;
  if (answer == nullptr) PyErr_Clear();
  return !state->gradients_off;
}

// Torch takes as long to tell its mode as to tell one tensor's flag. So, if its function must be called for
// the mode, the mode is only asked first if it was off the last time, and otherwise now and then.
Gradients gradients_of(State* state) {
  if (state->gradient_mode != nullptr) return state->gradient_mode() ? Gradients::kFlags : Gradients::kOff;
  if (!state->gradients_off && state->calls_without_asking < kCallsWithoutAsking) {
    ++state->calls_without_asking;
    return Gradients::kFlags;
  }
  return gradients_enabled(state) ? Gradients::kFlags : Gradients::kOff;
}

}  // namespace

bool find_gradients(State* state, const Place& place, Shared* shared) {
  if (state->is_grad_enabled == nullptr) learn_gradients(state);
  shared->gradients = gradients_of(state);
  shared->forward = is_forward(state);
  if (!is_traced(state)) return true;
  return refuse(state->runtime_error,
                "%s: torch traces this call, and would record its result as a constant; call it outside "
                "torch.jit.trace and make_fx, or as an operator of torch (aot_tune.torch.register)",
                place.op->name);
}

namespace {

// torch.autograd.graph's function makes a tuple of a tensor, and calls a C++ function with it. Some versions
// of torch have another function.
__attribute__((cold)) bool learn_versions(State* state) {
  state->increment_version = attribute_of(imported("torch.autograd.graph"), "increment_version").take();
  state->increment_all = attribute_of(imported("torch._C"), "_increment_version").take();
  return state->increment_version != nullptr;
}

// The same as torch.autograd.graph.increment_version(object). NULL with an exception set.
PyObject* increment_version(State* state, PyObject* object) {
  if (state->increment_all != nullptr) {
    const Ref tensors = PyTuple_Pack(1, object);
    PyObject* const done = tensors != nullptr
                               ? PyObject_CallFunctionObjArgs(state->increment_all, tensors.get(), nullptr)
                               : nullptr;
    if (done != nullptr || !PyErr_ExceptionMatches(PyExc_TypeError)) return done;
    PyErr_Clear();
    Py_CLEAR(state->increment_all);
  }
  return PyObject_CallFunctionObjArgs(state->increment_version, object, nullptr);
}

}  // namespace

void bump_version(State* state, PyObject* object) {
  if (state->increment_version == nullptr && !learn_versions(state)) return;
  if (state->inference_mode != nullptr && state->inference_mode()) {
    const Ref own = PyObject_CallMethod(object, "is_inference", nullptr);
    if (own == nullptr) PyErr_Clear();
    if (own == Py_True) return;  // no backward pass may need it
  }
  const Ref done = increment_version(state, object);
  if (done == nullptr) PyErr_Clear();  // the versions of this tensor are not counted
}

bool check_tangent(State* state, PyObject* object, const Place& place) {
  const Ref pair = PyObject_CallMethod(state->forward_ad, "unpack_dual", "O", object);
  const Ref tangent = attribute_of(pair, "tangent");
  if (tangent == nullptr || tangent == Py_None) return true;
  return refuse(state->value_error,
                "%s: tensor '%s' carries a forward-mode gradient, which this function does not compute; pass "
                "torch.autograd.forward_ad.unpack_dual(%s).primal",
                place.op->name, place.name, place.name);
}

namespace {

// Reads the flag of a tensor that needs a gradient which nobody computes. False with an exception set.
bool check_gradient(State* state, PyObject* object, const TypeEntry& entry, const Place& place) {
  const Ref grad = entry.read_gradient != nullptr ? entry.read_gradient(entry.gradient, object, entry.type)
                                                  : PyObject_GetAttr(object, state->words[kWordRequiresGrad]);
  if (grad == nullptr) return cannot_read(state, object, place);
  if (grad != Py_True || !gradients_enabled(state)) return true;
  return refuse(state->value_error,
                "%s: tensor '%s' requires a gradient, which this function does not compute; call it under "
                "torch.no_grad() or pass %s.detach()",
                place.op->name, place.name, place.name);
}

// Refuses a tensor whose negative bit is set. False with an exception set.
bool check_negated(State* state, PyObject* object, const TypeEntry& entry, const Place& place) {
  if (entry.plain && state->ask_negated == nullptr) {
    const Ref method = PyObject_GetAttr(object, state->words[kWordIsNeg]);
    if (method != nullptr && PyCFunction_CheckExact(method) && PyCFunction_GetFlags(method) == METH_NOARGS)
      state->ask_negated = PyCFunction_GetFunction(method);
    PyErr_Clear();
  }
  const Ref negated = entry.plain && state->ask_negated != nullptr
                          ? state->ask_negated(object, nullptr)
                          : PyObject_CallMethodObjArgs(object, state->words[kWordIsNeg], nullptr);
  if (negated == nullptr) PyErr_Clear();
  if (negated != Py_True) return true;
  return refuse(state->value_error,
                "%s: tensor '%s' is a view with its negative bit set; pass %s.resolve_neg()", place.op->name,
                place.name, place.name);
}

}  // namespace

bool check_number(State* state, PyObject* object, const Place& place) {
  const TypeEntry entry = *find_type(state, object);
  if (!entry.torch || entry.gradient == nullptr) return true;
  if (state->is_grad_enabled == nullptr) learn_gradients(state);
  if (!check_gradient(state, object, entry, place)) return false;
  return !is_forward(state) || check_tangent(state, object, place);
}

bool check_flags(State* state, PyObject* object, TypeEntry entry, const Place& place, const Shared& shared,
                 const DLTensor& tensor) {
  if (shared.forward && !check_tangent(state, object, place)) return false;
  if (shared.gradients == Gradients::kFlags && !check_gradient(state, object, entry, place)) return false;
  return !may_be_negated(tensor) || check_negated(state, object, entry, place);
}

}  // namespace aot_tune::python
