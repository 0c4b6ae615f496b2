// A library's function for an operator: how a call is read, served, remembered and explained. Generated code
// has a struct for each operator, `Op`, with the operator's tables and with what decides for its calls.
#ifndef AOT_TUNE_RUNTIME_OPERATOR_H_
#define AOT_TUNE_RUNTIME_OPERATOR_H_

#include <type_traits>

#include "compare.h"
#include "cpu_threads.h"
#include "decision.h"
#include "profile.h"
#include "trace.h"

namespace aot_tune {

// ---- What generated code has for an operator

// The functions of a variant. The last two may be null.
template <typename... Arguments>
struct Functions {
  int32_t (*workspace)(Arguments..., size_t*);
  int32_t (*launch)(Arguments..., void*, size_t, void*);
  int32_t (*preload)();
  int32_t (*note)(Arguments..., char*, size_t);
};

// The indices of the operator's arguments of a kind. Where time matters, they are used in place of loops, so
// that the compiler keeps no array.
template <typename Op>
using TensorIndices = std::make_index_sequence<static_cast<size_t>(Op::kOperator.tensor_count)>;
template <typename Op>
using ScalarIndices = std::make_index_sequence<static_cast<size_t>(Op::kOperator.scalar_count)>;
template <typename Op>
using AttributeIndices = std::make_index_sequence<static_cast<size_t>(Op::kOperator.attribute_count)>;

// ---- Reading a call

template <typename Op, size_t I>
int32_t check_shape(Tensors given, const int64_t* dims) noexcept {
  constexpr TensorInfo info = Op::kOperator.tensors[I];
  if (info.optional && given[I] == nullptr) return AOT_TUNE_OK;
  int64_t wanted[kMaxRank];
  Op::kOperator.shape(static_cast<int>(I), dims, wanted);
  for (int axis = 0; axis < info.rank; ++axis) {
    if (given[I]->shape[axis] != wanted[axis] || wanted[axis] == kNoExtent)
      return wrong_extent(Op::kOperator, static_cast<int>(I), axis, given[I]->shape[axis], wanted[axis]);
  }
  return AOT_TUNE_OK;
}

template <typename Op, size_t... I>
int32_t check_shapes(Tensors given, const int64_t* dims, std::index_sequence<I...>) noexcept {
  int32_t status = AOT_TUNE_OK;
  (void)(((status = check_shape<Op, I>(given, dims)) == AOT_TUNE_OK) && ...);
  return status;
}

// The scalars, some of which must be dims of the tensors, and the attributes.
template <typename Op>
int32_t check_values(const CallOf<Op>& c) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  for (int i = 0; i < op.scalar_count; ++i) {
    const ScalarInfo& info = op.scalars[i];
    if (info.least > -__builtin_inf() && !(value_of(info, c.arguments.scalars[i]) >= info.least))
      return too_small(op, info, value_of(info, c.arguments.scalars[i]));
    if (info.binds < 0) continue;
    const int64_t passed = dim_of(info, c.arguments.scalars[i]), dim = c.dims[info.binds];
    if (passed != dim) return other_dim(op, info.name, passed, op.dims[info.binds], dim);
  }
  for (int i = 0; i < op.attribute_count; ++i) {
    const int32_t value = c.arguments.attributes[i];
    if (value < 0 || value >= op.attributes[i].count) return wrong_attribute(op, op.attributes[i], value);
  }
  return AOT_TUNE_OK;
}

// Whether an output has elements, and whether an input, or what is computed from, has none.
template <typename Op>
void read_emptiness(CallOf<Op>& c, Tensors given) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  bool lacks = false;
  c.empty = true;
  for (int i = 0; i < op.tensor_count; ++i) {
    const bool is_empty = given[i] != nullptr && c.view[i].empty;
    if (op.tensors[i].written()) c.empty &= given[i] == nullptr || is_empty;
    if (!op.tensors[i].output) lacks |= is_empty;
  }
  for (int i = 0; i < op.dim_count; ++i) lacks |= (op.beside >> i & 1u) != 0 && c.dims[i] == 0;
  c.hollow = !c.empty && lacks;
}

// The call's device, and the variant that can always answer the call.
template <typename Op>
int32_t read_device(CallOf<Op>& c) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  const FamilyInfo* family = nullptr;
  if (int32_t status = find_family(op, Op::kFamilies, c.device(), &family, &c.level)) return status;
  c.backend = family->backend;
  c.generic = -1;
  const VariantInfo* first = nullptr;
  bool runs = false;
  for (const int16_t index : Op::kGenerics) {
    const VariantInfo& variant = Op::kVariants[index];
    if (variant.backend != c.backend) continue;
    if (first == nullptr) first = &variant;
    const bool right = variant.last == 0 || runs_on(variant, c.level);
    runs |= right;
    if (right && c.generic < 0 && Op::refusal(c, index) == nullptr) c.generic = index;
  }
  if (!runs && first != nullptr) return too_old(op, c.device(), c.level, *first, family->targets);
  if (c.generic < 0) return no_kernels(op, c.device(), c.dtypes, family->served);
  const VariantInfo& generic = Op::kVariants[c.generic];
  return runs_on(generic, c.level) ? AOT_TUNE_OK : too_old(op, c.device(), c.level, generic, family->targets);
}

