// AOT_TUNE_TRACE: a file that tells which calls a library gets, in lines like those of a workload.
#ifndef AOT_TUNE_RUNTIME_TRACE_H_
#define AOT_TUNE_RUNTIME_TRACE_H_

#include "call_lines.h"

namespace aot_tune {

extern Switch tracing;  // it is off once the file cannot be written any more
inline bool is_traced() noexcept { return tracing.is_on(); }

// Counts a call that was served. `words` begins with its facts. Those of tensors are replaced. For an `empty`
// call, only the set of its tensors counts.
void count_call(const FactsInfo& info, const DLTensor* const* given, const View* views, bool empty,
                bool captured, int64_t* words) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_TRACE_H_
