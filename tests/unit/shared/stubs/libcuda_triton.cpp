// Stands in for libcuda.so.1 under launchers of Triton kernels: every call is written to a log, memory is
// that of the host and really set. An image is text, `<kernel> <bytes of each parameter>...`, so that a
// launch can log its parameters; one that begins with `refuse` and a number fails to load with that status.
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

std::mutex lock;
std::string log_text;
std::atomic<int> loads{0};

struct Kernel {
  std::string name;
  std::vector<size_t> sizes;
};

// Set by the test.
int init_status = 0, launch_status = 0, device_status = 0, shared_limit = 227 << 10;
int current = 0, quiet = 0;
int64_t last_grid[3];

void note(const char* format, ...) {
  char line[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof(line), format, values);
  va_end(values);
  const std::lock_guard<std::mutex> guard(lock);
  log_text += line;
  log_text += '\n';
}

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

const char* stub_log() { return log_text.c_str(); }
void stub_clear() { log_text.clear(); }
int stub_loads() { return loads; }
void stub_grid(int64_t* grid) { std::memcpy(grid, last_grid, sizeof(last_grid)); }
void stub_forget() { std::memset(last_grid, 0, sizeof(last_grid)); }
void stub_set(const char* what, int value) {
  const auto is = [what](const char* name) { return std::strcmp(what, name) == 0; };
  if (is("init_status")) init_status = value;
  if (is("launch_status")) launch_status = value;
  if (is("device_status")) device_status = value;
  if (is("shared_limit")) shared_limit = value;
  if (is("current")) current = value;
  if (is("quiet")) quiet = value;
}

int cuInit(unsigned) { return init_status; }
int cuDriverGetVersion(int* version) {
  *version = 12080;
  return 0;
}
int cuCtxGetDevice(int* device) {
  *device = 100 + current;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= 8) return 101;
  *device = 100 + ordinal;
  return device_status;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != 16 || device < 100) return 1;
  *value = 132 + device - 100;
  return 0;
}

#ifndef TOO_OLD
int cuLibraryLoadData(void** library, const void* code, void*, void**, unsigned, void*, void**, unsigned) {
  loads += 1;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that others come in between
  const auto* text = static_cast<const char*>(code);
  int status = 0;
  if (std::sscanf(text, "refuse %d", &status) == 1) {
    note("refuse %d", status);
    return status;
  }
  auto* kernel = new Kernel;
  std::istringstream words(text);
  words >> kernel->name;
  for (size_t size; words >> size;) kernel->sizes.push_back(size);
  note("load %s", kernel->name.c_str());
  *library = kernel;
  return 0;
}
#endif
int cuLibraryUnload(void* library) {
  note("unload");
  delete static_cast<Kernel*>(library);
  return 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  if (static_cast<Kernel*>(library)->name != name) return 500;
  *kernel = library;
  return 0;
}
int cuKernelSetAttribute(int attribute, int value, void*, int device) {
  note("attribute %d %d on %d", attribute, value, device);
  return attribute == 8 && value > shared_limit ? 1 : 0;
}
int cuKernelSetCacheConfig(void*, int preference, int device) {
  note("cache %d on %d", preference, device);
  return 0;
}
int cuKernelGetFunction(void** function, void* kernel) {
  *function = kernel;
  return 0;
}
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
  if (!quiet)
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
  if (quiet) return launch_status;
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
  return launch_status;
}

}  // extern "C"
