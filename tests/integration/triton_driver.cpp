// Stands in for libcuda.so.1 under a library of Triton kernels: one device of level 90, memory of the host,
// and a line for each launch: the kernel, its grid, its block, the stream. Images are not run.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string log_text;
char context;
void* current = nullptr;
int capture_mode = 0;
int exchanges = 0;
int refusal = 0;
pid_t user = 0;  // that called cuInit

int status() { return user == getpid() ? 0 : 3; }  // as after a fork

struct Config {
  uint32_t grid[3], block[3];
  uint32_t shared;
  void* stream;
  void* attributes;
  uint32_t count;
};

}  // namespace

extern "C" {

const char* stub_log() { return log_text.c_str(); }
int stub_exchanges() { return exchanges; }
void stub_refuse(int status) { refusal = status; }

int cuInit(unsigned) {
  if (user == 0) user = getpid();
  return status();
}
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorString(int, const char** text) { return *text = "an error of the stand-in", 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal == 0 ? 0 : 101; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 16:  // multiprocessors
      return *value = 132, 0;
    case 75:
      return *value = 9, 0;
    case 76:
      return *value = 0, 0;
    case 97:  // the most shared memory of a block
      return *value = 227 << 10, 0;
    default:
      return *value = 1, 0;
  }
}
int cuDevicePrimaryCtxRetain(void** made, int) { return *made = &context, 0; }
int cuCtxGetCurrent(void** found) { return *found = current, status(); }
int cuCtxSetCurrent(void* wanted) { return current = wanted, 0; }
int cuCtxGetDevice(int* device) { return *device = 0, current == nullptr ? 201 : 0; }
int cuThreadExchangeStreamCaptureMode(int* mode) {
  if (status() != 0) return status();
  ++exchanges;
  const int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return 0;
}
int cuStreamIsCapturing(void*, int* state) { return *state = 0, 0; }
int cuMemAlloc_v2(void** memory, size_t size) { return *memory = std::aligned_alloc(256, size), 0; }

int cuLibraryLoadData(void** library, const void* code, void*, void**, unsigned, void*, void**, unsigned) {
  const bool binary = std::memcmp(code,
                                  "\x7f"
                                  "ELF",
                                  4) == 0;
  log_text += binary ? "load cubin\n" : "load ptx\n";
  *library = const_cast<void*>(code);
  return capture_mode == 2 ? 0 : 900;
}
int cuLibraryUnload(void*) { return 0; }
int cuLibraryGetKernel(void** kernel, void*, const char* name) { return *kernel = strdup(name), 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
int cuKernelSetCacheConfig(void*, int, int) { return 0; }
int cuKernelGetFunction(void** function, void* kernel) { return *function = kernel, 0; }
int cuFuncLoad(void*) { return 0; }
int cuMemsetD8Async(void*, unsigned char, size_t, void*) { return 0; }
int cuMemsetD2D8Async(void*, size_t, unsigned char, size_t, size_t, void*) { return 0; }
int cuTensorMapEncodeTiled(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
                           const uint32_t*, int, int, int, int) {
  return 0;
}
int cuLaunchKernelEx(const Config* config, void* kernel, void**, void**) {
  if (status() != 0 || refusal != 0) return refusal != 0 ? refusal : status();
  char line[200];
  std::snprintf(line, sizeof line, "%s %u,%u,%u x %u\n", static_cast<const char*>(kernel), config->grid[0],
                config->grid[1], config->grid[2], config->block[0]);
  log_text += line;
  return 0;
}
}
