// Stands in for libcuda.so.1 on machines without a GPU: devices of the levels LEVELS, memory of the host,
// which is really set, and a log of what is asked. Code is not run. An image is text, `<kernel> <bytes of
// each parameter>...`, so that a launch can log its parameters; one that begins with `refuse` and a number
// fails to load with that status; of a cubin or PTX, which must load in relaxed mode, launches log no
// parameters.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>
#include <vector>

#include "stand_in.h"

#ifndef LEVELS
#define LEVELS 80, 90, 75, 90, 90, 90
#endif

namespace {

constexpr int kLevels[] = {LEVELS};
constexpr int kCount = sizeof kLevels / sizeof *kLevels;
constexpr int kHandles = 100;  // a device's handle is its number and this

std::atomic<int> loads{0}, exchanges{0}, events{0};
std::atomic<int64_t> spent{0};
int64_t last_grid[3];
char contexts[kCount +
              1];  // their addresses are the devices' primary contexts; the last is a foreign one of device 1
thread_local void* current = nullptr;

int device_of(void* context) {
  const auto device = static_cast<int>(static_cast<char*>(context) - contexts);
  return device == kCount ? 1 : device;
}

struct Kernel {
  std::string name;
  std::vector<size_t> sizes;
};

std::string hex(const void* data, size_t size) {
  std::string text;
  char digits[3];
  for (size_t i = 0; i < size; ++i) {
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<const unsigned char*>(data)[i]);
    text += digits;
  }
  return text;
}

struct Attribute {
  uint32_t id, padding;
  uint32_t value[16];
};
struct Config {
  uint32_t grid[3], block[3];
  uint32_t shared;
  void* stream;
  Attribute* attributes;
  uint32_t count;
};

}  // namespace

extern "C" {

// ---- For tests
int stub_loads() { return loads; }
int stub_exchanges() { return exchanges; }
void stub_grid(int64_t* grid) {
  std::memcpy(grid, last_grid, sizeof(last_grid));
  std::memset(last_grid, 0, sizeof(last_grid));
}
// The thread's context: -1 for none, 9 for a foreign one of device 1.
void stub_enter(int device) { current = device < 0 ? nullptr : &contexts[device == 9 ? kCount : device]; }
int stub_current() {
  if (current == nullptr) return -1;
  return current == &contexts[kCount] ? 9 : device_of(current);
}

// ---- The driver
int cuInit(unsigned) { return status("init"); }
int cuDriverGetVersion(int* version) { return *version = static_cast<int>(value("version", 13000)), 0; }
int cuGetErrorString(int error, const char** text) {
  return *text = error == 700 ? "an illegal address" : "a fake error", 0;
}
int cuDeviceGetCount(int* count) { return *count = kCount, 0; }
int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= kCount) return 101;
  return *device = kHandles + ordinal, status("device");
}
int cuDeviceGetAttribute(int* found, int attribute, int handle) {
  const int device = handle - kHandles;
  if (device < 0 || device >= kCount) return 101;
  if (attribute != 16 && attribute != 75 && attribute != 76) return 1;
  *found = attribute == 16 ? 132 - device : attribute == 75 ? kLevels[device] / 10 : kLevels[device] % 10;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  return *context = &contexts[device - kHandles], 0;
}
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxSetCurrent(void* context) {
  if (context == nullptr || context == &contexts[kCount]) {
    event("restore");
  } else {
    event(("set " + std::to_string(device_of(context))).c_str());
    if (status("set") != 0) return status("set");
  }
  return current = context, 0;
}
int cuCtxGetDevice(int* device) {
  if (current == nullptr) return 201;
  return *device = kHandles + device_of(current), 0;
}
int cuThreadExchangeStreamCaptureMode(int* wanted) {
  if (status("exchange") != 0) return status("exchange");
  ++exchanges;
  return std::swap(mode, *wanted), 0;
}
// Handles of streams that are captured are odd; the legacy stream has no answer, as while another one is
// captured.
int cuStreamIsCapturing(void* stream, int* state) {
  *state = reinterpret_cast<intptr_t>(stream) & 1;
  return stream == nullptr ? 906 : 0;
}
int cuMemAlloc_v2(void** memory, size_t size) {
  event(("malloc " + std::to_string(size >> 10) + "K").c_str());
  *memory = std::aligned_alloc(256, size);
  return *memory != nullptr ? 0 : 2;
}

