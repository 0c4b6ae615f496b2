// Dispatch of libaot_tune_ops.so. Written by aot_tune.
#include "aot_tune/ops.h"
#include "choice.h"
#include "cpu_threads.h"
#include "expected.h"
#include "known.h"
#include "operator_tables.h"
#include "plain.h"
#include "runtime.h"
#include "trace.h"
#include "warn.h"

#define AOT_TUNE_PUBLIC __attribute__((visibility("default")))

namespace aot_tune {
extern const Backend backend_cpu;
extern const Backend backend_cuda;
}  // namespace aot_tune

extern "C" {
int32_t aot_tune_plain_workspace(const DLTensor* x, size_t* workspace_size);
int32_t aot_tune_plain_launch(const DLTensor* x, void* workspace, size_t workspace_size, void* stream);
int32_t aot_tune_plain_cuda_workspace(const DLTensor* x, size_t* workspace_size);
int32_t aot_tune_plain_cuda_launch(const DLTensor* x, void* workspace, size_t workspace_size, void* stream);
int32_t aot_tune_plain_cuda_preload(void);
int32_t aot_tune_plain_half_workspace(const DLTensor* x, size_t* workspace_size);
int32_t aot_tune_plain_half_launch(const DLTensor* x, void* workspace, size_t workspace_size, void* stream);
int32_t aot_tune_plain_half_preload(void);
int32_t aot_tune_vendor_workspace(const DLTensor* x, size_t* workspace_size);
int32_t aot_tune_vendor_launch(const DLTensor* x, void* workspace, size_t workspace_size, void* stream);
int32_t aot_tune_vendor_preload(void);
int32_t aot_tune_vendor_note(const DLTensor* x, char* buffer, size_t buffer_size);
}

namespace {

using namespace aot_tune;

constexpr char kManifest[] =
    "{}\012";

constexpr char kLibrary[] =
    "\042library\042: \042ops\042, \042prefix\042: \042aot_tune\042, \042build\042: \042ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356\042";

}  // namespace

extern "C" AOT_TUNE_PUBLIC const char* aot_tune_last_error(void) { return last_error(); }

extern "C" AOT_TUNE_PUBLIC const char* aot_tune_manifest(void) { return kManifest; }

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_set_num_threads(int32_t threads) { return set_num_threads(threads); }

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_get_num_threads(void) { return get_num_threads(); }

// ---- twice ----

