// AOT_TUNE_EXCLUDE: names of variants or kernels that are never chosen, separated by commas. A name is alone
// or `operator:name`, and `*` in it stands for any characters. Names that no variant has are ignored. Generic
// variants always stay, because dispatch does not ask whether it may use them.
#include <fnmatch.h>

#include <cstdlib>
#include <cstring>

#include "names.h"

namespace aot_tune {

Switch excluding;

namespace {

constexpr const char* kVariable = "AOT_TUNE_EXCLUDE";

// Whether a part is a name, with or without an operator's name and a colon before it.
bool is_pattern(const char* part) noexcept {
  const size_t scope = std::strspn(part, kLetters);
  if (part[scope] == ':') {
    if (scope == 0) return false;
    part += scope + 1;
  }
  while (*part == '*' || std::strspn(part, kLetters) > 0) {
    part += *part == '*' ? 1 : std::strspn(part, kLetters);
    if (*part == '\0') return true;
  }
  return false;
}

// The variable's parts, each with a zero after it, and one more zero after the last. For a bad part, its
// place.
struct Patterns {
  char* text = nullptr;
  const char* bad = nullptr;

  // Read once: a later setenv may free the environment's text.
  explicit Patterns(const char* given) noexcept {
    if (given == nullptr || (text = static_cast<char*>(std::calloc(std::strlen(given) + 2, 1))) == nullptr)
      return;
    char* part = text;
    for (; *given != '\0'; given += std::strcspn(given, ",")) {
      given += std::strspn(given, ", ");
      size_t length = std::strcspn(given, ",");
      while (length > 0 && given[length - 1] == ' ') --length;
      if (length == 0) continue;
      std::memcpy(part, given, length);
      if (bad == nullptr && !is_pattern(part)) bad = part;
      part += length + 1;
    }
  }
};

const Patterns& patterns() noexcept {
  static const Patterns known(std::getenv(kVariable));
  return known;
}

bool matches(const char* part, const OperatorInfo& op, const VariantInfo& variant) noexcept {
  if (const char* colon = std::strchr(part, ':')) {
    if (!Part{part, static_cast<size_t>(colon - part)}.is(op.name)) return false;
    part = colon + 1;
  }
  return fnmatch(part, variant.name, 0) == 0 || fnmatch(part, variant.kernel, 0) == 0;
}

}  // namespace

bool read_exclude() noexcept {
  const char* text = patterns().text;
  return excluding.set(text != nullptr && *text != '\0');
}

bool is_excluded(const OperatorInfo& op, const VariantInfo& variant) noexcept {
  for (const char* part = patterns().text; *part != '\0'; part += std::strlen(part) + 1) {
    if (matches(part, op, variant)) return true;
  }
  return false;
}

bool bad_exclude() noexcept { return patterns().bad != nullptr; }

int32_t check_exclude(const OperatorInfo& op) noexcept {
  if (!bad_exclude()) return AOT_TUNE_OK;
  return fail(
      AOT_TUNE_ERROR_ENVIRONMENT,
      "%s: %s has '%.60s', wanted the name of a variant or kernel, with * for any characters, alone or "
      "as operator:name; separate several by commas",
      op.name, kVariable, patterns().bad);
}

}  // namespace aot_tune
