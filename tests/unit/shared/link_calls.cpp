// Calls of a library through its C interface, of the operators of linked.py and of two of odd_operators.py;
// built with sanitizers by link/test_c_library.py.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "aot_tune/ops.h"

namespace {

int failures = 0;

void check(bool good, const char* what, int line) {
  if (good) return;
  ++failures;
  std::printf("line %d: %s (last error: %s)\n", line, what, aot_tune_last_error());
}
#define CHECK(condition) check(condition, #condition, __LINE__)

// A tensor with memory of its own, exactly as large as its elements, filled with `value`.
struct Owner {
  std::vector<float> memory;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  DLTensor tensor{};

  Owner(std::vector<int64_t> extents, float value) : shape(std::move(extents)) {
    int64_t count = 1;
    strides.resize(shape.size());
    for (size_t i = shape.size(); i-- > 0;) {
      strides[i] = count;
      count *= shape[i];
    }
    memory.assign(static_cast<size_t>(count), value);
    tensor.data = memory.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = static_cast<int32_t>(shape.size());
    tensor.dtype = {kDLFloat, 32, 1};
    tensor.shape = shape.data();
    tensor.strides = strides.data();
  }
  Owner(const Owner&) = delete;
};

bool says(const char* part) { return std::strstr(aot_tune_last_error(), part) != nullptr; }

struct Gemm {
  Owner a{{4, 3}, 1.0f}, b{{3, 5}, 2.0f}, bias{{5}, 0.5f}, residual{{4, 5}, 1.0f}, out{{4, 5}, -1.0f};
  const aot_tune_exec* exec = nullptr;
  int32_t activation = AOT_TUNE_GEMM_ACTIVATION_NONE;

