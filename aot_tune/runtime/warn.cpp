// What AOT_TUNE_WARN=unseen reports, and for which calls: those of no kind or regime that was seen, or
// outside the ranges of their regime.
#include "warn.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace aot_tune {

namespace {

constexpr const char* kVariable = "AOT_TUNE_WARN";
constexpr const char* kUnseen = "unseen";
constexpr const char* kRemedy =
    "run it once with AOT_TUNE_TRACE=calls.jsonl, then `aot-tune workload merge calls.jsonl -o "
    "workload.jsonl`, "
    "and build with AOT_TUNE_WORKLOAD=+workload.jsonl";

const char* given() noexcept {
  static const char* const text = copied(std::getenv(kVariable));
  return text;
}

void add_reason(Text& text, const FactsInfo& info, const int64_t* facts, const Backend& backend,
                const Seen* seen, int row) noexcept {
  if (seen == nullptr || seen->spans == nullptr) {
    text.add("nothing of it was measured for %s", seen != nullptr ? seen->target : backend.family);
    return;
  }
  if (row < 0) {
    text.add("no calls of these dtypes and attributes were measured for %s", seen->target);
    return;
  }
  const char* const regime = seen->regimes[row].name;
  const Span* const kind = seen->spans + row * info.own();
  if (kind->low > kind->high) {
    text.add("no calls of the regime \"%s\" were measured for %s", regime, seen->target);
    return;
  }
  text.add("outside of what was measured for %s", seen->target);
  if (*regime != '\0') text.add(" in the regime \"%s\"", regime);
  const char* before = ":";
  for (int32_t i = 0; i < info.op->dim_count; ++i) {
    if (kind[i].has(facts[i])) continue;
    text.add("%s %s is not within %" PRId64 " to %" PRId64, before, info.op->dims[i], kind[i].low,
             kind[i].high);
    before = ",";
  }
}

}  // namespace

void add_call(Text& text, const FactsInfo& info, const int64_t* facts) noexcept {
  const OperatorInfo& op = *info.op;
  for (int32_t i = 0; i < op.dim_count; ++i) text.add(" %s=%" PRId64, op.dims[i], facts[i]);
  facts += op.dim_count;
  for_each_by_name(op.variables, op.variable_count, [&](int32_t i) {
    text.add(" %s=%s", op.variables[i].name, op.variables[i].choices[facts[i]]);
  });
  facts += op.variable_count;
  for_each_by_name(op.attributes, op.attribute_count, [&](int32_t i) {
    if (facts[i] != 0) text.add(" %s=%s", op.attributes[i].name, op.attributes[i].choices[facts[i]]);
  });
}

bool bad_warn() noexcept { return *given() != '\0' && std::strcmp(given(), kUnseen) != 0; }

int32_t check_warn(const OperatorInfo& op) noexcept {
  if (!bad_warn()) return AOT_TUNE_OK;
  return fail(AOT_TUNE_ERROR_ENVIRONMENT, "%s: %s is '%.40s', wanted '%s', or nothing", op.name, kVariable,
              given(), kUnseen);
}

Switch warning([]() noexcept { return std::strcmp(given(), kUnseen) == 0; });

void warn_of_unseen(const FactsInfo& info, const int64_t* facts, const Backend& backend, const Seen* seen,
                    int row, std::atomic<bool>* told) noexcept {
  if (told->load(std::memory_order_relaxed)) return;
  if (row >= 0 && are_within(seen->spans + row * info.own(), facts, 0, info.op->dim_count)) return;
  if (told->exchange(true)) return;
  char call[400], reason[600];
  Text call_text(call, sizeof call), reason_text(reason, sizeof reason);
  add_call(call_text, info, facts);
  add_reason(reason_text, info, facts, backend, seen, row);
  std::fprintf(stderr,
               "aot_tune: %s.%s:%s: %s; what serves it is a guess. To tune what the program calls, %s. "
               "(%s=%s tells the first such call of each operator.)\n",
               library_info.name, info.op->name, call, reason, kRemedy, kVariable, kUnseen);
}

}  // namespace aot_tune
