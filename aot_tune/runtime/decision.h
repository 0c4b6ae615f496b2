// Which variant a call gets: that of the measured problem that it is like, else the one that is expected to
// be the fastest or that was the fastest on the nearest problem. Generated code has the tables.
#ifndef AOT_TUNE_RUNTIME_DECISION_H_
#define AOT_TUNE_RUNTIME_DECISION_H_

#include <iterator>

#include "choice.h"
#include "cpu_threads.h"
#include "expected.h"
#include "known.h"
#include "warn.h"

namespace aot_tune {

constexpr size_t at_least_1(int32_t count) { return count > 0 ? static_cast<size_t>(count) : 1; }

// The arguments of a C function.
template <typename Op>
struct Arguments {
  const DLTensor* tensors[at_least_1(Op::kOperator.tensor_count)];
  Scalar scalars[at_least_1(Op::kOperator.scalar_count)];
  int32_t attributes[at_least_1(Op::kOperator.attribute_count)];
};

template <typename Op>
struct CallOf;
template <typename Op>
bool is_alone(const CallOf<Op>& c, int variant) noexcept;

// A call that was read, and what is known of it. `arguments` are as variants get them.
template <typename Op>
struct CallOf {
  Arguments<Op> arguments;
  View view[at_least_1(Op::kOperator.tensor_count)];
  int64_t dims[at_least_1(Op::kOperator.dim_count)];
  int32_t dtypes[at_least_1(Op::kOperator.variable_count)];
  const Backend* backend;
  int32_t level;
  int generic;                 // the variant that answers when no other does
  bool empty;                  // no output has an element
  bool hollow;                 // some output has elements, but not every input
  bool plain;                  // nothing is unusual about tensors and memory
  mutable int asked = -1;      // the variant that was last asked of
  mutable bool alone = false;  // whether that gets one thread

  const DLTensor* tensor(int i) const { return arguments.tensors[i]; }
  const DLDevice& device() const { return arguments.tensors[first_required()]->device; }
  static constexpr int first_required() {
    int i = 0;
    while (Op::kOperator.tensors[i].optional) ++i;
    return i;
  }
  static const VariantInfo& info(int variant) { return Op::kVariants[variant]; }
  // Calls a function of a variant.
  template <typename Function, typename... More>
  int32_t pass_to(Function function, More... more) const {
    return Op::Pass::to(function, arguments.tensors, arguments.scalars, arguments.attributes, more...);
  }
  // Whether a variant gets one thread for the call.
  bool is_alone(int variant) const {
    if constexpr (!Op::kRunsOnHost) return false;
    if (asked != variant) alone = aot_tune::is_alone(*this, asked = variant);
    return alone;
  }
  // Bytes of workspace that a variant needs.
  int32_t need(int variant, size_t* size) const {
    const CallThreads one(is_alone(variant));
    *size = 0;
    return pass_to(Op::kFunctions[variant].workspace, size);
  }
  // What a variant says of the call, for people.
  void note(int variant, char* buffer, size_t size) const {
    if (Op::kFunctions[variant].note != nullptr) pass_to(Op::kFunctions[variant].note, buffer, size);
  }
};

// ---- The tables of a target

// Some variants, the first ones before others.
struct Variants {
  const int16_t* indices;
  int32_t count;
  const int16_t* begin() const { return indices; }
  const int16_t* end() const { return indices + count; }
  bool has(int variant) const {
    for (const int16_t index : *this) {
      if (index == variant) return true;
    }
    return false;
  }
};

// A problem that was measured, or a call in its form.
template <typename Op>
struct Row {
  int64_t dims[at_least_1(Op::kOperator.dim_count)];
  int64_t classes[at_least_1(Op::kOperator.tensor_count)];  // of strides; -1 where the tensor is absent
  int32_t attributes[at_least_1(Op::kOperator.attribute_count)];
  int32_t dtypes[at_least_1(Op::kOperator.variable_count)];
  int32_t first;  // of its variants, and how many
  int32_t count;
};

// The time of a variant on calls of a kind that nobody measured.
template <typename Op>
struct ExpectedInfo {
  int32_t kind;
  uint64_t regimes;  // a bit for each in which it was timed
  int32_t variant;
  bool vendor;  // chooses by a vendor's heuristic
  int32_t error;
  int64_t (*expected)(const CallOf<Op>&, const int64_t* terms, int64_t limit);

