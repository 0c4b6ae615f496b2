// AMD's devices: their architecture, the thread's device, and workspace memory per stream. The HIP runtime is
// found with dlopen at the first call, and declared here as far as it is used. Nothing here runs when the
// library loads, and building it needs no ROCm. It was only tested with a stand-in, never on a card.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "runtime.h"
#include "stream_memory.h"
#include "triton/hip_library.h"

namespace aot_tune {
namespace {

constexpr int32_t kMaxDevices = 64;

// ---- The runtime
// ----------------------------------------------------------------------------------------------------

// Values of the interface of ROCm 6. [HIP runtime API, hip_runtime_api.h]
enum : int {
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kRelaxedCapture = 2,
  kActiveCapture = 1,
};

// hipDeviceProp_tR0600 as far as it is read: the architecture's name, and spare bytes after it.
struct Properties {
  char before[1160];
  char architecture[256];  // gcnArchName, such as "gfx942:sramecc+:xnack-"
  char behind[2680];
};

struct Runtime {
  int (*init)(unsigned flags) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*device_properties)(Properties* properties, int device) = nullptr;
  int (*current_device)(int* device) = nullptr;
  int (*set_device)(int device) = nullptr;
  int (*exchange_mode)(int* mode) = nullptr;
  int (*allocate)(void** memory, size_t size) = nullptr;
  int (*is_capturing)(void* stream, int* state) = nullptr;
  int (*last_error)() = nullptr;
  const char* (*error_string)(int status) = nullptr;
  const char* lacks = nullptr;  // the first missing function
  bool found = false;
  int status = 0;  // of `init`

  Runtime() noexcept {
    void* library = open_library();
    if (library == nullptr) return;
    found = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && lacks == nullptr) lacks = name;
    };
    find(init, "hipInit");
    find(device_count, "hipGetDeviceCount");
    find(device_properties, "hipGetDevicePropertiesR0600");
    find(current_device, "hipGetDevice");
    find(set_device, "hipSetDevice");
    find(exchange_mode, "hipThreadExchangeStreamCaptureMode");
    find(allocate, "hipMalloc");
    find(last_error, "hipGetLastError");
    find(error_string, "hipGetErrorString");
    find(is_capturing, "hipStreamIsCapturing");
    if (usable() && (status = init(0)) != 0) last_error();  // the status is kept here
  }

  bool usable() const noexcept { return found && lacks == nullptr; }
};

const Runtime& runtime() noexcept {
  static const Runtime functions;
  return functions;
}

const char* error_text(int status) noexcept {
  const char* text = runtime().usable() ? runtime().error_string(status) : nullptr;
  return text != nullptr ? text : "unknown error";
}

// A failed call leaves its status for the thread's next question about the last error. That question is not
// ours.
int forget(int status) noexcept {
  if (status != 0) runtime().last_error();
  return status;
}

int32_t runtime_failed(int32_t device_id, int error) noexcept {
  const int device = static_cast<int>(device_id);
  if (!runtime().found) {
    return fail(
        AOT_TUNE_ERROR_DRIVER,
        "rocm:%d: there is no HIP runtime here (libamdhip64.so was not found); install AMD's ROCm, or "
        "pass tensors on the CPU",
        device);
  }
  if (!runtime().usable()) {
    return fail(
        AOT_TUNE_ERROR_DRIVER,
        "rocm:%d: the HIP runtime here has no function %s; this library needs that of ROCm 6 or later: "
        "update ROCm",
        device, runtime().lacks);
  }
  int count = 0;
  if (error == kInvalidDevice && forget(runtime().device_count(&count)) == 0) {
    return fail(AOT_TUNE_ERROR_DEVICE,
                "rocm:%d: there is no such device; the HIP runtime sees %d, from rocm:0 on", device, count);
  }
  if (error == kNoDevice) {
    return fail(AOT_TUNE_ERROR_DEVICE,
                "rocm:%d: the HIP runtime sees no device; look at rocminfo, HIP_VISIBLE_DEVICES and "
                "ROCR_VISIBLE_DEVICES, and whether this user may open /dev/kfd",
                device);
  }
  const char* hint = "";
  if (error == kNotInitialized)
    hint = "; a process that was forked after HIP was used cannot use it: start it anew (spawn)";
  return fail(AOT_TUNE_ERROR_DRIVER, "rocm:%d cannot be used: HIP error %d (%s)%s", device, error,
              error_text(error), hint);
}