int cuMemcpyAsync(void* to, const void* from, size_t size, void*) {
  event("copy");
  return std::memcpy(to, from, size), status("copy");
}
int cuStreamSynchronize(void*) { return 0; }

// ---- Events, by the time that kernels of the tests say they take
void spend(int mark) { spent += value("cost_" + std::to_string(mark)); }
int cuEventCreate(void** event, unsigned) { return *event = new int64_t(0), ++events, status("event"); }
int cuEventRecord(void* event, void*) { return *static_cast<int64_t*>(event) = spent, 0; }
int cuEventQuery(void*) { return status("query"); }
int cuEventElapsedTime(float* ms, void* first, void* last) {
  *ms = static_cast<float>(*static_cast<int64_t*>(last) - *static_cast<int64_t*>(first)) / 1e6f;
  return 0;
}
int cuEventDestroy_v2(void* event) {
  delete static_cast<int64_t*>(event);
  return --events, 0;
}
int stub_events() { return events; }
int cuDeviceGetName(char* name, int size, int) { return std::snprintf(name, size, "a \"fake\" GPU"), 0; }

// ---- Ranges of addresses, of which parts are mapped
int cuMemGetAllocationGranularity(size_t* unit, const void*, int) { return *unit = 1 << 16, status("granularity"); }
int cuMemAddressReserve(void** at, size_t size, size_t, uint64_t, uint64_t) {
  *at = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return *at == MAP_FAILED ? 2 : 0;
}
int cuMemCreate(uint64_t* handle, size_t size, const int* properties, uint64_t) {
  note("create %zu of type %d on %d", size >> 10, properties[0], properties[3]);
  return *handle = 1, status("create");
}
int cuMemMap(void*, size_t, size_t, uint64_t, uint64_t) { return 0; }
int cuMemRelease(uint64_t) { return 0; }
int cuMemSetAccess(void* at, size_t size, const int* access, size_t count) {
  return count == 1 && access[2] == 3 ? mprotect(at, size, PROT_READ | PROT_WRITE) : 1;
}
int cuMemUnmap(void* at, size_t size) { return mprotect(at, size, PROT_NONE); }
int cuMemAddressFree(void* at, size_t size) {
  note("free %zu", size >> 10);
  return munmap(at, size);
}

