// Stands in for the driver: three devices of levels 80, 90 and 75, and a log of what is asked. Functions with
// C linkage and the driver's names; built as libcuda.so.1.
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
  for (int i = 0; i < 3; ++i) {
    if (context == &contexts[i]) {
      event(("set " + std::to_string(i)).c_str());
      if (failing != 0) return failing;
      current = context;
      return 0;
    }
  }
  current = context;
  event("restore");
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int* wanted) {
  if (std::getenv("FAKE_EXCHANGE") != nullptr) return std::atoi(std::getenv("FAKE_EXCHANGE"));
  const int before = mode;
  mode = *wanted;
  *wanted = before;
  return 0;
}

// Handles of streams that are captured are odd; the legacy stream has no answer, as while another one is captured.
int cuStreamIsCapturing(void* stream, int* state) {
  *state = reinterpret_cast<intptr_t>(stream) & 1;
  return stream == nullptr ? 906 : 0;
}

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) {
  *version = std::getenv("FAKE_VERSION") != nullptr ? std::atoi(std::getenv("FAKE_VERSION")) : 13000;
  return 0;
}
int cuGetErrorString(int status, const char** text) {
  *text = status == 700 ? "an illegal address" : "a fake error";
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 3;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  if (std::getenv("FAKE_ERROR") != nullptr) return std::atoi(std::getenv("FAKE_ERROR"));
  *device = ordinal;
  return ordinal < 0 || ordinal >= 3 ? 101 : 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 16 ? 132 - device : attribute == 75 ? kLevels[device] / 10 : kLevels[device] % 10;
  event("attribute");
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &contexts[device];
  return 0;
}
int cuCtxGetDevice(int* device) {
  *device = current == &failing ? 1 : device_of(current);
  return 0;
}
int cuMemAlloc_v2(void** memory, size_t size) {
  event(("malloc " + std::to_string(size >> 10) + "K").c_str());
  *memory = std::aligned_alloc(256, size);
  return *memory != nullptr ? 0 : 2;
}
}