  int32_t run() {
    return aot_tune_gemm(&a.tensor, &b.tensor, &bias.tensor, &residual.tensor, &out.tensor, activation, exec);
  }
  // A call that must fail with `status`, say `part`, and write nothing.
  void fails(int32_t status, const char* part, int line) {
    check(run() == status, "status", line);
    check(says(part), part, line);
    for (float v : out.memory) check(v == -1.0f, "an output was written", line);
  }
};
#define FAILS(call, status, part) (call).fails(status, part, __LINE__)

void good_calls() {
  Gemm call;
  CHECK(call.run() == AOT_TUNE_OK);
  const float mark = call.out.memory[0] - 7.5f;
  CHECK(mark == 0 || mark == 10 || mark == 20 || mark == 30);
  call.a.tensor.strides = nullptr;
  call.out.tensor.strides = nullptr;
  CHECK(call.run() == AOT_TUNE_OK);
  CHECK(call.out.memory[19] == 7.5f + mark);

  Gemm shifted;
  float wide[16] = {9, 9};
  for (int i = 2; i < 14; ++i) wide[i] = 1;
  shifted.a.tensor.data = wide;
  shifted.a.tensor.byte_offset = 8;
  CHECK(shifted.run() == AOT_TUNE_OK);
  CHECK(shifted.out.memory[0] == 7.5f + mark);
  CHECK(aot_tune_gemm(&call.a.tensor, &call.b.tensor, nullptr, nullptr, &call.out.tensor, 0, nullptr) ==
        AOT_TUNE_OK);
  CHECK(call.out.memory[3] == 6.0f + mark);
}

void bad_calls() {
  {
    Gemm call;
    call.a.tensor.ndim = 3;
    FAILS(call, AOT_TUNE_ERROR_RANK, "gemm: tensor 'a' has 3 axes, wanted 2: [M, K]");
  }
  {
    Gemm call;
    call.b.tensor.dtype = {kDLFloat, 16, 1};
    FAILS(call, AOT_TUNE_ERROR_DTYPE, "'b' has dtype f16, wanted f32");
    call.b.tensor.dtype = {kDLFloat, 32, 4};
    FAILS(call, AOT_TUNE_ERROR_DTYPE, "'b' has dtype f32 x 4 lanes, wanted f32");
    call.b.tensor.dtype = {77, 32, 1};
    FAILS(call, AOT_TUNE_ERROR_DTYPE, "'b' has dtype DLPack type 77 with 32 bits, wanted f32");
  }
  {
    Gemm call;
    call.b.tensor.shape = nullptr;
    FAILS(call, AOT_TUNE_ERROR_NULL, "'b' has no shape");
  }
  {
    Gemm call;
    call.b.tensor.data = nullptr;
    FAILS(call, AOT_TUNE_ERROR_NULL, "'b' has no data");
    call.b.tensor.byte_offset = 64;
    FAILS(call, AOT_TUNE_ERROR_NULL, "'b' has no data");
  }
  {
    Gemm call;
    call.out.tensor.device = {kDLCPU, 1};
    FAILS(call, AOT_TUNE_ERROR_DEVICE, "'out' is on cpu:1, but 'a' is on cpu:0; wanted all on one device");
  }
  {
    Gemm call;
    for (Owner* o : {&call.a, &call.b, &call.bias, &call.residual, &call.out})
      o->tensor.device = {kDLCUDA, 2};
    FAILS(call, AOT_TUNE_ERROR_DEVICE, "gemm: tensors are on cuda:2, for which this library has no variants");
  }
  {
    Gemm call;
    call.a.shape[0] = -4;
    FAILS(call, AOT_TUNE_ERROR_SHAPE, "'a': axis 0 has the extent -4");
    call.a.shape[0] = INT64_MAX;
    FAILS(call, AOT_TUNE_ERROR_SHAPE, "'a' spans more than the address space");
    call.a.shape[0] = 4;
    call.a.strides[0] = INT64_MIN;
    FAILS(call, AOT_TUNE_ERROR_SHAPE, "'a' spans more than the address space");
    call.a.tensor.strides = nullptr;
    call.a.shape[0] = call.a.shape[1] = INT64_MAX;
    FAILS(call, AOT_TUNE_ERROR_SHAPE, "'a' spans more than the address space");
  }
  for (int before : {0, 1}) {  // also where the library remembers a call that differs in nothing else
    Gemm call;
    if (before != 0) CHECK(call.run() == AOT_TUNE_OK);
    for (float& v : call.out.memory) v = -1.0f;
    for (DLTensor* tensor : {&call.a.tensor, &call.out.tensor}) {
      tensor->byte_offset = UINT64_MAX - 63;
      FAILS(call, AOT_TUNE_ERROR_SHAPE, "spans more than the address space");
      tensor->byte_offset = 0;
    }
  }
  {
    Gemm call;
    call.bias.shape[0] = 4;
    FAILS(call, AOT_TUNE_ERROR_SHAPE, "'bias': axis 0 has extent 4, wanted N = 5 as in [N]");
  }
  for (const int32_t bad : {-1, 2, 99}) {
    Gemm call;
    call.activation = bad;
    FAILS(call, AOT_TUNE_ERROR_ATTRIBUTE, "wanted 0 (none) to 1 (relu)");
  }
  {
    Gemm call;
    call.out.strides = {0, 1};
    call.out.tensor.strides = call.out.strides.data();
    FAILS(call, AOT_TUNE_ERROR_LAYOUT, "output 'out' has elements that share memory");
  }
  {
    Gemm call;
    call.bias.tensor.data = reinterpret_cast<char*>(call.bias.memory.data()) + 2;
    FAILS(call, AOT_TUNE_ERROR_LAYOUT,
          "'bias' is at an address that is not a multiple of 4, the size of f32");
  }
  {
    Gemm call;
    call.residual.tensor.data = call.out.memory.data();
    FAILS(call, AOT_TUNE_ERROR_OVERLAP, "output 'out' overlaps input 'residual' in memory");
  }
  Gemm call;
  CHECK(aot_tune_gemm(nullptr, &call.b.tensor, nullptr, nullptr, &call.out.tensor, 0, nullptr) ==
        AOT_TUNE_ERROR_NULL);
  CHECK(says("gemm: tensor 'a' is missing (NULL); wanted f32 [M, K]"));
  CHECK(aot_tune_gemm(&call.a.tensor, &call.b.tensor, nullptr, nullptr, nullptr, 0, nullptr) ==
        AOT_TUNE_ERROR_NULL);
  CHECK(says("tensor 'out' is missing"));
}

void kernel_failures() {
  Owner a({2000, 2}, 1), b({2, 2}, 1), out({2000, 2}, 0);
  const int32_t status = aot_tune_gemm(&a.tensor, &b.tensor, nullptr, nullptr, &out.tensor, 0, nullptr);
  if (std::getenv("AOT_TUNE_CPU_LEVEL") !=
      nullptr) {  // at level 2 the nearest problem sends this to the variant that fails
    CHECK(status == AOT_TUNE_ERROR_KERNEL);
    CHECK(says("gemm: variant broken for cpu-x86-64-v2: launch returned 7"));
  }
}

void empty_calls() {
  Owner a({0, 3}, 1), b({3, 5}, 1), out({0, 5}, 1);
  a.tensor.data = out.tensor.data = nullptr;
  size_t size = 99;
  CHECK(aot_tune_gemm(&a.tensor, &b.tensor, nullptr, nullptr, &out.tensor, 0, nullptr) == AOT_TUNE_OK);
  CHECK(aot_tune_gemm_workspace(&a.tensor, &b.tensor, nullptr, nullptr, &out.tensor, 0, nullptr) ==
        AOT_TUNE_ERROR_NULL);
  CHECK(says("gemm: workspace has nowhere to write to: workspace_size is NULL"));
  CHECK(aot_tune_gemm_is_tuned(&a.tensor, &b.tensor, nullptr, nullptr, &out.tensor, 0, nullptr) ==
        AOT_TUNE_ERROR_NULL);
  CHECK(says("gemm: is_tuned has nowhere to write to: tuned is NULL"));
  CHECK(aot_tune_gemm_explain(&a.tensor, &b.tensor, nullptr, nullptr, &out.tensor, 0, nullptr, nullptr, 9) ==
        AOT_TUNE_ERROR_NULL);
  CHECK(says("gemm: explain has nowhere to write to: buffer is NULL"));
  CHECK(aot_tune_gemm_workspace(&a.tensor, &b.tensor, nullptr, nullptr, &out.tensor, 0, &size) ==
        AOT_TUNE_OK);
  CHECK(size == 0);
}

void workspaces() {
  Gemm call;
  size_t size = 0;
  CHECK(aot_tune_gemm_workspace(&call.a.tensor, &call.b.tensor, nullptr, nullptr, &call.out.tensor, 0,
                                &size) == 0);
  CHECK(aot_tune_last_error() != nullptr);
  if (std::getenv("AOT_TUNE_CPU_LEVEL") == nullptr) return;
  CHECK(size == 100);
  alignas(64) char memory[192] = {};
  aot_tune_exec exec{nullptr, memory, 99};  // too small for the first choice: the generic variant needs none
  call.exec = &exec;
  CHECK(call.run() == AOT_TUNE_OK);
  CHECK(call.out.memory[0] == 7.5f && memory[0] == 0);
  char text[4096];
  CHECK(aot_tune_gemm_explain(&call.a.tensor, &call.b.tensor, nullptr, nullptr, &call.out.tensor, 0, &exec,
                              text, sizeof text) == AOT_TUNE_OK);
  CHECK(std::strstr(text, "rejected: small_2: needs a workspace of 100 bytes, the caller's has 99\n") !=
        nullptr);
  CHECK(std::strstr(text, "variant: plain\n") != nullptr);
  for (float& v : call.out.memory) v = -1.0f;
  exec.workspace = memory + 32;
  exec.workspace_size = 128;
  FAILS(call, AOT_TUNE_ERROR_WORKSPACE, "the workspace is not aligned to 64 bytes");
  exec.workspace = memory + 64;
  for (Owner* shared : {&call.a, &call.bias, &call.out}) {
    void* const mine = shared->tensor.data;
    shared->tensor.data = memory + 160;
    FAILS(call, AOT_TUNE_ERROR_OVERLAP,
          shared == &call.out ? "the workspace overlaps output 'out' in memory"
                              : "the workspace overlaps input '");
    CHECK(memory[64] == 0);
    shared->tensor.data = mine;
  }
  CHECK(call.run() == AOT_TUNE_OK);
  CHECK(memory[63] == 0 && memory[64] == 1 && memory[163] == 1 && memory[164] == 0);
  exec = {nullptr, nullptr, 0};
  CHECK(call.run() == AOT_TUNE_OK);
}

void explanations() {
  Gemm call;
  const auto explain = [&call](char* text, size_t size) {
    return aot_tune_gemm_explain(&call.a.tensor, &call.b.tensor, nullptr, nullptr, &call.out.tensor, 0,
                                 nullptr, text, size);
  };
  std::vector<char> whole(4096);
  CHECK(explain(whole.data(), whole.size()) == AOT_TUNE_OK);
  const std::string text = whole.data();
  CHECK(text.find("operator: gemm\n") == 0);
  CHECK(text.find("\nvariant: ") != std::string::npos);
  for (size_t size = 1; size <= text.size() + 2; ++size) {
    std::vector<char> part(size, 'x');  // exactly as large: a byte too many is seen by the sanitizer
    CHECK(explain(part.data(), size) == AOT_TUNE_OK);
    CHECK(std::strlen(part.data()) == std::min(size - 1, text.size()));
    CHECK(text.compare(0, size - 1, part.data()) == 0);
  }
  CHECK(explain(nullptr, 0) == AOT_TUNE_OK);
  call.a.tensor.data = call.b.tensor.data = call.out.tensor.data = nullptr;  // data is not needed to explain
  CHECK(explain(whole.data(), whole.size()) == AOT_TUNE_OK);
  int32_t tuned = 7;
  CHECK(aot_tune_gemm_is_tuned(&call.a.tensor, &call.b.tensor, nullptr, nullptr, &call.out.tensor, 0,
                               &tuned) == 0);
  CHECK(tuned == 0);
  call.a.tensor.ndim = 1;
  CHECK(explain(whole.data(), whole.size()) == AOT_TUNE_ERROR_RANK);
  CHECK(whole[0] == '\0');
}

void threads() {
  Gemm call;
  call.a.tensor.ndim = 1;
  CHECK(call.run() == AOT_TUNE_ERROR_RANK);
  std::thread other([] {
    CHECK(aot_tune_last_error()[0] == '\0');
    Gemm mine;
    CHECK(mine.run() == AOT_TUNE_OK);
    mine.b.shape[0] = 1;
    CHECK(mine.run() == AOT_TUNE_ERROR_SHAPE);
  });
  other.join();
  CHECK(says("'a' has 1 axes"));
}

void scalars() {
  Owner x({2, 4}, 3), weight({4}, 1), out({2, 4}, 0);
  CHECK(aot_tune_rms_norm(&x.tensor, &weight.tensor, nullptr, &out.tensor, nullptr, 7.0f, nullptr) ==
        AOT_TUNE_OK);
  CHECK(std::fabs(out.memory[7] - 0.75f) < 1e-6f);
}

// A tensor without data, with room for what `infer` tells.
struct Described {
  int64_t shape[8] = {}, strides[8] = {};
  DLTensor tensor{nullptr, {kDLCPU, 0}, 0, {kDLFloat, 32, 1}, shape, strides, 0};

