// Scalars of calls from Python.
#ifndef AOT_TUNE_LINK_SCALARS_H_
#define AOT_TUNE_LINK_SCALARS_H_

#include "calls.h"

namespace aot_tune::python {

// Reads a value as an argument's kind. False with an exception set if it is of another kind or out of range.
bool parse_scalar(State* state, const Operator& op, const ScalarArgument& argument, PyObject* value,
                  Scalar* out);

}  // namespace aot_tune::python

#endif  // AOT_TUNE_LINK_SCALARS_H_
