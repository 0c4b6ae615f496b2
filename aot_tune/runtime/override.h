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
  bool names(const VariantInfo& variant) const noexcept { return name.names(variant); }
};

// Reads a rule from a line. False if it is bad. Then `why` says why. A rule for another library, and a line
// without a rule, leave `rule->info` null.
bool read_rule(const char* text, size_t length, Rule* rule, Text* why) noexcept;

extern Switch overriding;  // it is off if the file is bad
inline bool is_overridden() noexcept { return overriding.is_on(); }

// The first rule that a call meets and that names a variant for the call's device goes into `rule`. Returns
// how many variants it names, and fills in their indices. 0 if there is no such rule.
int find_rule(const FactsInfo& info, const int64_t* facts, const Backend& backend, int32_t level,
              const Rule** rule, int16_t* named) noexcept;

const char* override_path() noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_OVERRIDE_H_