  Described() = default;
  Described(const std::vector<int64_t>& extents, const std::vector<int64_t>& steps) {
    std::copy(extents.begin(), extents.end(), shape);
    std::copy(steps.begin(), steps.end(), strides);
    tensor.ndim = static_cast<int32_t>(extents.size());
  }
  bool is(const std::vector<int64_t>& extents, const std::vector<int64_t>& steps) const {
    return tensor.ndim == static_cast<int32_t>(extents.size()) &&
           std::equal(extents.begin(), extents.end(), shape) &&
           std::equal(steps.begin(), steps.end(), strides);
  }
};

void shapes() {
  Described x({2, 3, 4}, {12, 4, 1}), weight({4}, {1}), out, folded, same, made;
  DLTensor* const outputs[] = {nullptr, nullptr, nullptr, &out.tensor, nullptr};
  DLTensor* const taken[] = {&folded.tensor, &same.tensor, nullptr, &made.tensor, nullptr};
  const DLTensor* first = &x.tensor;
  const auto infer = [&](DLTensor* const* places) {
    return aot_tune_rms_norm_infer(first, &weight.tensor, nullptr, nullptr, nullptr, 1e-5f, outputs, places);
  };
  CHECK(infer(taken) == AOT_TUNE_OK);
  CHECK(out.is({2, 3, 4}, {12, 4, 1}));
  CHECK(folded.is({6, 4}, {4, 1}));
  CHECK(made.is({6, 4}, {4, 1}));
  DLTensor* const none[5] = {};
  DLTensor* const some[] = {&folded.tensor, &same.tensor, nullptr, nullptr, nullptr};
  CHECK(infer(none) == AOT_TUNE_ERROR_NULL && says("'x' to: its place in 'taken'"));
  CHECK(infer(some) == AOT_TUNE_ERROR_NULL && says("'out' to:"));
  x.strides[0] = 13;
  CHECK(infer(taken) == AOT_TUNE_ERROR_LAYOUT);
  x.shape[1] = -3, x.strides[0] = -12;
  CHECK(infer(taken) == AOT_TUNE_ERROR_SHAPE && says("output 'out' has no shape here"));
  first = nullptr;
  CHECK(infer(taken) == AOT_TUNE_ERROR_NULL);
  first = &x.tensor, x.tensor.ndim = 9;
  CHECK(infer(taken) == AOT_TUNE_ERROR_RANK);
}

// What a call does not check before infer does.
void orders() {
  Described x({4, 1, 1, INT64_MAX}, {1, 1, 1, 1}), like({4, 1, 1, INT64_MAX}, {1, 1, 1, INT64_MIN}), out,
      plain;
  DLTensor* const outputs[] = {nullptr, nullptr, &out.tensor, &plain.tensor};
  const auto infer = [&] {
    return aot_tune_copy_infer(&x.tensor, &like.tensor, nullptr, nullptr, outputs, outputs);
  };
  CHECK(infer() == AOT_TUNE_OK);
  CHECK(out.shape[3] == INT64_MAX);
  x.shape[2] = like.shape[2] = 2, x.shape[3] = like.shape[3] = 3;
  like.tensor.shape = nullptr;
  out.strides[3] = 2;
  infer();
  CHECK(out.strides[3] != 2);
}

void choices() {
  char text[4096];
  bool small = false, packed = false;
  for (const int64_t m : {1, 7, 16, 100, 3000}) {
    for (const int64_t n : {1, 24, 32, 500}) {
      for (const int64_t k : {4, 6, 24, 4000}) {
        Described a({m, k}, {k, 1}), b({k, n}, {n, 1}), out({m, n}, {n, 1});
        for (const int32_t relu : {0, 1}) {
          CHECK(aot_tune_likely_explain(&a.tensor, &b.tensor, nullptr, nullptr, &out.tensor, relu, nullptr,
                                        text, sizeof text) == AOT_TUNE_OK);
          // no times are expected of calls with relu, so that the nearest problem decides
          CHECK((relu == 0) == (std::strstr(text, "\nregime: ") != nullptr));
          CHECK(relu == 0 || std::strstr(text, "\nexpected: ") == nullptr);
          small |= std::strstr(text, "\nvariant: small\n") != nullptr;
          packed |= std::strstr(text, "\nvariant: packed\n") != nullptr;
        }
      }
    }
  }
  CHECK(small && packed);
}

}  // namespace

int main() {
  good_calls();
  bad_calls();
  kernel_failures();
  empty_calls();
  workspaces();
  explanations();
  threads();
  scalars();
  shapes();
  orders();
  choices();
  CHECK(std::strstr(aot_tune_manifest(), "\"library\"") != nullptr);
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
