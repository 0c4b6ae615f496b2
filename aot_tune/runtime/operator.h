// A library's function for an operator: how a call is served, remembered and explained. Generated code
// has a struct for each operator, `Op`, with the operator's tables and with what decides for its calls.
#ifndef AOT_TUNE_RUNTIME_OPERATOR_H_
#define AOT_TUNE_RUNTIME_OPERATOR_H_

#include <type_traits>

#include "compare.h"
#include "cpu_threads.h"
#include "online.h"
#include "profile.h"
#include "read_call.h"
#include "trace.h"

namespace aot_tune {

// ---- Choosing a variant

// The table of the most specific target that a device runs, or -1.
template <typename Op>
int table_for(const Backend* backend, int32_t level) {
  for (int i = 0; i < Op::kTableCount; ++i) {
    if (Op::kTables[i].is_for(backend, level)) return i;
  }
  return -1;
}

template <typename Op>
bool is_alone(const CallOf<Op>& c, int variant) noexcept {
  const int table = table_for<Op>(c.backend, c.level);
  return table >= 0 && Op::kTables[table].alone_count > 0 && is_alone(Op::kTables[table], c, variant);
}

template <typename Op>
void read_facts(const CallOf<Op>& c, int64_t* facts) {
  constexpr const OperatorInfo& op = Op::kOperator;
  for (int i = 0; i < op.dim_count; ++i) *facts++ = c.dims[i];
  for (int i = 0; i < op.variable_count; ++i) *facts++ = c.dtypes[i];
  for (int i = 0; i < op.attribute_count; ++i) *facts++ = c.arguments.attributes[i];
  for (int i = 0; i < op.tensor_count; ++i) *facts++ = c.tensor(i) != nullptr;
}

// The variant that AOT_TUNE_OVERRIDE has for a call, if that answers it, or -1.
template <typename Op, typename Trace>
__attribute__((noinline, cold)) int overridden(const CallOf<Op>& c, Trace& trace) {
  int16_t named[Op::kFacts.variant_count];
  int64_t facts[Op::kFacts.count()];
  const Rule* rule;
  read_facts(c, facts);
  const int count = find_rule(Op::kFacts, facts, *c.backend, c.level, &rule, named);
  if (count == 0) return -1;
  trace.meets(*rule);
  return first_of(c, {named, count}, trace);
}

// What AOT_TUNE_ONLINE knows of a call that nobody measured, or null.
template <typename Op>
Tried* tried_of(const CallOf<Op>& c) {
  const int table = is_online() && !c.hollow ? table_for<Op>(c.backend, c.level) : -1;
  if (table < 0 || measured(Op::kTables[table], c) != nullptr) return nullptr;
  int64_t words[call_words(Op::kFacts)];
  read_facts(c, words);
  describe_tensors(Op::kFacts, c.arguments.tensors, c.view, c.empty, words);
  return find_tried(Op::kFacts, *c.backend, c.device().device_id, words);
}

// The variant that AOT_TUNE_ONLINE found for a call, if that answers it, or -1.
template <typename Op, typename Trace>
__attribute__((noinline, cold)) int found_online(const CallOf<Op>& c, Trace& trace) {
  const int16_t chosen = chosen_of(tried_of(c));
  return chosen >= 0 ? first_of(c, {&chosen, 1}, trace) : -1;
}

template <typename Op, typename Trace>
int choose(const CallOf<Op>& c, Trace& trace) {
  int choice = -1;
  if (is_overridden() && !c.hollow) choice = overridden(c, trace);
  if (choice < 0 && is_online()) choice = found_online(c, trace);
  if (choice >= 0) return choice;
  if constexpr (Op::kTableCount > 0) {
    const int table = c.hollow ? -1 : table_for<Op>(c.backend, c.level);
    if (table >= 0) choice = decide(Op::kTables[table], c, trace);
  }
  return choice >= 0 ? choice : c.generic;
}

// The error of a variant's function, with what the variant says of a call that it cannot serve.
template <typename Op>
__attribute__((noinline, cold)) int32_t failed(const CallOf<Op>& c, int variant, const char* function,
                                               int32_t status) {
  char note[256] = "";
  if (status == kUnavailable) c.note(variant, note, sizeof note);
  return kernel_failed(Op::kOperator, Op::kVariants[variant], function, status, note);
}

// The variant that AOT_TUNE_FORCE names for the call, or -1.
template <typename Op>
int32_t forced(const CallOf<Op>& c, int* variant) {
  const auto takes = [&c](int32_t i, FirstRefusal& refusal) { return accepts(c, i, refusal); };
  return choose_forced(Op::kOperator, Op::kVariants, Op::kFacts.variant_count, *c.backend, c.level, takes,
                       variant);
}

// The variant, or the generic one if AOT_TUNE_CHECK found that their results differ.
template <typename Op>
int trusted(const CallOf<Op>& c, int variant) noexcept {
  return is_forced() && Op::checks[variant].differs.load(std::memory_order_relaxed) ? c.generic : variant;
}

// The first ranked variant that can be had here and whose workspace fits, else the generic one.
template <typename Op>
__attribute__((noinline)) int32_t choose_fitting(const CallOf<Op>& c, FittingTrace& trace, int* variant,
                                                 size_t* size) {
  *variant = trusted(c, choose(c, trace));
  return c.need(*variant, size);
}

// ---- Serving a call

// The variant of a call and its workspace; `first` tells whether every such call that has room for it gets
// it.
template <typename Op>
int32_t serve(const CallOf<Op>& c, const aot_tune_exec* exec, int* variant, size_t* size, bool* first) {
  *variant = -1;
  if (is_forced() && !c.hollow) {
    if (int32_t status = forced(c, variant)) return status;
  }
  const bool named = *variant >= 0;
  NoTrace trace;
  *variant = trusted(c, named ? *variant : choose(c, trace));
  int32_t status = c.need(*variant, size);
  *first = !named && status == 0 && *size <= workspace_limit(exec);
  if (!named && (status == kUnavailable || *size > workspace_limit(exec))) {
    FittingTrace fitting{workspace_limit(exec)};
    status = choose_fitting(c, fitting, variant, size);
  }
  return status == 0 ? AOT_TUNE_OK : failed(c, *variant, "workspace", status);
}

// Launches a variant that needs `size` bytes of workspace. kUnavailable if it finds out only now that it
// cannot serve the call.
template <typename Op>
int32_t launch(const CallOf<Op>& c, const aot_tune_exec* exec, int variant, size_t size) {
  constexpr const OperatorInfo& op = Op::kOperator;
  const auto& functions = Op::kFunctions[variant];
  if (int32_t status =
          load(op, Op::kVariants[variant], functions.preload, c.device().device_id, Op::loaded[variant]))
    return status;
  Workspace workspace;
  if (int32_t status = take_workspace(op, *c.backend, c.device(), exec, size, &workspace)) return status;
  if (exec != nullptr && workspace.memory != nullptr && workspace.memory == exec->workspace) {
    if (int32_t status = check_workspace(op, c.arguments.tensors, c.view, workspace.memory, size))
      return status;
  }
  void* stream = exec != nullptr ? exec->stream : nullptr;
  const CallThreads one(c.is_alone(variant));
  const int32_t status = c.pass_to(functions.launch, workspace.memory, size, stream);
  return status == 0 || status == kUnavailable ? status : failed(c, variant, "launch", status);
}

// Loads the variants that calls on a device may get.
template <typename Op>
int32_t preload(const Backend& backend, int32_t level, int32_t device_id) {
  constexpr int32_t count = Op::kFacts.variant_count;
  bool wanted[count];
  const VariantInfo* first = nullptr;
  bool runs = false;
  for (int32_t i = 0; i < count; ++i) {
    const VariantInfo& variant = Op::kVariants[i];
    const bool generic = variant.generic && variant.backend == &backend;
    if (generic && first == nullptr) first = &variant;
    runs |= wanted[i] = generic && runs_on(variant, level);
  }
  if (first != nullptr && !runs) {
    const DLDevice device = {static_cast<DLDeviceType>(backend.device_type), device_id};
    const char* targets = "";
    for (const FamilyInfo& family : Op::kFamilies)
      targets = family.backend == &backend ? family.targets : targets;
    return too_old(Op::kOperator, device, level, *first, targets);
  }
  const int table = table_for<Op>(&backend, level);
  if (table >= 0) {
    for (const int16_t variant : Op::kTables[table].used) wanted[variant] = true;
  }
  for (int32_t i = 0; i < count; ++i) {
    int32_t (*ahead)() = Op::kFunctions[i].preload;
    if (!wanted[i] || ahead == nullptr) continue;
    if (int32_t status = load(Op::kOperator, Op::kVariants[i], ahead, device_id, Op::loaded[i]))
      return status;
  }
  return AOT_TUNE_OK;
}

// ---- Remembering calls

// Adds what a tensor tells. False if a tensor that tells dims is none of a legal call.
template <typename Op, size_t I>
__attribute__((always_inline)) inline bool add_tensor(const DLTensor* tensor, Sum* sum) noexcept {
  constexpr TensorInfo info = Op::kOperator.tensors[I];
  if constexpr ((Op::kOperator.bound >> I & 1u) != 0) {
    if (tensor == nullptr || tensor->ndim != info.rank || tensor->shape == nullptr) return false;
#pragma GCC unroll 8
    for (int axis = 0; axis < info.rank; ++axis) sum->add(tensor->shape[axis]);
    sum->add(static_cast<int64_t>(place_of(*tensor)));
  }
  if constexpr (info.optional) sum->add(tensor != nullptr);
  return true;
}

template <typename Op, size_t I>
__attribute__((always_inline)) inline void add_scalar(const Scalar& scalar, Sum* sum) noexcept {
  constexpr ScalarInfo info = Op::kOperator.scalars[I];
  if constexpr (info.binds >= 0) sum->add(dim_of(info, scalar));
}

// A number for a call that most others do not have: of its extents, attributes, optional tensors and where
// the first ones lie within 64 bytes. 0 where it is no legal call.
template <typename Op, size_t... T, size_t... S, size_t... A>
__attribute__((always_inline)) inline uint64_t number_of(const Arguments<Op>& a, std::index_sequence<T...>,
                                                         std::index_sequence<S...>,
                                                         std::index_sequence<A...>) noexcept {
  Sum sum;
  if (!(add_tensor<Op, T>(a.tensors[T], &sum) && ...)) return 0;
  (add_scalar<Op, S>(a.scalars[S], &sum), ...);
  (sum.add(a.attributes[A]), ...);
  return sum.sum | 1;
}

// The bits of scalars and attributes.
template <typename Op>
struct Options {
  static constexpr size_t kCount = at_least_1(Op::kOperator.scalar_count + Op::kOperator.attribute_count);
  uint64_t bits[kCount];
};

template <typename Op, size_t... S, size_t... A>
__attribute__((always_inline)) inline Options<Op> options_of(const Arguments<Op>& a,
                                                             std::index_sequence<S...>,
                                                             std::index_sequence<A...>) noexcept {
  return {{bits_of(Op::kOperator.scalars[S], a.scalars[S])..., static_cast<uint32_t>(a.attributes[A])...}};
}

template <typename Op>
__attribute__((always_inline)) inline Options<Op> options_of(const Arguments<Op>& a) noexcept {
  return options_of(a, ScalarIndices<Op>(), AttributeIndices<Op>());
}

template <typename Op>
using Remembered = Known<Op::kOperator, Options<Op>::kCount, decltype(Op::kFunctions[0].launch)>;

template <typename Op>
KnownCalls<Remembered<Op>>* thread_calls() {
  return static_cast<KnownCalls<Remembered<Op>>*>(Op::known_calls);
}

// A call that is like one that is known, as far as it takes to launch it.
template <typename Op>
void fill(CallOf<Op>& c, Remembered<Op>& known, const Arguments<Op>& a) {
  c.backend = known.backend;
  c.asked = known.variant;
  c.alone = known.alone;
  c.arguments = a;
  for (int i = 0; i < Op::kOperator.tensor_count; ++i) {
    if (a.tensors[i] != nullptr) c.arguments.tensors[i] = &known.tensors[i].tensor;
    known.view(static_cast<size_t>(i), &c.view[i]);
  }
}

// Launches a call that is like a known one, which needs no workspace.
template <typename Op, size_t... I>
__attribute__((always_inline)) inline int32_t again(const Arguments<Op>& a, Remembered<Op>& known,
                                                    void* stream, std::index_sequence<I...>) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  const DLTensor* const tensors[] = {
      !op.tensors[I].optional || a.tensors[I] != nullptr ? &known.tensors[I].tensor : nullptr...};
  void* const workspace = nullptr;
  return Op::Pass::to(known.launch, tensors, a.scalars, a.attributes, workspace, size_t{0}, stream);
}

