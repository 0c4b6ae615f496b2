// Dispatch of libaot_tune_ops.so. Written by aot_tune.
#include "aot_tune/ops.h"
#include "runtime.h"

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

}  // namespace

extern "C" AOT_TUNE_PUBLIC const char* aot_tune_last_error(void) { return last_error(); }

extern "C" AOT_TUNE_PUBLIC const char* aot_tune_manifest(void) { return kManifest; }

// ---- gemm ----

namespace {
namespace operator_gemm {

constexpr TensorInfo kTensors[] = {
    {"a", "[M, K]", "f32", 2, 32, 2, false, false},
    {"b", "[K, N]", "f32", 2, 32, 2, false, false},
    {"bias", "[N]", "f32", 2, 32, 1, false, true},
    {"residual", "[M, N]", "f32", 2, 32, 2, false, true},
    {"out", "[M, N]", "f32", 2, 32, 2, true, false},
};
constexpr OperatorInfo kOperator = {"gemm", kTensors, 5};
constexpr const char* kChoices_activation[] = {"none", "relu"};
constexpr AttributeInfo kAttribute_activation = {"activation", kChoices_activation, 2};
const Backend* const kBackends[] = {&backend_cpu};

struct Variant {
  VariantInfo info;
  int32_t (*workspace)(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, size_t*);
  int32_t (*launch)(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, void*, size_t, void*);
};
const Variant kVariants[] = {
    {{"plain", "cpu-x86-64", "plain", "1111111111111111111111111111111111111111111111111111111111111111"}, aot_tune_plain_workspace, aot_tune_plain_launch},
    {{"packed", "cpu-x86-64-v4", "packed", "2222222222222222222222222222222222222222222222222222222222222222"}, aot_tune_packed_workspace, aot_tune_packed_launch},
};

struct Call {
  View view[5];
  const Backend* backend;
  int32_t level;
  bool empty;   // no output has an element
  bool hollow;  // some output has elements, but not every input
  const DLTensor* t_a;
  const DLTensor* t_b;
  const DLTensor* t_bias;
  const DLTensor* t_residual;
  const DLTensor* t_out;
  int64_t d_M;
  int64_t d_N;
  int64_t d_K;
  int32_t v_activation;
};

// Checks a call and fills it in; `data` is false where no memory is touched.
int32_t read(Call& c, bool data, const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation) {
  const DLTensor* const given[] = {a, b, bias, residual, out};
  if (int32_t status = read_tensors(kOperator, given, c.view)) return status;
  c.d_M = a->shape[0];
  c.d_N = b->shape[1];
  c.d_K = a->shape[1];
  if (b->shape[0] != c.d_K)
    return wrong_extent(kOperator, 1, 0, b->shape[0], c.d_K, "K");
  if (bias != nullptr && bias->shape[0] != c.d_N)
    return wrong_extent(kOperator, 2, 0, bias->shape[0], c.d_N, "N");
  if (residual != nullptr && residual->shape[0] != c.d_M)
    return wrong_extent(kOperator, 3, 0, residual->shape[0], c.d_M, "M");
  if (residual != nullptr && residual->shape[1] != c.d_N)
    return wrong_extent(kOperator, 3, 1, residual->shape[1], c.d_N, "N");
  if (out->shape[0] != c.d_M)
    return wrong_extent(kOperator, 4, 0, out->shape[0], c.d_M, "M");
  if (out->shape[1] != c.d_N)
    return wrong_extent(kOperator, 4, 1, out->shape[1], c.d_N, "N");
  if (activation < 0 || activation >= 2)
    return wrong_attribute(kOperator, kAttribute_activation, activation);
  c.empty = c.view[4].empty;
  c.hollow = !c.empty && (c.view[0].empty || c.view[1].empty || (bias != nullptr && c.view[2].empty) || (residual != nullptr && c.view[3].empty));
  if (data && !c.empty) {
    if (int32_t status = check_memory(kOperator, given, c.view)) return status;
  }
  c.t_a = &c.view[0].tensor;
  c.t_b = &c.view[1].tensor;
  c.t_bias = bias ? &c.view[2].tensor : nullptr;
  c.t_residual = residual ? &c.view[3].tensor : nullptr;
  c.t_out = &c.view[4].tensor;
  c.v_activation = activation;
  const DLDevice& device = c.view[0].tensor.device;
  return find_backend(kOperator, kBackends, 1, device, &c.backend, &c.level);
}

// cpu-x86-64-v4
template <typename Trace>
int choose_0(const Call& c, Trace& trace) {
  (void)c;
  (void)trace;
  if (trace.test(alignment_of(c.t_bias != nullptr ? c.t_bias->data : nullptr) <= INT64_C(16), "alignment.bias <= 16", "alignment.bias > 16")) {
    return 0;
  } else {
    if (trace.guard((c.t_b->strides[1] == INT64_C(1)) != 0, kVariants[1].info, "(stride.b.1 == 1)")) return 1;
    return 0;
  }
}

// The table of the highest target that the call's device runs, or -1.
int table_of(const Call& c) {
  if (c.backend == &backend_cpu && c.level >= 4) return 0;
  (void)c;
  return -1;
}

template <typename Trace>
int choose(const Call& c, Trace& trace) {
  int choice = -1;
  switch (c.hollow ? -1 : table_of(c)) {
    case 0:
      choice = choose_0(c, trace);
      break;
    default:
      (void)trace;
      break;
  }
  if (choice >= 0) return choice;
  return 0;
}

int is_tuned(const Call& c);

void explain(const Call& c, Text& text) {
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
    return;
  }
  const int table = c.hollow ? -1 : table_of(c);
  constexpr const char* kTargets[] = {"cpu-x86-64-v4"};
  if (table >= 0) text.add("table: %s\n", kTargets[table]);
  text.add("tuned: %s\n", is_tuned(c) ? "yes" : "no");
  TextTrace trace{&text};
  const int choice = choose(c, trace);
  const bool generic = choice == 0;
  const char* why = !generic     ? "first of the variants ranked for such calls whose guards hold"
                    : c.hollow   ? "generic: an input has no elements"
                    : table < 0  ? "generic: no tuned variants for this level of the device"
                                 : "generic: no variant ranked for such calls accepts this one";
  explain_choice(text, kVariants[choice].info, why);
}

struct Tuned {
  int64_t dims[3];
  int64_t classes[5];  // of strides; -1 where the tensor is absent
  int32_t attributes[1];
};
constexpr Tuned kTuned_0[] = {
    {{16, 64, 64}, {65, 65, 8, -1, 65}, {1}},
};

int is_tuned(const Call& c) {
  if (c.empty || c.hollow) return 0;
  const Tuned* rows = nullptr;
  int count = 0;
  switch (table_of(c)) {
    case 0:
      rows = kTuned_0;
      count = 1;
      break;
    default:
      break;
  }
  const int64_t dims[] = {c.d_M, c.d_N, c.d_K};
  const int64_t classes[] = {stride_class(*c.t_a), stride_class(*c.t_b), c.t_bias != nullptr ? stride_class(*c.t_bias) : -1, c.t_residual != nullptr ? stride_class(*c.t_residual) : -1, stride_class(*c.t_out)};
  const int32_t attributes[] = {c.v_activation};
  for (int i = 0; i < count; ++i) {
    bool same = true;
    for (int k = 0; k < 3; ++k) same &= rows[i].dims[k] == dims[k];
    for (int k = 0; k < 5; ++k) same &= rows[i].classes[k] == classes[k];
    for (int k = 0; k < 1; ++k) same &= rows[i].attributes[k] == attributes[k];
    if (same) return 1;
  }
  return 0;
}

}  // namespace operator_gemm
}  // namespace

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_gemm(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, const aot_tune_exec* exec) {
  operator_gemm::Call call_;
  int32_t status_ = operator_gemm::read(call_, true, a, b, bias, residual, out, activation);
  if (status_ != AOT_TUNE_OK || call_.empty) return status_;
  NoTrace trace_;
  const operator_gemm::Variant& variant_ = operator_gemm::kVariants[operator_gemm::choose(call_, trace_)];
  size_t size_ = 0;
  status_ = variant_.workspace(call_.t_a, call_.t_b, call_.t_bias, call_.t_residual, call_.t_out, call_.v_activation, &size_);
  if (status_ != 0) return kernel_failed(operator_gemm::kOperator, variant_.info, "workspace", status_);
  void* memory_;
  status_ = take_workspace(operator_gemm::kOperator, *call_.backend, call_.view[0].tensor.device, exec, size_, &memory_);
  if (status_ != AOT_TUNE_OK) return status_;
  status_ = variant_.launch(call_.t_a, call_.t_b, call_.t_bias, call_.t_residual, call_.t_out, call_.v_activation, memory_, size_, exec != nullptr ? exec->stream : nullptr);
  return status_ == 0 ? AOT_TUNE_OK : kernel_failed(operator_gemm::kOperator, variant_.info, "launch", status_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_gemm_workspace(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, size_t* workspace_size) {
  operator_gemm::Call call_;
  *workspace_size = 0;
  int32_t status_ = operator_gemm::read(call_, false, a, b, bias, residual, out, activation);
  if (status_ != AOT_TUNE_OK || call_.empty) return status_;
  NoTrace trace_;
  const operator_gemm::Variant& variant_ = operator_gemm::kVariants[operator_gemm::choose(call_, trace_)];
  status_ = variant_.workspace(call_.t_a, call_.t_b, call_.t_bias, call_.t_residual, call_.t_out, call_.v_activation, workspace_size);
  return status_ == 0 ? AOT_TUNE_OK : kernel_failed(operator_gemm::kOperator, variant_.info, "workspace", status_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_gemm_explain(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, char* buffer, size_t size) {
  operator_gemm::Call call_;
  Text text_(buffer, size);
  int32_t status_ = operator_gemm::read(call_, false, a, b, bias, residual, out, activation);
  if (status_ != AOT_TUNE_OK) return status_;
  operator_gemm::explain(call_, text_);
  return AOT_TUNE_OK;
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_gemm_is_tuned(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual, const DLTensor* out, int32_t activation, int32_t* tuned) {
  operator_gemm::Call call_;
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
    {"x", "[M, N]", "f32", 2, 32, 2, false, false},
    {"weight", "[N]", "f32", 2, 32, 1, false, false},
    {"residual", "[M, N]", "f32", 2, 32, 2, false, true},
    {"out", "[M, N]", "f32", 2, 32, 2, true, false},
    {"residual_out", "[M, N]", "f32", 2, 32, 2, true, true},
};
constexpr OperatorInfo kOperator = {"rms_norm", kTensors, 5};
const Backend* const kBackends[] = {&backend_cpu};

struct Variant {
  VariantInfo info;
  int32_t (*workspace)(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, size_t*);
  int32_t (*launch)(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, void*, size_t, void*);
};
const Variant kVariants[] = {
    {{"norm", "cpu-x86-64", "norm", "3333333333333333333333333333333333333333333333333333333333333333"}, aot_tune_norm_workspace, aot_tune_norm_launch},
};

struct Call {
  View view[5];
  const Backend* backend;
  int32_t level;
  bool empty;   // no output has an element
  bool hollow;  // some output has elements, but not every input
  const DLTensor* t_x;
  const DLTensor* t_weight;
  const DLTensor* t_residual;
  const DLTensor* t_out;
  const DLTensor* t_residual_out;
  int64_t d_M;
  int64_t d_N;
  float v_eps;
};

// Checks a call and fills it in; `data` is false where no memory is touched.
int32_t read(Call& c, bool data, const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps) {
  const DLTensor* const given[] = {x, weight, residual, out, residual_out};
  if (int32_t status = read_tensors(kOperator, given, c.view)) return status;
  c.d_M = x->shape[0];
  c.d_N = x->shape[1];
  if (weight->shape[0] != c.d_N)
    return wrong_extent(kOperator, 1, 0, weight->shape[0], c.d_N, "N");
  if (residual != nullptr && residual->shape[0] != c.d_M)
    return wrong_extent(kOperator, 2, 0, residual->shape[0], c.d_M, "M");
  if (residual != nullptr && residual->shape[1] != c.d_N)
    return wrong_extent(kOperator, 2, 1, residual->shape[1], c.d_N, "N");
  if (out->shape[0] != c.d_M)
    return wrong_extent(kOperator, 3, 0, out->shape[0], c.d_M, "M");
  if (out->shape[1] != c.d_N)
    return wrong_extent(kOperator, 3, 1, out->shape[1], c.d_N, "N");
  if (residual_out != nullptr && residual_out->shape[0] != c.d_M)
    return wrong_extent(kOperator, 4, 0, residual_out->shape[0], c.d_M, "M");
  if (residual_out != nullptr && residual_out->shape[1] != c.d_N)
    return wrong_extent(kOperator, 4, 1, residual_out->shape[1], c.d_N, "N");
  c.empty = c.view[3].empty && (residual_out == nullptr || c.view[4].empty);
  c.hollow = !c.empty && (c.view[0].empty || c.view[1].empty || (residual != nullptr && c.view[2].empty));
  if (data && !c.empty) {
    if (int32_t status = check_memory(kOperator, given, c.view)) return status;
  }
  c.t_x = &c.view[0].tensor;
  c.t_weight = &c.view[1].tensor;
  c.t_residual = residual ? &c.view[2].tensor : nullptr;
  c.t_out = &c.view[3].tensor;
  c.t_residual_out = residual_out ? &c.view[4].tensor : nullptr;
  c.v_eps = eps;
  const DLDevice& device = c.view[0].tensor.device;
  return find_backend(kOperator, kBackends, 1, device, &c.backend, &c.level);
}

// The table of the highest target that the call's device runs, or -1.
int table_of(const Call& c) {
  (void)c;
  return -1;
}

template <typename Trace>
int choose(const Call& c, Trace& trace) {
  int choice = -1;
  switch (c.hollow ? -1 : table_of(c)) {
    default:
      (void)trace;
      break;
  }
  if (choice >= 0) return choice;
  return 0;
}

int is_tuned(const Call& c);

void explain(const Call& c, Text& text) {
  text.add("operator: %s\n", kOperator.name);
  text.add("device: %s level %d\n", c.backend->family, static_cast<int>(c.level));
  text.add("dim: M=%lld\n", static_cast<long long>(c.d_M));
  text.add("dim: N=%lld\n", static_cast<long long>(c.d_N));
  const DLTensor* const given[] = {c.t_x, c.t_weight, c.t_residual, c.t_out, c.t_residual_out};
  explain_tensors(text, kOperator, given, c.view);
  if (c.empty) {
    text.add("why: no output has elements, so nothing runs\n");
    return;
  }
  const int table = c.hollow ? -1 : table_of(c);
  text.add("tuned: %s\n", is_tuned(c) ? "yes" : "no");
  TextTrace trace{&text};
  const int choice = choose(c, trace);
  const bool generic = choice == 0;
  const char* why = !generic     ? "first of the variants ranked for such calls whose guards hold"
                    : c.hollow   ? "generic: an input has no elements"
                    : table < 0  ? "generic: no tuned variants for this level of the device"
                                 : "generic: no variant ranked for such calls accepts this one";
  explain_choice(text, kVariants[choice].info, why);
}

struct Tuned {
  int64_t dims[2];
  int64_t classes[5];  // of strides; -1 where the tensor is absent
  int32_t attributes[1];
};

int is_tuned(const Call& c) {
  if (c.empty || c.hollow) return 0;
  const Tuned* rows = nullptr;
  int count = 0;
  switch (table_of(c)) {
    default:
      break;
  }
  const int64_t dims[] = {c.d_M, c.d_N};
  const int64_t classes[] = {stride_class(*c.t_x), stride_class(*c.t_weight), c.t_residual != nullptr ? stride_class(*c.t_residual) : -1, stride_class(*c.t_out), c.t_residual_out != nullptr ? stride_class(*c.t_residual_out) : -1};
  const int32_t attributes[] = {0};
  for (int i = 0; i < count; ++i) {
    bool same = true;
    for (int k = 0; k < 2; ++k) same &= rows[i].dims[k] == dims[k];
    for (int k = 0; k < 5; ++k) same &= rows[i].classes[k] == classes[k];
    for (int k = 0; k < 1; ++k) same &= rows[i].attributes[k] == attributes[k];
    if (same) return 1;
  }
  return 0;
}

}  // namespace operator_rms_norm
}  // namespace

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_rms_norm(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, const aot_tune_exec* exec) {
  operator_rms_norm::Call call_;
  int32_t status_ = operator_rms_norm::read(call_, true, x, weight, residual, out, residual_out, eps);
  if (status_ != AOT_TUNE_OK || call_.empty) return status_;
  NoTrace trace_;
  const operator_rms_norm::Variant& variant_ = operator_rms_norm::kVariants[operator_rms_norm::choose(call_, trace_)];
  size_t size_ = 0;
  status_ = variant_.workspace(call_.t_x, call_.t_weight, call_.t_residual, call_.t_out, call_.t_residual_out, call_.v_eps, &size_);
  if (status_ != 0) return kernel_failed(operator_rms_norm::kOperator, variant_.info, "workspace", status_);
  void* memory_;
  status_ = take_workspace(operator_rms_norm::kOperator, *call_.backend, call_.view[0].tensor.device, exec, size_, &memory_);
  if (status_ != AOT_TUNE_OK) return status_;
  status_ = variant_.launch(call_.t_x, call_.t_weight, call_.t_residual, call_.t_out, call_.t_residual_out, call_.v_eps, memory_, size_, exec != nullptr ? exec->stream : nullptr);
  return status_ == 0 ? AOT_TUNE_OK : kernel_failed(operator_rms_norm::kOperator, variant_.info, "launch", status_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_rms_norm_workspace(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, size_t* workspace_size) {
  operator_rms_norm::Call call_;
  *workspace_size = 0;
  int32_t status_ = operator_rms_norm::read(call_, false, x, weight, residual, out, residual_out, eps);
  if (status_ != AOT_TUNE_OK || call_.empty) return status_;
  NoTrace trace_;
  const operator_rms_norm::Variant& variant_ = operator_rms_norm::kVariants[operator_rms_norm::choose(call_, trace_)];
  status_ = variant_.workspace(call_.t_x, call_.t_weight, call_.t_residual, call_.t_out, call_.t_residual_out, call_.v_eps, workspace_size);
  return status_ == 0 ? AOT_TUNE_OK : kernel_failed(operator_rms_norm::kOperator, variant_.info, "workspace", status_);
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_rms_norm_explain(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, char* buffer, size_t size) {
  operator_rms_norm::Call call_;
  Text text_(buffer, size);
  int32_t status_ = operator_rms_norm::read(call_, false, x, weight, residual, out, residual_out, eps);
  if (status_ != AOT_TUNE_OK) return status_;
  operator_rms_norm::explain(call_, text_);
  return AOT_TUNE_OK;
}

extern "C" AOT_TUNE_PUBLIC int32_t aot_tune_rms_norm_is_tuned(const DLTensor* x, const DLTensor* weight, const DLTensor* residual, const DLTensor* out, const DLTensor* residual_out, float eps, int32_t* tuned) {
  operator_rms_norm::Call call_;
  *tuned = 0;
  int32_t status_ = operator_rms_norm::read(call_, false, x, weight, residual, out, residual_out, eps);
  if (status_ != AOT_TUNE_OK) return status_;
  *tuned = operator_rms_norm::is_tuned(call_);
  return AOT_TUNE_OK;
}
