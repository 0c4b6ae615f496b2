// AOT_TUNE_FORCE and AOT_TUNE_EXCLUDE: names of variants or kernels, separated by commas, each alone or as
// `operator:name`. Of those that are excluded, `*` stands for any characters, and names that no variant has
// are ignored. Generic variants always stay, because dispatch does not ask whether it may use them.
#include <fnmatch.h>

#include <cstdlib>
#include <cstring>

#include "compare.h"
#include "names.h"
#include "online.h"

namespace aot_tune {

namespace {

// A variable's parts, each with a zero after it, and one more zero after the last.
struct Parts {
  const char* variable;
  bool stars;  // whether names may have them
  const char* text = "";
  const char* bad = nullptr;  // the first bad part

  // Read once: a later setenv may free the environment's text.
  Parts(const char* name, bool with_stars) noexcept : variable(name), stars(with_stars) {
    const char* given = std::getenv(name);
    char* part = given != nullptr ? static_cast<char*>(std::calloc(std::strlen(given) + 2, 1)) : nullptr;
    if (part == nullptr) return;
    text = part;
    for (; *given != '\0'; given += std::strcspn(given, ",")) {
      given += std::strspn(given, ", ");
      size_t length = std::strcspn(given, ",");
      while (length > 0 && given[length - 1] == ' ') --length;
      if (length == 0) continue;
      std::memcpy(part, given, length);
      if (bad == nullptr && !is_good(part)) bad = part;
      part += length + 1;
    }
  }

  // Whether a part is a name, with or without an operator's name and a colon before it.
  bool is_good(const char* part) const noexcept {
    const size_t scope = std::strspn(part, kLetters);
    if (part[scope] == ':') {
      if (scope == 0) return false;
      part += scope + 1;
    }
    if (*part == '\0') return false;
    while (*part != '\0' && (std::strchr(kLetters, *part) != nullptr || (stars && *part == '*'))) ++part;
    return *part == '\0';
  }

  // The first part for which `is` holds, or NULL.
  template <typename Is>
  const char* find(Is is) const noexcept {
    for (const char* part = text; *part != '\0'; part += std::strlen(part) + 1) {
      if (is(part)) return part;
    }
    return nullptr;
  }

  int32_t check(const OperatorInfo& op) const noexcept {
    if (bad == nullptr) return AOT_TUNE_OK;
    return fail(AOT_TUNE_ERROR_ENVIRONMENT,
                "%s: %s has '%.60s', wanted the name of a variant or kernel, %salone or as operator:name; "
                "separate several by commas",
                op.name, variable, bad, stars ? "with * for any characters, " : "");
  }
};

const Parts& forced() noexcept {
  static const Parts known("AOT_TUNE_FORCE", false);
  return known;
}

const Parts& excluded() noexcept {
  static const Parts known("AOT_TUNE_EXCLUDE", true);
  return known;
}

// The name in a part. NULL if that is for another operator.
const char* name_for(const char* part, const OperatorInfo& op) noexcept {
  const char* const colon = std::strchr(part, ':');
  if (colon == nullptr) return part;
  return Part{part, static_cast<size_t>(colon - part)}.is(op.name) ? colon + 1 : nullptr;
}

bool matches(const char* part, const OperatorInfo& op, const VariantInfo& variant) noexcept {
  const char* const name = name_for(part, op);
  return name != nullptr && (fnmatch(name, variant.name, 0) == 0 || fnmatch(name, variant.kernel, 0) == 0);
}

// A bad name is an error. So is a name for this operator that it does not have. Other names may belong to
// other operators.
int32_t check_names(const OperatorInfo& op, const VariantInfo* variants, int32_t count) noexcept {
  if (int32_t status = forced().check(op)) return status;
  const char* const unknown = forced().find([&](const char* part) {
    const char* const name = name_for(part, op);
    bool known = name == nullptr || name == part;
    for (int32_t i = 0; i < count; ++i) known |= matches(part, op, variants[i]);
    return !known;
  });
  if (unknown == nullptr) return AOT_TUNE_OK;
  return fail(AOT_TUNE_ERROR_ENVIRONMENT,
              "%s: %s names '%s', which is no variant and no kernel of it here; the manifest lists them",
              op.name, forced().variable, name_for(unknown, op));
}

}  // namespace

const char* copied(const char* value) noexcept {
  const char* const copy = value != nullptr ? strdup(value) : nullptr;
  return copy != nullptr ? copy : "";
}

bool Switch::ask() noexcept {
  int32_t state = -1;
  const bool on = read_();
  return state_.compare_exchange_strong(state, on ? 1 : 0) ? on : state != 0;
}

Switch forcing([]() noexcept {  // this path checks all of them
  return *forced().text != '\0' || bad_exclude() || bad_override() || bad_warn() || bad_check() ||
         bad_online() || is_checked() || is_online();
});
Switch excluding([]() noexcept { return *excluded().text != '\0'; });

bool is_excluded(const OperatorInfo& op, const VariantInfo& variant) noexcept {
  return excluded().find([&](const char* part) { return matches(part, op, variant); }) != nullptr;
}

bool bad_exclude() noexcept { return excluded().bad != nullptr; }

int32_t next_forced(const OperatorInfo& op, const VariantInfo* variants, int32_t count,
                    const Backend& backend, int32_t previous) noexcept {
  if (previous < 0) {
    if (int32_t status = excluded().check(op)) return -status;
    if (int32_t status = check_override(op)) return -status;
    if (int32_t status = check_warn(op)) return -status;
    if (int32_t status = check_check(op)) return -status;
    if (int32_t status = check_online(op)) return -status;
    if (int32_t status = check_names(op, variants, count)) return -status;
  }
  for (int32_t i = previous + 1; i < count; ++i) {
    if (variants[i].backend == &backend &&
        forced().find([&](const char* part) { return matches(part, op, variants[i]); }) != nullptr)
      return i;
  }
  return -1;
}

int32_t forced_refused(const OperatorInfo& op, const VariantInfo& variant, int32_t level,
                       const char* condition) noexcept {
  const char* const variable = forced().variable;
  if (condition != nullptr) {
    return fail(AOT_TUNE_ERROR_ENVIRONMENT,
                "%s: %s names variant %s, whose guard %s does not hold for this call", op.name, variable,
                variant.name, condition);
  }
  return fail(AOT_TUNE_ERROR_ENVIRONMENT,
              "%s: %s names variant %s for %s, which this device (%s) does not run", op.name, variable,
              variant.name, variant.target, level_name(*variant.backend, level).text);
}

}  // namespace aot_tune
