// Stands in for libcublasLt.so, or with DRIVER for libcuda.so.1, on machines without a GPU. A product is
// zeros; every call is written to a log. Descriptors hold what they were given, word by word.
#include <dlfcn.h>

#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#ifdef DRIVER

static thread_local int32_t mode = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL

extern "C" int cuThreadExchangeStreamCaptureMode(int32_t* given) {
  const int32_t before = mode;
  mode = *given;
  *given = before;
  return 0;
}
extern "C" int cuCtxGetDevice(int32_t* device) {
  *device = 1;
  return 0;
}
extern "C" int cuInit(unsigned) { return 0; }
extern "C" int cuDeviceGetAttribute(int* value, int, int) {
  *value = 4;
  return 0;
}
extern "C" int stub_mode() { return mode; }

#else

#ifndef VERSION
#define VERSION 130100
#endif

// The first algorithm that it takes itself.
#ifndef NAMED
#define NAMED 900
#endif
#ifndef NAMED_OPTION
#define NAMED_OPTION 0
#define NAMED_CLUSTER 0
#endif

namespace {

char log_text[1 << 16];
size_t log_size = 0;

// Set by the test.
int create_status = 0, check_status = 0, heuristic_status = 0, heuristic_count = 1;
int tell_sizes = 0;
uint64_t refused_epilogues = 0;  // bits of those that no algorithm serves
uint64_t check_workspace = 4096;

void note(const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int written = std::vsnprintf(log_text + log_size, sizeof(log_text) - log_size, format, values);
  va_end(values);
  if (written > 0) log_size += static_cast<size_t>(written);
  if (log_size >= sizeof(log_text)) log_size = sizeof(log_text) - 1;
}

int capture_mode() {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return -1;
  return reinterpret_cast<int (*)()>(dlsym(driver, "stub_mode"))();
}

// Words of an algorithm: 0 the id, then its attributes by their numbers.
struct Result {
  uint64_t algorithm[8];
  size_t workspace;
  int32_t state;
  float waves;
  int32_t reserved[4];
};

uint32_t word(const uint64_t* algorithm, int attribute) {
  return reinterpret_cast<const uint32_t*>(algorithm)[attribute];
}

// Whether layouts are of one number of matrices.
bool alike(const uint64_t* la, const uint64_t* lb, const uint64_t* lc, const uint64_t* ld) {
  return la[5] == ld[5] && lb[5] == ld[5] && lc[5] == ld[5];
}

}  // namespace

