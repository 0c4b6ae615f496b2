// The file of AOT_TUNE_OVERRIDE is read once, at the first call. If it has a bad line, it is not used at all:
// calls fail, and say what is wrong. A line is [LIBRARY.]OPERATOR: CONDITION, ... -> VARIANT.
#include "override.h"

#include <cstdlib>
#include <cstring>

#include "call_lines.h"

namespace aot_tune {

namespace {

constexpr const char* kForm =
    "'OPERATOR: CONDITION, ... -> VARIANT', such as 'gemm: M<=16, N=4096 -> VARIANT'";
constexpr int kMostQuoted = 40;

int shown(const Part& part) noexcept {
  return part.length < kMostQuoted ? static_cast<int>(part.length) : kMostQuoted;
}

bool is_letter(char c) noexcept { return c != '\0' && std::strchr(kLetters, c) != nullptr; }
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

// The rest of a line.
struct Rest {
  const char* at;
  const char* end;

  void skip() noexcept {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) ++at;
  }
  char next() noexcept {
    skip();
    return at < end ? *at : '\0';
  }
  bool take(const char* token) noexcept {
    skip();
    const size_t length = std::strlen(token);
    if (static_cast<size_t>(end - at) < length || std::memcmp(at, token, length) != 0) return false;
    at += length;
    return true;
  }
  // Letters, digits and _. Empty if there are none.
  Part word() noexcept {
    skip();
    const char* const begin = at;
    while (at < end && is_letter(*at)) ++at;
    return {begin, static_cast<size_t>(at - begin)};
  }
  Part all() noexcept {
    skip();
    return {at, static_cast<size_t>(end - at)};
  }
};

// ---- Names

const FactsInfo* find_operator(const Part& name, Text* why) noexcept {
  NearNames known(name);
  for (int32_t i = 0; i < library_info.count; ++i) {
    const FactsInfo* const info = library_info.operators[i];
    if (name.is(info->op->name)) return info;
    known.add(info->op->name);
  }
  why->add("library %s has no operator '%.*s'", library_info.name, shown(name), name.text);
  known.tell(why);
  why->add(" (a rule for another library begins with its name: LIBRARY.%.*s)", shown(name), name.text);
  return nullptr;
}

bool is_listed(const FactsInfo& info, int32_t count, const char* kernel) noexcept {
  for (int32_t i = 0; i < count; ++i) {
    if (std::strcmp(info.variants[i].kernel, kernel) == 0) return true;
  }
  return false;
}

bool find_variant(const FactsInfo& info, const Part& name, Text* why) noexcept {
  NearNames known(name);
  for (int32_t i = 0; i < info.variant_count; ++i) {
    const VariantInfo& variant = info.variants[i];
    if (name.names(variant)) return true;
    if (!is_listed(info, i, variant.kernel)) known.add(variant.kernel);
  }
  for (int32_t i = 0; i < info.variant_count; ++i) {
    const char* const variant = info.variants[i].name;
    if (!is_listed(info, info.variant_count, variant)) known.add(variant);
  }
  why->add("'%.*s' is no variant and no kernel of %s here", shown(name), name.text, info.op->name);
  known.tell(why);
  why->add(" (the manifest has all; a rule for another library begins with its name: LIBRARY.%s)",
           info.op->name);
  return false;
}

// ---- Conditions

// The meaning of a condition's name: a dim, a fact that has choices, or a tensor.
struct Fact {
  int32_t index = -1;
  bool dim = false;
  const AttributeInfo* choices = nullptr;
  const TensorInfo* tensor = nullptr;
};

bool find_fact(const FactsInfo& info, const Part& name, Fact* fact, Text* why) noexcept {
  NearNames known(name);
  int32_t index = 0;
  const auto is = [&](const char* one) {
    known.add(one);
    fact->index = index++;
    return name.is(one);
  };
  const OperatorInfo& op = *info.op;
  for (int32_t i = 0; i < op.dim_count; ++i) {
    if (is(op.dims[i])) return fact->dim = true;
  }
  for (int32_t i = 0; i < op.variable_count; ++i) {
    fact->choices = op.variables + i;
    if (is(fact->choices->name)) return true;
  }
  for (int32_t i = 0; i < op.attribute_count; ++i) {
    fact->choices = op.attributes + i;
    if (is(fact->choices->name)) return true;
  }
  fact->choices = nullptr;
  for (int32_t i = 0; i < info.op->tensor_count; ++i, ++index) {
    fact->tensor = info.op->tensors + i;
    fact->index = index;
    if (fact->tensor->optional) known.add(fact->tensor->name);
    if (name.is(fact->tensor->name)) return true;
  }
  why->add("%s has no dim, dtype, attribute or optional tensor '%.*s'", info.op->name, shown(name),
           name.text);
  known.tell(why);
  return false;
}

bool narrow(Span* span, int64_t low, int64_t high, const Part& name, Text* why) noexcept {
  if (low > span->low) span->low = low;
  if (high < span->high) span->high = high;
  if (span->low <= span->high) return true;
  why->add("no call has a '%.*s' of which all this holds; change its conditions, or take the line out",
           shown(name), name.text);
  return false;
}

bool read_number(Rest* rest, int64_t* value, Text* why) noexcept {
  const Part from = rest->all();
  bool fits = true;
  for (*value = 0; rest->at < rest->end && is_digit(*rest->at); ++rest->at) {
    int64_t more;
    fits = fits && !__builtin_mul_overflow(*value, 10, &more) &&
           !__builtin_add_overflow(more, *rest->at - '0', value);
  }
  const bool whole = rest->at > from.text && (rest->at == rest->end || !is_letter(*rest->at));
  if (whole && fits) return true;
  why->add("wanted a whole number%s in place of '%.*s'", whole ? " below 2^63" : ", such as 4096,",
           shown(from), from.text);
  return false;
}

enum class Compare { kNone, kEqual, kAtMost, kAtLeast, kBelow, kAbove };

Compare take_compare(Rest* rest) noexcept {
  if (rest->take("<=")) return Compare::kAtMost;
  if (rest->take(">=")) return Compare::kAtLeast;
  if (rest->take("<")) return Compare::kBelow;
  if (rest->take(">")) return Compare::kAbove;
  return rest->take("=") ? Compare::kEqual : Compare::kNone;
}

bool narrow_to(Span* span, Compare compare, int64_t value, const Part& name, Text* why) noexcept {
  const bool low = compare == Compare::kEqual || compare == Compare::kAtLeast || compare == Compare::kAbove;
  const bool high = compare == Compare::kEqual || compare == Compare::kAtMost || compare == Compare::kBelow;
  if (compare == Compare::kAbove && value == INT64_MAX) return narrow(span, 1, 0, name, why);
  return narrow(span, low ? value + (compare == Compare::kAbove) : INT64_MIN,
                high ? value - (compare == Compare::kBelow) : INT64_MAX, name, why);
}

bool read_choice(Rest* rest, Span* span, const AttributeInfo& fact, Compare compare, const Part& name,
                 Text* why) noexcept {
  if (compare != Compare::kEqual) {
    why->add("'%s' has choices by name, and can only be asked by '=': %s=%s", fact.name, fact.name,
             fact.choices[0]);
    return false;
  }
  const Part choice = rest->word();
  NearNames known(choice);
  for (int32_t i = 0; i < fact.count; ++i) {
    if (choice.is(fact.choices[i])) return narrow(span, i, i, name, why);
    known.add(fact.choices[i]);
  }
  why->add("'%s' cannot be '%.*s'", fact.name, shown(choice), choice.text);
  known.tell(why);
  return false;
}

// `bias`, or `!bias`.
bool read_presence(Span* span, const TensorInfo& tensor, bool there, Text* why) noexcept {
  if (!tensor.optional) {
    why->add("every call has the tensor '%s'; leave the condition out", tensor.name);
    return false;
  }
  const Part name = {tensor.name, std::strlen(tensor.name)};
  return narrow(span, there, there, name, why);
}

bool is_kept_in(const Fact& fact, const Part& name, const char* what, Text* why) noexcept {
  if (fact.dim) return true;
  why->add("'%.*s' is no dim, and cannot be %s; write '%.*s%s'", shown(name), name.text, what, shown(name),
           name.text, fact.choices != nullptr ? "=CHOICE" : "");
  return false;
}

// `16<=M` or `16<=M<=64`.
bool read_range(const FactsInfo& info, Rest* rest, Span* spans, Text* why) noexcept {
  int64_t least = 0, most = 0;
  if (!read_number(rest, &least, why)) return false;
  const Compare first = take_compare(rest);
  if (first != Compare::kAtMost && first != Compare::kBelow) {
    why->add("wanted '<=' or '<' behind a number that stands first, as in '16<=M<=64'");
    return false;
  }
  const Part name = rest->word();
  Fact fact;
  if (!find_fact(info, name, &fact, why) || !is_kept_in(fact, name, "within a range", why)) return false;
  Span* const span = spans + fact.index;
  const Compare above = first == Compare::kAtMost ? Compare::kAtLeast : Compare::kAbove;
  if (!narrow_to(span, above, least, name, why)) return false;
  const Compare second = take_compare(rest);
  if (second == Compare::kNone) return true;
  if (second != Compare::kAtMost && second != Compare::kBelow) {
    why->add("wanted '<=' or '<' behind '%.*s', as in '16<=M<=64'", shown(name), name.text);
    return false;
  }
  return read_number(rest, &most, why) && narrow_to(span, second, most, name, why);
}

bool read_condition(const FactsInfo& info, Rest* rest, Span* spans, Text* why) noexcept {
  if (is_digit(rest->next())) return read_range(info, rest, spans, why);
  const bool absent = rest->take("!");
  const Part name = rest->word();
  if (name.length == 0) {
    const Part from = rest->all();
    why->add("wanted a condition or '->' in place of '%.*s'", shown(from), from.text);
    return false;
  }
  Fact fact;
  if (!find_fact(info, name, &fact, why)) return false;
  Span* const span = spans + fact.index;
  const Compare compare = absent ? Compare::kNone : take_compare(rest);
  if (fact.tensor != nullptr && compare == Compare::kNone)
    return read_presence(span, *fact.tensor, !absent, why);
  if (fact.tensor != nullptr) {
    why->add("'%s' is a tensor, and is there or not; write '%s', or '!%s' where it is not", fact.tensor->name,
             fact.tensor->name, fact.tensor->name);
    return false;
  }
  if (compare == Compare::kNone) {
    why->add("'%.*s' is no tensor; write '%.*s%s'", shown(name), name.text, shown(name), name.text,
             fact.dim ? "<=4096" : "=CHOICE");
    return false;
  }
  if (fact.choices != nullptr) return read_choice(rest, span, *fact.choices, compare, name, why);
  int64_t value = 0;
  return read_number(rest, &value, why) && narrow_to(span, compare, value, name, why);
}

// All conditions, and the arrow after them.
bool read_conditions(const FactsInfo& info, Rest* rest, Span* spans, Text* why) noexcept {
  if (rest->take("->")) return true;
  do {
    if (!read_condition(info, rest, spans, why)) return false;
    if (rest->take("->")) return true;
  } while (rest->take(","));
  const Part from = rest->all();
  why->add("wanted ',' or '->' %s%.*s%s", from.length > 0 ? "before '" : "at the end", shown(from), from.text,
           from.length > 0 ? "'" : "");
  return false;
}

// Spans that hold for all calls.
Span* make_spans(const FactsInfo& info) noexcept {
  auto* const spans = static_cast<Span*>(std::malloc(sizeof(Span) * static_cast<size_t>(info.count())));
  for (int32_t i = 0; spans != nullptr && i < info.count(); ++i) {
    spans[i] = {i < info.own() || info.op->tensors[i - info.own()].optional ? 0 : 1, INT64_MAX};
    if (i >= info.own()) spans[i].high = 1;
  }
  return spans;
}

bool read_name(const FactsInfo& info, Rest* rest, Rule* rule, Text* why) noexcept {
  rule->name = rest->word();
  const Part behind = rest->all();
  if (rule->name.length == 0 || behind.length > 0) {
    why->add("wanted the name of one variant or kernel behind '->', and nothing else; it is '%.*s'",
             shown({rule->name.text, static_cast<size_t>(rest->end - rule->name.text)}), rule->name.text);
    return false;
  }
  return find_variant(info, rule->name, why);
}

}  // namespace