// A call that is like a known one where memory is got, something may load, or the thread's device is another
// one; false when other variants are to be tried.
template <typename Op>
__attribute__((noinline)) bool repeat(const Arguments<Op>& a, const aot_tune_exec* exec,
                                      Remembered<Op>& known, int32_t* status) {
  CallOf<Op> c;
  fill(c, known, a);
  size_t size = known.size;
  Entered entered;
  *status = entered.enter(*c.backend, c.device().device_id);
  if (*status != AOT_TUNE_OK) return true;
  if (!known.settled && c.need(known.variant, &size) != 0) return false;
  if (size > workspace_limit(exec)) return false;
  *status = launch(c, exec, known.variant, size);
  return *status != kUnavailable;
}

// The error of one that was launched as the thread was.
template <typename Op>
__attribute__((noinline, cold)) int32_t repeat_failed(const Arguments<Op>& a, Remembered<Op>& known,
                                                      int32_t status) {
  CallOf<Op> c;
  fill(c, known, a);
  return failed(c, known.variant, "launch", status);
}

// A call that was read, in the time of `Entered`; it may be remembered, if it has a number.
template <typename Op>
int32_t run(const CallOf<Op>& c, const aot_tune_exec* exec, const Arguments<Op>& a, uint64_t number) {
  int variant;
  size_t size;
  bool first;
  for (int tries = 0;; ++tries) {
    if (int32_t status = serve(c, exec, &variant, &size, &first)) return status;
    const int32_t status = launch(c, exec, variant, size);
    if (status == AOT_TUNE_OK) break;
    if (status != kUnavailable) return status;
    if (tries > 0) return failed(c, variant, "launch", status);  // its workspace function should have said so
  }
  if (!first || !c.plain || number == 0) return AOT_TUNE_OK;
  void* const calls = thread_memory(sizeof(KnownCalls<Remembered<Op>>), &Op::known_calls);
  Remembered<Op>* const known = calls != nullptr ? thread_calls<Op>()->room(number) : nullptr;
  if (known == nullptr) return AOT_TUNE_OK;
  known->keep(a.tensors, options_of(a).bits, c.view);
  known->variant = variant;
  known->launch = Op::kFunctions[variant].launch;
  known->backend = c.backend;
  known->settled = Op::kVariants[variant].settled;
  known->alone = c.is_alone(variant);
  known->size = size;
  known->context = c.backend->context != nullptr ? c.backend->context() : nullptr;
  known->direct = known->settled && size == 0 && known->context != nullptr && !known->alone;
  return AOT_TUNE_OK;
}

