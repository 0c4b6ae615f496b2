// Stands in for the driver and the CUDA runtime: three devices of levels 80, 90 and 75, and a log of what is
// asked. Functions with C linkage and the runtime's names; built as libcuda.so.1, which a library for CUDA is
// linked with.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kLevels[] = {80, 90, 75};
std::string log;
char contexts[3];  // their addresses are the devices' primary contexts
thread_local void* current = nullptr;
thread_local int mode = 0;  // global, as a thread begins
int failing = 0;            // status of cudaSetDevice

int device_of(void* context) {
  for (int i = 0; i < 3; ++i) {
    if (context == &contexts[i]) return i;
  }
  return 0;
}

}  // namespace

extern "C" {

void event(const char* text) { log += std::string(text) + (mode == 2 ? "; " : " in a strict mode; "); }

// ---- For tests
const char* fake_log() { return log.c_str(); }
void fake_reset(int device, int status) {
  log.clear();
  current = device < 0 ? nullptr : device == 9 ? &failing : static_cast<void*>(&contexts[device]);
  failing = status;
}
int fake_state() {
  return (current == nullptr ? -1 : current == &failing ? 9 : device_of(current)) * 10 + mode;
}

// ---- The driver
int cuCtxGetCurrent(void** context) {
  *context = current;
  return 0;
}
int cuCtxSetCurrent(void* context) {
  current = context;
  event("restore");
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* wanted) {
  const int before = mode;
  mode = *wanted;
  *wanted = before;
  return 0;
}

// ---- The runtime
int cudaDriverGetVersion(int* version) {
  *version = std::getenv("FAKE_VERSION") != nullptr ? std::atoi(std::getenv("FAKE_VERSION")) : 13000;
  return 0;
}
int cudaGetLastError() { return 0; }
const char* cudaGetErrorString(int status) { return status == 700 ? "an illegal address" : "a fake error"; }
int cudaGetDeviceCount(int* count) {
  *count = 3;
  return 0;
}
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (std::getenv("FAKE_ERROR") != nullptr) return std::atoi(std::getenv("FAKE_ERROR"));
  if (device < 0 || device >= 3) return 101;
  *value = attribute == 75 ? kLevels[device] / 10 : kLevels[device] % 10;
  event("attribute");
  return 0;
}
int cudaGetDevice(int* device) {
  *device = current == &failing ? 1 : device_of(current);
  return 0;
}
int cudaSetDevice(int device) {
  event(("set " + std::to_string(device)).c_str());
  if (failing != 0) return failing;
  current = &contexts[device];
  return 0;
}
int cudaMalloc(void** memory, size_t size) {
  event(("malloc " + std::to_string(size >> 10) + "K").c_str());
  *memory = std::aligned_alloc(256, size);
  return *memory != nullptr ? 0 : 2;
}
}
