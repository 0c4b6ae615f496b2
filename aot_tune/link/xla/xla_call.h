// Calls of a library's operators by XLA, through the C interface of its FFI. No part of XLA is linked.
#ifndef AOT_TUNE_LINK_XLA_CALL_H_
#define AOT_TUNE_LINK_XLA_CALL_H_

#include "tables.h"
#include "xla/ffi/api/c_api.h"

#define AOT_TUNE_XLA_HANDLER extern "C" __attribute__((visibility("default"))) XLA_FFI_Error*

namespace aot_tune::xla {

// What a handler is for: an operator on devices of one kind.
struct Handler {
  const Operator& op;
  const char* (*last_error)();
  DLDeviceType device;
};

// Answers one call of XLA's: NULL, or an error that XLA frees.
//
// Arguments are the inputs that are passed, results the tensors that are written, both in the order of the
// declaration; a tensor that is read and written is both, and must be the same memory. Attributes of the
// call: scalars in their own types, attributes as strings, and
//   .tensors         i64, a bit for each tensor that is passed; without it, those that every call has;
//   <tensor>.layout  i64[rank], the axes from the slowest to the fastest; without it, row-major.
XLA_FFI_Error* answer(const Handler& handler, XLA_FFI_CallFrame* frame);

}  // namespace aot_tune::xla

#endif  // AOT_TUNE_LINK_XLA_CALL_H_