  // With `elsewhere`, those that were only timed in other regimes.
  bool is_for(const RegimeInfo& regime, const CallOf<Op>& c, bool elsewhere = false) const {
    return kind == regime.kind && ((regimes >> regime.number & 1u) == 0) == elsewhere &&
           Op::worthwhile(c, variant);
  }
};

// A variant that calls like a row's problem get with one thread: more gain too little for what they risk.
struct Alone {
  int16_t row;
  int16_t variant;
};

// What decides for the devices of a target. What is not there is null.
template <typename Op>
struct TableInfo {
  const Backend* backend;
  int32_t level;
  int32_t last;        // or 0 for no limit
  int32_t processors;  // of the device that it was learned on, or 0
  Seen seen;
  int (*regime)(const CallOf<Op>&);  // the row of a call's kind and regime in what was seen, or -1
  Variants used;                     // all that it names
  Variants rest;                     // for calls that nothing else decides
  Variants filling_in;               // for calls that otherwise only a generic one takes
  const Row<Op>* rows;               // of measured problems
  int32_t row_count;
  const int16_t* ranked;  // the variants of all rows
  const int16_t* slots;   // rows of tuned problems by `place_of_row`, or -1
  uint32_t slot_mask;
  const ExpectedInfo<Op>* expected;
  int32_t expected_count;
  void (*terms)(const CallOf<Op>&, int64_t* terms);  // what several variants' times need
  const Alone* alone = nullptr;                      // on a CPU
  int32_t alone_count = 0;

  constexpr bool is_for(const Backend* of, int32_t at) const {
    return of == backend && at >= level && (last == 0 || at <= last);
  }
  Variants ranked_of(const Row<Op>& row) const { return {ranked + row.first, row.count}; }
  int regime_of(const CallOf<Op>& c) const { return regime != nullptr ? regime(c) : -1; }
  // What is known of a call's kind and regime, if calls of these are decided by expected times, or null.
  const RegimeInfo* expects(const CallOf<Op>& c) const {
    const int row = expected != nullptr ? regime_of(c) : -1;
    return row >= 0 && seen.regimes[row].rule != RegimeInfo::kNearest ? seen.regimes + row : nullptr;
  }
};

// ---- Variants that may serve a call

template <typename Op, typename Trace>
bool accepts(const CallOf<Op>& c, int variant, Trace& trace) {
  const char* refused = Op::refusal(c, variant);
  return refused == nullptr || trace.guard(false, Op::kVariants[variant], refused);
}

// The first of some variants that answers the call, or -1. With `meant`, it is meant for such calls.
template <typename Op, typename Trace>
int first_of(const CallOf<Op>& c, const Variants& ranked, Trace& trace, bool meant = false) {
  for (const int16_t index : ranked) {
    const VariantInfo& variant = Op::kVariants[index];
    if (meant && !Op::worthwhile(c, index)) continue;
    if (!variant.generic && !allowed(Op::kOperator, variant, trace)) continue;
    if (accepts(c, index, trace) && trace.fits(c, index)) return index;
  }
  return -1;
}

// Whether a variant beside the generic ones may serve a call, whatever is expected of it.
template <typename Op>
bool competes(const CallOf<Op>& c, int variant) {
  NoTrace none;
  return !Op::kVariants[variant].generic && Op::refusal(c, variant) == nullptr &&
         allowed(Op::kOperator, Op::kVariants[variant], none);
}

template <typename Op>
bool one_competes(const CallOf<Op>& c, const Variants& ranked) {
  for (const int16_t variant : ranked) {
    if (competes(c, variant)) return true;
  }
  return false;
}

// Whether the variants of a problem, the fastest first, tell something of a call: one serves it, and no
// generic one that is faster there. But a generic one may be the fastest of all. With `meant`, only variants
// count that are meant for such calls.
template <typename Op>
bool tell(const CallOf<Op>& c, const Variants& ranked, bool meant) {
  for (const int16_t variant : ranked) {
    if (meant && !Op::worthwhile(c, variant)) continue;
    if (competes(c, variant)) return true;
    const bool is_ahead = Op::kVariants[variant].generic && !Op::kVariants[ranked.indices[0]].generic;
    if (is_ahead && Op::refusal(c, variant) == nullptr) return false;
  }
  return false;
}

// ---- Measured problems

template <typename Op>
Row<Op> row_of(const CallOf<Op>& c) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  Row<Op> row = {};
  for (int i = 0; i < op.dim_count; ++i) row.dims[i] = c.dims[i];
  for (int i = 0; i < op.tensor_count; ++i) row.classes[i] = c.tensor(i) ? stride_class(*c.tensor(i)) : -1;
  for (int i = 0; i < op.attribute_count; ++i) row.attributes[i] = c.arguments.attributes[i];
  for (int i = 0; i < op.variable_count; ++i) row.dtypes[i] = c.dtypes[i];
  return row;
}

