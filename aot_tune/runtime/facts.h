// What a library tells the runtime of its operators: by which facts calls differ, and which variants there
// are.
#ifndef AOT_TUNE_RUNTIME_FACTS_H_
#define AOT_TUNE_RUNTIME_FACTS_H_

#include "runtime.h"

namespace aot_tune {

// A call's facts are its dims, then the indices of its dtypes and attributes, then 1 or 0 for each tensor
// that is there or not, in this order.
struct FactsInfo {
  const OperatorInfo* op;
  const char* const* dims;
  int32_t dim_count;
  const AttributeInfo* dtypes;  // sorted by name, as the attributes are
  int32_t dtype_count;
  const AttributeInfo* attributes;
  int32_t attribute_count;
  const int32_t* by_name;  // the tensors' order
  const VariantInfo* variants;
  int32_t variant_count;

  // Those that are not of tensors.
  constexpr int32_t own() const noexcept { return dim_count + dtype_count + attribute_count; }
  constexpr int32_t count() const noexcept { return own() + op->count; }
};

struct LibraryInfo {
  const char* name;
  const char* traced;  // what the header of a trace says of it, as JSON
  const FactsInfo* const* operators;
  int32_t count;
};

// Of this library; generated.
extern const LibraryInfo library_info;

// The values that a fact may have, both included.
struct Span {
  int64_t low;
  int64_t high;
  constexpr bool has(int64_t value) const noexcept { return low <= value && value <= high; }
};

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_FACTS_H_