// ---- Kernels, for launchers
#ifndef TOO_OLD
int cuLibraryLoadData(void** library, const void* code, void*, void**, unsigned, void*, void**, unsigned) {
  loads += 1;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that others come in between
  const auto* text = static_cast<const char*>(code);
  int refused = 0;
  if (std::sscanf(text, "refuse %d", &refused) == 1) {
    note("refuse %d", refused);
    return refused;
  }
  auto* kernel = new Kernel;
  *library = kernel;
  const bool cubin = std::memcmp(text, "\177ELF", 4) == 0;
  if (cubin || std::strncmp(text, "//", 2) == 0) {
    note("load %s", cubin ? "cubin" : "ptx");
    return mode == 2 ? 0 : 900;
  }
  std::istringstream words(text);
  words >> kernel->name;
  for (size_t size; words >> size;) kernel->sizes.push_back(size);
  note("load %s", kernel->name.c_str());
  return 0;
}
#endif
int cuLibraryUnload(void* library) {
  note("unload");
  delete static_cast<Kernel*>(library);
  return 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  auto* const held = static_cast<Kernel*>(library);
  if (held->name.empty()) held->name = name;
  return *kernel = held, held->name == name ? 0 : 500;
}
int cuKernelSetAttribute(int attribute, int to, void*, int device) {
  note("attribute %d %d on %d", attribute, to, device);
  return attribute == 8 && to > value("shared_limit", 227 << 10) ? 1 : 0;
}
int cuKernelSetCacheConfig(void*, int preference, int device) {
  note("cache %d on %d", preference, device);
  return 0;
}
int cuKernelGetFunction(void** function, void* kernel) { return *function = kernel, 0; }
int cuFuncLoad(void*) {
  note("function");
  return 0;
}
int cuTensorMapEncodeTiled(uint64_t* map, int type, uint32_t rank, void* data, const uint64_t* shape,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                           int interleave, int swizzle, int promotion, int fill) {
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || reinterpret_cast<uintptr_t>(data) % 16 != 0) return 1;
  if (rank < 1 || rank > 5) return 1;
  std::string text;
  for (uint32_t i = 0; i < rank; ++i) text += " " + std::to_string(shape[i]) + "x" + std::to_string(box[i]);
  for (uint32_t i = 0; i + 1 < rank; ++i) {
    if (strides[i] % 16 != 0) return 1;
    text += " +" + std::to_string(strides[i]);
  }
  for (uint32_t i = 0; i < rank; ++i) {
    if (shape[i] == 0 || steps[i] != 1) return 1;
  }
  note("encode type=%d%s interleave=%d swizzle=%d promotion=%d fill=%d", type, text.c_str(), interleave,
       swizzle, promotion, fill);
  std::memset(map, 0, 128);
  map[0] = reinterpret_cast<uintptr_t>(data);
  map[1] = UINT64_C(1) << 21 | static_cast<uint64_t>(type);
  for (uint32_t i = 0; i < rank; ++i) map[2 + i] = shape[i], map[12 + i % 4] ^= box[i];
  for (uint32_t i = 0; i + 1 < rank; ++i) map[7 + i] = strides[i];
  map[15] ^= map[0] * 31 + map[2] * 7 + map[3];
  return 0;
}

int cuMemsetD8Async(uint64_t at, unsigned char value, size_t count, void* stream) {
  if (count == 0) return 1;
  note("set %zu on %zu", count, reinterpret_cast<size_t>(stream));
  std::memset(reinterpret_cast<void*>(at), value, count);
  return 0;
}
int cuMemsetD2D8Async(uint64_t at, size_t pitch, unsigned char value, size_t width, size_t height,
                      void* stream) {
  if (pitch < width || width == 0 || height == 0) return 1;
  note("set %zux%zu every %zu on %zu", width, height, pitch, reinterpret_cast<size_t>(stream));
  for (size_t i = 0; i < height; ++i) std::memset(reinterpret_cast<void*>(at + i * pitch), value, width);
  return 0;
}

int cuLaunchKernelEx(const Config* config, void* handle, void** parameters, void** extra) {
  if (extra != nullptr) return 1;
  for (int i = 0; i < 3; ++i) last_grid[i] = config->grid[i];
  const Kernel& kernel = *static_cast<Kernel*>(handle);
  note("launch %s grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%zu", kernel.name.c_str(), config->grid[0],
       config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2], config->shared,
       reinterpret_cast<size_t>(config->stream));
  for (uint32_t i = 0; i < config->count; ++i) {
    const Attribute& one = config->attributes[i];
    note("with %u=%u,%u,%u", one.id, one.value[0], one.value[1], one.value[2]);
  }
  for (size_t i = 0; i < kernel.sizes.size(); ++i) {
    if (kernel.sizes[i] == 128 && reinterpret_cast<uintptr_t>(parameters[i]) % 64 != 0) return 716;
    note("parameter %s", hex(parameters[i], kernel.sizes[i]).c_str());
  }
  return status("launch");
}

}  // extern "C"
