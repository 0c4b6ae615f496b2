// What a library tells the runtime of its operators: the facts that tell calls apart, and the variants.
#ifndef AOT_TUNE_RUNTIME_FACTS_H_
#define AOT_TUNE_RUNTIME_FACTS_H_

#include <cstring>

#include "runtime.h"

namespace aot_tune {

// A call's facts are, in this order, its dims, the indices of its dtypes and attributes, and 1 or 0 for each
// tensor that is present or absent.
struct FactsInfo {
  const OperatorInfo* op;
  const VariantInfo* variants;
  int32_t variant_count;

  // How many facts are not of tensors.
  constexpr int32_t own() const noexcept { return op->dim_count + op->variable_count + op->attribute_count; }
  constexpr int32_t count() const noexcept { return own() + op->tensor_count; }
};

// Calls `visit` for the index of each row of a table, in the order of the rows' names.
template <typename Row, typename Visit>
void for_each_by_name(const Row* rows, int32_t count, Visit visit) noexcept {
  for (int32_t place = 0; place < count; ++place) {
    for (int32_t i = 0; i < count; ++i) {
      int32_t before = 0;
      for (int32_t k = 0; k < count; ++k) before += std::strcmp(rows[k].name, rows[i].name) < 0 ? 1 : 0;
      if (before == place) visit(i);
    }
  }
}

struct LibraryInfo {
  const char* name;
  const char* traced;  // the library as JSON, for the header of a trace
  const FactsInfo* const* operators;
  int32_t count;
};

// This library's. Generated.
extern const LibraryInfo library_info;

// The values that a fact may have. Both ends are included.
struct Span {
  int64_t low;
  int64_t high;
  constexpr bool has(int64_t value) const noexcept { return low <= value && value <= high; }
};

// Whether the facts from `first` to `end` are within their spans.
inline bool are_within(const Span* spans, const int64_t* facts, int32_t first, int32_t end) noexcept {
  for (int32_t i = first; i < end; ++i) {
    if (!spans[i].has(facts[i])) return false;
  }
  return true;
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_FACTS_H_