// Serves a call by a variant. Another one computes the same before, because the call's may write over inputs,
// and is compared with it. One of them is trusted.
template <typename Op>
int32_t run_beside(const CallOf<Op>& c, const aot_tune_exec* exec, int variant, size_t size, int other,
                   bool trusted, OtherResults& results, OtherResults::Found* found, Text& what) {
  aot_tune_exec own{};
  own.stream = exec != nullptr ? exec->stream : nullptr;
  CallOf<Op> beside = c;
  const bool fits = results.begin(c.arguments.tensors, beside.view);
  for (int i = 0; i < Op::kOperator.tensor_count; ++i) {
    if (c.arguments.tensors[i] != nullptr) beside.arguments.tensors[i] = &beside.view[i].tensor;
  }
  size_t needed;
  const bool known = fits && beside.need(other, &needed) == 0 && launch(beside, &own, other, needed) == 0;
  const int32_t status = launch(c, exec, variant, size);
  *found = fits ? OtherResults::kFailed : OtherResults::kUnknown;
  if (known && status == AOT_TUNE_OK)
    *found = results.compare(c.arguments.tensors, c.view, Op::kAllowed, trusted, what);
  return status;
}

template <typename Op>
void tell_difference(const CallOf<Op>& c, int variant, int trusted, const char* what, const char* then) {
  int64_t facts[Op::kFacts.count()];
  read_facts(c, facts);
  tell_difference(Op::kFacts, facts, Op::kVariants[variant], Op::kVariants[trusted], what, then);
}

