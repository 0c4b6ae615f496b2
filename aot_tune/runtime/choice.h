// What generated choices get as arguments: what notes why a variant is taken, and what asks for its
// workspace.
#ifndef AOT_TUNE_RUNTIME_CHOICE_H_
#define AOT_TUNE_RUNTIME_CHOICE_H_

#include "override.h"

namespace aot_tune {

// An argument of the generated choice. It notes nothing, and takes a variant without asking for its
// workspace.
struct NoTrace {
  static constexpr bool kFirstOnly = true;  // the variant that is ranked first is always taken
  static bool test(bool value, const char*, const char*) noexcept { return value; }
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

// An argument of the generated choice. It writes which branches are taken, and why a variant is not taken.
struct TextTrace {
  static constexpr bool kFirstOnly = false;
  Text* text;
  const Rule* rule = nullptr;  // the rule of AOT_TUNE_OVERRIDE that the call meets
  const VariantInfo* seen[64] = {};
  int foreseen = 0;
  bool test(bool value, const char* when_true, const char* when_false) noexcept {
    text->add("path: %s\n", value ? when_true : when_false);
    return value;
  }
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
  bool test(bool value, const char* when_true, const char* when_false) noexcept {
    return inner.test(value, when_true, when_false);
  }
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

// The largest factor between two lists of extents. Extents below 1 count as 1.
template <size_t kDims>
double farthest(const int64_t (&one)[kDims], const int64_t (&other)[kDims]) noexcept {
  double most = 1;
  for (size_t i = 0; i < kDims; ++i) {
    const double a = one[i] < 1 ? 1.0 : static_cast<double>(one[i]);
    const double b = other[i] < 1 ? 1.0 : static_cast<double>(other[i]);
    const double factor = a > b ? a / b : b / a;
    if (factor > most) most = factor;
  }
  return most;
}

template <size_t kDims>
void explain_nearest(Text& text, const char* const (&names)[kDims], const int64_t (&dims)[kDims],
                     double factor) noexcept {
  text.add("nearest:");
  for (size_t i = 0; i < kDims; ++i) text.add(" %s=%lld", names[i], static_cast<long long>(dims[i]));
  text.add(", dims differ by up to %.3g times\n", factor);
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_CHOICE_H_
