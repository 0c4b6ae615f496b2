// A call of an operator that the compiler knows. What most calls do is written out for its tensors. The rest
// is left to calls.cpp, which also finds out what is wrong.
#ifndef AOT_TUNE_LINK_CALL_H_
#define AOT_TUNE_LINK_CALL_H_

#include <utility>

#include "calls.h"

namespace aot_tune::python {

constexpr bool needs_scalars(const Operator& op) {
  bool needs = false;
  for (int i = 0; i < op.scalar_count; ++i) needs |= op.scalars[i].required;
  return needs;
}

// What `parse` does for a call.
template <const Operator& Op>
bool parse_call(State* state, int index, PyObject* const* arguments, Py_ssize_t count, PyObject* keywords,
                Parsed* out) {
  static constexpr Positions kPositions = positions_of(Op);
  if (count > kPositions.count) return parse(state, index, arguments, count, keywords, out);
  clear(Op, out);
  for (Py_ssize_t i = 0; i < count; ++i) out->tensors[kPositions.tensors[i]] = arguments[i];
  if (keywords == nullptr) return true;
  const Keywords& known = state->keywords[index];
  if (known.names != keywords && !learn_keywords(state, index, keywords))
    return parse(state, index, arguments, count, keywords, out);
  uint64_t rest = 0;  // these values must be converted, which may run Python code and other calls
  for (Py_ssize_t k = 0; k < known.count; ++k) {
    const int place = known.places[k];
    PyObject* const value = arguments[count + k];
    if (place >= 0 && place < Op.tensor_count && out->tensors[place] == nullptr) {
      out->tensors[place] = value;
    } else if (place == kStreamPlace) {
      out->stream = value;
    } else if (place == kWorkspacePlace) {
      out->workspace = value;
    } else {
      rest |= uint64_t{1} << k;
    }
  }
  for (int k = 0; rest != 0; ++k, rest >>= 1) {
    if ((rest & 1) != 0 &&
        !parse_keyword(state, index, PyTuple_GetItem(keywords, k), arguments[count + k], out))
      return false;
  }
  return true;
}

// The outputs of a call: one as it is, several as a tuple, None if the operator has none.
template <const Operator& Op, size_t... I>
PyObject* results_of(const Parsed& parsed, const CallTensors& tensors, std::index_sequence<I...>) {
  if constexpr (output_count(Op) == 1) {
    constexpr int only = ((Op.tensors[I].output ? static_cast<int>(I) : 0) + ...);
    if (tensors.given[only] != nullptr) {
      PyObject* result = tensors.made[only] != nullptr ? tensors.made[only] : parsed.tensors[only];
      Py_INCREF(result);
      return result;
    }
  }
  return results(Op, parsed, tensors);
}

template <const Operator& Op, size_t... I>
PyObject* call_known(PyObject* module, int index, PyObject* const* arguments, Py_ssize_t count,
                     PyObject* keywords, std::index_sequence<I...> all) {
  State* state = state_of(module);
  Parsed parsed;
  if (!parse_call<Op>(state, index, arguments, count, keywords, &parsed)) return nullptr;
  if (needs_scalars(Op) && !all_scalars(state, index, parsed)) return nullptr;
  CallTensors tensors(Op.tensor_count);
  if (parsed.stream != nullptr && !parse_stream(state, Op.name, parsed.stream, &tensors.shared.stream))
    return nullptr;
  if (!(tensors.take_passed(state, Op, I, parsed.tensors[I]) && ...)) return nullptr;
  Imagined imagined[output_count(Op) + 1],
      folded[folding_count(Op) + 1];  // no more, so that few caches are touched
  tensors.folded = folded;
  const bool any_leads = ((Op.tensors[I].folds && leads(Op.tensors[I], tensors.given[I])) || ...);
  if (any_leads || ((Op.tensors[I].output && wants_allocation(Op.tensors[I], parsed.tensors[I])) || ...)) {
    if (!prepare(state, Op, parsed, &tensors, any_leads, imagined)) return nullptr;
  }
  aot_tune_exec exec{tensors.shared.stream.handle, nullptr, 0};
  if (parsed.workspace != nullptr) {
    if (!tensors.take_workspace(state, Op, parsed.workspace, &exec)) return nullptr;
    exec.stream = tensors.shared.stream.handle;
  }
  int32_t status;
  if (is_long(tensors)) {
    tensors.settle();
    PyThreadState* thread = PyEval_SaveThread();
    status = Op.call(tensors.given, parsed.scalars, parsed.attributes, &exec);
    PyEval_RestoreThread(thread);
  } else {
    status = Op.call(tensors.given, parsed.scalars, parsed.attributes, &exec);
  }
  if (status != AOT_TUNE_OK) return raise_call(state, Op, parsed, tensors, status);
  if (tensors.versioned != 0) tensors.bump_versions(state, parsed);
  return results_of<Op>(parsed, tensors, all);
}

// A call of an operator. Its place in the library is `index`.
template <const Operator& Op>
PyObject* call(PyObject* module, int index, PyObject* const* arguments, Py_ssize_t count,
               PyObject* keywords) {
  return call_known<Op>(module, index, arguments, count, keywords,
                        std::make_index_sequence<static_cast<size_t>(Op.tensor_count)>());
}

}  // namespace aot_tune::python

#endif  // AOT_TUNE_LINK_CALL_H_