// A call that may be a trial of AOT_TUNE_ONLINE.
template <typename Op>
__attribute__((noinline, cold)) int32_t run_online(const CallOf<Op>& c, const aot_tune_exec* exec,
                                                   const Arguments<Op>& a, uint64_t number) {
  constexpr const OperatorInfo& op = Op::kOperator;
  if constexpr (Op::kFacts.variant_count < 2) return run(c, exec, a, number);
  int variant = -1;
  size_t size, needed;
  bool first;
  NoTrace none;
  if (int32_t status = c.hollow ? AOT_TUNE_OK : forced(c, &variant)) return status;
  Tried* const tried = variant < 0 && overridden(c, none) < 0 ? tried_of(c) : nullptr;
  if (tried == nullptr) return run(c, exec, a, number);
  if (int32_t status = serve(c, exec, &variant, &size, &first)) return status;
  if (lacks_candidates(tried)) {
    int16_t variants[Op::kFacts.variant_count];
    int32_t count = 0;
    int64_t bytes = 0;
    variants[count++] = static_cast<int16_t>(variant);
    for (const int16_t other : Op::kTables[table_for<Op>(c.backend, c.level)].used) {
      if (other != variant && trusted(c, other) == other && competes(c, other) && Op::worthwhile(c, other) &&
          c.need(other, &needed) == 0 && needed <= workspace_limit(exec))
        variants[count++] = other;
    }
    for (int i = 0; i < op.tensor_count; ++i) {
      if (c.tensor(i) != nullptr && op.tensors[i].written())
        bytes += static_cast<int64_t>(c.view[i].high - c.view[i].low);
    }
    list_candidates(tried, variants, count, bytes);
    return run(c, exec, a, 0);
  }
  void* const stream = exec != nullptr ? exec->stream : nullptr;
  Trial trial = next_trial(tried, is_capturing(*c.backend, exec));
  if (trial.what == Trial::kNone) return run(c, exec, a, trial.settled ? number : 0);
  if (Op::refusal(c, trial.variant) != nullptr || c.need(trial.variant, &needed) != 0 ||
      needed > workspace_limit(exec)) {
    end_trial(tried, trial, Outcome::kNotRun, stream);
    return run(c, exec, a, 0);
  }
  begin_trial(tried, &trial, stream);
  if (trial.what == Trial::kTime) {
    const int32_t status = launch(c, exec, trial.variant, needed);
    end_trial(tried, trial, status == AOT_TUNE_OK ? Outcome::kGood : Outcome::kBad, stream);
    bool changed = false;  // whether inputs may be other ones now
    for (int i = 0; i < op.tensor_count; ++i) changed |= op.tensors[i].inout || op.tensors[i].aliases != 0;
    const bool again = status == kUnavailable || (status != AOT_TUNE_OK && !changed);
    return again ? run(c, exec, a, 0) : status;
  }
  OtherResults results(Op::kFacts, *c.backend, c.device(), stream);
  OtherResults::Found found;
  char text[300];
  Text what(text, sizeof text);
  const int32_t status = run_beside(c, exec, variant, size, trial.variant, false, results, &found, what);
  end_trial(tried, trial,
            found == OtherResults::kAlike     ? Outcome::kGood
            : found == OtherResults::kUnknown ? Outcome::kUnsure
                                              : Outcome::kBad,
            stream);
  if (found == OtherResults::kDifferent && !Op::checks[trial.variant].told.exchange(true))
    tell_difference(c, trial.variant, variant, text, "It is not taken for such calls. (AOT_TUNE_ONLINE)");
  return status == kUnavailable ? run(c, exec, a, 0) : status;
}

