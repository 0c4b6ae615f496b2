// Dispatch of libaot_tune_ops.so. Written by aot_tune.
#include "aot_tune/ops.h"
#include "expected.h"
#include "infer.h"
#include "operator_tables.h"

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

const VariantInfo kVariants[] = {
    {"plain", "cpu-x86-64", "plain", "1111111111111111111111111111111111111111111111111111111111111111", &backend_cpu, 1, 0, true, false},
    {"plain_cuda", "cuda-ptx_80", "plain", "0000000000000000000000000000000000000000000000000000000000000000", &backend_cuda, 80, 0, true, false},
    {"plain_half", "cuda-ptx_80", "plain", "0000000000000000000000000000000000000000000000000000000000000000", &backend_cuda, 80, 0, true, false},
    {"vendor", "cuda-sm_90a", "vendor", "0000000000000000000000000000000000000000000000000000000000000000", &backend_cuda, 90, 90, false, false},
};

const Functions<const DLTensor*> kFunctions[] = {
    {aot_tune_plain_workspace, aot_tune_plain_launch, nullptr, nullptr},
    {aot_tune_plain_cuda_workspace, aot_tune_plain_cuda_launch, aot_tune_plain_cuda_preload, nullptr},
    {aot_tune_plain_half_workspace, aot_tune_plain_half_launch, aot_tune_plain_half_preload, nullptr},
    {aot_tune_vendor_workspace, aot_tune_vendor_launch, aot_tune_vendor_preload, aot_tune_vendor_note},
};

const FamilyInfo kFamilies[] = {
    {&backend_cpu, "cpu-x86-64", "T=f32"},
    {&backend_cuda, "cuda-ptx_80, cuda-sm_90a", "T=f32 or T=bf16"},
};

// What the runtime's functions ask.
struct Own {
  using Call = CallOf<Own>;
  using Pass = operator_twice::Pass;
  static constexpr const OperatorInfo& kOperator = operator_twice::kOperator;
  static constexpr const auto& kVariants = operator_twice::kVariants;
  static constexpr const auto& kFunctions = operator_twice::kFunctions;
  static constexpr const auto& kFamilies = operator_twice::kFamilies;
  static constexpr int16_t kGenerics[] = {0, 1, 2};
  static const TableInfo<Own> kTables[1];  // none is more specific than one before
  static constexpr int kTableCount = 1;
  static constexpr size_t kMostExpected = 0;  // in a table
  static constexpr size_t kMostTerms = 1;  // that its variants share
  static constexpr FactsInfo kFacts = {&kOperator, kVariants, 4};
  static constexpr bool kRunsOnHost = true;
  static inline thread_local void* known_calls = nullptr;  // the thread's, from the first that is remembered on
  static inline std::atomic<uint64_t> loaded[4];  // a bit per device, of each variant
  static inline Checks checks[4];
  static constexpr Tolerance kTolerances[] = {{0, 0, 1}};
  static constexpr Tolerances kAllowed = {kTolerances, 0.0, false};

  // Reads the dims from arguments that were checked.
  static int32_t bind(Tensors t, const Scalar* s, int64_t* dims);
  static int32_t check_legal(const Call& c);
  // The guard that a call fails first, as text; null when the variant accepts it.
  static const char* refusal(const Call& c, int variant);
  // Whether a variant's kernel is meant for such calls.
  static bool worthwhile(const Call& c, int variant);
};
using Call = Own::Call;

int32_t Own::bind(Tensors t, const Scalar* s, int64_t* dims) {
  (void)t;
  (void)s;
  (void)dims;
  dims[0] = t[0]->shape[0];
  return AOT_TUNE_OK;
}

int32_t Own::check_legal(const Call& c) {
  (void)c;
  return AOT_TUNE_OK;
}

const char* refusal_0(const Call& c) {
  (void)c;
  if ((int64_t{c.dtypes[0]} == INT64_C(0)) == 0) return "(dtype.T == 0)";
  return nullptr;
}

const char* refusal_2(const Call& c) {
  (void)c;
  if ((int64_t{c.dtypes[0]} == INT64_C(1)) == 0) return "(dtype.T == 1)";
  return nullptr;
}