namespace aot_tune {
namespace {
namespace operator_twice {

const Backend* const kBackends[] = {&backend_cpu, &backend_cuda};

const VariantInfo kInfo[] = {
    {"plain", "cpu-x86-64", "plain", "1111111111111111111111111111111111111111111111111111111111111111", &backend_cpu, 1, 0},
    {"plain_cuda", "cuda-ptx_80", "plain", "0000000000000000000000000000000000000000000000000000000000000000", &backend_cuda, 80, 0},
    {"plain_half", "cuda-ptx_80", "plain", "0000000000000000000000000000000000000000000000000000000000000000", &backend_cuda, 80, 0},
    {"vendor", "cuda-sm_90a", "vendor", "0000000000000000000000000000000000000000000000000000000000000000", &backend_cuda, 90, 90},
};

struct Functions {
  int32_t (*workspace)(const DLTensor* x, size_t*);
  int32_t (*launch)(const DLTensor* x, void*, size_t, void*);
  int32_t (*preload)();
  int32_t (*note)(const DLTensor* x, char*, size_t);
};
const Functions kFunctions[] = {
    {aot_tune_plain_workspace, aot_tune_plain_launch, nullptr, nullptr},
    {aot_tune_plain_cuda_workspace, aot_tune_plain_cuda_launch, aot_tune_plain_cuda_preload, nullptr},
    {aot_tune_plain_half_workspace, aot_tune_plain_half_launch, aot_tune_plain_half_preload, nullptr},
    {aot_tune_vendor_workspace, aot_tune_vendor_launch, aot_tune_vendor_preload, aot_tune_vendor_note},
};
std::atomic<uint64_t> loaded[4];  // a bit per device

struct Call {
  View view[1];
  const Backend* backend;
  int32_t level;
  int generic;  // the variant that answers when no other does
  bool empty;   // no output has an element
  bool hollow;  // some output has elements, but not every input
  bool plain;   // nothing is unusual about tensors and memory
  const DLTensor* t_x;
  int64_t d_N;
  int32_t y_T;
  const DLDevice& device() const { return t_x->device; }
  static const VariantInfo& info(int variant) { return kInfo[variant]; }
  // What a variant says of the call, for people.
  void note(int variant, char* buffer, size_t size) const;
};

int generic_of(const Call& c);

// Checks a call and fills it in; `data_` is false where no memory is touched.
int32_t read(Call& c_, bool data_, const DLTensor* x) {
  const DLTensor* const given_[] = {x};
  int32_t dtypes_[1];
  const bool plain_ = read_plainly<kOperator>(given_, c_.view, dtypes_);
  if (!plain_) {
    if (int32_t status = read_tensors(kOperator, given_, c_.view, dtypes_)) return status;
  }
  c_.y_T = dtypes_[0];
  c_.d_N = x->shape[0];
  c_.empty = c_.view[0].empty;
  c_.hollow = !c_.empty && (c_.view[0].empty);
  c_.plain = data_ && plain_ && has_plain_memory<kOperator>(given_, c_.view);
  if (data_ && !c_.empty && !c_.plain) {
    if (int32_t status = check_memory(kOperator, given_, c_.view)) return status;
  }
  c_.t_x = &c_.view[0].tensor;
  if (int32_t status = find_backend(kOperator, kBackends, 2, c_.device(), &c_.backend, &c_.level))
    return status;
  c_.generic = generic_of(c_);
  if (c_.generic < 0 && c_.backend == &backend_cpu)
    return no_kernels(kOperator, c_.device(), dtypes_, "T=f32");
  if (c_.generic < 0 && c_.backend == &backend_cuda)
    return no_kernels(kOperator, c_.device(), dtypes_, "T=f32 or T=bf16");
  if (c_.backend == &backend_cuda && c_.level < kInfo[c_.generic].level)
    return too_old(kOperator, c_.device(), c_.level, kInfo[c_.generic], "cuda-ptx_80, cuda-sm_90a");
  return AOT_TUNE_OK;
}

constexpr FactsInfo kFacts = {&kOperator, kInfo, 4};

void read_facts(const Call& c, int64_t* facts) {
  const int64_t values[] = {c.d_N, c.y_T, 1};
  std::memcpy(facts, values, sizeof values);
}

const char* refusal_0(const Call& c) {
  (void)c;
  if ((int64_t{c.y_T} == INT64_C(0)) == 0) return "(dtype.T == 0)";
  return nullptr;
}

const char* refusal_2(const Call& c) {
  (void)c;
  if ((int64_t{c.y_T} == INT64_C(1)) == 0) return "(dtype.T == 1)";
  return nullptr;
}

const char* refusal_3(const Call& c) {
  (void)c;
  if ((int64_t{c.y_T} == INT64_C(0)) == 0) return "(dtype.T == 0)";
  if (((c.d_N % INT64_C(4)) == INT64_C(0)) == 0) return "((N % 4) == 0)";
  return nullptr;
}

// The guard that a call fails first, as text; null when the variant accepts it.
const char* refusal(const Call& c, int variant) {
  (void)c;
  switch (variant) {
    case 0:
    case 1:
      return refusal_0(c);
    case 2:
      return refusal_2(c);
    case 3:
      return refusal_3(c);
    default:
      return nullptr;
  }
}

template <typename Trace>
bool accepts(const Call& c, int variant, Trace& trace) {
  const char* refused = refusal(c, variant);
  return refused == nullptr || trace.guard(false, kInfo[variant], refused);
}

constexpr bool kGeneric[] = {true, true, true, false};

// The first of some variants that answers the call, or -1.
template <typename Trace>
int first_of(const Call& c, const int16_t* ranked, int count, Trace& trace) {
  for (int i = 0; i < count; ++i) {
    const int variant = ranked[i];
    if (!kGeneric[variant] && !allowed(kOperator, kInfo[variant], trace)) continue;
    if (accepts(c, variant, trace) && trace.fits(c, variant)) return variant;
  }
  return -1;
}

// Whether a variant beside the generic ones may serve a call, whatever is expected of it.
bool competes(const Call& c, int variant) {
  NoTrace none;
  return !kGeneric[variant] && refusal(c, variant) == nullptr && allowed(kOperator, kInfo[variant], none);
}

// Whether one of the variants that are ranked may.
[[maybe_unused]] bool one_competes(const Call& c, const int16_t* ranked, int count) {
  for (int i = 0; i < count; ++i)
    if (competes(c, ranked[i])) return true;
  return false;
}

struct Tuned {
  int64_t dims[1];
  int64_t classes[1];  // of strides; -1 where the tensor is absent
  int32_t attributes[1];
  int32_t dtypes[1];
  int32_t first;  // of its variants, and how many
  int32_t count;
};

uint64_t place_of_row(const Call& c) {
  (void)c;
  const uint64_t sum = static_cast<uint64_t>(c.d_N) * UINT64_C(0x9e3779b97f4a7c15) + static_cast<uint64_t>(c.y_T) * UINT64_C(0xdf442d22ce4859b9);
  return sum ^ (sum >> 32);
}

bool is_same(const Tuned& row, const Call& c) {
  return row.dims[0] == c.d_N && row.dtypes[0] == c.y_T && row.classes[0] == stride_class(*c.t_x);
}

Tuned row_of(const Call& c) {
  return {{c.d_N}, {stride_class(*c.t_x)}, {0}, {c.y_T}, 0, 0};
}

constexpr Tuned kTuned_0[] = {
    {{4}, {8}, {0}, {0}, 0, 2},
    {{8}, {8}, {0}, {0}, 2, 2},
    {{400}, {8}, {0}, {1}, 4, 1},
};
constexpr int16_t kRanked_0[] = {1, 3, 3, 1, 2};
constexpr int16_t kSlots_0[] = {-1, 1};  // a row's number, or -1

// The row of the problem that a call is like, or null.
const Tuned* measured_0(const Call& c) {
  for (uint64_t at = place_of_row(c);; ++at) {
    const int row = kSlots_0[at & 1];
    if (row < 0) return nullptr;
    if (is_same(kTuned_0[row], c)) return &kTuned_0[row];
  }
}

// The nearest of the measured problems with a variant that may serve the call, or null.
template <size_t kRows>
const Tuned* nearest(const Call& c, const Tuned (&rows)[kRows], const int16_t* ranked) {
  return nearest_row(rows, row_of(c), [&](const Tuned& row) { return one_competes(c, ranked + row.first, row.count); });
}

// cuda-sm_90a
constexpr int16_t kRest_0[] = {3, 1, 2};
template <typename Trace>
int choose_0(const Call& c, Trace& trace) {
  (void)c;
  (void)trace;
  if (const Tuned* row = measured_0(c)) {
    const int variant = first_of(c, kRanked_0 + row->first, row->count, trace);
    if (variant >= 0) return variant;
  }
  if (const Tuned* row = nearest(c, kTuned_0, kRanked_0)) {
    const int variant = first_of(c, kRanked_0 + row->first, row->count, trace);
    if (variant >= 0) return variant;
  }
  return first_of(c, kRest_0, 3, trace);
}

// The generic variant for the call's device and dtypes, or -1.
int generic_of(const Call& c) {
  if (c.backend == &backend_cpu && c.y_T == 0) return 0;
  if (c.backend == &backend_cuda && c.y_T == 0) return 1;
  if (c.backend == &backend_cuda && c.y_T == 1) return 2;
  return -1;
}

// The table of the most specific target that a device runs, or -1.
int table_for(const Backend* backend, int32_t level) {
  (void)backend;
  (void)level;
  if (backend == &backend_cuda && level >= 90 && level <= 90) return 0;
  return -1;
}

// The variant that AOT_TUNE_OVERRIDE has for a call, if that answers it, or -1.
template <typename Trace>
__attribute__((noinline, cold)) int overridden(const Call& c, Trace& trace) {
  int16_t named[4];
  int64_t facts[kFacts.count()];
  const Rule* rule;
  read_facts(c, facts);
  const int count = find_rule(kFacts, facts, *c.backend, c.level, &rule, named);
  if (count == 0) return -1;
  trace.meets(*rule);
  return first_of(c, named, count, trace);
}

template <typename Trace>
int choose(const Call& c, Trace& trace) {
  int choice = is_overridden() && !c.hollow ? overridden(c, trace) : -1;
  if (choice >= 0) return choice;
  switch (c.hollow ? -1 : table_for(c.backend, c.level)) {
    case 0:
      choice = choose_0(c, trace);
      break;
    default:
      (void)trace;
      break;
  }
  return choice >= 0 ? choice : c.generic;
}

int is_tuned(const Call& c) {
  if (c.empty || c.hollow) return 0;
  switch (table_for(c.backend, c.level)) {
    case 0:
      return measured_0(c) != nullptr;
    default:
      return 0;
  }
}

// The measured problem that is nearest. Without expected times, it decides.
void tell_nearest(const Call& c, Text& text) {
  static const char* const names[] = {"N"};
  const Tuned* row = nullptr;
  switch (table_for(c.backend, c.level)) {
    case 0:
      row = nearest(c, kTuned_0, kRanked_0);
      break;
    default:
      break;
  }
  if (row != nullptr) explain_nearest(text, names, *row, row_of(c));
}

// Bytes of workspace that a variant needs.
int32_t need(const Call& c, int variant, size_t* size) {
  *size = 0;
  return kFunctions[variant].workspace(c.t_x, size);
}

void Call::note(int variant, char* buffer, size_t size) const {
  if (kFunctions[variant].note != nullptr) kFunctions[variant].note((*this).t_x, buffer, size);
}

// The error of a variant's function, with what the variant says of a call that it cannot serve.
int32_t failed(const Call& c, int variant, const char* function, int32_t status) {
  char note[256] = "";
  if (status == kUnavailable) c.note(variant, note, sizeof note);
  return kernel_failed(kOperator, kInfo[variant], function, status, note);
}

// The variant that AOT_TUNE_FORCE names for the call, or -1.
int32_t forced(const Call& c, int* variant) {
  const auto takes = [&c](int32_t i, FirstRefusal& refusal) { return accepts(c, i, refusal); };
  return choose_forced(kOperator, kInfo, 4, *c.backend, c.level, takes, variant);
}

// The first ranked variant that can be had here and whose workspace fits, else the generic one.
template <typename Trace>
int32_t choose_fitting(const Call& c, Trace& trace, size_t limit, int* variant, size_t* size) {
  Fitting<Trace, decltype(&need)> fitting{trace, &need, limit};
  *variant = choose(c, fitting);
  return need(c, *variant, size);
}

// The variant of a call and its workspace; `first` tells whether every such call that has room for it gets it.
int32_t serve(const Call& c, const aot_tune_exec* exec, int* variant, size_t* size, bool* first) {
  *variant = -1;
  if (is_forced() && !c.hollow) {
    if (int32_t status = forced(c, variant)) return status;
  }
  const bool named = *variant >= 0;
  NoTrace trace;
  if (!named) *variant = choose(c, trace);
  int32_t status = need(c, *variant, size);
  *first = !named && status == 0 && *size <= workspace_limit(exec);
  if (!named && (status == kUnavailable || *size > workspace_limit(exec)))
    status = choose_fitting(c, trace, workspace_limit(exec), variant, size);
  return status == 0 ? AOT_TUNE_OK : failed(c, *variant, "workspace", status);
}

// Launches a variant that needs `size` bytes of workspace.
int32_t launch(const Call& c, const aot_tune_exec* exec, int variant, size_t size) {
  int32_t (*ahead)() = kFunctions[variant].preload;
  if (int32_t status = load(kOperator, kInfo[variant], ahead, c.device().device_id, loaded[variant]))
    return status;
  Workspace workspace;
  if (int32_t status = take_workspace(kOperator, *c.backend, c.device(), exec, size, &workspace)) return status;
  if (exec != nullptr && workspace.memory != nullptr && workspace.memory == exec->workspace) {
    const DLTensor* const given[] = {c.t_x};
    if (int32_t status = check_workspace(kOperator, given, c.view, workspace.memory, size)) return status;
  }
  void* stream = exec != nullptr ? exec->stream : nullptr;
  const int32_t status = kFunctions[variant].launch(c.t_x, workspace.memory, size, stream);
  return status == 0 ? AOT_TUNE_OK : failed(c, variant, "launch", status);
}

// Loads the variants that calls on a device may get.
int32_t preload(const Backend& backend, int32_t level, int32_t device_id) {
  bool wanted[4];
  for (int i = 0; i < 4; ++i) wanted[i] = false;
  if (&backend == &backend_cuda) {
    const DLDevice device = {static_cast<DLDeviceType>(backend.device_type), device_id};
    if (level < kInfo[1].level)
      return too_old(kOperator, device, level, kInfo[1], "cuda-ptx_80, cuda-sm_90a");
    wanted[1] = wanted[2] = true;
  }
  switch (table_for(&backend, level)) {
    case 0:
      wanted[1] = wanted[2] = wanted[3] = true;
      break;
    default:
      break;
  }
  for (int i = 0; i < 4; ++i) {
    if (!wanted[i]) continue;
    int32_t (*ahead)() = kFunctions[i].preload;
    if (int32_t status = load(kOperator, kInfo[i], ahead, device_id, loaded[i])) return status;
  }
  return AOT_TUNE_OK;
}

constexpr bool kSettled[] = {false, false, false, false};

using Remembered = Known<kOperator, 1, decltype(Functions::launch)>;
thread_local void* known_calls;  // the thread's, from the first that is remembered on

KnownCalls<Remembered>* thread_calls() { return static_cast<KnownCalls<Remembered>*>(known_calls); }

// A number for a call that most others do not have: of its dims, attributes, optional tensors and where the
// first ones lie within 64 bytes. 0 where it is no legal call.
uint64_t number_of(const DLTensor* x) {
  if (x == nullptr || x->ndim != 1 || x->shape == nullptr) return 0;
  return (static_cast<uint64_t>(x->shape[0]) * UINT64_C(0x9e3779b97f4a7c15) + static_cast<uint64_t>(aot_tune::place_of(*x)) * UINT64_C(0xdf442d22ce4859b9)) | 1;
}

// A call that is like one that is known, as far as it takes to launch it.
void fill(Call& c_, Remembered& known_, const DLTensor* x) {
  c_.backend = known_.backend;
  (void)x;
  c_.t_x = &known_.tensors[0].tensor;
  known_.view(0, &c_.view[0]);
}

bool repeat(const Call& c, const aot_tune_exec* exec, const Remembered& known, int32_t* status) {
  size_t size = known.size;
  Entered entered;
  *status = entered.enter(*c.backend, c.device().device_id);
  if (*status != AOT_TUNE_OK) return true;
  if (!known.settled && need(c, known.variant, &size) != 0) return false;
  if (size > workspace_limit(exec)) return false;
  *status = launch(c, exec, known.variant, size);
  return true;
}

// A call that is like the one of `known_` where memory is got, something may load, or the thread's device is another
// one; false when other variants are to be tried.
__attribute__((noinline)) bool repeat(const DLTensor* x, const aot_tune_exec* exec,
                                      Remembered& known_, int32_t* status_) {
  Call call_;
  operator_twice::fill(call_, known_, x);
  return operator_twice::repeat(call_, exec, known_, status_);
}

// The error of one that was launched as the thread was.
__attribute__((noinline)) int32_t repeat_failed(const DLTensor* x, Remembered& known_, int32_t status_) {
  Call call_;
  operator_twice::fill(call_, known_, x);
  return operator_twice::failed(call_, known_.variant, "launch", status_);
}

// A call that was read, in the time of `Entered`; it may be remembered, if it has a number.
int32_t run(const Call& c, const aot_tune_exec* exec, const DLTensor* const* given, const uint64_t* options,
            uint64_t number) {
  int variant;
  size_t size;
  bool first;
  if (int32_t status = serve(c, exec, &variant, &size, &first)) return status;
  if (int32_t status = launch(c, exec, variant, size)) return status;
  if (!first || !c.plain || number == 0) return AOT_TUNE_OK;
  void* const calls = thread_memory(sizeof(KnownCalls<Remembered>), &known_calls);
  Remembered* const known = calls != nullptr ? thread_calls()->room(number) : nullptr;
  if (known == nullptr) return AOT_TUNE_OK;
  known->keep(given, options, c.view);
  known->variant = variant;
  known->launch = kFunctions[variant].launch;
  known->backend = c.backend;
  known->settled = kSettled[variant];
  known->size = size;
  known->context = c.backend->context != nullptr ? c.backend->context() : nullptr;
  known->direct = known->settled && size == 0 && known->context != nullptr;
  return AOT_TUNE_OK;
}

// Counts a call for AOT_TUNE_TRACE.
__attribute__((noinline, cold)) void trace_call(const Call& c, bool captured) {
  const DLTensor* const given[] = {c.t_x};
  int64_t words[trace_words(kFacts.own(), kTensors)];
  read_facts(c, words);
  count_call(kFacts, given, c.view, c.empty, captured, words);
}

constexpr Seen kSeen[] = {{"cuda-sm_90a", nullptr, 0, false}};

// Tells of a call for AOT_TUNE_WARN.
__attribute__((noinline, cold)) void warn(const Call& c) {
  static std::atomic<bool> told{false};
  if (c.hollow) return;
  int64_t facts[kFacts.count()];
  read_facts(c, facts);
  const int table = table_for(c.backend, c.level);
  warn_of_unseen(kFacts, facts, *c.backend, table >= 0 ? &kSeen[table] : nullptr, &told);
}

int32_t explain(const Call& c, const aot_tune_exec* exec, Text& text) {
  text.add("operator: %s\n", kOperator.name);
  text.add("device: %s level %d\n", c.backend->family, static_cast<int>(c.level));
  text.add("dim: N=%lld\n", static_cast<long long>(c.d_N));
  text.add("dtype: T=%s\n", kChoices_T[c.y_T]);
  const DLTensor* const given[] = {c.t_x};
  explain_tensors(text, kOperator, given, c.view);
  if (c.empty) {
    text.add("why: no output has elements, so nothing runs\n");
    return AOT_TUNE_OK;
  }
  const int table = c.hollow ? -1 : table_for(c.backend, c.level);
  constexpr const char* kTargets[] = {"cuda-sm_90a"};
  if (table >= 0) text.add("table: %s\n", kTargets[table]);
  const bool tuned = is_tuned(c) != 0;
  text.add("tuned: %s\n", tuned ? "yes" : "no");
  if (!tuned && table >= 0) tell_nearest(c, text);
  int choice = -1;
  size_t size = 0;
  if (is_forced() && !c.hollow) {
    if (int32_t status = forced(c, &choice)) return status;
  }
  const bool named = choice >= 0;
  TextTrace trace{&text};
  const int32_t status = named ? need(c, choice, &size)
                               : choose_fitting(c, trace, workspace_limit(exec), &choice, &size);
  if (status != 0) return failed(c, choice, "workspace", status);
  const bool ruled = trace.rule != nullptr && trace.rule->names(kInfo[choice]);
  const char* why = named                 ? "named by AOT_TUNE_FORCE"
                    : ruled               ? "named by a rule of AOT_TUNE_OVERRIDE"
                    : trace.foresaw(kInfo[choice]) ? "expected to be the fastest of those whose guards hold"
                    : choice != c.generic ? "first of the variants ranked for such calls whose guards hold"
                    : c.hollow            ? "generic: an input has no elements"
                    : table < 0           ? "generic: no tuned variants for this level of the device"
                                          : "generic: no variant ranked for such calls accepts this one";
  char note[256] = "";
  c.note(choice, note, sizeof note);
  explain_choice(text, kInfo[choice], size, note, why);
  return AOT_TUNE_OK;
}

}  // namespace operator_twice
}  // namespace
}  // namespace aot_tune