// A call of which AOT_TUNE_CHECK looks at the inputs' numbers, and compares the results with the generic
// variant's, if it is its variant's turn.
template <typename Op>
__attribute__((noinline, cold)) int32_t run_checked(const CallOf<Op>& c, const aot_tune_exec* exec,
                                                    const Arguments<Op>& a, uint64_t number) {
  static std::atomic<bool> told{false}, uncompared{false};
  int variant;
  size_t size;
  bool first;
  if (int32_t status = serve(c, exec, &variant, &size, &first)) return status;
  constexpr const OperatorInfo& op = Op::kOperator;
  Checks& checks = Op::checks[variant];
  const bool generic = variant == c.generic;
  if (generic && op.below == nullptr) return run_online(c, exec, a, number);
  const bool lasts = checks_once() && (generic || checks.passed.load(std::memory_order_relaxed));
  if (c.hollow || is_capturing(*c.backend, exec) || !is_due(checks))
    return run_online(c, exec, a, lasts ? number : 0);
  void* const stream = exec != nullptr ? exec->stream : nullptr;
  if (int32_t status = check_numbers(op, *c.backend, stream, c.arguments.tensors, c.view, c.dims)) {
    checks.calls.store(0, std::memory_order_relaxed);  // the next call is looked at too
    return status;
  }
  if (generic) return run_online(c, exec, a, 0);
  if (!Op::kAllowed.declared) tell_once(Op::kFacts, kDefaults, &told);
  OtherResults results(Op::kFacts, *c.backend, c.device(), stream);
  OtherResults::Found found;
  char text[300], then[200];
  Text what(text, sizeof text), follows(then, sizeof then);
  const int32_t status = run_beside(c, exec, variant, size, c.generic, true, results, &found, what);
  if (status == kUnavailable) return run(c, exec, a, 0);
  if (status != AOT_TUNE_OK) return status;
  if (found >= OtherResults::kUnknown) tell_once(Op::kFacts, kUncompared, &uncompared);
  if (found == OtherResults::kAlike) checks.passed.store(true, std::memory_order_relaxed);
  if (found != OtherResults::kDifferent) return status;
  follows.add("From now on, %s serves in its place. (AOT_TUNE_CHECK)", Op::kVariants[c.generic].name);
  if (!checks.differs.exchange(true)) tell_difference(c, variant, c.generic, text, then);
  if (results.restore(c.arguments.tensors, c.view)) return AOT_TUNE_OK;
  return fail(AOT_TUNE_ERROR_MEMORY, "%s: the generic variant's results could not be copied to the outputs",
              Op::kOperator.name);
}