const char* refusal_3(const Call& c) {
  (void)c;
  if ((int64_t{c.dtypes[0]} == INT64_C(0)) == 0) return "(dtype.T == 0)";
  if (((c.dims[0] % INT64_C(4)) == INT64_C(0)) == 0) return "((N % 4) == 0)";
  return nullptr;
}

const char* Own::refusal(const Call& c, int variant) {
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

bool Own::worthwhile(const Call& c, int variant) {
  (void)c;
  switch (variant) {
    default:
      return true;
  }
}

// The number of a call's regime.
int regime_of(const Call& c) {
  (void)c;
  if (((c.dims[0] <= INT64_C(64))) != 0) return 0;
  return 1;
}

constexpr Span kSpans_0[] = {
    {4, 8}, {0, 0},
    {1, 0}, {0, 0},
    {1, 0}, {1, 1},
    {400, 400}, {1, 1},
};
constexpr RegimeInfo kRegimes_0[] = {
    {"short", 0, 0, RegimeInfo::kNearest, 0, 0, 0, 0},
    {"other", 0, 1, RegimeInfo::kNearest, 0, 0, 0, 0},
    {"short", 1, 0, RegimeInfo::kNearest, 0, 0, 0, 0},
    {"other", 1, 1, RegimeInfo::kVendor, 16777216, 0, 0, 0},
};
// The row of a call's kind and regime, or -1.
int regime_0(const Call& c) {
  if (int64_t{c.dtypes[0]} == 0) return 0 + regime_of(c);
  if (int64_t{c.dtypes[0]} == 1) return 2 + regime_of(c);
  return -1;
}

constexpr Row<Own> kRows_0[] = {
    {{4}, {8}, {0}, {0}, 0, 2},
    {{8}, {8}, {0}, {0}, 2, 2},
    {{400}, {8}, {0}, {1}, 4, 1},
};
constexpr int16_t kRanked_0[] = {1, 3, 3, 1, 2};
constexpr int16_t kSlots_0[] = {-1, 1};

constexpr int16_t kUsed_0[] = {1, 2, 3};
constexpr int16_t kRest_0[] = {3, 1, 2};
const TableInfo<Own> Own::kTables[] = {
    {&backend_cuda, 90, 90, 0, {"cuda-sm_90a", kSpans_0, kRegimes_0}, regime_0, {kUsed_0, 3}, {kRest_0, 3}, {nullptr, 0}, kRows_0, 3, kRanked_0, kSlots_0, 1, nullptr, 0, nullptr},
};

}  // namespace operator_twice
}  // namespace
}  // namespace aot_tune

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_twice(const DLTensor* x, const aot_tune_exec* exec) {
  return aot_tune::call<aot_tune::operator_twice::Own>({{x}, {}, {}}, exec);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_twice_workspace(const DLTensor* x, size_t* workspace_size) {
  return aot_tune::workspace<aot_tune::operator_twice::Own>({{x}, {}, {}}, workspace_size);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_twice_explain(const DLTensor* x, const aot_tune_exec* exec, char* buffer, size_t size) {
  return aot_tune::explain<aot_tune::operator_twice::Own>({{x}, {}, {}}, exec, buffer, size);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_twice_is_tuned(const DLTensor* x, int32_t* tuned) {
  return aot_tune::is_tuned<aot_tune::operator_twice::Own>({{x}, {}, {}}, tuned);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_twice_infer(const DLTensor* x, DLTensor* const* made, DLTensor* const* taken) {
  return aot_tune::infer<aot_tune::operator_twice::Own>({{x}, {}, {}}, made, taken);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_preload(int32_t device_type, int32_t device_id) {
  static const Backend* const backends[] = {&backend_cpu, &backend_cuda};
  static const Preload operators[] = {preload<operator_twice::Own>};
  const DLDevice device = {static_cast<DLDeviceType>(device_type), device_id};
  return preload_all(backends, 2, device, operators, 1);
}

namespace {
const FactsInfo* const kOperators[] = {&operator_twice::Own::kFacts};
}  // namespace

namespace aot_tune {
const LibraryInfo library_info = {"ops", kLibrary, kOperators, 1};
}  // namespace aot_tune
