// Dispatch of libaot_tune_ops.so. Written by aot_tune.
#include "aot_tune/ops.h"
#include "choice.h"
#include "cpu_threads.h"
#include "expected.h"
#include "known.h"
#include "plain.h"
#include "runtime.h"
#include "trace.h"
#include "warn.h"

#define AOT_TUNE_PUBLIC __attribute__((visibility("default")))

namespace aot_tune {
extern const Backend backend_cpu;
}  // namespace aot_tune

extern "C" {
int32_t aot_tune_norm_workspace(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, size_t* workspace_size);
int32_t aot_tune_norm_launch(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, void* workspace, size_t workspace_size, void* stream);
int32_t aot_tune_packed_workspace(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, size_t* workspace_size);
int32_t aot_tune_packed_launch(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, void* workspace, size_t workspace_size, void* stream);
int32_t aot_tune_plain_workspace(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, size_t* workspace_size);
int32_t aot_tune_plain_launch(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, void* workspace, size_t workspace_size, void* stream);
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

// ---- gemm ----

namespace {
namespace operator_gemm {

constexpr TensorInfo kTensors[] = {
    {"a", "[M, K]", "f32", 2, 32, 2, false, false, -1},
    {"b", "[K, N]", "f32", 2, 32, 2, false, false, -1},
    {"bias", "[N]", "f32", 2, 32, 1, false, true, -1},
    {"residual", "[M, N]", "f32", 2, 32, 2, false, true, -1},
    {"out", "[M, N]", "f32", 2, 32, 2, true, false, -1},
};
constexpr OperatorInfo kOperator = {"gemm", kTensors, 5, nullptr, 0};
constexpr const char* kChoices_activation[] = {"none", "relu"};
constexpr AttributeInfo kAttribute_activation = {"activation", kChoices_activation, 2};
const Backend* const kBackends[] = {&backend_cpu};

const VariantInfo kInfo[] = {
    {"plain", "cpu-x86-64", "plain", "1111111111111111111111111111111111111111111111111111111111111111", &backend_cpu, 1, 0},
    {"packed", "cpu-x86-64-v4", "packed", "2222222222222222222222222222222222222222222222222222222222222222", &backend_cpu, 4, 0},
};

struct Functions {
  int32_t (*workspace)(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, size_t*);
  int32_t (*launch)(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, void*, size_t, void*);
};
const Functions kFunctions[] = {
    {aot_tune_plain_workspace, aot_tune_plain_launch},
    {aot_tune_packed_workspace, aot_tune_packed_launch},
};

struct Call {
  View view[5];
  const Backend* backend;
  int32_t level;
  int generic;  // the variant that answers when no other does
  bool empty;   // no output has an element
  bool hollow;  // some output has elements, but not every input
  bool plain;   // nothing is unusual about tensors and memory
  const DLTensor* t_a;
  const DLTensor* t_b;
  const DLTensor* t_bias;
  const DLTensor* t_residual;
  const DLTensor* t_out;
  int64_t d_M;
  int64_t d_N;
  int64_t d_K;
  int32_t v_activation;
  const DLDevice& device() const { return t_a->device; }
  static const VariantInfo& info(int variant) { return kInfo[variant]; }
  // What a variant says of the call, for people.
  void note(int variant, char* buffer, size_t size) const;
};

int generic_of(const Call& c);

// Checks a call and fills it in; `data_` is false where no memory is touched.
int32_t read(Call& c_, bool data_, const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation) {
  const DLTensor* const given_[] = {a, b, bias, residual, out};
  const bool plain_ = read_plainly<kOperator>(given_, c_.view, nullptr);
  if (!plain_) {
    if (int32_t status = read_tensors(kOperator, given_, c_.view, nullptr)) return status;
  }
  c_.d_M = a->shape[0];
  c_.d_N = b->shape[1];
  c_.d_K = a->shape[1];
  if (b->shape[0] != c_.d_K)
    return wrong_extent(kOperator, 1, 0, b->shape[0], c_.d_K, "K");
  if (bias != nullptr && bias->shape[0] != c_.d_N)
    return wrong_extent(kOperator, 2, 0, bias->shape[0], c_.d_N, "N");
  if (residual != nullptr && residual->shape[0] != c_.d_M)
    return wrong_extent(kOperator, 3, 0, residual->shape[0], c_.d_M, "M");
  if (residual != nullptr && residual->shape[1] != c_.d_N)
    return wrong_extent(kOperator, 3, 1, residual->shape[1], c_.d_N, "N");
  if (out->shape[0] != c_.d_M)
    return wrong_extent(kOperator, 4, 0, out->shape[0], c_.d_M, "M");
  if (out->shape[1] != c_.d_N)
    return wrong_extent(kOperator, 4, 1, out->shape[1], c_.d_N, "N");
  if (activation < 0 || activation >= 2)
    return wrong_attribute(kOperator, kAttribute_activation, activation);
  c_.empty = c_.view[4].empty;
  c_.hollow = !c_.empty && (c_.view[0].empty || c_.view[1].empty || (bias != nullptr && c_.view[2].empty) || (residual != nullptr && c_.view[3].empty));
  c_.plain = data_ && plain_ && has_plain_memory<kOperator>(given_, c_.view);
  if (data_ && !c_.empty && !c_.plain) {
    if (int32_t status = check_memory(kOperator, given_, c_.view)) return status;
  }
  c_.t_a = &c_.view[0].tensor;
  c_.t_b = &c_.view[1].tensor;
  c_.t_bias = bias ? &c_.view[2].tensor : nullptr;
  c_.t_residual = residual ? &c_.view[3].tensor : nullptr;
  c_.t_out = &c_.view[4].tensor;
  c_.v_activation = activation;
  if (int32_t status = find_backend(kOperator, kBackends, 1, c_.device(), &c_.backend, &c_.level))
    return status;
  c_.generic = generic_of(c_);
  return AOT_TUNE_OK;
}

constexpr const char* const kDimNames[] = {"M", "N", "K"};
constexpr AttributeInfo kAttributeFacts[] = {kAttribute_activation};
constexpr int32_t kTensorsByName[] = {0, 1, 2, 4, 3};
constexpr FactsInfo kFacts = {&kOperator, kDimNames, 3, nullptr, 0, kAttributeFacts, 1, kTensorsByName, kInfo, 2};

void read_facts(const Call& c, int64_t* facts) {
  const int64_t values[] = {c.d_M, c.d_N, c.d_K, c.v_activation, 1, 1, c.t_bias != nullptr, c.t_residual != nullptr, 1};
  std::memcpy(facts, values, sizeof values);
}

const char* refusal_1(const Call& c) {
  (void)c;
  if ((c.t_b->strides[1] == INT64_C(1)) == 0) return "(stride.b.1 == 1)";
  return nullptr;
}

// The guard that a call fails first, as text; null when the variant accepts it.
const char* refusal(const Call& c, int variant) {
  (void)c;
  switch (variant) {
    case 1:
      return refusal_1(c);
    default:
      return nullptr;
  }
}

template <typename Trace>
bool accepts(const Call& c, int variant, Trace& trace) {
  const char* refused = refusal(c, variant);
  return refused == nullptr || trace.guard(false, kInfo[variant], refused);
}

constexpr bool kGeneric[] = {true, false};

// The first of a leaf's variants that answers the call, or -1.
template <typename Trace>
int first_of(const Call& c, const int16_t* leaf, int count, Trace& trace) {
  for (int i = 0; i < count; ++i) {
    const int variant = leaf[i];
    if (!kGeneric[variant] && !allowed(kOperator, kInfo[variant], trace)) continue;
    if (accepts(c, variant, trace) && trace.fits(c, variant)) return variant;
  }
  return -1;
}

struct Tuned {
  int64_t dims[3];
  int64_t classes[5];  // of strides; -1 where the tensor is absent
  int32_t attributes[1];
  int32_t first;  // of its variants, and how many
  int32_t count;
};

uint64_t place_of_row(const Call& c) {
  (void)c;
  const uint64_t sum = static_cast<uint64_t>(c.d_M) * UINT64_C(0x9e3779b97f4a7c15) + static_cast<uint64_t>(c.d_N) * UINT64_C(0xdf442d22ce4859b9) + static_cast<uint64_t>(c.d_K) * UINT64_C(0x604a5ce3addef82d) + static_cast<uint64_t>(c.v_activation) * UINT64_C(0xd94363fc538227b1);
  return sum ^ (sum >> 32);
}

bool is_same(const Tuned& row, const Call& c) {
  return row.dims[0] == c.d_M && row.dims[1] == c.d_N && row.dims[2] == c.d_K && row.attributes[0] == c.v_activation && row.classes[0] == stride_class(*c.t_a) && row.classes[1] == stride_class(*c.t_b) && row.classes[2] == (c.t_bias != nullptr ? stride_class(*c.t_bias) : -1) && row.classes[3] == (c.t_residual != nullptr ? stride_class(*c.t_residual) : -1) && row.classes[4] == stride_class(*c.t_out);
}

constexpr Tuned kTuned_0[] = {
    {{16, 64, 64}, {65, 65, 8, -1, 65}, {1}, 0, 0},
};
constexpr int16_t kRanked_0[] = {-1};
constexpr int16_t kSlots_0[] = {0, -1};  // a row's number, or -1

// The row of the problem that a call is like, or null.
const Tuned* measured_0(const Call& c) {
  for (uint64_t at = place_of_row(c);; ++at) {
    const int row = kSlots_0[at & 1];
    if (row < 0) return nullptr;
    if (is_same(kTuned_0[row], c)) return &kTuned_0[row];
  }
}

// cpu-x86-64-v4
constexpr int16_t kLeaf_0_0[] = {0};
constexpr int16_t kLeaf_0_1[] = {1, 0};
template <typename Trace>
int choose_0(const Call& c, Trace& trace) {
  (void)c;
  (void)trace;
  if (trace.test(alignment_of(c.t_bias != nullptr ? c.t_bias->data : nullptr) <= INT64_C(16), "alignment.bias <= 16", "alignment.bias > 16")) {
    return first_of(c, kLeaf_0_0, 1, trace);
  } else {
    return first_of(c, kLeaf_0_1, 2, trace);
  }
}

// The generic variant for the call's device and dtypes, or -1.
int generic_of(const Call& c) {
  (void)c;
  return 0;
}

// The table of the most specific target that a device runs, or -1.
int table_for(const Backend* backend, int32_t level) {
  (void)backend;
  (void)level;
  if (backend == &backend_cpu && level >= 4) return 0;
  return -1;
}

// The variant that AOT_TUNE_OVERRIDE has for a call, if that answers it, or -1.
template <typename Trace>
__attribute__((noinline, cold)) int overridden(const Call& c, Trace& trace) {
  int16_t named[2];
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

// The measured problem that is nearest, by the largest factor between its dims and the call's.
void tell_nearest(const Call& c, Text& text) {
  const Tuned* rows = nullptr;
  size_t count = 0;
  switch (table_for(c.backend, c.level)) {
    case 0:
      rows = kTuned_0;
      count = sizeof kTuned_0 / sizeof *kTuned_0;
      break;
    default:
      return;
  }
  const int64_t dims[] = {c.d_M, c.d_N, c.d_K};
  static const char* const names[] = {"M", "N", "K"};
  const Tuned* nearest = nullptr;
  double least = 0;
  for (size_t i = 0; i < count; ++i) {
    const Tuned& row = rows[i];
    if (!(row.attributes[0] == c.v_activation)) continue;
    const double far = farthest(row.dims, dims);
    if (nearest == nullptr || far < least) {
      nearest = &row;
      least = far;
    }
  }
  if (nearest != nullptr) explain_nearest(text, names, nearest->dims, least);
}

// Bytes of workspace that a variant needs.
int32_t need(const Call& c, int variant, size_t* size) {
  *size = 0;
  return kFunctions[variant].workspace(c.t_a, c.t_b, c.t_bias, c.t_residual, c.t_out, c.v_activation, size);
}

void Call::note(int variant, char* buffer, size_t size) const {
  (void)variant;
  (void)buffer;
  (void)size;
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
  return choose_forced(kOperator, kInfo, 2, *c.backend, c.level, takes, variant);
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
  Workspace workspace;
  if (int32_t status = take_workspace(kOperator, *c.backend, c.device(), exec, size, &workspace)) return status;
  if (exec != nullptr && workspace.memory != nullptr && workspace.memory == exec->workspace) {
    const DLTensor* const given[] = {c.t_a, c.t_b, c.t_bias, c.t_residual, c.t_out};
    if (int32_t status = check_workspace(kOperator, given, c.view, workspace.memory, size)) return status;
  }
  void* stream = exec != nullptr ? exec->stream : nullptr;
  const int32_t status = kFunctions[variant].launch(c.t_a, c.t_b, c.t_bias, c.t_residual, c.t_out, c.v_activation, workspace.memory, size, stream);
  return status == 0 ? AOT_TUNE_OK : failed(c, variant, "launch", status);
}

constexpr bool kSettled[] = {false, false};

using Remembered = Known<kOperator, 1, decltype(Functions::launch)>;
thread_local void* known_calls;  // the thread's, from the first that is remembered on

KnownCalls<Remembered>* thread_calls() { return static_cast<KnownCalls<Remembered>*>(known_calls); }

// A number for a call that most others do not have: of its dims, attributes, optional tensors and where the
// first ones lie within 64 bytes. 0 where it is no legal call.
uint64_t number_of(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation) {
  (void)out;
  if (a == nullptr || a->ndim != 2 || a->shape == nullptr) return 0;
  if (b == nullptr || b->ndim != 2 || b->shape == nullptr) return 0;
  return (static_cast<uint64_t>(a->shape[0]) * UINT64_C(0x9e3779b97f4a7c15) + static_cast<uint64_t>(b->shape[1]) * UINT64_C(0xdf442d22ce4859b9) + static_cast<uint64_t>(a->shape[1]) * UINT64_C(0x604a5ce3addef82d) + static_cast<uint64_t>(aot_tune::place_of(*a)) * UINT64_C(0xd94363fc538227b1) + static_cast<uint64_t>(aot_tune::place_of(*b)) * UINT64_C(0x2e2b795f2d10fd85) + static_cast<uint64_t>(activation) * UINT64_C(0x4be7956e30a337e9) + static_cast<uint64_t>((bias != nullptr)) * UINT64_C(0x5ecb31e4ccd2721d) + static_cast<uint64_t>((residual != nullptr)) * UINT64_C(0x6d4b2611beb6861)) | 1;
}

// A call that is like one that is known, as far as it takes to launch it.
void fill(Call& c_, Remembered& known_, const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation) {
  c_.backend = known_.backend;
  (void)a;
  c_.t_a = &known_.tensors[0].tensor;
  known_.view(0, &c_.view[0]);
  (void)b;
  c_.t_b = &known_.tensors[1].tensor;
  known_.view(1, &c_.view[1]);
  c_.t_bias = bias ? &known_.tensors[2].tensor : nullptr;
  known_.view(2, &c_.view[2]);
  c_.t_residual = residual ? &known_.tensors[3].tensor : nullptr;
  known_.view(3, &c_.view[3]);
  (void)out;
  c_.t_out = &known_.tensors[4].tensor;
  known_.view(4, &c_.view[4]);
  c_.v_activation = activation;
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
__attribute__((noinline)) bool repeat(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, const aot_tune_exec* exec,
                                      Remembered& known_, int32_t* status_) {
  Call call_;
  operator_gemm::fill(call_, known_, a, b, bias, residual, out, activation);
  return operator_gemm::repeat(call_, exec, known_, status_);
}

// The error of one that was launched as the thread was.
__attribute__((noinline)) int32_t repeat_failed(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, Remembered& known_, int32_t status_) {
  Call call_;
  operator_gemm::fill(call_, known_, a, b, bias, residual, out, activation);
  return operator_gemm::failed(call_, known_.variant, "launch", status_);
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
  const DLTensor* const given[] = {c.t_a, c.t_b, c.t_bias, c.t_residual, c.t_out};
  int64_t words[trace_words(kFacts.own(), kTensors)];
  read_facts(c, words);
  count_call(kFacts, given, c.view, c.empty, captured, words);
}

constexpr Span kSpans_0[] = {
    {1, 64}, {64, 64}, {32, 4096}, {0, 1},
};
constexpr Seen kSeen[] = {{"cpu-x86-64-v4", kSpans_0, 1, false}};

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
  text.add("dim: M=%lld\n", static_cast<long long>(c.d_M));
  text.add("dim: N=%lld\n", static_cast<long long>(c.d_N));
  text.add("dim: K=%lld\n", static_cast<long long>(c.d_K));
  const DLTensor* const given[] = {c.t_a, c.t_b, c.t_bias, c.t_residual, c.t_out};
  explain_tensors(text, kOperator, given, c.view);
  text.add("attribute: activation=%s\n", kChoices_activation[c.v_activation]);
  if (c.empty) {
    text.add("why: no output has elements, so nothing runs\n");
    return AOT_TUNE_OK;
  }
  const int table = c.hollow ? -1 : table_for(c.backend, c.level);
  constexpr const char* kTargets[] = {"cpu-x86-64-v4"};
  if (table >= 0) text.add("table: %s\n", kTargets[table]);
  constexpr int32_t kProcessors[] = {16};
  if (table >= 0) explain_processors(text, *c.backend, c.device().device_id, kProcessors[table]);
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

}  // namespace operator_gemm
}  // namespace

namespace {
namespace operator_gemm {

// A call that is like none before it.
__attribute__((noinline)) int32_t call_anew(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, const aot_tune_exec* exec, uint64_t number_) {
  Call call_;
  int32_t status_ = operator_gemm::read(call_, true, a, b, bias, residual, out, activation);
  if (status_ != AOT_TUNE_OK) return status_;
  const bool traced_ = aot_tune::is_traced();
  if (call_.empty) {
    if (traced_) operator_gemm::trace_call(call_, false);
    return AOT_TUNE_OK;
  }
  const DLTensor* const given_[] = {a, b, bias, residual, out};
  const uint64_t options_[] = {aot_tune::bits_of(activation)};
  // what is counted is not remembered, so that each such call comes here
  status_ = operator_gemm::run(call_, exec, given_, options_, traced_ ? 0 : number_);
  if (traced_ && status_ == AOT_TUNE_OK) operator_gemm::trace_call(call_, aot_tune::is_capturing(*call_.backend, exec));
  if (aot_tune::warns_of_unseen() && status_ == AOT_TUNE_OK) operator_gemm::warn(call_);
  return status_;
}

}  // namespace operator_gemm
}  // namespace

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_gemm(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, const aot_tune_exec* exec) {
  const aot_tune::CallThreads threads_;
  const uint64_t number_ = operator_gemm::number_of(a, b, bias, residual, out, activation);
  auto* const calls_ = operator_gemm::thread_calls();
  operator_gemm::Remembered* const known_ = number_ != 0 && calls_ != nullptr ? calls_->find(number_) : nullptr;
  if (__builtin_expect(known_ != nullptr, 1)) {
    const DLTensor* const given_[] = {a, b, bias, residual, out};
    const uint64_t options_[] = {aot_tune::bits_of(activation)};
    if (__builtin_expect(known_->recall(given_, options_), 1)) {
      calls_->missed = 0;
      int32_t status_;
      if (__builtin_expect(known_->is_ready(), 1)) {
        status_ = known_->launch(&known_->tensors[0].tensor, &known_->tensors[1].tensor, bias ? &known_->tensors[2].tensor : nullptr, residual ? &known_->tensors[3].tensor : nullptr, &known_->tensors[4].tensor, activation, nullptr, 0, exec != nullptr ? exec->stream : nullptr);
        if (__builtin_expect(status_ == 0, 1)) return status_;
        return operator_gemm::repeat_failed(a, b, bias, residual, out, activation, *known_, status_);
      }
      if (operator_gemm::repeat(a, b, bias, residual, out, activation, exec, *known_, &status_)) return status_;
    }
  }
  return operator_gemm::call_anew(a, b, bias, residual, out, activation, exec, number_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_gemm_workspace(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, size_t* workspace_size) {
  operator_gemm::Call call_;
  if (workspace_size == nullptr) return fail(AOT_TUNE_ERROR_NULL, "gemm: workspace has nowhere to write to: workspace_size is NULL");
  *workspace_size = 0;
  const aot_tune::CallThreads threads_;
  int32_t status_ = operator_gemm::read(call_, false, a, b, bias, residual, out, activation);
  if (status_ != AOT_TUNE_OK || call_.empty) return status_;
  int variant_;
  bool first_;
  return operator_gemm::serve(call_, nullptr, &variant_, workspace_size, &first_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_gemm_explain(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, const aot_tune_exec* exec, char* buffer, size_t size) {
  operator_gemm::Call call_;
  if (buffer == nullptr && size > 0) return fail(AOT_TUNE_ERROR_NULL, "gemm: explain has nowhere to write to: buffer is NULL");
  Text text_(buffer, size);
  const aot_tune::CallThreads threads_;
  int32_t status_ = operator_gemm::read(call_, false, a, b, bias, residual, out, activation);
  if (status_ != AOT_TUNE_OK) return status_;
  return operator_gemm::explain(call_, exec, text_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_gemm_is_tuned(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, int32_t* tuned) {
  operator_gemm::Call call_;
  if (tuned == nullptr) return fail(AOT_TUNE_ERROR_NULL, "gemm: is_tuned has nowhere to write to: tuned is NULL");
  *tuned = 0;
  int32_t status_ = operator_gemm::read(call_, false, a, b, bias, residual, out, activation);
  if (status_ != AOT_TUNE_OK) return status_;
  *tuned = operator_gemm::is_tuned(call_);
  return AOT_TUNE_OK;
}


// ---- rms_norm ----

namespace {
namespace operator_rms_norm {

constexpr TensorInfo kTensors[] = {
    {"x", "[M, N]", "f32", 2, 32, 2, false, false, -1},
    {"weight", "[N]", "f32", 2, 32, 1, false, false, -1},
    {"residual", "[M, N]", "f32", 2, 32, 2, false, true, -1},
    {"out", "[M, N]", "f32", 2, 32, 2, true, false, -1},
    {"residual_out", "[M, N]", "f32", 2, 32, 2, true, true, -1},
};
constexpr OperatorInfo kOperator = {"rms_norm", kTensors, 5, nullptr, 0};
const Backend* const kBackends[] = {&backend_cpu};

const VariantInfo kInfo[] = {
    {"norm", "cpu-x86-64", "norm", "3333333333333333333333333333333333333333333333333333333333333333", &backend_cpu, 1, 0},
};

struct Functions {
  int32_t (*workspace)(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, size_t*);
  int32_t (*launch)(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, void*, size_t, void*);
};
const Functions kFunctions[] = {
    {aot_tune_norm_workspace, aot_tune_norm_launch},
};

struct Call {
  View view[5];
  const Backend* backend;
  int32_t level;
  int generic;  // the variant that answers when no other does
  bool empty;   // no output has an element
  bool hollow;  // some output has elements, but not every input
  bool plain;   // nothing is unusual about tensors and memory
  const DLTensor* t_x;
  const DLTensor* t_weight;
  const DLTensor* t_residual;
  const DLTensor* t_out;
  const DLTensor* t_residual_out;
  int64_t d_M;
  int64_t d_N;
  float v_eps;
  const DLDevice& device() const { return t_x->device; }
  static const VariantInfo& info(int variant) { return kInfo[variant]; }
  // What a variant says of the call, for people.
  void note(int variant, char* buffer, size_t size) const;
};

int generic_of(const Call& c);

// Checks a call and fills it in; `data_` is false where no memory is touched.
int32_t read(Call& c_, bool data_, const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps) {
  const DLTensor* const given_[] = {x, weight, residual, out, residual_out};
  const bool plain_ = read_plainly<kOperator>(given_, c_.view, nullptr);
  if (!plain_) {
    if (int32_t status = read_tensors(kOperator, given_, c_.view, nullptr)) return status;
  }
  c_.d_M = x->shape[0];
  c_.d_N = x->shape[1];
  if (weight->shape[0] != c_.d_N)
    return wrong_extent(kOperator, 1, 0, weight->shape[0], c_.d_N, "N");
  if (residual != nullptr && residual->shape[0] != c_.d_M)
    return wrong_extent(kOperator, 2, 0, residual->shape[0], c_.d_M, "M");
  if (residual != nullptr && residual->shape[1] != c_.d_N)
    return wrong_extent(kOperator, 2, 1, residual->shape[1], c_.d_N, "N");
  if (out->shape[0] != c_.d_M)
    return wrong_extent(kOperator, 3, 0, out->shape[0], c_.d_M, "M");
  if (out->shape[1] != c_.d_N)
    return wrong_extent(kOperator, 3, 1, out->shape[1], c_.d_N, "N");
  if (residual_out != nullptr && residual_out->shape[0] != c_.d_M)
    return wrong_extent(kOperator, 4, 0, residual_out->shape[0], c_.d_M, "M");
  if (residual_out != nullptr && residual_out->shape[1] != c_.d_N)
    return wrong_extent(kOperator, 4, 1, residual_out->shape[1], c_.d_N, "N");
  c_.empty = c_.view[3].empty && (residual_out == nullptr || c_.view[4].empty);
  c_.hollow = !c_.empty && (c_.view[0].empty || c_.view[1].empty || (residual != nullptr && c_.view[2].empty));
  c_.plain = data_ && plain_ && has_plain_memory<kOperator>(given_, c_.view);
  if (data_ && !c_.empty && !c_.plain) {
    if (int32_t status = check_memory(kOperator, given_, c_.view)) return status;
  }
  c_.t_x = &c_.view[0].tensor;
  c_.t_weight = &c_.view[1].tensor;
  c_.t_residual = residual ? &c_.view[2].tensor : nullptr;
  c_.t_out = &c_.view[3].tensor;
  c_.t_residual_out = residual_out ? &c_.view[4].tensor : nullptr;
  c_.v_eps = eps;
  if (int32_t status = find_backend(kOperator, kBackends, 1, c_.device(), &c_.backend, &c_.level))
    return status;
  c_.generic = generic_of(c_);
  return AOT_TUNE_OK;
}

constexpr const char* const kDimNames[] = {"M", "N"};
constexpr int32_t kTensorsByName[] = {3, 2, 4, 1, 0};
constexpr FactsInfo kFacts = {&kOperator, kDimNames, 2, nullptr, 0, nullptr, 0, kTensorsByName, kInfo, 1};

void read_facts(const Call& c, int64_t* facts) {
  const int64_t values[] = {c.d_M, c.d_N, 1, 1, c.t_residual != nullptr, 1, c.t_residual_out != nullptr};
  std::memcpy(facts, values, sizeof values);
}

// The guard that a call fails first, as text; null when the variant accepts it.
const char* refusal(const Call& c, int variant) {
  (void)c;
  switch (variant) {
    default:
      return nullptr;
  }
}

template <typename Trace>
bool accepts(const Call& c, int variant, Trace& trace) {
  const char* refused = refusal(c, variant);
  return refused == nullptr || trace.guard(false, kInfo[variant], refused);
}

constexpr bool kGeneric[] = {true};

// The first of a leaf's variants that answers the call, or -1.
template <typename Trace>
int first_of(const Call& c, const int16_t* leaf, int count, Trace& trace) {
  for (int i = 0; i < count; ++i) {
    const int variant = leaf[i];
    if (!kGeneric[variant] && !allowed(kOperator, kInfo[variant], trace)) continue;
    if (accepts(c, variant, trace) && trace.fits(c, variant)) return variant;
  }
  return -1;
}

// The generic variant for the call's device and dtypes, or -1.
int generic_of(const Call& c) {
  (void)c;
  return 0;
}

// The table of the most specific target that a device runs, or -1.
int table_for(const Backend* backend, int32_t level) {
  (void)backend;
  (void)level;
  return -1;
}

// The variant that AOT_TUNE_OVERRIDE has for a call, if that answers it, or -1.
template <typename Trace>
__attribute__((noinline, cold)) int overridden(const Call& c, Trace& trace) {
  int16_t named[1];
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
    default:
      (void)trace;
      break;
  }
  return choice >= 0 ? choice : c.generic;
}

int is_tuned(const Call&) { return 0; }

void tell_nearest(const Call&, Text&) {}

// Bytes of workspace that a variant needs.
int32_t need(const Call& c, int variant, size_t* size) {
  *size = 0;
  return kFunctions[variant].workspace(c.t_x, c.t_weight, c.t_residual, c.t_out, c.t_residual_out, c.v_eps, size);
}

void Call::note(int variant, char* buffer, size_t size) const {
  (void)variant;
  (void)buffer;
  (void)size;
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
  return choose_forced(kOperator, kInfo, 1, *c.backend, c.level, takes, variant);
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
  Workspace workspace;
  if (int32_t status = take_workspace(kOperator, *c.backend, c.device(), exec, size, &workspace)) return status;
  if (exec != nullptr && workspace.memory != nullptr && workspace.memory == exec->workspace) {
    const DLTensor* const given[] = {c.t_x, c.t_weight, c.t_residual, c.t_out, c.t_residual_out};
    if (int32_t status = check_workspace(kOperator, given, c.view, workspace.memory, size)) return status;
  }
  void* stream = exec != nullptr ? exec->stream : nullptr;
  const int32_t status = kFunctions[variant].launch(c.t_x, c.t_weight, c.t_residual, c.t_out, c.t_residual_out, c.v_eps, workspace.memory, size, stream);
  return status == 0 ? AOT_TUNE_OK : failed(c, variant, "launch", status);
}

constexpr bool kSettled[] = {false};

using Remembered = Known<kOperator, 1, decltype(Functions::launch)>;
thread_local void* known_calls;  // the thread's, from the first that is remembered on

KnownCalls<Remembered>* thread_calls() { return static_cast<KnownCalls<Remembered>*>(known_calls); }

// A number for a call that most others do not have: of its dims, attributes, optional tensors and where the
// first ones lie within 64 bytes. 0 where it is no legal call.
uint64_t number_of(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps) {
  (void)weight;
  (void)out;
  (void)eps;
  if (x == nullptr || x->ndim != 2 || x->shape == nullptr) return 0;
  return (static_cast<uint64_t>(x->shape[0]) * UINT64_C(0x9e3779b97f4a7c15) + static_cast<uint64_t>(x->shape[1]) * UINT64_C(0xdf442d22ce4859b9) + static_cast<uint64_t>(aot_tune::place_of(*x)) * UINT64_C(0x604a5ce3addef82d) + static_cast<uint64_t>((residual != nullptr)) * UINT64_C(0xd94363fc538227b1) + static_cast<uint64_t>((residual_out != nullptr)) * UINT64_C(0x2e2b795f2d10fd85)) | 1;
}

// A call that is like one that is known, as far as it takes to launch it.
void fill(Call& c_, Remembered& known_, const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps) {
  c_.backend = known_.backend;
  (void)x;
  c_.t_x = &known_.tensors[0].tensor;
  known_.view(0, &c_.view[0]);
  (void)weight;
  c_.t_weight = &known_.tensors[1].tensor;
  known_.view(1, &c_.view[1]);
  c_.t_residual = residual ? &known_.tensors[2].tensor : nullptr;
  known_.view(2, &c_.view[2]);
  (void)out;
  c_.t_out = &known_.tensors[3].tensor;
  known_.view(3, &c_.view[3]);
  c_.t_residual_out = residual_out ? &known_.tensors[4].tensor : nullptr;
  known_.view(4, &c_.view[4]);
  c_.v_eps = eps;
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
__attribute__((noinline)) bool repeat(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, const aot_tune_exec* exec,
                                      Remembered& known_, int32_t* status_) {
  Call call_;
  operator_rms_norm::fill(call_, known_, x, weight, residual, out, residual_out, eps);
  return operator_rms_norm::repeat(call_, exec, known_, status_);
}

// The error of one that was launched as the thread was.
__attribute__((noinline)) int32_t repeat_failed(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, Remembered& known_, int32_t status_) {
  Call call_;
  operator_rms_norm::fill(call_, known_, x, weight, residual, out, residual_out, eps);
  return operator_rms_norm::failed(call_, known_.variant, "launch", status_);
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
  const DLTensor* const given[] = {c.t_x, c.t_weight, c.t_residual, c.t_out, c.t_residual_out};
  int64_t words[trace_words(kFacts.own(), kTensors)];
  read_facts(c, words);
  count_call(kFacts, given, c.view, c.empty, captured, words);
}

// Tells of a call for AOT_TUNE_WARN.
__attribute__((noinline, cold)) void warn(const Call& c) {
  static std::atomic<bool> told{false};
  if (c.hollow) return;
  int64_t facts[kFacts.count()];
  read_facts(c, facts);
  warn_of_unseen(kFacts, facts, *c.backend, nullptr, &told);
}

int32_t explain(const Call& c, const aot_tune_exec* exec, Text& text) {
  text.add("operator: %s\n", kOperator.name);
  text.add("device: %s level %d\n", c.backend->family, static_cast<int>(c.level));
  text.add("dim: M=%lld\n", static_cast<long long>(c.d_M));
  text.add("dim: N=%lld\n", static_cast<long long>(c.d_N));
  const DLTensor* const given[] = {c.t_x, c.t_weight, c.t_residual, c.t_out, c.t_residual_out};
  explain_tensors(text, kOperator, given, c.view);
  if (c.empty) {
    text.add("why: no output has elements, so nothing runs\n");
    return AOT_TUNE_OK;
  }
  const int table = c.hollow ? -1 : table_for(c.backend, c.level);
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

}  // namespace operator_rms_norm
}  // namespace

namespace {
namespace operator_rms_norm {

// A call that is like none before it.
__attribute__((noinline)) int32_t call_anew(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, const aot_tune_exec* exec, uint64_t number_) {
  Call call_;
  int32_t status_ = operator_rms_norm::read(call_, true, x, weight, residual, out, residual_out, eps);
  if (status_ != AOT_TUNE_OK) return status_;
  const bool traced_ = aot_tune::is_traced();
  if (call_.empty) {
    if (traced_) operator_rms_norm::trace_call(call_, false);
    return AOT_TUNE_OK;
  }
  const DLTensor* const given_[] = {x, weight, residual, out, residual_out};
  const uint64_t options_[] = {aot_tune::bits_of(eps)};
  // what is counted is not remembered, so that each such call comes here
  status_ = operator_rms_norm::run(call_, exec, given_, options_, traced_ ? 0 : number_);
  if (traced_ && status_ == AOT_TUNE_OK) operator_rms_norm::trace_call(call_, aot_tune::is_capturing(*call_.backend, exec));
  if (aot_tune::warns_of_unseen() && status_ == AOT_TUNE_OK) operator_rms_norm::warn(call_);
  return status_;
}

}  // namespace operator_rms_norm
}  // namespace

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_rms_norm(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, const aot_tune_exec* exec) {
  const aot_tune::CallThreads threads_;
  const uint64_t number_ = operator_rms_norm::number_of(x, weight, residual, out, residual_out, eps);
  auto* const calls_ = operator_rms_norm::thread_calls();
  operator_rms_norm::Remembered* const known_ = number_ != 0 && calls_ != nullptr ? calls_->find(number_) : nullptr;
  if (__builtin_expect(known_ != nullptr, 1)) {
    const DLTensor* const given_[] = {x, weight, residual, out, residual_out};
    const uint64_t options_[] = {aot_tune::bits_of(eps)};
    if (__builtin_expect(known_->recall(given_, options_), 1)) {
      calls_->missed = 0;
      int32_t status_;
      if (__builtin_expect(known_->is_ready(), 1)) {
        status_ = known_->launch(&known_->tensors[0].tensor, &known_->tensors[1].tensor, residual ? &known_->tensors[2].tensor : nullptr, &known_->tensors[3].tensor, residual_out ? &known_->tensors[4].tensor : nullptr, eps, nullptr, 0, exec != nullptr ? exec->stream : nullptr);
        if (__builtin_expect(status_ == 0, 1)) return status_;
        return operator_rms_norm::repeat_failed(x, weight, residual, out, residual_out, eps, *known_, status_);
      }
      if (operator_rms_norm::repeat(x, weight, residual, out, residual_out, eps, exec, *known_, &status_)) return status_;
    }
  }
  return operator_rms_norm::call_anew(x, weight, residual, out, residual_out, eps, exec, number_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_rms_norm_workspace(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, size_t* workspace_size) {
  operator_rms_norm::Call call_;
  if (workspace_size == nullptr) return fail(AOT_TUNE_ERROR_NULL, "rms_norm: workspace has nowhere to write to: workspace_size is NULL");
  *workspace_size = 0;
  const aot_tune::CallThreads threads_;
  int32_t status_ = operator_rms_norm::read(call_, false, x, weight, residual, out, residual_out, eps);
  if (status_ != AOT_TUNE_OK || call_.empty) return status_;
  int variant_;
  bool first_;
  return operator_rms_norm::serve(call_, nullptr, &variant_, workspace_size, &first_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_rms_norm_explain(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, const aot_tune_exec* exec, char* buffer, size_t size) {
  operator_rms_norm::Call call_;
  if (buffer == nullptr && size > 0) return fail(AOT_TUNE_ERROR_NULL, "rms_norm: explain has nowhere to write to: buffer is NULL");
  Text text_(buffer, size);
  const aot_tune::CallThreads threads_;
  int32_t status_ = operator_rms_norm::read(call_, false, x, weight, residual, out, residual_out, eps);
  if (status_ != AOT_TUNE_OK) return status_;
  return operator_rms_norm::explain(call_, exec, text_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_rms_norm_is_tuned(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, int32_t* tuned) {
  operator_rms_norm::Call call_;
  if (tuned == nullptr) return fail(AOT_TUNE_ERROR_NULL, "rms_norm: is_tuned has nowhere to write to: tuned is NULL");
  *tuned = 0;
  int32_t status_ = operator_rms_norm::read(call_, false, x, weight, residual, out, residual_out, eps);
  if (status_ != AOT_TUNE_OK) return status_;
  *tuned = operator_rms_norm::is_tuned(call_);
  return AOT_TUNE_OK;
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_preload(int32_t device_type, int32_t device_id) {
  static const Backend* const backends[] = {&backend_cpu};
  const DLDevice device = {static_cast<DLDeviceType>(device_type), device_id};
  return preload_all(backends, 1, device, nullptr, 0);
}

namespace {
const FactsInfo* const kOperators[] = {&operator_gemm::kFacts, &operator_rms_norm::kFacts};
}  // namespace

namespace aot_tune {
const LibraryInfo library_info = {"ops", kLibrary, kOperators, 2};
}  // namespace aot_tune
