// The file of AOT_TUNE_OVERRIDE is read once, at the first call. If it has a bad line, it is not used at all:
// calls fail, and say what is wrong.
#include "override.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace aot_tune {

std::atomic<int32_t> override_state{-1};

namespace {

constexpr const char* kVariable = "AOT_TUNE_OVERRIDE";
constexpr size_t kMostBytes = 1 << 20;

struct Rules {
  char* path = nullptr;
  Rule* rules = nullptr;
  int32_t count = 0;
  char error[900] = "";
};

// Everything in a file. It is kept, because rules point into it. NULL if it cannot be read. Then `why` says
// why.
char* read_file(const char* path, size_t* size, Text* why) noexcept {
  // without blocking, because the call would wait for a pipe that nobody writes to
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    why->add("it cannot be opened: %s", std::strerror(errno));
    return nullptr;
  }
  auto* const text = static_cast<char*>(std::malloc(kMostBytes + 1));
  ssize_t count = text != nullptr ? 1 : -1;
  for (*size = 0; count > 0 && *size <= kMostBytes; *size += count > 0 ? static_cast<size_t>(count) : 0) {
    do {
      count = read(file, text + *size, kMostBytes + 1 - *size);
    } while (count < 0 && errno == EINTR);
  }
  const int error = errno;
  close(file);
  if (count < 0) why->add("it cannot be read: %s", std::strerror(error));
  if (count >= 0 && *size > kMostBytes)
    why->add("it has more than %zu bytes, and is no file of rules", kMostBytes);
  if (count < 0 || *size > kMostBytes) {
    std::free(text);
    return nullptr;
  }
  void* const fitting = std::realloc(text, *size + 1);
  return fitting != nullptr ? static_cast<char*>(fitting) : text;
}

bool append(Rules* known, const Rule& rule) noexcept {
  const int32_t count = known->count;
  if ((count & (count - 1)) == 0) {  // the room doubles
    const size_t room = count == 0 ? 1 : 2 * static_cast<size_t>(count);
    void* const more = std::realloc(static_cast<void*>(known->rules), room * sizeof(Rule));
    if (more == nullptr) return false;
    known->rules = static_cast<Rule*>(more);
  }
  known->rules[known->count++] = rule;
  return true;
}

// Takes the rules. The first bad line is reported in full, and others by their numbers.
void read_rules(const char* text, size_t size, Rules* known) noexcept {
  char first[700], others[100];
  Text why(first, sizeof first), more(others, sizeof others);
  int32_t bad = 0, line = 0, at = 0;
  for (const char* const end = text + size; text < end;) {
    const void* const feed = std::memchr(text, '\n', static_cast<size_t>(end - text));
    const char* const stop = feed != nullptr ? static_cast<const char*>(feed) : end;
    Rule rule{};
    rule.line = ++line;
    char ignored[2];
    Text no_room(ignored, sizeof ignored);
    Text& reason = bad == 0 ? why : no_room;
    bool good = read_rule(text, static_cast<size_t>(stop - text), &rule, &reason);
    if (good && rule.info != nullptr && !append(known, rule)) {
      reason.add("there is no memory for it");
      good = false;
    }
    if (!good && bad++ == 0) at = line;
    if (!good && bad > 1 && bad < 12) more.add(bad == 2 ? "%d" : ", %d", static_cast<int>(line));
    text = stop + 1;
  }
  if (bad == 0) return;
  Text error(known->error, sizeof known->error);
  error.add("%s: %.300s:%d: %s", kVariable, known->path, static_cast<int>(at), first);
  if (bad > 1)
    error.add(" (also bad: %s %s%s)", bad == 2 ? "line" : "lines", others, bad >= 12 ? ", ..." : "");
}

Rules load() noexcept {
  Rules known;
  const char* const given = secure_getenv(kVariable);
  if (given == nullptr || *given == '\0') return known;
  known.path = strdup(given);  // a later setenv may free the text
  char reason[200];
  Text why(reason, sizeof reason);
  size_t size = 0;
  if (known.path == nullptr) why.add("there is no memory for it");
  char* const text = known.path != nullptr ? read_file(known.path, &size, &why) : nullptr;
  if (text != nullptr) {
    read_rules(text, size, &known);
  } else {
    Text(known.error, sizeof known.error)
        .add("%s: %.300s: %s; name a file with lines such as 'gemm: M<=16 -> VARIANT', or unset it",
             kVariable, known.path != nullptr ? known.path : "", reason);
  }
  return known;
}

const Rules& rules() noexcept {
  static const Rules known = load();
  return known;
}

bool meets(const Rule& rule, const int64_t* facts) noexcept {
  for (int32_t i = 0; i < rule.info->count(); ++i) {
    if (!rule.spans[i].has(facts[i])) return false;
  }
  return true;
}

}  // namespace

bool Rule::names(const VariantInfo& variant) const noexcept {
  return name.is(variant.name) || name.is(variant.kernel);
}

bool bad_override() noexcept { return rules().error[0] != '\0'; }

int32_t check_override(const OperatorInfo& op) noexcept {
  return bad_override() ? fail(AOT_TUNE_ERROR_ENVIRONMENT, "%s: %s", op.name, rules().error) : AOT_TUNE_OK;
}

bool read_override() noexcept {
  const bool any = rules().count > 0 && !bad_override();
  override_state.store(any ? 1 : 0, std::memory_order_relaxed);
  return any;
}

const char* override_path() noexcept { return rules().path; }

int find_rule(const FactsInfo& info, const int64_t* facts, const Backend& backend, int32_t level,
              const Rule** rule, int16_t* named) noexcept {
  for (int32_t i = 0; i < rules().count; ++i) {
    *rule = rules().rules + i;
    if ((*rule)->info != &info || !meets(**rule, facts)) continue;
    int count = 0;
    for (int32_t k = 0; k < info.variant_count; ++k) {
      const VariantInfo& variant = info.variants[k];
      if (variant.backend == &backend && runs_on(variant, level) && (*rule)->names(variant))
        named[count++] = static_cast<int16_t>(k);
    }
    if (count > 0) return count;
  }
  return 0;
}

}  // namespace aot_tune
