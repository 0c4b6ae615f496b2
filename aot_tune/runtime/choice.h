// What a decision gets as an argument: what notes why a variant is taken, and what asks for its workspace.
#ifndef AOT_TUNE_RUNTIME_CHOICE_H_
#define AOT_TUNE_RUNTIME_CHOICE_H_

#include "override.h"

namespace aot_tune {

// It notes nothing, and takes a variant without asking for its workspace.
struct NoTrace {
  static constexpr bool kFirstOnly = true;  // the variant that is ranked first is always taken
  static bool guard(bool value, const VariantInfo&, const char*) noexcept { return value; }
  static void expected(const VariantInfo&, int64_t, int32_t) noexcept {}
  static void meets(const Rule&) noexcept {}
  template <typename Call>
  static bool fits(const Call&, int) noexcept {
    return true;
  }
};

// It only takes variants that are available here and fit into the workspace. If there is a text, it writes
// which times are expected, and why a variant is not taken.
struct FittingTrace {
  static constexpr bool kFirstOnly = false;
  size_t limit;
  Text* text = nullptr;
  const Rule* rule = nullptr;  // the rule of AOT_TUNE_OVERRIDE that the call meets
  const VariantInfo* seen[64] = {};
  int foreseen = 0;

  bool guard(bool value, const VariantInfo& variant, const char* condition) noexcept {
    if (!value && text != nullptr) text->add("rejected: %s: %s\n", variant.name, condition);
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
  bool fits(const Call& call, int variant) noexcept {
    size_t size = 0;
    const int32_t status = call.need(variant, &size);
    if (status == 0 && size <= limit) return true;
    if (status != 0 && status != kUnavailable) return true;  // the call reports it
    char note[256] = "";
    if (status != 0 && text != nullptr) call.note(variant, note, sizeof note);
    rejected(call.info(variant), status, size, note);
    return false;
  }
  void rejected(const VariantInfo& variant, int32_t status, size_t size, const char* note) noexcept;
};

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_CHOICE_H_