// A call as the variables of the environment ask for it.
template <typename Op>
int32_t run_asked(const CallOf<Op>& c, const aot_tune_exec* exec, const Arguments<Op>& a, uint64_t number) {
  if (!is_forced()) return run(c, exec, a, number);
  return is_checked() ? run_checked(c, exec, a, number) : run_online(c, exec, a, number);
}

// A call that AOT_TUNE_PROFILE tells of.
template <typename Op>
__attribute__((noinline, cold)) int32_t run_profiled(const CallOf<Op>& c, const aot_tune_exec* exec,
                                                     const Arguments<Op>& a) {
  int variant;
  size_t size;
  bool first;
  if (int32_t status = serve(c, exec, &variant, &size, &first)) return status;
  int64_t facts[Op::kFacts.count()];
  read_facts(c, facts);
  const ProfiledCall call(Op::kFacts, facts, Op::kVariants[variant], c.arguments.tensors, c.view);
  return run_asked(c, exec, a, 0);
}

// ---- Telling of a call

// Counts a call for AOT_TUNE_TRACE.
template <typename Op>
__attribute__((noinline, cold)) void trace_call(const CallOf<Op>& c, bool captured) {
  int64_t words[call_words(Op::kFacts)];
  read_facts(c, words);
  count_call(Op::kFacts, c.arguments.tensors, c.view, c.empty, captured, words);
}

