// AOT_TUNE_OVERRIDE: a file of rules. Each says what serves an operator's calls within some ranges.
#ifndef AOT_TUNE_RUNTIME_OVERRIDE_H_
#define AOT_TUNE_RUNTIME_OVERRIDE_H_

#include "facts.h"
#include "names.h"

namespace aot_tune {

// A line of the file.
struct Rule {
  const FactsInfo* info;
  const Span* spans;  // of the facts
  Part text;          // without its comment
  Part name;          // of a variant or kernel
  int32_t line;
  bool names(const VariantInfo& variant) const noexcept;
};

// Reads a rule from a line. False if it is bad. Then `why` says why. A rule for another library, and a line
// without a rule, leave `rule->info` null.
bool read_rule(const char* text, size_t length, Rule* rule, Text* why) noexcept;

// -1 before the variable was read, 0 without it or when the file is bad, 1 with it
extern std::atomic<int32_t> override_state;
bool read_override() noexcept;

inline bool is_overridden() noexcept {
  const int32_t state = override_state.load(std::memory_order_relaxed);
  return state < 0 ? read_override() : state != 0;
}

// The first rule that a call meets and that names a variant for the call's device goes into `rule`. Returns
// how many variants it names, and fills in their indices. 0 if there is no such rule.
int find_rule(const FactsInfo& info, const int64_t* facts, const Backend& backend, int32_t level,
              const Rule** rule, int16_t* named) noexcept;

const char* override_path() noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_OVERRIDE_H_
