// What launchers of Triton kernels share, whatever the driver: arithmetic as Python's, the layout of a
// workspace, memory that is set to zero, the list of a kernel's parameters. Everything has internal linkage:
// the launchers of several targets meet in one library. Included behind DLPack's `DLTensor` and the generated
// `kernel.h`.
#ifndef AOT_TUNE_RUNTIME_TRITON_LAUNCH_H_
#define AOT_TUNE_RUNTIME_TRITON_LAUNCH_H_

#include <errno.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
namespace launcher {

// Statuses beside those of the driver.
constexpr int32_t kUnavailable = -100;   // AOT_TUNE_UNAVAILABLE: the next variant serves
constexpr int32_t kInvalidValue = 1;     // of both drivers
constexpr int32_t kInvalidDevice = 101;  // of both drivers
constexpr int32_t kFileNotFound = 301;   // of both drivers

constexpr int32_t kDevices = 64;

// ---- Arithmetic of grids and arguments
// -----------------------------------------------------------------------------

// Divisions as Python's. A call for which Python would raise an error sets `undefined`.
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

// The least power of two that is not below a value; 1 for 0 and below, 0 where there is none in 64 bits.
inline int64_t next_power_of_2(int64_t value) {
  if (value <= 1) return 1;
  const int bits = 64 - __builtin_clzll(static_cast<uint64_t>(value) - 1);
  return bits < 63 ? int64_t{1} << bits : 0;
}

// The largest power of two, at most 64, that divides an address.
inline int64_t alignment_of(const void* data) {
  return int64_t{1} << __builtin_ctzll(reinterpret_cast<uintptr_t>(data) | 64u);
}

// Whether a value is one of a narrower type, into `out`.
template <typename Narrow>
inline bool narrow(int64_t value, Narrow* out) {
  *out = static_cast<Narrow>(value);
  return static_cast<int64_t>(*out) == value &&
         (value >= 0 || static_cast<Narrow>(-1) < static_cast<Narrow>(0));
}

// The bits of a number in 16 bits as the JIT passes it: fp16 rounded to nearest even, bf16 cut off.
inline uint16_t bfloat16_bits(double value) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

inline uint16_t float16_bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  if (exponent == 1024 || exponent > 15) return sign | (exponent == 1024 && fraction != 0 ? 0x7e00 : 0x7c00);
  if (exponent < -25) return sign;
  int dropped = 42;  // of 52 bits of fraction, 10 are kept, and fewer of subnormal numbers
  uint64_t kept = static_cast<uint64_t>(exponent + 15) << 10;
  if (exponent < -14) {
    fraction |= uint64_t{1} << 52;
    dropped = 42 - 14 - exponent;
    kept = 0;
  }
  kept += fraction >> dropped;
  const uint64_t rest = fraction & ((uint64_t{1} << dropped) - 1), half = uint64_t{1} << (dropped - 1);
  kept +=
      rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;  // may carry into the exponent, to infinity
  return static_cast<uint16_t>(sign | kept);
}

// ---- Grids
// ---------------------------------------------------------------------------------------------------------

struct Grid {
  int64_t x = 1, y = 1, z = 1;

  bool empty() const { return x == 0 || y == 0 || z == 0; }
  bool valid() const {
    return x >= 0 && y >= 0 && z >= 0 && x <= INT32_MAX / int64_t{kernel::ctas} && y <= 65535 && z <= 65535;
  }
  // Blocks of all clusters, for a grid that is valid.
  uint64_t blocks() const { return static_cast<uint64_t>(x * y) * static_cast<uint64_t>(z) * kernel::ctas; }
};

// ---- Workspaces
// ----------------------------------------------------------------------------------------------------

// What a call needs beside its tensors, in pieces that are aligned to 256 bytes.
class Workspace {
 public:
  // Room for `count` pieces of `bytes`; the result is a place for `at`.
  size_t reserve(uint64_t count, uint64_t bytes) {
    const size_t place = end_;
    uint64_t size = 0, end = 0;
    too_large_ |= __builtin_mul_overflow(count, bytes, &size) || __builtin_add_overflow(end_, size, &end) ||
                  end > UINT64_MAX - 2 * kAlignment;
    end_ = too_large_ ? 0 : (end + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  }
  bool too_large() const { return too_large_; }
  // Bytes to ask for: memory that comes is aligned to 64 bytes.
  size_t size() const { return end_ == 0 ? 0 : end_ + kAlignment - 64; }
  // Whether memory of a caller is enough.
  bool place(void* memory, size_t size) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t skipped = (address + kAlignment - 1) / kAlignment * kAlignment - address;
    start_ = static_cast<char*>(memory) + skipped;
    return end_ == 0 || (memory != nullptr && skipped <= size && end_ <= size - skipped);
  }
  void* at(size_t place) const { return start_ + place; }

 private:
  static constexpr uint64_t kAlignment = 256;
  uint64_t end_ = 0;
  bool too_large_ = false;
  char* start_ = nullptr;
};

// ---- Memory that is set to zero
// ------------------------------------------------------------------------------------

struct Axis {
  int64_t extent;
  int64_t stride;  // in bytes
};

