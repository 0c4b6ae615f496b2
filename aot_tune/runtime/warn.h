// AOT_TUNE_WARN: one line on stderr for an operator if its calls are outside of what times are known for.
#ifndef AOT_TUNE_RUNTIME_WARN_H_
#define AOT_TUNE_RUNTIME_WARN_H_

#include "facts.h"

namespace aot_tune {

// What an operator's table was learned from.
struct Seen {
  const char* target;
  const Span* spans;  // for each kind of calls, the spans of its facts, without those of tensors
  int32_t kinds;
  bool surveyed;  // otherwise measured
};

extern Switch warning;  // it is off if the variable is bad
bool read_warn() noexcept;
inline bool warns_of_unseen() noexcept { return warning.is_on(read_warn); }

// Reports a call unless it is within what was `seen`, or an earlier call of the operator was reported. `seen`
// is null if the device has no table.
void warn_of_unseen(const FactsInfo& info, const int64_t* facts, const Backend& backend, const Seen* seen,
                    std::atomic<bool>* told) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_WARN_H_
