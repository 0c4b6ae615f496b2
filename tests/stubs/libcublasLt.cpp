// Stands in for libcublasLt.so on machines without a GPU. A product is zeros; every call is written to a log.
// Descriptors hold what they were given, word by word.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "stand_in.h"

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

size_t cublasLtGetVersion() { return VERSION; }
int cublasLtCreate(void** handle) {
  static int made = 0;
  note("create mode=%d", capture_mode());
  *handle = status("create") == 0 ? &made : nullptr;
  return status("create");
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
  if (size != (attribute == 8 || attribute == 17 || attribute == 18 ? 8 : 4)) return 7;
  if (attribute > 30 && VERSION < 120900) return 7;
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
  note("check id=%u mode=%d", word(algorithm, 0), capture_mode());
  result->workspace = static_cast<size_t>(value("check_workspace", 4096));
  result->state = status("check");
  if (!alike(la, lb, lc, ld)) return 7;
  if (word(algorithm, 0) == 66 && word(algorithm, 8) == 0) return 15;
  if (word(algorithm, 1) == 23 && word(algorithm, 6) == 36) return 15;
  return status("check");
}
// Of a batch, the tile is the number of matrices; option, swizzle and stages are the distances of A's, B's
// and D's.
int cublasLtMatmulAlgoGetHeuristic(void*, const uint64_t* desc, const uint64_t* la, const uint64_t* lb,
                                   const uint64_t* lc, const uint64_t* ld, const uint64_t* preference,
                                   int wanted, Result* results, int* count) {
  std::string aligned;
  for (int i = 5; i < 9; ++i) aligned += (i > 5 ? "," : "") + std::to_string(preference[i]);
  note("heuristic limit=%zu reduction=%zu alignment=%s", preference[1], preference[3], aligned.c_str());
  if (!alike(la, lb, lc, ld)) return 7;
  *count = std::min(wanted, static_cast<int>(value("heuristic_count", 1)));
  if ((desc[7] & static_cast<uint64_t>(value("refused_epilogues"))) != 0) *count = 0;
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
  return status("heuristic");
}

#ifndef LACKS_MATMUL
int cublasLtMatmul(void*, const uint64_t* desc, const float*, const void*, const uint64_t* la, const void*,
                   const uint64_t* lb, const float*, const void*, const uint64_t* lc, void* d,
                   const uint64_t* ld, const uint64_t* algorithm, void*, size_t workspace, void* stream) {
  const auto epilogue = static_cast<uint32_t>(desc[7]);
  const uint64_t rows = ld[1], columns = ld[2], depth = desc[3] != 0 ? la[1] : la[2];
  std::string words;
  for (int i = 0; i < 9; ++i) words += " " + std::to_string(word(algorithm, i));
  note("matmul id=%s batch=%d type=%d compute=%d epilogue=%u workspace=%zu stream=%zu mode=%d",
       words.c_str() + 1, static_cast<int>(ld[5]), static_cast<int>(ld[0]), static_cast<int>(desc[0]),
       epilogue, workspace, reinterpret_cast<size_t>(stream), capture_mode());
  if (desc[17] != 0) {  // scales, by their addresses, and operands
    note("scales modes=%d,%d apart=%d types=%d,%d lines=%d,%d", static_cast<int>(desc[31]), static_cast<int>(desc[32]),
         desc[17] > 4096 && desc[18] > 4096 && desc[17] != desc[18], static_cast<int>(la[0]), static_cast<int>(lb[0]),
         static_cast<int>(la[3]), static_cast<int>(lb[3]));
  }
  if (value("tell_sizes") != 0) note("size %zux%zux%zu", columns, rows, depth);
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
