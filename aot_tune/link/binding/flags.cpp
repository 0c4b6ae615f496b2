// What torch knows of its tensors beside what DLPack tells: gradients and negative bits.
#include <dlfcn.h>

#include "binding.h"

namespace aot_tune::python {
namespace {

// Calls between two questions to a torch that has recorded gradients so far.
constexpr uint8_t kCallsWithoutAsking = 15;

// c10::GradMode::is_enabled() as the library has it that `asked` is of, or NULL: of all that torch does to
// answer the question, the answer. That of another library in the process may tell another mode.
decltype(State::gradient_mode) find_mode(PyCFunction asked) {
  Dl_info from;
  if (dladdr(reinterpret_cast<void*>(asked), &from) == 0 || from.dli_fname == nullptr) return nullptr;
  void* const library = dlopen(from.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* const found = dlsym(library, "_ZN3c108GradMode10is_enabledEv");  // of what it is linked with, too
  dlclose(library);                                                      // torch keeps it
  return reinterpret_cast<decltype(State::gradient_mode)>(found);
}

// A function of C without arguments is called as it is: torch's tells its mode without Python's help.
__attribute__((cold)) void learn_gradients(State* state) {
  PyObject* torch = imported("torch");
  state->is_grad_enabled = torch != nullptr ? PyObject_GetAttrString(torch, "is_grad_enabled") : nullptr;
  if (state->is_grad_enabled == nullptr) PyErr_Clear();
  PyObject* function = state->is_grad_enabled;
  const bool plain = function != nullptr && PyCFunction_CheckExact(function) &&
                     PyCFunction_GetFlags(function) == METH_NOARGS;
  state->ask_gradients = plain ? PyCFunction_GetFunction(function) : nullptr;
  state->gradients_self = plain ? PyCFunction_GetSelf(function) : nullptr;
  state->gradient_mode = plain ? find_mode(state->ask_gradients) : nullptr;
}

inline bool gradients_enabled(State* state) {
  if (state->is_grad_enabled == nullptr) learn_gradients(state);
  if (state->gradient_mode != nullptr) return state->gradient_mode();
  PyObject* function = state->is_grad_enabled;
  PyObject* answer = state->ask_gradients != nullptr ? state->ask_gradients(state->gradients_self, nullptr)
                     : function != nullptr           ? PyObject_CallNoArgs(function)
                                                     : nullptr;
  state->gradients_off = answer == Py_False;
  state->calls_without_asking = 0;
  if (answer == nullptr) PyErr_Clear();
  Py_XDECREF(answer);
  return !state->gradients_off;
}

}  // namespace

// Torch takes as long to tell its mode as to tell the flag of one tensor. So, where its function is called
// for that, the mode is asked first where it was off when last asked, and else only now and then.
Gradients find_gradients(State* state) {
  if (state->gradient_mode != nullptr) return state->gradient_mode() ? Gradients::kFlags : Gradients::kOff;
  if (!state->gradients_off && state->calls_without_asking < kCallsWithoutAsking) {
    ++state->calls_without_asking;
    return Gradients::kFlags;
  }
  return gradients_enabled(state) ? Gradients::kFlags : Gradients::kOff;
}

// The flag of a tensor that needs a gradient which nobody computes; false with an exception set.
bool check_gradient(State* state, PyObject* object, const TypeEntry& entry, const Place& place) {
  PyObject* grad = entry.read_gradient != nullptr ? entry.read_gradient(entry.gradient, object, entry.type)
                                                  : PyObject_GetAttr(object, state->words[kWordRequiresGrad]);
  if (grad == nullptr) return cannot_read(state, place);
  const bool wanted = grad == Py_True;
  Py_DECREF(grad);
  if (!wanted || !gradients_enabled(state)) return true;
  PyErr_Format(state->value_error,
               "%s: tensor '%s' requires a gradient, which this function does not compute; call it under "
               "torch.no_grad() or pass %s.detach()",
               place.op->name, place.name, place.name);
  return false;
}

// Refuses a tensor whose negative bit is set; false with an exception set.
bool check_negated(State* state, PyObject* object, const Place& place) {
  PyObject* negated = PyObject_CallMethodObjArgs(object, state->words[kWordIsNeg], nullptr);
  if (negated == nullptr) {
    PyErr_Clear();
    return true;
  }
  const bool is_negated = negated == Py_True;
  Py_DECREF(negated);
  if (is_negated) {
    PyErr_Format(state->value_error,
                 "%s: tensor '%s' is a view with its negative bit set; pass %s.resolve_neg()", place.op->name,
                 place.name, place.name);
  }
  return !is_negated;
}

}  // namespace aot_tune::python
