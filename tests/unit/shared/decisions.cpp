// A library's operator written by hand: what the templates of the runtime decide, tell and remember of its
// calls.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "operator.h"

#define CHECK(condition)                                  \
  do {                                                    \
    if (!(condition)) {                                   \
      std::printf("line %d: %s\n", __LINE__, #condition); \
      ++failures;                                         \
    }                                                     \
  } while (false)

using namespace aot_tune;

namespace {

int failures = 0;
int launched = -1;

// y[M, N] = x[M, N] * factor, of at most 8 axes in place of M
constexpr const char* kModes[] = {"plain", "odd"};
constexpr TensorInfo kTensors[] = {
    {"x", "[M, max(N, 1)]", "f32", {2, 32, "float32"}, 2, -1, false, false, false, false, -1, true},
    {"y", "[M, max(N, 1)]", "f32", {2, 32, "float32"}, 2, -1, true, false, false, false, -1, true},
};
constexpr ScalarInfo kScalars[] = {{"factor", ScalarInfo::kF32, {2.0f}}};
constexpr AttributeInfo kAttributes[] = {{"mode", kModes, 2}};
constexpr const char* kDims[] = {"M", "N"};
void shape(int, const int64_t* dims, int64_t* extents) {
  extents[0] = dims[0];
  extents[1] = dims[1];
}
constexpr OperatorInfo kInfo = {"scale", kTensors, 2,       kScalars, 1, kAttributes, 1,
                                kDims,   2,        nullptr, 0,        1, 0,           shape};

int32_t level_3(int32_t) noexcept { return 3; }
int32_t some_memory(int32_t, void*, size_t, Workspace* taken) noexcept {
  alignas(64) static char memory[64];
  taken->memory = memory;
  return AOT_TUNE_OK;
}
const Backend kBackend = {"cpu",   kDLCPU,  level_3, some_memory, nullptr,
                          nullptr, nullptr, nullptr, nullptr,     nullptr};
const FamilyInfo kAll[] = {{&kBackend, "cpu", ""}};
const VariantInfo kFour[] = {{"generic", "cpu", "plain", "", &kBackend, 1, 0, true, false},
                             {"small", "cpu", "rows", "", &kBackend, 1, 0, false, true},
                             {"large", "cpu", "rows", "", &kBackend, 1, 0, false, true},
                             {"later", "cpu", "later", "", &kBackend, 1, 0, false, false}};

template <int kVariant>
int32_t need_none(const DLTensor*, const DLTensor*, float, int32_t, size_t* size) {
  *size = kVariant == 2 ? 64 : 0;
  return 0;
}
template <int kVariant>
int32_t run_one(const DLTensor*, const DLTensor*, float, int32_t, void*, size_t, void*) {
  launched = kVariant;
  return 0;
}
template <int kVariant>
constexpr Functions<const DLTensor*, const DLTensor*, float, int32_t> kOf = {
    need_none<kVariant>, run_one<kVariant>, nullptr, nullptr};
const Functions<const DLTensor*, const DLTensor*, float, int32_t> kRun[] = {kOf<0>, kOf<1>, kOf<2>, kOf<3>};

struct Scale {
  using Call = CallOf<Scale>;
  struct Pass {
    template <typename Function, typename... More>
    static auto to(Function function, Tensors t, const Scalar* s, const int32_t* c, More... more) {
      return function(t[0], t[1], s[0].f32, c[0], more...);
    }
  };
  static constexpr const OperatorInfo& kOperator = kInfo;
  static constexpr const auto& kVariants = kFour;
  static constexpr const auto& kFunctions = kRun;
  static constexpr const auto& kFamilies = kAll;
  static constexpr int16_t kGenerics[] = {0};
  static const TableInfo<Scale> kTables[2];
  static constexpr int kTableCount = 2;
  static constexpr size_t kMostExpected = 2;
  static constexpr size_t kMostTerms = 1;
  static constexpr FactsInfo kFacts = {&kInfo, kFour, 4};
  static constexpr bool kRunsOnHost = true;
  static inline thread_local void* known_calls = nullptr;
  static inline std::atomic<uint64_t> loaded[4];

  static int32_t bind(Tensors t, const Scalar*, int64_t* dims) {
    dims[0] = t[0]->shape[0];
    dims[1] = t[0]->shape[1];
    return AOT_TUNE_OK;
  }
  static int32_t check_legal(const Call&) { return AOT_TUNE_OK; }
  static const char* refusal(const Call& c, int variant) {
    return variant == 2 && c.dims[1] % 4 != 0 ? "N % 4 == 0"
           : variant == 3 && c.dims[0] > 8    ? "M <= 8"
                                              : nullptr;
  }
};

constexpr int16_t kMeasured[] = {1, 2};
constexpr int16_t kLater[] = {3};
constexpr int16_t kRanked[] = {1, 2, 1, 0, 1};
constexpr int64_t kRowMajor = 65;  // the class of such strides
// of problems with M=4 N=8, M=64 N=64, and M=2 N=2, where the generic one was the fastest
constexpr Row<Scale> kRows[] = {{{4, 8}, {kRowMajor, kRowMajor}, {0}, {0}, 0, 1},
                                {{64, 64}, {kRowMajor, kRowMajor}, {0}, {0}, 1, 2},
                                {{2, 2}, {kRowMajor, kRowMajor}, {0}, {0}, 3, 2}};
int16_t slots[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
int kind(const Scale::Call& c) { return c.arguments.attributes[0]; }
void terms(const Scale::Call& c, int64_t* t) { t[0] = c.dims[0]; }
bool always(const Scale::Call&) { return true; }
int64_t rising(const Scale::Call&, const int64_t* t, int64_t) { return 100 * t[0]; }
int64_t level(const Scale::Call&, const int64_t*, int64_t) { return 1000; }
const ExpectedInfo<Scale> kExpected[] = {{0, 1, 0, 1, always, rising}, {0, 2, 50, 1, always, level}};

Variants all(const int16_t* indices, int count) { return {indices, count}; }
const Variants kNone = {nullptr, 0};

}  // namespace

// For level 3 by expected times, for level 1 and 2 by the nearest problem.
const TableInfo<Scale> Scale::kTables[] = {{&kBackend,
                                            3,
                                            0,
                                            0,
                                            {"three", nullptr, 0, true},
                                            all(kMeasured, 2),
                                            kNone,
                                            kNone,
                                            nullptr,
                                            0,
                                            nullptr,
                                            nullptr,
                                            0,
                                            kExpected,
                                            2,
                                            kind,
                                            terms},
                                           {&kBackend,
                                            1,
                                            0,
                                            0,
                                            {"one", nullptr, 0, false},
                                            all(kRanked, 3),
                                            kNone,
                                            all(kLater, 1),
                                            kRows,
                                            3,
                                            kRanked,
                                            slots,
                                            7,
                                            nullptr,
                                            0,
                                            nullptr,
                                            nullptr}};

namespace aot_tune {
const LibraryInfo library_info = {"ops", "", nullptr, 0};
}

namespace {

// A matrix of M rows and N columns, with room for what infer tells.
struct Matrix {
  float memory[64 * 66] = {};
  int64_t shape[kMaxRank], strides[kMaxRank];
  DLTensor tensor = {memory, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, strides, 0};
  Matrix(int64_t m, int64_t n) : shape{m, n}, strides{n, 1} {}
};

bool is_measured;

int decided(int table, int64_t m, int64_t n, int32_t mode = 0) {
  Matrix x(m, n), y(m, n);
  Scale::Call c;
  if (read(c, true, Arguments<Scale>{{&x.tensor, &y.tensor}, {2.0f}, {mode}}) != AOT_TUNE_OK) return -2;
  is_measured = measured(Scale::kTables[table], c) != nullptr;
  NoTrace none;
  return decide(Scale::kTables[table], c, none);
}

int32_t call_of(Matrix& x, Matrix& y, const aot_tune_exec* exec = nullptr) {
  launched = -1;
  return call<Scale>({{&x.tensor, &y.tensor}, {2.0f}, {0}}, exec);
}

void decisions() {
  CHECK(decided(1, 4, 8) == 1);
  CHECK(decided(1, 64, 64) == 2);
  CHECK(is_measured);
  CHECK(decided(1, 50, 60) == 2);
  CHECK(!is_measured);
  CHECK(decided(1, 50, 61) == 1);  // the guard refuses the first
  CHECK(decided(1, 2, 2) == 0);    // the generic one was measured to be the fastest
  CHECK(decided(0, 4, 8) == 1);    // 400 is less than 1050
  CHECK(decided(0, 11, 8) == 2);
  CHECK(decided(0, 11, 9) == 1);
  CHECK(decided(0, 11, 8, 1) == -1);  // a kind that nothing is known of
}

void calls() {
  Matrix x(64, 64), y(64, 64);
  for (int i = 0; i < 3; ++i) {
    CHECK(call_of(x, y) == AOT_TUNE_OK);
    CHECK(launched == 2);
  }
  aot_tune_exec exec = {nullptr, x.memory, 8};  // the first one does not fit into it
  CHECK(call_of(x, y, &exec) == AOT_TUNE_OK);
  CHECK(launched == 1);
  y.shape[1] = 63;
  CHECK(call_of(x, y) == AOT_TUNE_ERROR_SHAPE);
  CHECK(std::strcmp(last_error(),
                    "scale: tensor 'y': axis 1 has extent 63, wanted max(N, 1) = 64 as in [M, max(N, 1)]") ==
        0);
  x.tensor.ndim = 1;
  CHECK(call_of(x, y) == AOT_TUNE_ERROR_RANK);
  CHECK(launched == -1);
}

void shapes() {
  Matrix x(2, 3), y(0, 0), folded(0, 0), made(0, 0);
  x.shape[2] = 4;
  x.tensor.ndim = 3;
  x.strides[0] = 12, x.strides[1] = 4, x.strides[2] = 1;
  DLTensor* const outputs[] = {nullptr, &y.tensor};
  DLTensor* const taken[] = {&folded.tensor, &made.tensor};
  CHECK(infer<Scale>({{&x.tensor, nullptr}, {2.0f}, {0}}, outputs, taken) == AOT_TUNE_OK);
  CHECK(y.tensor.ndim == 3 && y.shape[0] == 2 && y.shape[1] == 3 && y.shape[2] == 4 && y.strides[0] == 12);
  CHECK(folded.tensor.ndim == 2 && folded.shape[0] == 6 && folded.shape[1] == 4 && folded.strides[0] == 4);
  CHECK(made.tensor.ndim == 2 && made.shape[0] == 6 && made.shape[1] == 4);
  DLTensor* const none[] = {nullptr, nullptr};
  DLTensor* const first[] = {&folded.tensor, nullptr};
  for (DLTensor* const* few : {none, first}) {
    CHECK(infer<Scale>({{&x.tensor, nullptr}, {2.0f}, {0}}, outputs, few) == AOT_TUNE_ERROR_NULL);
    CHECK(std::strstr(last_error(), few == none ? "'x' to: its place in 'taken'" : "'y' to:") != nullptr);
  }
  x.strides[0] = 13;
  CHECK(infer<Scale>({{&x.tensor, nullptr}, {2.0f}, {0}}, outputs, taken) == AOT_TUNE_ERROR_LAYOUT);
  x.shape[1] = -3;
  x.strides[0] = -12;
  CHECK(infer<Scale>({{&x.tensor, nullptr}, {2.0f}, {0}}, outputs, taken) == AOT_TUNE_ERROR_SHAPE);
  CHECK(std::strstr(last_error(), "output 'y' has no shape here") != nullptr);
  CHECK(infer<Scale>({{nullptr, nullptr}, {2.0f}, {0}}, outputs, taken) == AOT_TUNE_ERROR_NULL);
  x.tensor.ndim = 9;
  CHECK(infer<Scale>({{&x.tensor, nullptr}, {2.0f}, {0}}, outputs, taken) == AOT_TUNE_ERROR_RANK);
}

// What a call does not check before infer does.
void orders() {
  Matrix like(1, INT64_MAX), made(2, 3);
  like.strides[1] = INT64_MIN;
  lay_out_like(&like.tensor, &made.tensor);
  like.tensor.shape = nullptr;
  made.strides[0] = 1, made.strides[1] = 2;
  lay_out_like(&like.tensor, &made.tensor);
  CHECK(made.strides[0] == 3 && made.strides[1] == 1);
}

}  // namespace

int main() {
  for (int16_t row = 0; row < 3; ++row) {
    Scale::Call c = {};
    std::memcpy(c.dims, kRows[row].dims, sizeof c.dims);
    uint64_t at = place_of_row(c);
    while (slots[at & 7] >= 0) ++at;
    slots[at & 7] = row;
  }
  decisions();
  calls();
  shapes();
  orders();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