// Tells of a call for AOT_TUNE_WARN.
template <typename Op>
__attribute__((noinline, cold)) void warn(const CallOf<Op>& c) {
  static std::atomic<bool> told{false};
  if (c.hollow) return;
  int64_t facts[Op::kFacts.count()];
  read_facts(c, facts);
  const int table = table_for<Op>(c.backend, c.level);
  const int row = table >= 0 ? Op::kTables[table].regime_of(c) : -1;
  warn_of_unseen(Op::kFacts, facts, *c.backend, table >= 0 ? &Op::kTables[table].seen : nullptr, row, &told);
}

template <typename Op>
__attribute__((cold)) int32_t explain(const CallOf<Op>& c, const aot_tune_exec* exec, Text& text) {
  int64_t facts[Op::kFacts.count()];
  read_facts(c, facts);
  explain_call(text, Op::kOperator, facts, *c.backend, c.level, c.arguments.tensors, c.view);
  if (c.empty) {
    text.add("why: no output has elements, so nothing runs\n");
    return AOT_TUNE_OK;
  }
  const int table = c.hollow ? -1 : table_for<Op>(c.backend, c.level);
  if (table >= 0) {
    text.add("table: %s\n", Op::kTables[table].seen.target);
    explain_processors(text, *c.backend, c.device().device_id, Op::kTables[table].processors);
  }
  const bool tuned = table >= 0 && measured(Op::kTables[table], c) != nullptr;
  text.add("tuned: %s\n", tuned ? "yes" : "no");
  if (!tuned && table >= 0) {
    explain_regime(text, Op::kTables[table], c);
    explain_nearest(text, Op::kTables[table], c);
  }
  int choice = -1;
  size_t size = 0;
  if (is_forced() && !c.hollow) {
    if (int32_t status = forced(c, &choice)) return status;
  }
  const bool named = choice >= 0;
  FittingTrace trace{workspace_limit(exec), &text};
  NoTrace none;
  const int wished = named ? choice : choose(c, none);
  const bool distrusted = trusted(c, wished) != wished;
  if (named) choice = trusted(c, choice);
  const int32_t status = named ? c.need(choice, &size) : choose_fitting(c, trace, &choice, &size);
  if (status != 0) return failed(c, choice, "workspace", status);
  const VariantInfo& chosen = Op::kVariants[choice];
  const bool ruled = trace.rule != nullptr && trace.rule->names(chosen);
  char lacks[256];
  Text hollow(lacks, sizeof lacks);
  explain_hollow(hollow, Op::kOperator);
  const char* why = distrusted ? "generic: AOT_TUNE_CHECK found other results of the variant that would serve"
                    : named    ? "named by AOT_TUNE_FORCE"
                    : ruled    ? "named by a rule of AOT_TUNE_OVERRIDE"
                    : found_online(c, none) == choice
                        ? "the fastest of those that AOT_TUNE_ONLINE tried on such calls"
                    : trace.foresaw(chosen) ? "expected to be the fastest of those whose guards hold"
                    : choice != c.generic   ? "first of the variants ranked for such calls whose guards hold"
                    : c.hollow              ? lacks
                    : table < 0             ? "generic: no tuned variants for this level of the device"
                                            : "generic: no variant ranked for such calls accepts this one";
  char note[256] = "";
  c.note(choice, note, sizeof note);
  explain_choice(text, chosen, size, note, why);
  if (c.is_alone(choice)) text.add("team: one thread, because more gain too little on such a call\n");
  return AOT_TUNE_OK;
}

// ---- The C functions

struct Nothing {};

// For the duration of a call.
template <typename Op>
using Threads = std::conditional_t<Op::kRunsOnHost, CallThreads, Nothing>;

