// What launchers of Triton kernels use, whatever the driver: descriptions of a kernel and of a call, and
// arithmetic like Python's. Every candidate's launcher is compiled with it, so it includes almost nothing.
// What all launchers do alike is compiled once, in cuda.cpp and hip.cpp (functions.h declares it).
#ifndef AOT_TUNE_RUNTIME_TRITON_LAUNCH_H_
#define AOT_TUNE_RUNTIME_TRITON_LAUNCH_H_

#include <stddef.h>
#include <stdint.h>

namespace launcher {

// Statuses beside those of the driver.
constexpr int32_t kUnavailable = -100;   // AOT_TUNE_UNAVAILABLE: the next variant serves
constexpr int32_t kInvalidValue = 1;     // of both drivers
constexpr int32_t kOutOfMemory = 2;      // of both drivers
constexpr int32_t kInvalidDevice = 101;  // of both drivers
constexpr int32_t kFileNotFound = 301;   // of both drivers

constexpr int32_t kDevices = 64;
constexpr int32_t kMaxRank = 5;  // of tensor maps

// ---- What a launcher says
// ------------------------------------------------------------------------------------------

// A kernel: what is launched, and what is known of it at run time.
struct Kernel {
  const char* name;    // in its image
  const char* symbol;  // of the candidate
  const void* image;
  uint32_t threads, ctas, shared;
  bool cooperative, pdl, tma, descriptor_rounding;
  uint64_t ready;  // a bit per device, atomic
  void* state;     // for the functions that load it: atomic, null before the first load
};

// How the kernel was compiled to take a tensor map.
struct DescriptorMeta {
  int32_t swizzle, element_size, element_type;
  bool fp4_padded;
  int32_t rank;
  int32_t block[kMaxRank];
};

// A parameter that is a tensor descriptor, and the tensor maps that were passed last.
struct Described {
  int32_t rank, element;   // element: bytes
  bool fill_nan;           // which value stands for elements outside
  int8_t order[kMaxRank];  // its axes in the tensor
  DescriptorMeta meta;
  void* maps;
  uint32_t next_map;
};

struct alignas(128) TensorMap {
  uint64_t words[16];
};

// What the kernel gets for a descriptor: its map or the tensor's parts, and its shape and strides.
struct Descriptor {
  TensorMap map;
  void* data;
  int64_t shape[kMaxRank], strides[kMaxRank];
  uint8_t nan, rounding;  // which value stands for elements outside; whether fp32 is rounded to tf32
  int32_t short_shape[kMaxRank];
};

// The most parameters of a descriptor.
constexpr int descriptor_parameters(int rank) { return 3 + 4 * rank; }

struct Grid {
  int64_t x, y, z;
};

// What a call needs beside its tensors, in pieces that are aligned to 256 bytes: how many bytes, and where.
struct Workspace {
  uint64_t end;
  char* start;
  bool too_large;
};

// ---- Arithmetic of grids and arguments: of each launcher alone, for they meet in a library
// -----------------------------------------------------------------------------

namespace {
// Divisions like Python's. If Python would raise an error, they set `undefined`.
inline int64_t floor_divide(int64_t a, int64_t b, bool* undefined) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) {
    *undefined = true;
    return 0;
  }
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

inline int64_t floor_modulo(int64_t a, int64_t b, bool* undefined) {
  if (b == 0 || b == -1) {
    *undefined |= b == 0;
    return 0;
  }
  const int64_t remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

inline int64_t least(int64_t a, int64_t b) { return b < a ? b : a; }
inline int64_t greatest(int64_t a, int64_t b) { return b > a ? b : a; }

// The least power of two that is not below a value. 1 for 0 and below, and 0 if it does not fit 64 bits.
inline int64_t next_power_of_2(int64_t value) {
  if (value <= 1) return 1;
  const int bits = 64 - __builtin_clzll(static_cast<uint64_t>(value) - 1);
  return bits < 63 ? int64_t{1} << bits : 0;
}

// The largest power of two, at most 64, that divides an address.
inline int64_t alignment_of(const void* data) {
  return int64_t{1} << __builtin_ctzll(reinterpret_cast<uintptr_t>(data) | 64u);
}

// Whether a narrower type holds a value, which goes into `out`.
template <typename Narrow>
inline bool narrow(int64_t value, Narrow* out) {
  *out = static_cast<Narrow>(value);
  return static_cast<int64_t>(*out) == value &&
         (value >= 0 || static_cast<Narrow>(-1) < static_cast<Narrow>(0));
}

// Whether a grid can be launched, in clusters of `ctas` blocks.
inline bool valid(const Grid& grid, uint32_t ctas) {
  return grid.x >= 0 && grid.y >= 0 && grid.z >= 0 && grid.x <= INT32_MAX / int64_t{ctas} &&
         grid.y <= 65535 && grid.z <= 65535;
}

inline bool empty(const Grid& grid) { return grid.x == 0 || grid.y == 0 || grid.z == 0; }

// The number of blocks in all clusters, for a valid grid.
inline uint64_t blocks(const Grid& grid, uint32_t ctas) {
  return static_cast<uint64_t>(grid.x * grid.y) * static_cast<uint64_t>(grid.z) * ctas;
}

constexpr uint64_t kAlignment = 256;

// How many bytes to ask for. The memory will be aligned to 64 bytes.
inline size_t bytes(const Workspace& memory) { return memory.end == 0 ? 0 : memory.end + kAlignment - 64; }

}  // namespace
}  // namespace launcher

#endif  // AOT_TUNE_RUNTIME_TRITON_LAUNCH_H_