// Powers of 2^64 over the golden ratio.
struct OddNumbers {
  uint64_t powers[kMaxTensors * (kMaxRank + 2) + kMaxScalars + kMaxAttributes] = {};
  constexpr OddNumbers() {
    uint64_t power = 1;
    for (uint64_t& value : powers) value = power *= UINT64_C(0x9e3779b97f4a7c15);
  }
};
constexpr OddNumbers kOdd;

// A sum of multiples of values, which is hardly ever equal for two small lists of them.
struct Sum {
  uint64_t sum = 0;
  size_t count = 0;
  __attribute__((always_inline)) void add(int64_t value) noexcept {
    sum += static_cast<uint64_t>(value) * kOdd.powers[count++];
  }
};

// Where to look first for a call's row. link/measured_problems.py gets the same.
template <typename Op>
uint64_t place_of_row(const CallOf<Op>& c) noexcept {
  Sum sum;
  for (int i = 0; i < Op::kOperator.dim_count; ++i) sum.add(c.dims[i]);
  for (int i = 0; i < Op::kOperator.attribute_count; ++i) sum.add(c.arguments.attributes[i]);
  for (int i = 0; i < Op::kOperator.variable_count; ++i) sum.add(c.dtypes[i]);
  return sum.sum ^ (sum.sum >> 32);
}

// Whether a call is like a row's problem. Strides come last, because they take longest to compare.
template <typename Op>
bool is_same(const Row<Op>& row, const CallOf<Op>& c) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  bool same = true;
  for (int i = 0; i < op.dim_count; ++i) same &= row.dims[i] == c.dims[i];
  for (int i = 0; i < op.attribute_count; ++i) same &= row.attributes[i] == c.arguments.attributes[i];
  for (int i = 0; i < op.variable_count; ++i) same &= row.dtypes[i] == c.dtypes[i];
  for (int i = 0; same && i < op.tensor_count; ++i)
    same = row.classes[i] == (c.tensor(i) != nullptr ? stride_class(*c.tensor(i)) : -1);
  return same;
}

// The row of the problem that a call is like, or null.
template <typename Op>
const Row<Op>* measured(const TableInfo<Op>& table, const CallOf<Op>& c) noexcept {
  if (table.slots == nullptr) return nullptr;
  for (uint64_t at = place_of_row(c);; ++at) {
    const int row = table.slots[at & table.slot_mask];
    if (row < 0) return nullptr;
    if (is_same(table.rows[row], c)) return &table.rows[row];
  }
}

template <typename Value, size_t kCount>
int differences(const Value (&one)[kCount], const Value (&other)[kCount]) noexcept {
  int count = 0;
  for (size_t i = 0; i < kCount; ++i) count += one[i] != other[i];
  return count;
}

template <typename Op>
int differences(const Row<Op>& one, const Row<Op>& other) noexcept {
  return differences(one.classes, other.classes) + differences(one.attributes, other.attributes) +
         differences(one.dtypes, other.dtypes);
}

// The logarithms of a row's extents.
template <typename Op>
struct Logs {
  int64_t terms[at_least_1(Op::kOperator.dim_count)];
  explicit Logs(const Row<Op>& row) noexcept {
    for (size_t i = 0; i < std::size(terms); ++i) terms[i] = log_term(static_cast<double>(row.dims[i]));
  }
};