bool read_rule(const char* text, size_t length, Rule* rule, Text* why) noexcept {
  const void* const comment = std::memchr(text, '#', length);
  Rest rest{text, comment != nullptr ? static_cast<const char*>(comment) : text + length};
  rest.skip();
  while (rest.end > rest.at && std::strchr(" \t\r", rest.end[-1]) != nullptr) --rest.end;
  rule->text = rest.all();
  if (rule->text.length == 0) return true;
  Part name = rest.word();
  bool ours = true;
  if (name.length > 0 && rest.take(".")) {
    ours = name.is(library_info.name);
    name = rest.word();
  }
  if (name.length == 0 || !rest.take(":")) {
    why->add("'%.*s' is no rule; wanted %s", shown(rule->text), rule->text.text, kForm);
    return false;
  }
  if (!ours) return true;
  const FactsInfo* const info = find_operator(name, why);
  if (info == nullptr) return false;
  Span* const spans = make_spans(*info);
  if (spans == nullptr) why->add("there is no memory for it");
  if (spans == nullptr || !read_conditions(*info, &rest, spans, why) || !read_name(*info, &rest, rule, why)) {
    std::free(spans);
    return false;
  }
  rule->info = info;
  rule->spans = spans;
  return true;
}

// ---- The file

namespace {

constexpr const char* kVariable = "AOT_TUNE_OVERRIDE";
constexpr size_t kMostBytes = 1 << 20;

struct Rules {
  char* path = nullptr;
  Rule* rules = nullptr;
  int32_t count = 0;
  char error[900] = "";
};

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
  char* const text = known.path != nullptr ? read_file(known.path, kMostBytes, &size, &why) : nullptr;
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

}  // namespace

bool bad_override() noexcept { return rules().error[0] != '\0'; }

int32_t check_override(const OperatorInfo& op) noexcept {
  return bad_override() ? fail(AOT_TUNE_ERROR_ENVIRONMENT, "%s: %s", op.name, rules().error) : AOT_TUNE_OK;
}

Switch overriding([]() noexcept { return rules().count > 0 && !bad_override(); });

const char* override_path() noexcept { return rules().path; }

int find_rule(const FactsInfo& info, const int64_t* facts, const Backend& backend, int32_t level,
              const Rule** rule, int16_t* named) noexcept {
  for (int32_t i = 0; i < rules().count; ++i) {
    *rule = rules().rules + i;
    if ((*rule)->info != &info || !are_within((*rule)->spans, facts, 0, info.count())) continue;
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