extern "C" {

const char* stub_log() { return log_text; }
void stub_clear() { log_text[log_size = 0] = '\0'; }
void stub_set(const char* what, int64_t value) {
  const auto is = [what](const char* name) { return std::strcmp(what, name) == 0; };
  if (is("create_status")) create_status = static_cast<int>(value);
  if (is("check_status")) check_status = static_cast<int>(value);
  if (is("check_workspace")) check_workspace = static_cast<uint64_t>(value);
  if (is("heuristic_status")) heuristic_status = static_cast<int>(value);
  if (is("heuristic_count")) heuristic_count = static_cast<int>(value);
  if (is("tell_sizes")) tell_sizes = static_cast<int>(value);
  if (is("refused_epilogues")) refused_epilogues = static_cast<uint64_t>(value);
}

size_t cublasLtGetVersion() { return VERSION; }
int cublasLtCreate(void** handle) {
  static int made = 0;
  note("create mode=%d\n", capture_mode());
  *handle = create_status == 0 ? &made : nullptr;
  return create_status;
}
int cublasLtDestroy(void*) { return 0; }

int cublasLtMatrixLayoutInit_internal(uint64_t* to, size_t size, int type, uint64_t rows, uint64_t columns,
                                      int64_t ld) {
  if (size < 14 * 8) return 3;
  to[0] = static_cast<uint64_t>(type), to[1] = rows, to[2] = columns, to[3] = static_cast<uint64_t>(ld);
  to[5] = 1, to[6] = 0;
  return static_cast<uint64_t>(ld) < rows ? 7 : 0;
}
#ifndef LACKS_LAYOUT_SET
int cublasLtMatrixLayoutSetAttribute(uint64_t* to, int attribute, const void* value, size_t size) {
  if (attribute != 0 && attribute != 5 && attribute != 6) return 7;
  if (size != (attribute == 6 ? 8 : 4)) return 7;
  to[attribute] = 0;
  std::memcpy(&to[attribute], value, size);
  return 0;
}
#endif
int cublasLtMatmulDescInit_internal(uint64_t* to, size_t size, int compute, int scale) {
  if (size < 32 * 8) return 3;
  std::memset(to, 0, 32 * 8);
  to[0] = static_cast<uint64_t>(compute), to[1] = static_cast<uint64_t>(scale), to[7] = 1;
  return 0;
}
int cublasLtMatmulDescSetAttribute(uint64_t* to, int attribute, const void* value, size_t size) {
  if (size != (attribute == 8 ? 8 : 4)) return 7;
  to[attribute] = 0;
  std::memcpy(&to[attribute], value, size);
  return 0;
}
int cublasLtMatmulPreferenceInit_internal(uint64_t* to, size_t size) {
  if (size < 12 * 8) return 3;
  std::memset(to, 0, 12 * 8);
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(uint64_t* to, int attribute, const void* value, size_t size) {
  if (size != (attribute == 1 ? 8 : 4)) return 7;
  to[attribute] = 0;
  std::memcpy(&to[attribute], value, size);
  return 0;
}

int cublasLtMatmulAlgoInit(void*, int, int, int, int, int, int, int id, uint64_t* algorithm) {
  std::memset(algorithm, 0, 64);
  if (id > 1000) return 7;
  reinterpret_cast<uint32_t*>(algorithm)[0] = static_cast<uint32_t>(id);
  reinterpret_cast<uint32_t*>(algorithm)[2] = 1;
  return 0;
}
int cublasLtMatmulAlgoConfigSetAttribute(uint64_t* algorithm, int attribute, const void* value, size_t size) {
  if (attribute < 1 || attribute > 8 || size != (attribute >= 7 ? 2 : 4)) return 7;
  uint32_t taken = 0;
  std::memcpy(&taken, value, size);
  reinterpret_cast<uint32_t*>(algorithm)[attribute] = taken;
  return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const uint64_t* algorithm, int attribute, void* value, size_t size,
                                         size_t* got) {
  if (attribute < 0 || attribute > 8 || size != (attribute >= 7 ? 2 : 4)) return 7;
  const uint32_t held = word(algorithm, attribute);
  std::memcpy(value, &held, size);
  *got = size;
  return 0;
}
int cublasLtMatmulAlgoGetIds(void*, int, int, int, int, int, int, int wanted, int* ids, int* count) {
  const int all[] = {7, 21, 66};
  *count = wanted < 3 ? wanted : 3;
  std::memcpy(ids, all, static_cast<size_t>(*count) * sizeof(int));
  return 0;
}
// 7: nothing but one tile, no batches. 21: tiles, stages, options, splits. 66: needs a cluster that is named.
int cublasLtMatmulAlgoCapGetAttribute(const uint64_t* algorithm, int attribute, void* value, size_t size,
                                      size_t* got) {
  static const uint32_t tiles[] = {5, 15, 20, 23}, stages[] = {8, 9, 36};
  const uint32_t id = word(algorithm, 0);
  uint32_t one = 0;
  const void* from = &one;
  size_t bytes = 4;
  if (attribute == 6 && id != 7) from = tiles, bytes = sizeof(tiles);
  if (attribute == 6 && id == 7) bytes = 0;
  if (attribute == 13 && id == 21) from = stages, bytes = sizeof(stages);
  if (attribute == 13 && id != 21) bytes = 0;
  if (attribute == 0) one = id == 21;
  if (attribute == 1) one = id == 21 ? 3 : 0;
  if (attribute == 2) one = id == 21;
  if (attribute == 3) one = id != 7;
  if (attribute == 4) one = id != 7;
  if (attribute == 7) one = id == 21 ? 2 : 0;
  if (attribute >= 16) one = 16;
  *got = bytes;
  if (size == 0) return 0;
  if (size != bytes) return 7;
  std::memcpy(value, from, bytes);
  return 0;
}
int cublasLtMatmulAlgoCheck(void*, const uint64_t*, const uint64_t* la, const uint64_t* lb,
                            const uint64_t* lc, const uint64_t* ld, const uint64_t* algorithm,
                            Result* result) {
  note("check id=%u mode=%d\n", word(algorithm, 0), capture_mode());
  result->workspace = check_workspace;
  result->state = check_status;
  if (!alike(la, lb, lc, ld)) return 7;
  if (word(algorithm, 0) == 66 && word(algorithm, 8) == 0) return 15;
  if (word(algorithm, 1) == 23 && word(algorithm, 6) == 36) return 15;
  return check_status;
}
// Of a batch, the tile is the number of matrices; option, swizzle and stages are the distances of A's, B's
// and D's.
int cublasLtMatmulAlgoGetHeuristic(void*, const uint64_t* desc, const uint64_t* la, const uint64_t* lb,
                                   const uint64_t* lc, const uint64_t* ld, const uint64_t* preference,
                                   int wanted, Result* results, int* count) {
  note("heuristic limit=%llu reduction=%llu alignment=", static_cast<unsigned long long>(preference[1]),
       static_cast<unsigned long long>(preference[3]));
  for (int i = 5; i < 9; ++i) {
    note("%llu%s", static_cast<unsigned long long>(preference[i]), i < 8 ? "," : "\n");
  }
  if (!alike(la, lb, lc, ld)) return 7;
  *count = wanted < heuristic_count ? wanted : heuristic_count;
  if ((desc[7] & refused_epilogues) != 0) *count = 0;
  for (int i = 0; i < *count; ++i) {
    results[i] = Result{};
    cublasLtMatmulAlgoInit(nullptr, 0, 0, 0, 0, 0, 0, NAMED + i, results[i].algorithm);
    results[i].workspace = 1024;
    auto* const words = reinterpret_cast<uint32_t*>(results[i].algorithm);
    words[5] = NAMED_OPTION, words[8] = NAMED_CLUSTER;
    if (ld[5] == 1) continue;
    words[1] = static_cast<uint32_t>(ld[5]), words[4] = static_cast<uint32_t>(lb[6]);
    words[5] = static_cast<uint32_t>(la[6]), words[6] = static_cast<uint32_t>(ld[6]);
  }
  return heuristic_status;
}

#ifndef LACKS_MATMUL
int cublasLtMatmul(void*, const uint64_t* desc, const float*, const void*, const uint64_t* la, const void*,
                   const uint64_t* lb, const float*, const void*, const uint64_t* lc, void* d, const uint64_t* ld, const uint64_t* algorithm, void*, size_t workspace,
                   void* stream) {
  const auto epilogue = static_cast<uint32_t>(desc[7]);
  const uint64_t rows = ld[1], columns = ld[2], depth = desc[3] != 0 ? la[1] : la[2];
  note("matmul id=%u", word(algorithm, 0));
  for (int i = 1; i < 9; ++i) note(" %u", word(algorithm, i));
  note(" batch=%d", static_cast<int>(ld[5]));
  note(" type=%d compute=%d epilogue=%u workspace=%zu stream=%zu mode=%d\n", static_cast<int>(ld[0]),
       static_cast<int>(desc[0]), epilogue, workspace, reinterpret_cast<size_t>(stream), capture_mode());
  if (tell_sizes != 0) note("size %zux%zux%zu\n", columns, rows, depth);
  if (!alike(la, lb, lc, ld)) return 7;
  const uint64_t size = ld[0] == 0 ? 4 : 2;  // of f32, or 16 bits
  for (uint64_t j = 0; j < ld[5] * columns; ++j) {
    const uint64_t at = j / columns * ld[6] + j % columns * ld[3];
    std::memset(static_cast<char*>(d) + at * size, 0, rows * size);
  }
  return 0;
}
#endif

}  // extern "C"

#endif