// Checks a call and fills it in. `data` is false where no memory is touched.
template <typename Op>
__attribute__((noinline)) int32_t read(CallOf<Op>& c, bool data, const Arguments<Op>& a) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  const bool plain = read_plainly<op>(a.tensors, c.view, c.dtypes);
  if (!plain) {
    if (int32_t status = read_tensors(op, a.tensors, c.view, c.dtypes)) return status;
  }
  if (int32_t status = Op::bind(a.tensors, a.scalars, c.dims)) return status;
  if (int32_t status = check_shapes<Op>(a.tensors, c.dims, TensorIndices<Op>())) return status;
  c.arguments = a;
  if (int32_t status = check_values(c)) return status;
  read_emptiness(c, a.tensors);
  c.plain = data && plain && has_plain_memory<op>(a.tensors, c.view);
  if (data && !c.empty && !c.plain) {
    if (int32_t status = check_memory(op, a.tensors, c.view)) return status;
  }
  for (int i = 0; i < op.tensor_count; ++i) {
    if (a.tensors[i] != nullptr) c.arguments.tensors[i] = &c.view[i].tensor;
  }
  if (int32_t status = Op::check_legal(c)) return status;
  return read_device(c);
}

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

template <typename Op, typename Trace>
int choose(const CallOf<Op>& c, Trace& trace) {
  int choice = is_overridden() && !c.hollow ? overridden(c, trace) : -1;
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

// A call of which AOT_TUNE_CHECK compares the results, if it is its variant's turn. The generic variant comes
// first, because the other one may write over inputs.
template <typename Op>
__attribute__((noinline, cold)) int32_t run_checked(const CallOf<Op>& c, const aot_tune_exec* exec,
                                                    const Arguments<Op>& a, uint64_t number) {
  static std::atomic<bool> told{false};
  int variant;
  size_t size;
  bool first;
  if (int32_t status = serve(c, exec, &variant, &size, &first)) return status;
  if (variant == c.generic) return run(c, exec, a, number);
  Checks& checks = Op::checks[variant];
  if (c.hollow || is_capturing(*c.backend, exec) || !is_due(checks))
    return run(c, exec, a, checks_once() && checks.passed.load(std::memory_order_relaxed) ? number : 0);
  if (!Op::kAllowed.declared) tell_defaults(Op::kFacts, &told);
  static std::atomic<bool> uncompared{false};
  aot_tune_exec own{};
  own.stream = exec != nullptr ? exec->stream : nullptr;
  OtherResults results(Op::kFacts, *c.backend, c.device(), own.stream);
  CallOf<Op> other = c;
  if (!results.begin(c.arguments.tensors, other.view)) {
    tell_uncompared(Op::kFacts, &uncompared);
    return run(c, exec, a, 0);
  }
  for (int i = 0; i < Op::kOperator.tensor_count; ++i) {
    if (c.arguments.tensors[i] != nullptr) other.arguments.tensors[i] = &other.view[i].tensor;
  }
  size_t needed;
  const bool known = other.need(c.generic, &needed) == 0 && launch(other, &own, c.generic, needed) == 0;
  const int32_t status = launch(c, exec, variant, size);
  if (status == kUnavailable) return run(c, exec, a, 0);
  if (status != AOT_TUNE_OK) return status;
  char text[300];
  Text what(text, sizeof text);
  const OtherResults::Found found =
      known ? results.compare(c.arguments.tensors, c.view, Op::kAllowed, what) : OtherResults::kUnknown;
  if (found == OtherResults::kUnknown) tell_uncompared(Op::kFacts, &uncompared);
  if (found == OtherResults::kAlike) checks.passed.store(true, std::memory_order_relaxed);
  if (found != OtherResults::kDifferent) return status;
  if (!checks.differs.exchange(true)) {
    int64_t facts[Op::kFacts.count()];
    read_facts(c, facts);
    tell_difference(Op::kFacts, facts, Op::kVariants[variant], Op::kVariants[c.generic], text);
  }
  if (results.restore(c.arguments.tensors, c.view)) return AOT_TUNE_OK;
  return fail(AOT_TUNE_ERROR_MEMORY, "%s: the generic variant's results could not be copied to the outputs",
              Op::kOperator.name);
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
  return is_forced() && is_checked() ? run_checked(c, exec, a, 0) : run(c, exec, a, 0);
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
  // what is counted is not remembered, so that each such call comes here
  status = is_profiled()                 ? run_profiled(c, exec, a)
           : is_forced() && is_checked() ? run_checked(c, exec, a, traced ? 0 : number)
                                         : run(c, exec, a, traced ? 0 : number);
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