// ---- Architecture
// --------------------------------------------------------------------------------------------------

std::atomic<int32_t> levels[kMaxDevices];  // 0 until it is asked for

// The digits of an architecture's name in base 16: 0x942 for "gfx942:sramecc+:xnack-". 0 for other text.
int32_t level_of(const char* name) noexcept {
  if (std::strncmp(name, "gfx", 3) != 0) return 0;
  const size_t length = std::strcspn(name + 3, ":");
  if (length < 3 || length > 6 || std::strspn(name + 3, "0123456789abcdef") != length) return 0;
  return static_cast<int32_t>(std::strtol(name + 3, nullptr, 16));
}

int32_t hip_level(int32_t device_id) noexcept {
  const bool cached = device_id >= 0 && device_id < kMaxDevices;
  const int32_t known = cached ? levels[device_id].load(std::memory_order_relaxed) : 0;
  if (known != 0) return known;
  Properties properties;
  properties.architecture[0] = '\0';
  int error = runtime().usable() ? runtime().status : kNoDevice;
  if (error == 0) error = forget(runtime().device_properties(&properties, device_id));
  if (error != 0) return -runtime_failed(device_id, error);
  properties.architecture[sizeof properties.architecture - 1] = '\0';
  const int32_t level = level_of(properties.architecture);
  if (level == 0) {
    return -fail(
        AOT_TUNE_ERROR_DEVICE,
        "rocm:%d: the HIP runtime calls its architecture '%.60s', wanted a name such as gfx942; update "
        "ROCm, or pass tensors on the CPU",
        static_cast<int>(device_id), properties.architecture);
  }
  if (cached) levels[device_id].store(level, std::memory_order_relaxed);  // the same in every thread
  return level;
}

// ---- The thread's device
// -------------------------------------------------------------------------------------------

void hip_leave(const Scope& scope) noexcept {
  if (scope.switched)
    forget(runtime().set_device(static_cast<int>(reinterpret_cast<intptr_t>(scope.previous))));
  int mode = scope.mode;
  forget(runtime().exchange_mode(&mode));
}

// A thread in relaxed mode may load modules and allocate memory while it or another thread captures a stream.
int32_t hip_enter(int32_t device_id, Scope* scope) noexcept {
  int mode = kRelaxedCapture;
  int error = runtime().usable() ? forget(runtime().exchange_mode(&mode)) : int{kNotInitialized};
  if (error != 0) return runtime_failed(device_id, error);
  *scope = {nullptr, mode, false};
  int before = 0;
  error = forget(runtime().current_device(&before));
  if (error == 0 && before != device_id) {
    error = forget(runtime().set_device(device_id));
    if (error == 0) *scope = {reinterpret_cast<void*>(intptr_t{before}), mode, true};
  }
  if (error == 0) return AOT_TUNE_OK;
  hip_leave(*scope);
  return runtime_failed(device_id, error);
}

// The legacy stream cannot be captured. While other streams are captured, the question fails.
bool hip_capturing(void* stream) noexcept {
  int state = 0;
  return runtime().usable() && forget(runtime().is_capturing(stream, &state)) == 0 && state == kActiveCapture;
}

// ---- Workspace
// -----------------------------------------------------------------------------------------------------

StreamMemory memories({"rocm", "HIP", error_text});

int32_t hip_workspace(int32_t device_id, void* stream, size_t size, Workspace* taken) noexcept {
  const auto allocate = [](void** made, size_t bytes) { return forget(runtime().allocate(made, bytes)); };
  return memories.take(device_id, stream, size, allocate, taken);
}

const char* hip_describe(int32_t status) noexcept { return status > 0 ? error_text(status) : nullptr; }

}  // namespace

extern const Backend backend_hip;
const Backend backend_hip = {"hip",     kDLROCM,      hip_level, hip_workspace, hip_enter,
                             hip_leave, hip_describe, nullptr,   hip_capturing, nullptr};

}  // namespace aot_tune