// A call that is like none before it.
template <typename Op>
__attribute__((noinline)) int32_t call_anew(const Arguments<Op>& a, const aot_tune_exec* exec,
                                            uint64_t number) {
  CallOf<Op> c;
  if (int32_t status = read(c, true, a)) return status;
  const bool traced = is_traced();
  if (c.empty) {
    if (traced) trace_call(c, false);
    return AOT_TUNE_OK;
  }
  Entered entered;
  int32_t status = entered.enter(*c.backend, c.device().device_id);
  if (status != AOT_TUNE_OK) return status;
  if (traced) number = 0;  // it is not remembered, so that each such call comes here
  status = is_profiled() ? run_profiled(c, exec, a) : run_asked(c, exec, a, number);
  if (traced && status == AOT_TUNE_OK) trace_call(c, is_capturing(*c.backend, exec));
  if (warns_of_unseen() && status == AOT_TUNE_OK) warn(c);
  return status;
}

template <typename Op>
__attribute__((always_inline)) inline int32_t call(const Arguments<Op>& a, const aot_tune_exec* exec) {
  [[maybe_unused]] const Threads<Op> threads;
  const uint64_t number = number_of(a, TensorIndices<Op>(), ScalarIndices<Op>(), AttributeIndices<Op>());
  auto* const calls = thread_calls<Op>();
  Remembered<Op>* const known = number != 0 && calls != nullptr ? calls->find(number) : nullptr;
  if (__builtin_expect(known != nullptr, 1)) {
    if (__builtin_expect(known->recall(a.tensors, options_of(a).bits), 1)) {
      calls->missed = 0;
      int32_t status;
      if (__builtin_expect(known->is_ready(), 1)) {
        void* const stream = exec != nullptr ? exec->stream : nullptr;
        status = again(a, *known, stream, TensorIndices<Op>());
        if (__builtin_expect(status == 0, 1)) return status;
        return repeat_failed<Op>(a, *known, status);
      }
      if (repeat<Op>(a, exec, *known, &status)) return status;
    }
  }
  return call_anew<Op>(a, exec, number);
}

__attribute__((cold)) inline int32_t no_place(const OperatorInfo& op, const char* question,
                                              const char* place) noexcept {
  return fail(AOT_TUNE_ERROR_NULL, "%s: %s has nowhere to write to: %s is NULL", op.name, question, place);
}

// Answers a question about a call, whose data is not read, by `answer(c)`.
template <typename Op, typename Answer>
int32_t ask(const Arguments<Op>& a, Answer answer) {
  CallOf<Op> c;
  if (int32_t status = read(c, false, a)) return status;
  return answer(c);
}

template <typename Op>
int32_t workspace(const Arguments<Op>& a, size_t* size) {
  if (size == nullptr) return no_place(Op::kOperator, "workspace", "workspace_size");
  *size = 0;
  [[maybe_unused]] const Threads<Op> threads;
  return ask(a, [size](const CallOf<Op>& c) -> int32_t {
    if (c.empty) return AOT_TUNE_OK;
    Entered entered;
    if (int32_t status = entered.enter(*c.backend, c.device().device_id)) return status;
    int variant;
    bool first;
    return serve(c, nullptr, &variant, size, &first);
  });
}

template <typename Op>
int32_t explain(const Arguments<Op>& a, const aot_tune_exec* exec, char* buffer, size_t size) {
  if (buffer == nullptr && size > 0) return no_place(Op::kOperator, "explain", "buffer");
  Text text(buffer, size);
  [[maybe_unused]] const Threads<Op> threads;
  return ask(a, [&](const CallOf<Op>& c) -> int32_t {
    Entered entered;
    if (int32_t status = entered.enter(*c.backend, c.device().device_id)) return status;
    return explain(c, exec, text);
  });
}

template <typename Op>
int32_t is_tuned(const Arguments<Op>& a, int32_t* tuned) {
  if (tuned == nullptr) return no_place(Op::kOperator, "is_tuned", "tuned");
  *tuned = 0;
  return ask(a, [tuned](const CallOf<Op>& c) -> int32_t {
    const int table = c.empty || c.hollow ? -1 : table_for<Op>(c.backend, c.level);
    *tuned = table >= 0 && measured(Op::kTables[table], c) != nullptr;
    return AOT_TUNE_OK;
  });
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_OPERATOR_H_
