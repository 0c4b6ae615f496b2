// AOT_TUNE_FORCE: names of variants or kernels, separated by commas, each alone or as `operator:name`.
#include <cstring>

#include "names.h"

namespace aot_tune {

Switch forcing;

namespace {

constexpr const char* kVariable = "AOT_TUNE_FORCE";

const char* forced_names() noexcept {
  static const char* const names = copy_variable(kVariable);
  return names;
}

// Takes the first name from the text, with what is before its colon. False if there is none.
bool take(const char** text, Part* scope, Part* name) noexcept {
  while (**text == ',' || **text == ' ') ++*text;
  if (**text == '\0') return false;
  size_t length = std::strcspn(*text, ",");
  const char* end = *text + length;
  while (length > 0 && (*text)[length - 1] == ' ') --length;
  const auto* colon = static_cast<const char*>(std::memchr(*text, ':', length));
  *scope = {*text, colon != nullptr ? static_cast<size_t>(colon - *text) : 0};
  *name = colon != nullptr ? Part{colon + 1, length - scope->length - 1} : Part{*text, length};
  *text = end;
  return true;
}

bool is_word(const Part& part) noexcept {
  return part.length > 0 && std::strspn(part.text, kLetters) >= part.length;
}

// The first bad name, with its operator's. False if all names are good.
bool find_bad(Part* bad) noexcept {
  const char* text = forced_names();
  for (;;) {
    text += std::strspn(text, ", ");
    const char* const start = text;
    Part scope, name;
    if (!take(&text, &scope, &name)) return false;
    const bool scoped = name.text != start;
    if (is_word(name) && (!scoped || is_word(scope))) continue;
    size_t length = std::strcspn(start, ",");
    while (length > 0 && start[length - 1] == ' ') --length;
    *bad = {start, length};
    return true;
  }
}

// A bad name is an error. So is a name for this operator that it does not have. Other names may belong to
// other operators.
int32_t check_names(const OperatorInfo& op, const VariantInfo* variants, int32_t count) noexcept {
  Part bad;
  if (find_bad(&bad)) {
    return fail(
        AOT_TUNE_ERROR_ENVIRONMENT,
        "%s: %s has '%.*s', wanted the name of a variant or kernel, alone or as operator:name; separate "
        "several by commas",
        op.name, kVariable, static_cast<int>(bad.length < 60 ? bad.length : 60), bad.text);
  }
  const char* text = forced_names();
  Part scope, name;
  while (take(&text, &scope, &name)) {
    if (!scope.is(op.name)) continue;
    bool known = false;
    for (int32_t i = 0; i < count; ++i) known |= name.names(variants[i]);
    if (known) continue;
    return fail(AOT_TUNE_ERROR_ENVIRONMENT,
                "%s: %s names '%.*s', which is no variant and no kernel of it here; the manifest lists them",
                op.name, kVariable, static_cast<int>(name.length), name.text);
  }
  return AOT_TUNE_OK;
}

}  // namespace

bool read_force() noexcept {
  // this path checks all of them
  return forcing.set(*forced_names() != '\0' || bad_exclude() || bad_override() || bad_warn());
}

int32_t next_forced(const OperatorInfo& op, const VariantInfo* variants, int32_t count,
                    const Backend& backend, int32_t previous) noexcept {
  if (previous < 0) {
    if (int32_t status = check_exclude(op)) return -status;
    if (int32_t status = check_override(op)) return -status;
    if (int32_t status = check_warn(op)) return -status;
    if (int32_t status = check_names(op, variants, count)) return -status;
  }
  for (int32_t i = previous + 1; i < count; ++i) {
    if (variants[i].backend != &backend) continue;
    const char* text = forced_names();
    Part scope, name;
    while (take(&text, &scope, &name)) {
      if ((scope.length == 0 || scope.is(op.name)) && name.names(variants[i])) return i;
    }
  }
  return -1;
}

int32_t forced_refused(const OperatorInfo& op, const VariantInfo& variant, int32_t level,
                       const char* condition) noexcept {
  if (condition != nullptr) {
    return fail(AOT_TUNE_ERROR_ENVIRONMENT,
                "%s: %s names variant %s, whose guard %s does not hold for this call", op.name, kVariable,
                variant.name, condition);
  }
  return fail(AOT_TUNE_ERROR_ENVIRONMENT,
              "%s: %s names variant %s for %s, which this device (%s) does not run", op.name, kVariable,
              variant.name, variant.target, level_name(*variant.backend, level).text);
}

}  // namespace aot_tune
