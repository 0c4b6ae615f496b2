// AOT_TUNE_WARN: one line on stderr for an operator if its calls are outside of what times are known for.
#ifndef AOT_TUNE_RUNTIME_WARN_H_
#define AOT_TUNE_RUNTIME_WARN_H_

#include "facts.h"

namespace aot_tune {

// How calls of one kind and one regime are decided that nobody measured.
struct RegimeInfo {
  enum Rule : uint8_t { kNearest, kExpected, kVendor };
  const char* name;  // empty if the operator has only one
  int32_t kind;
  int32_t number;  // of the regime
  Rule rule;
  int32_t caution;  // is added to expected times of what is not the vendor's choice
  int32_t shapes;   // by which it was judged
  int32_t mean;     // of what it loses on these, in thousandths
  int32_t p95;
};

// What an operator's table was learned from.
struct Seen {
  const char* target;
  const Span* spans;  // for each row of `regimes`, the spans of its facts, without those of tensors
  const RegimeInfo* regimes;
};

// Adds what tells a call: its dims, dtypes and attributes.
void add_call(Text& text, const FactsInfo& info, const int64_t* facts) noexcept;

extern Switch warning;  // it is off if the variable is bad
inline bool warns_of_unseen() noexcept { return warning.is_on(); }

// Reports a call unless it is within what was `seen` of its regime, or an earlier call of the operator was
// reported. `seen` is null if the device has no table, and `row` is -1 if that has none of the call's kind.
void warn_of_unseen(const FactsInfo& info, const int64_t* facts, const Backend& backend, const Seen* seen,
                    int row, std::atomic<bool>* told) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_WARN_H_