// The squares of the logarithms of the factors between extents, with a factor of 2 for each other difference.
// It is an integer, so that select/nearest.py gets the same. What is not below `least` may be less.
template <typename Op>
int64_t distance(const Row<Op>& one, const Row<Op>& other, const Logs<Op>& logs, int64_t least) noexcept {
  int64_t sum = 0;
  for (size_t i = 0; i < std::size(one.dims); ++i) {
    const int64_t factor = log_term(static_cast<double>(one.dims[i])) - logs.terms[i];
    sum += factor * factor;
  }
  return sum >= least ? sum : sum + (int64_t{differences(one, other)} << 16);
}

// The nearest of the measured problems with a variant that may serve the call, the first of several, or null.
// With `meant`, the variant is meant for such calls.
template <typename Op>
const Row<Op>* nearest(const TableInfo<Op>& table, const CallOf<Op>& c, bool meant) noexcept {
  const Row<Op> call = row_of(c);
  const Logs<Op> logs(call);
  const Row<Op>* nearest = nullptr;
  int64_t least = INT64_MAX;
  for (int32_t i = 0; i < table.row_count; ++i) {
    const Row<Op>& row = table.rows[i];
    const int64_t far = distance(row, call, logs, least);
    if (far >= least || !tell(c, table.ranked_of(row), meant)) continue;
    nearest = &row;
    least = far;
  }
  return nearest;
}

// Whether a variant gets one thread for a call: if it did on such a problem, or on one that is as large in
// each dim, if the call is like none.
template <typename Op>
bool is_alone(const TableInfo<Op>& table, const CallOf<Op>& c, int variant) noexcept {
  const Row<Op>* const known = measured(table, c);
  const Row<Op> call = row_of(c);
  for (int32_t i = 0; i < table.alone_count; ++i) {
    const Row<Op>& row = table.rows[table.alone[i].row];
    if (table.alone[i].variant != variant || (known != nullptr && known != &row)) continue;
    bool within = differences(row, call) == 0;
    for (size_t k = 0; k < std::size(call.dims); ++k) within &= call.dims[k] <= row.dims[k];
    if (within) return true;
  }
  return false;
}

// The regime of a call, what decides there, and what that loses on shapes that it was not learned from.
template <typename Op>
void explain_regime(Text& text, const TableInfo<Op>& table, const CallOf<Op>& c) noexcept {
  constexpr const char* kBy[] = {"the nearest problem", "expected times", "the vendor's choice"};
  const int row = table.regime_of(c);
  if (row < 0) return;
  const RegimeInfo& regime = table.seen.regimes[row];
  text.add("regime: %s%sdecided by %s", regime.name, *regime.name != '\0' ? ", " : "", kBy[regime.rule]);
  if (regime.shapes > 0) {
    text.add(", which loses %.3g %% in the mean of %d shapes that were kept aside, and %.3g %% at p95\n",
             regime.mean / 10.0, static_cast<int>(regime.shapes), regime.p95 / 10.0);
  } else {
    text.add("; no shapes were kept aside to judge it\n");
  }
}

// The measured problem that is nearest. Where times are not expected, it decides.
template <typename Op>
void explain_nearest(Text& text, const TableInfo<Op>& table, const CallOf<Op>& c) noexcept {
  const Row<Op>* row = nearest(table, c, true);
  if (row == nullptr) row = nearest(table, c, false);
  if (row == nullptr) return;
  double most = 1;
  text.add("nearest:");
  for (int i = 0; i < Op::kOperator.dim_count; ++i) {
    text.add(" %s=%lld", Op::kOperator.dims[i], static_cast<long long>(row->dims[i]));
    const double one = row->dims[i] < 1 ? 1.0 : static_cast<double>(row->dims[i]);
    const double other = c.dims[i] < 1 ? 1.0 : static_cast<double>(c.dims[i]);
    const double factor = one > other ? one / other : other / one;
    if (factor > most) most = factor;
  }
  text.add(", dims differ by up to %.3g times", most);
  const int others = differences(*row, row_of(c));
  if (others > 0) text.add("; %d of its tensors, attributes and dtypes too", others);
  text.add("\n");
}

// ---- The decision

// Is taken off the times of what is tried before generic variants.
constexpr int64_t kBeforeGeneric = INT64_C(1) << 40;