namespace aot_tune {
namespace {
namespace operator_twice {

// A call that is like none before it.
__attribute__((noinline)) int32_t call_anew(const DLTensor* x, const aot_tune_exec* exec, uint64_t number_) {
  Call call_;
  int32_t status_ = operator_twice::read(call_, true, x);
  if (status_ != AOT_TUNE_OK) return status_;
  const bool traced_ = aot_tune::is_traced();
  if (call_.empty) {
    if (traced_) operator_twice::trace_call(call_, false);
    return AOT_TUNE_OK;
  }
  Entered entered_;
  status_ = entered_.enter(*call_.backend, call_.device().device_id);
  if (status_ != AOT_TUNE_OK) return status_;
  const DLTensor* const given_[] = {x};
  const uint64_t options_[] = {0};
  // what is counted is not remembered, so that each such call comes here
  status_ = operator_twice::run(call_, exec, given_, options_, traced_ ? 0 : number_);
  if (traced_ && status_ == AOT_TUNE_OK) operator_twice::trace_call(call_, aot_tune::is_capturing(*call_.backend, exec));
  if (aot_tune::warns_of_unseen() && status_ == AOT_TUNE_OK) operator_twice::warn(call_);
  return status_;
}

}  // namespace operator_twice
}  // namespace
}  // namespace aot_tune

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_twice(const DLTensor* x, const aot_tune_exec* exec) {
  const aot_tune::CallThreads threads_;
  const uint64_t number_ = operator_twice::number_of(x);
  auto* const calls_ = operator_twice::thread_calls();
  operator_twice::Remembered* const known_ = number_ != 0 && calls_ != nullptr ? calls_->find(number_) : nullptr;
  if (__builtin_expect(known_ != nullptr, 1)) {
    const DLTensor* const given_[] = {x};
    const uint64_t options_[] = {0};
    if (__builtin_expect(known_->recall(given_, options_), 1)) {
      calls_->missed = 0;
      int32_t status_;
      if (__builtin_expect(known_->is_ready(), 1)) {
        status_ = known_->launch(&known_->tensors[0].tensor, nullptr, 0, exec != nullptr ? exec->stream : nullptr);
        if (__builtin_expect(status_ == 0, 1)) return status_;
        return operator_twice::repeat_failed(x, *known_, status_);
      }
      if (operator_twice::repeat(x, exec, *known_, &status_)) return status_;
    }
  }
  return operator_twice::call_anew(x, exec, number_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_twice_workspace(const DLTensor* x, size_t* workspace_size) {
  operator_twice::Call call_;
  if (workspace_size == nullptr) return fail(AOT_TUNE_ERROR_NULL, "twice: workspace has nowhere to write to: workspace_size is NULL");
  *workspace_size = 0;
  const aot_tune::CallThreads threads_;
  int32_t status_ = operator_twice::read(call_, false, x);
  if (status_ != AOT_TUNE_OK || call_.empty) return status_;
  Entered entered_;
  status_ = entered_.enter(*call_.backend, call_.device().device_id);
  if (status_ != AOT_TUNE_OK) return status_;
  int variant_;
  bool first_;
  return operator_twice::serve(call_, nullptr, &variant_, workspace_size, &first_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_twice_explain(const DLTensor* x, const aot_tune_exec* exec, char* buffer, size_t size) {
  operator_twice::Call call_;
  if (buffer == nullptr && size > 0) return fail(AOT_TUNE_ERROR_NULL, "twice: explain has nowhere to write to: buffer is NULL");
  Text text_(buffer, size);
  const aot_tune::CallThreads threads_;
  int32_t status_ = operator_twice::read(call_, false, x);
  if (status_ != AOT_TUNE_OK) return status_;
  Entered entered_;
  status_ = entered_.enter(*call_.backend, call_.device().device_id);
  if (status_ != AOT_TUNE_OK) return status_;
  return operator_twice::explain(call_, exec, text_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_twice_is_tuned(const DLTensor* x, int32_t* tuned) {
  operator_twice::Call call_;
  if (tuned == nullptr) return fail(AOT_TUNE_ERROR_NULL, "twice: is_tuned has nowhere to write to: tuned is NULL");
  *tuned = 0;
  int32_t status_ = operator_twice::read(call_, false, x);
  if (status_ != AOT_TUNE_OK) return status_;
  *tuned = operator_twice::is_tuned(call_);
  return AOT_TUNE_OK;
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_preload(int32_t device_type, int32_t device_id) {
  static const Backend* const backends[] = {&backend_cpu, &backend_cuda};
  static const Preload operators[] = {operator_twice::preload};
  const DLDevice device = {static_cast<DLDeviceType>(device_type), device_id};
  return preload_all(backends, 2, device, operators, 1);
}

namespace {
const FactsInfo* const kOperators[] = {&operator_twice::kFacts};
}  // namespace

namespace aot_tune {
const LibraryInfo library_info = {"ops", kLibrary, kOperators, 1};
}  // namespace aot_tune