// Sets a tensor's elements to zero on a stream and leaves what lies between them. `Set` offers `line(at,
// bytes)` and `plane(at, pitch, width, height)`.
template <typename Set>
inline int32_t clear(const DLTensor& tensor, int64_t element, const Set& set) {
  Axis axes[8];
  int count = 0;
  char* first = static_cast<char*>(tensor.data);
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    const int64_t extent = tensor.shape[i];
    int64_t stride = tensor.strides[i] * element;
    if (extent <= 0) return 0;
    if (extent == 1 || stride == 0) continue;
    if (stride < 0) first += (extent - 1) * stride, stride = -stride;
    if (count == 8) return kInvalidValue;
    int place = count++;  // from the least stride to the greatest
    for (; place > 0 && axes[place - 1].stride > stride; --place) axes[place] = axes[place - 1];
    axes[place] = {extent, stride};
  }
  int next = 0;
  int64_t width = element;
  for (; next < count && axes[next].stride == width; ++next) width *= axes[next].extent;
  if (next == count) return set.line(first, static_cast<size_t>(width));
  const int64_t pitch = axes[next].stride;
  int64_t height = axes[next++].extent;
  for (; next < count && axes[next].stride == pitch * height; ++next) height *= axes[next].extent;
  int64_t planes = 1;
  for (int i = next; i < count; ++i) planes *= axes[i].extent;
  for (int64_t index = 0; index < planes; ++index) {
    char* at = first;
    int64_t rest = index;
    for (int i = next; i < count; rest /= axes[i++].extent) at += rest % axes[i].extent * axes[i].stride;
    const int32_t status =
        set.plane(at, static_cast<size_t>(pitch), static_cast<size_t>(width), static_cast<size_t>(height));
    if (status != 0) return status;
  }
  return 0;
}

// ---- Parameters
// ----------------------------------------------------------------------------------------------------

// Pointers to a kernel's parameters, in its order.
template <int kMost>
struct Parameters {
  void* list[kMost];
  int count = 0;

  void add(void* parameter) { list[count++] = parameter; }
};

// A tensor with its axes in another order; of the memory of the one that it is made from.
template <int kRank>
struct Permuted {
  int64_t shape[kRank], strides[kRank];
  DLTensor tensor;

  Permuted(const DLTensor& from, const int (&order)[kRank]) : tensor(from) {
    for (int i = 0; i < kRank; ++i) {
      shape[i] = from.shape[order[i]];
      strides[i] = from.strides[order[i]];
    }
    tensor.shape = shape;
    tensor.strides = strides;
  }
  Permuted(const Permuted&) = delete;
  Permuted& operator=(const Permuted&) = delete;
};

// A tensor as kernels take it that know no tensor maps: its parts, its shape and strides once more.
template <int kRank>
struct TensorParts {
  void* data;
  int64_t shape[kRank], strides[kRank];
  uint8_t nan, rounding = 0;  // what stands for elements outside; whether fp32 is rounded to tf32
  int32_t short_shape[kRank];

  // The descriptor's own conditions: they do not depend on the driver.
  int32_t read(const DLTensor& tensor, int64_t element, bool fill_nan) {
    data = tensor.data;
    nan = fill_nan ? 1 : 0;
    bool right = reinterpret_cast<uintptr_t>(data) % 16 == 0 && tensor.strides[kRank - 1] == 1;
    for (int i = 0; i < kRank; ++i) {
      shape[i] = tensor.shape[i];
      strides[i] = tensor.strides[i];
      right &= shape[i] > 0 && narrow(shape[i], &short_shape[i]);
      right &= i == kRank - 1 || strides[i] * element % 16 == 0;
    }
    return right ? 0 : kInvalidValue;
  }
  template <int kMost>
  void add_parts(Parameters<kMost>& parameters) {
    parameters.add(&data);
    for (int64_t& extent : shape) parameters.add(&extent);
    for (int64_t& stride : strides) parameters.add(&stride);
    parameters.add(&nan);
    if (kernel::descriptor_rounding) parameters.add(&rounding);
  }
  template <int kMost>
  void add_shape(Parameters<kMost>& parameters) {
    for (int32_t& extent : short_shape) parameters.add(&extent);
    for (int64_t& stride : strides) parameters.add(&stride);
  }
};

// Parameters that a descriptor comes to, at most.
constexpr int descriptor_parameters(int rank) { return 3 + 4 * rank; }

// ---- The kernel's code
// ---------------------------------------------------------------------------------------------

// The whole file with a zero behind it, or null; it is never freed.
inline void* read_file(const char* path) {
  errno = 0;
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr) return nullptr;
  size_t room = 1 << 16, size = 0;
  auto* bytes = static_cast<char*>(std::malloc(room));
  while (bytes != nullptr) {
    size += std::fread(bytes + size, 1, room - size - 1, file);
    if (size < room - 1) break;
    auto* more = static_cast<char*>(std::realloc(bytes, room *= 2));
    if (more == nullptr) std::free(bytes);
    bytes = more;
  }
  if (bytes != nullptr && std::ferror(file) != 0) {
    std::free(bytes);
    bytes = nullptr;
  }
  std::fclose(file);
  if (bytes != nullptr) bytes[size] = '\0';
  return bytes;
}

// The embedded code, or that of `<AOT_TUNE_KERNEL_DIR>/<symbol>.bin` where there is such a file; null when it
// cannot be read.
inline const void* kernel_image(const char* symbol) {
  const char* folder = std::getenv("AOT_TUNE_KERNEL_DIR");
  if (folder == nullptr || *folder == '\0') return AOT_TUNE_KERNEL_IMAGE;
  char path[4096];
  const int length = std::snprintf(path, sizeof(path), "%s/%s.bin", folder, symbol);
  const bool fits = length > 0 && static_cast<size_t>(length) < sizeof(path);
  const void* image = fits ? read_file(path) : nullptr;
  if (image == nullptr && fits && errno == ENOENT) return AOT_TUNE_KERNEL_IMAGE;
  std::fprintf(stderr, "aot_tune: %s: AOT_TUNE_KERNEL_DIR: the kernel %s %s\n", symbol,
               image != nullptr ? "is taken from" : "cannot be read from", fits ? path : folder);
  return image;
}

}  // namespace launcher
}  // namespace

#endif  // AOT_TUNE_RUNTIME_TRITON_LAUNCH_H_