// The variant of a regime that is expected to be the fastest, or -1. If a generic one alone would be left,
// what was only timed in other regimes comes before it.
template <typename Op, typename Trace>
int likeliest(const TableInfo<Op>& table, const RegimeInfo& regime, const CallOf<Op>& c, Trace& trace) {
  int64_t terms[Op::kMostTerms];
  Likely found[Op::kMostExpected];
  int count = 0;
  int64_t best = INT64_MAX / 2;
  bool tuned = false;
  table.terms(c, terms);
  for (int pass = 0; pass < 2 && !tuned; ++pass) {
    const bool elsewhere = pass > 0;
    for (int32_t i = 0; i < table.expected_count; ++i) {
      const ExpectedInfo<Op>& info = table.expected[i];
      const VariantInfo& variant = Op::kVariants[info.variant];
      if ((elsewhere && variant.generic) || !info.is_for(regime, c, elsewhere)) continue;
      if (!allowed(Op::kOperator, variant, trace) || !accepts(c, info.variant, trace)) continue;
      const int64_t caution = (info.vendor ? 0 : regime.caution) - (elsewhere ? kBeforeGeneric : 0);
      const int64_t time = info.expected(c, terms, Trace::kFirstOnly ? best - caution : INT64_MAX);
      trace.expected(variant, time, info.error);
      found[count++] = {time + caution, info.variant};
      if (time + caution < best) best = time + caution;
      tuned |= !variant.generic;
    }
  }
  for (int variant; (variant = take_likeliest(found, count)) >= 0;) {
    if (trace.fits(c, variant)) return variant;
  }
  return -1;
}

// What a call gets that was not measured: by its regime's rule, then what comes last.
template <typename Op, typename Trace>
int rank(const TableInfo<Op>& table, const CallOf<Op>& c, Trace& trace) {
  int variant = -1;
  const RegimeInfo* const regime = table.expects(c);
  if constexpr (Op::kMostExpected > 0) {
    if (regime != nullptr) variant = likeliest(table, *regime, c, trace);
  }
  for (int meant = regime == nullptr ? 1 : -1; variant < 0 && meant >= 0; --meant) {
    const Row<Op>* const row = nearest(table, c, meant != 0);
    if (row != nullptr) variant = first_of(c, table.ranked_of(*row), trace, meant != 0);
  }
  return variant >= 0 ? variant : first_of(c, table.rest, trace);
}

// The choice among variants that may not have been measured, for calls that otherwise only the generic one
// takes. If a generic variant was preferred to another one, that stays.
template <typename Op, typename Trace>
int fill_in(const TableInfo<Op>& table, const CallOf<Op>& c, Trace& trace) {
  const RegimeInfo* const regime = table.expects(c);
  for (int32_t i = 0; regime != nullptr && i < table.expected_count; ++i) {
    const ExpectedInfo<Op>& info = table.expected[i];
    if (info.is_for(*regime, c) && competes(c, info.variant)) return -1;
  }
  for (const int16_t variant : table.used) {
    const bool is_measured = regime == nullptr && !table.filling_in.has(variant);
    if (is_measured && competes(c, variant)) return -1;
  }
  return first_of(c, table.filling_in, trace);
}

// A table's variant for a call, or -1.
//
// A call like a measured problem gets what was the fastest there, as far as guards know. If other variants
// were faster there than a generic one, the generic one alone is no choice: others may fill in.
template <typename Op, typename Trace>
int decide(const TableInfo<Op>& table, const CallOf<Op>& c, Trace& trace) {
  const bool fills_in = table.filling_in.count > 0;
  if (const Row<Op>* row = measured(table, c)) {
    const Variants ranked = table.ranked_of(*row);
    const int variant = first_of(c, ranked, trace);
    const bool is_settled =
        !fills_in || (variant >= 0 && (!Op::kVariants[variant].generic || ranked.indices[0] == variant ||
                                       one_competes(c, ranked)));
    if (variant >= 0 && is_settled) return variant;
  }
  const int variant = rank(table, c, trace);
  if (!fills_in || (variant >= 0 && !Op::kVariants[variant].generic)) return variant;
  const int other = fill_in(table, c, trace);
  return other >= 0 ? other : variant;
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_DECISION_H_
