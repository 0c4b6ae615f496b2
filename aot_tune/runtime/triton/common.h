// What launchers call, whatever the driver. It is part of cuda.cpp and hip.cpp. They declare the driver
// before it, with `kSymbols`, `is_lasting` and `open_library`, and define after it what it declares of a
// family.
#ifndef AOT_TUNE_RUNTIME_TRITON_COMMON_H_
#define AOT_TUNE_RUNTIME_TRITON_COMMON_H_

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "functions.h"

namespace launcher {
namespace {

// ---- What a family defines

// Written under the lock. Others read it after their device's bit of `ready` is set.
struct State {
  pthread_mutex_t lock;
  void* kernels[kHandles];
  int32_t refused[kDevices];  // why the driver will never run the kernel on a device
  int32_t multiprocessors[kDevices];
};

int32_t start_driver();
bool has_all(const Kernel& kernel);  // what the kernel needs of the driver
int32_t load_on(const Kernel& kernel, State& state, int32_t device);
int32_t current_device(int32_t* device);
// Why there is no kernel, and what to do.
void reason(const Kernel& kernel, int32_t status, char* buffer, size_t size);
// Fills in a descriptor of `kRank` axes.
template <int kRank>
int32_t describe_axes(const Kernel& kernel, Described& how, const DLTensor& tensor, Descriptor* to,
                      void*** next);

// ---- The driver, found once

Driver driver;
pthread_once_t driver_once = PTHREAD_ONCE_INIT;
int32_t driver_status = 0;           // 0, kUnavailable, or what the driver returned
const char* driver_lacks = nullptr;  // a function

void open_driver() {
  driver_status = kUnavailable;
  void* const library = open_library();
  if (library == nullptr) return;
  for (const auto& symbol : kSymbols) {
    void* const address = dlsym(library, symbol.name);
    if (address == nullptr && symbol.offset < kFirstOptional) {
      driver_lacks = symbol.name;
      return;
    }
    std::memcpy(reinterpret_cast<char*>(&driver) + symbol.offset, &address, sizeof(address));
  }
  driver_status = start_driver();
}

int32_t find_driver(const Kernel& kernel) {
  pthread_once(&driver_once, open_driver);
  return driver_status == 0 && !has_all(kernel) ? kUnavailable : driver_status;
}

// ---- The kernel's code

// The whole file with a zero after it, or null. It is never freed.
void* read_file(const char* path) {
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

// The embedded code, or that of `<AOT_TUNE_KERNEL_DIR>/<symbol>.bin` if there is such a file. Null if it
// cannot be read.
const void* kernel_image(const Kernel& kernel) {
  const char* folder = std::getenv("AOT_TUNE_KERNEL_DIR");
  if (folder == nullptr || *folder == '\0') return kernel.image;
  char path[4096];
  const int length = std::snprintf(path, sizeof(path), "%s/%s.bin", folder, kernel.symbol);
  const bool fits = length > 0 && static_cast<size_t>(length) < sizeof(path);
  const void* image = fits ? read_file(path) : nullptr;
  if (image == nullptr && fits && errno == ENOENT) return kernel.image;
  std::fprintf(stderr, "aot_tune: %s: AOT_TUNE_KERNEL_DIR: the kernel %s %s\n", kernel.symbol,
               image != nullptr ? "is taken from" : "cannot be read from", fits ? path : folder);
  return image;
}

// ---- A kernel's state: from the first load on, for as long as the process runs

// Null if there is no memory.
State* state_of(Kernel& kernel) {
  void* found = __atomic_load_n(&kernel.state, __ATOMIC_ACQUIRE);
  if (found != nullptr) return static_cast<State*>(found);
  auto* const made = static_cast<State*>(std::calloc(1, sizeof(State)));
  if (made == nullptr) return nullptr;
  pthread_mutex_init(&made->lock, nullptr);
  if (__atomic_compare_exchange_n(&kernel.state, &found, static_cast<void*>(made), false, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE))
    return made;
  pthread_mutex_destroy(&made->lock);
  std::free(made);  // another thread was faster
  return static_cast<State*>(found);
}

// The state of a loaded kernel.
const State& loaded(const Kernel& kernel) {
  return *static_cast<const State*>(__atomic_load_n(&kernel.state, __ATOMIC_ACQUIRE));
}

// Loads the kernel on a device, unless that was done before. The device must be the thread's.
__attribute__((noinline, cold)) int32_t load_slowly(Kernel& kernel, int32_t device) {
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  if (const int32_t status = find_driver(kernel)) return status;
  State* const state = state_of(kernel);
  if (state == nullptr) return kOutOfMemory;
  pthread_mutex_lock(&state->lock);
  int32_t status = state->refused[device];
  if ((kernel.ready >> device & 1) == 0 && status == 0) {
    status = load_on(kernel, *state, device);
    if (status == 0) __atomic_store_n(&kernel.ready, kernel.ready | uint64_t{1} << device, __ATOMIC_RELEASE);
    if (is_lasting(status)) state->refused[device] = status;
  }
  pthread_mutex_unlock(&state->lock);
  return status;
}

// ---- Tensors as kernels take them that know no tensor maps

// The conditions of the descriptor itself, whatever the driver.
template <int kRank>
int32_t read_parts(const Described& how, const DLTensor& tensor, Descriptor* to) {
  to->data = tensor.data;
  to->nan = how.fill_nan ? 1 : 0;
  to->rounding = 0;
  bool right = reinterpret_cast<uintptr_t>(to->data) % 16 == 0;
  for (int i = 0; i < kRank; ++i) {
    to->shape[i] = tensor.shape[how.order[i]];
    to->strides[i] = tensor.strides[how.order[i]];
    right &= to->shape[i] > 0 && narrow(to->shape[i], &to->short_shape[i]);
    right &= i == kRank - 1 ? to->strides[i] == 1 : to->strides[i] * how.element % 16 == 0;
  }
  return right ? 0 : kInvalidValue;
}

template <int kRank>
void add_parts(const Kernel& kernel, Descriptor* from, void*** next) {
  void** to = *next;
  *to++ = &from->data;
  for (int i = 0; i < kRank; ++i) *to++ = &from->shape[i];
  for (int i = 0; i < kRank; ++i) *to++ = &from->strides[i];
  *to++ = &from->nan;
  if (kernel.descriptor_rounding) *to++ = &from->rounding;
  *next = to;
}

template <int kRank>
void add_shape(Descriptor* from, void*** next) {
  void** to = *next;
  for (int i = 0; i < kRank; ++i) *to++ = &from->short_shape[i];
  for (int i = 0; i < kRank; ++i) *to++ = &from->strides[i];
  *next = to;
}

}  // namespace

inline namespace AOT_TUNE_LAUNCHER_FAMILY {

int32_t load(Kernel& kernel, int32_t device) {
  const bool known = static_cast<uint32_t>(device) < static_cast<uint32_t>(kDevices);
  if (known && (__atomic_load_n(&kernel.ready, __ATOMIC_ACQUIRE) >> device & 1) != 0) return 0;
  return load_slowly(kernel, device);
}

int32_t find(Kernel& kernel, int32_t device) {
  const int32_t status = load(kernel, device);
  return is_lasting(status) ? kUnavailable : status;
}

int32_t preload(Kernel& kernel) {
  int32_t device = 0;
  int32_t status = find_driver(kernel);
  if (status == 0) status = current_device(&device);
  return status == 0 ? find(kernel, device) : status;
}

void tell(Kernel& kernel, int32_t device, char* buffer, size_t size) {
  if (size == 0) return;
  buffer[0] = '\0';
  const int32_t status = load(kernel, device);
  if (status == kUnavailable || is_lasting(status)) reason(kernel, status, buffer, size);
}

int64_t multiprocessors(const Kernel& kernel, int32_t device) {
  return loaded(kernel).multiprocessors[device];
}

uint16_t bfloat16_bits(double value) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

uint16_t float16_bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  if (exponent == 1024 || exponent > 15) return sign | (exponent == 1024 && fraction != 0 ? 0x7e00 : 0x7c00);
  if (exponent < -25) return sign;
  int dropped = 42;  // 10 of 52 bits of fraction are kept, and fewer in subnormal numbers
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

size_t reserve(Workspace& memory, uint64_t count, uint64_t bytes) {
  const size_t place = memory.end;
  uint64_t size = 0, end = 0;
  memory.too_large |= __builtin_mul_overflow(count, bytes, &size) ||
                      __builtin_add_overflow(memory.end, size, &end) || end > UINT64_MAX - 2 * kAlignment;
  memory.end = memory.too_large ? 0 : (end + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

bool place(Workspace& memory, void* given, size_t size) {
  const auto address = reinterpret_cast<uintptr_t>(given);
  const uintptr_t skipped = (address + kAlignment - 1) / kAlignment * kAlignment - address;
  memory.start = static_cast<char*>(given) + skipped;
  return memory.end == 0 || (given != nullptr && skipped <= size && memory.end <= size - skipped);
}

int32_t zero(void* at, size_t bytes, void* stream) {
  return driver.memset_line(reinterpret_cast<Address>(at), 0, bytes, stream);
}

int32_t clear(const DLTensor& tensor, int64_t element, void* stream) {
  struct Axis {
    int64_t extent;
    int64_t stride;  // in bytes
  };
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
  if (next == count) return zero(first, static_cast<size_t>(width), stream);
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
        driver.memset_plane(reinterpret_cast<Address>(at), static_cast<size_t>(pitch), 0,
                            static_cast<size_t>(width), static_cast<size_t>(height), stream);
    if (status != 0) return status;
  }
  return 0;
}

int32_t describe(const Kernel& kernel, Described& how, const DLTensor& tensor, Descriptor* to, void*** next) {
  switch (how.rank) {
    case 1:
      return describe_axes<1>(kernel, how, tensor, to, next);
    case 2:
      return describe_axes<2>(kernel, how, tensor, to, next);
    case 3:
      return describe_axes<3>(kernel, how, tensor, to, next);
    case 4:
      return describe_axes<4>(kernel, how, tensor, to, next);
    case 5:
      return describe_axes<5>(kernel, how, tensor, to, next);
    default:
      return kInvalidValue;
  }
}

}  // namespace AOT_TUNE_LAUNCHER_FAMILY
}  // namespace launcher

#endif  // AOT_TUNE_RUNTIME_TRITON_COMMON_H_
