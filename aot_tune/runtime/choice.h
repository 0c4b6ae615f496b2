// What generated choices get as arguments: what notes why a variant is taken, and what asks for its
// workspace.
#ifndef AOT_TUNE_RUNTIME_CHOICE_H_
#define AOT_TUNE_RUNTIME_CHOICE_H_

#include <iterator>

#include "expected.h"
#include "override.h"

namespace aot_tune {

// An argument of the generated choice. It notes nothing, and takes a variant without asking for its
// workspace.
struct NoTrace {
  static constexpr bool kFirstOnly = true;  // the variant that is ranked first is always taken
  static bool guard(bool value, const VariantInfo&, const char*) noexcept { return value; }
  static void expected(const VariantInfo&, int64_t, int32_t) noexcept {}
  static void meets(const Rule&) noexcept {}
  template <typename Call>
  static bool fits(const Call&, int) noexcept {
    return true;
  }
  template <typename Call>
  static void unfit(const Call&, int, int32_t, size_t, size_t) noexcept {}
};

// An argument of the generated choice. It writes which times are expected, and why a variant is not taken.
struct TextTrace {
  static constexpr bool kFirstOnly = false;
  Text* text;
  const Rule* rule = nullptr;  // the rule of AOT_TUNE_OVERRIDE that the call meets
  const VariantInfo* seen[64] = {};
  int foreseen = 0;
  bool guard(bool value, const VariantInfo& variant, const char* condition) noexcept {
    if (!value) text->add("rejected: %s: %s\n", variant.name, condition);
    return value;
  }
  // The expected time of a variant: log2 of ns in 1/4096, and its standard error.
  void expected(const VariantInfo& variant, int64_t time, int32_t error) noexcept;
  // Whether that was reported for a variant.
  bool foresaw(const VariantInfo& variant) const noexcept {
    for (int i = 0; i < foreseen; ++i) {
      if (seen[i] == &variant) return true;
    }
    return false;
  }
  void meets(const Rule& met) noexcept;
  template <typename Call>
  void unfit(const Call& call, int variant, int32_t status, size_t size, size_t limit) noexcept {
    char note[256] = "";
    if (status != 0) call.note(variant, note, sizeof note);
    rejected(call.info(variant), status, size, limit, note);
  }
  void rejected(const VariantInfo& variant, int32_t status, size_t size, size_t limit,
                const char* note) noexcept;
};

// An argument of the generated choice, around another one. It only takes variants that are available here and
// fit into the workspace. `Need` gives status and size of a variant's workspace.
template <typename Inner, typename Need>
struct Fitting {
  static constexpr bool kFirstOnly = false;
  Inner& inner;
  Need need;
  size_t limit;
  bool guard(bool value, const VariantInfo& variant, const char* condition) noexcept {
    return inner.guard(value, variant, condition);
  }
  void expected(const VariantInfo& variant, int64_t time, int32_t error) noexcept {
    inner.expected(variant, time, error);
  }
  void meets(const Rule& met) noexcept { inner.meets(met); }
  template <typename Call>
  bool fits(const Call& call, int variant) noexcept {
    size_t size = 0;
    const int32_t status = need(call, variant, &size);
    if (status == 0 && size <= limit) return true;
    if (status != 0 && status != kUnavailable) return true;  // the call reports it
    inner.unfit(call, variant, status, size, limit);
    return false;
  }
};

// Rows are measured problems, and calls in their form: dims, classes of strides, attributes and dtypes.
template <typename Value, size_t kCount>
int differences(const Value (&one)[kCount], const Value (&other)[kCount]) noexcept {
  int count = 0;
  for (size_t i = 0; i < kCount; ++i) count += one[i] != other[i];
  return count;
}

template <typename Row>
int differences(const Row& one, const Row& other) noexcept {
  return differences(one.classes, other.classes) + differences(one.attributes, other.attributes) +
         differences(one.dtypes, other.dtypes);
}

// The squares of the logarithms of the factors between extents, with a factor of 2 for each other difference.
// It is an integer, so that select/nearest.py gets the same.
template <typename Row>
int64_t distance(const Row& one, const Row& other) noexcept {
  int64_t sum = int64_t{differences(one, other)} << 16;
  for (size_t i = 0; i < std::size(one.dims); ++i) {
    const int64_t factor =
        log_term(static_cast<double>(one.dims[i])) - log_term(static_cast<double>(other.dims[i]));
    sum += factor * factor;
  }
  return sum;
}

// The row nearest a call of those for which `tells` is true, the first of several; null if there is none.
template <typename Row, size_t kRows, typename Tells>
const Row* nearest_row(const Row (&rows)[kRows], const Row& call, Tells tells) noexcept {
  const Row* nearest = nullptr;
  int64_t least = 0;
  for (const Row& row : rows) {
    const int64_t far = distance(row, call);
    if ((nearest != nullptr && far >= least) || !tells(row)) continue;
    nearest = &row;
    least = far;
  }
  return nearest;
}

template <typename Row, size_t kDims>
void explain_nearest(Text& text, const char* const (&names)[kDims], const Row& row,
                     const Row& call) noexcept {
  double most = 1;
  text.add("nearest:");
  for (size_t i = 0; i < kDims; ++i) {
    text.add(" %s=%lld", names[i], static_cast<long long>(row.dims[i]));
    const double one = row.dims[i] < 1 ? 1.0 : static_cast<double>(row.dims[i]);
    const double other = call.dims[i] < 1 ? 1.0 : static_cast<double>(call.dims[i]);
    const double factor = one > other ? one / other : other / one;
    if (factor > most) most = factor;
  }
  text.add(", dims differ by up to %.3g times", most);
  const int others = differences(row, call);
  if (others > 0) text.add("; %d of its tensors, attributes and dtypes too", others);
  text.add("\n");
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_CHOICE_H_
