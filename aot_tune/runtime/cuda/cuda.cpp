// CUDA devices: their capability, the thread's device, and workspace memory per stream. The driver is found
// with dlopen at the first call. Nothing here runs when the library loads, and building it needs no CUDA
// toolkit.
#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "runtime.h"
#include "stream_memory.h"

#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#endif

namespace aot_tune {
namespace {

constexpr int32_t kMaxDevices = 64;

// The CUDA version that the driver must have. If the runtime is linked with nvcc's kernels, it is the
// runtime's major version, because the driver's minor version may be older. Otherwise, it is the first
// version whose driver loads kernels without a context.
#ifdef CUDART_VERSION
constexpr int kNeeded = CUDART_VERSION / 1000 * 1000;
#else
constexpr int kNeeded = 12000;
#endif

// ---- The driver
// ----------------------------------------------------------------------------------------------------

// Values of the driver's interface. The runtime's are the same. [CUDA driver API, cuda.h]
enum : int {
  kNotInitialized = 3,
  kRuntimeInsufficientDriver = 35,  // of the runtime only
  kMultiprocessors = 16,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
  kRelaxedCapture = 2,
  kActiveCapture = 1,
};

// Of these functions, only `primary_retain` makes a context.
struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*version)(int* version) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*device_attribute)(int* value, int attribute, int device) = nullptr;
  int (*primary_retain)(void** context, int device) = nullptr;
  int (*get_current)(void** context) = nullptr;
  int (*set_current)(void* context) = nullptr;
  int (*current_device)(int* device) = nullptr;
  int (*exchange_mode)(int* mode) = nullptr;
  int (*allocate)(void** memory, size_t size) = nullptr;
  int (*is_capturing)(void* stream, int* state) = nullptr;
  int (*error_string)(int status, const char** text) = nullptr;
  bool found = false;
  int status = 0;  // of `init`

  Driver() noexcept {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    found = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      found = found && function != nullptr;
    };
    find(init, "cuInit");
    find(version, "cuDriverGetVersion");
    find(device_count, "cuDeviceGetCount");
    find(device_get, "cuDeviceGet");
    find(device_attribute, "cuDeviceGetAttribute");
    find(primary_retain, "cuDevicePrimaryCtxRetain");
    find(get_current, "cuCtxGetCurrent");
    find(set_current, "cuCtxSetCurrent");
    find(current_device, "cuCtxGetDevice");
    find(exchange_mode, "cuThreadExchangeStreamCaptureMode");
    find(allocate, "cuMemAlloc_v2");
    find(error_string, "cuGetErrorString");
    find(is_capturing, "cuStreamIsCapturing");
    if (found) status = init(0);
  }
};

const Driver& driver() noexcept {
  static const Driver functions;
  return functions;
}

const char* error_text(int status) noexcept {
  const char* text = nullptr;
  if (status == kRuntimeInsufficientDriver) return "the driver is older than the library's CUDA runtime";
  if (!driver().found || driver().error_string(status, &text) != 0 || text == nullptr) return "unknown error";
  return text;
}

int32_t driver_failed(int32_t device_id, int error) noexcept {
  int version = 0;
  if (!driver().found || driver().version(&version) != 0 || version == 0) {
    return fail(
        AOT_TUNE_ERROR_DRIVER,
        "cuda:%d: there is no CUDA driver here (libcuda.so.1 was not found); install NVIDIA's driver, "
        "or pass tensors on the CPU",
        static_cast<int>(device_id));
  }
  if (version < kNeeded) {
    return fail(
        AOT_TUNE_ERROR_DRIVER,
        "cuda:%d: the driver is for CUDA %d.%d, but this library needs one for CUDA %d.%d; update the "
        "driver, or build the library with an older toolkit",
        static_cast<int>(device_id), version / 1000, version % 1000 / 10, kNeeded / 1000,
        kNeeded % 1000 / 10);
  }
  if (error == kNoDevice) {
    return fail(AOT_TUNE_ERROR_DEVICE,
                "cuda:%d: the driver sees no device; look at nvidia-smi and CUDA_VISIBLE_DEVICES",
                static_cast<int>(device_id));
  }
  int count = 0;
  if (error == kInvalidDevice && driver().device_count(&count) == 0) {
    return fail(AOT_TUNE_ERROR_DEVICE, "cuda:%d: there is no such device; the driver sees %d, from cuda:0 on",
                static_cast<int>(device_id), count);
  }
  const char* hint = "";
  if (error == kDeviceUnavailable)
    hint = "; another process holds it, or its compute mode is exclusive or prohibited";
  if (error == kNotInitialized)
    hint = "; a process that was forked after CUDA was used cannot use it: start it anew (spawn)";
  return fail(AOT_TUNE_ERROR_DRIVER, "cuda:%d cannot be used: CUDA error %d (%s)%s",
              static_cast<int>(device_id), error, error_text(error), hint);
}

// ---- Capability
// ----------------------------------------------------------------------------------------------------

std::atomic<int32_t> levels[kMaxDevices];  // 0 until it is asked for

int read_level(int32_t device_id, int32_t* level) noexcept {
  const Driver& functions = driver();
  if (!functions.found) return kNoDevice;
  if (functions.status != 0) return functions.status;
  int version = 0, device = 0, major = 0, minor = 0;
  if (functions.version(&version) == 0 && version < kNeeded) return kRuntimeInsufficientDriver;
  int error = functions.device_get(&device, device_id);
  if (error == 0) error = functions.device_attribute(&major, kCapabilityMajor, device);
  if (error == 0) error = functions.device_attribute(&minor, kCapabilityMinor, device);
  *level = 10 * major + minor;
  return error;
}

int32_t cuda_level(int32_t device_id) noexcept {
  const bool cached = device_id >= 0 && device_id < kMaxDevices;
  const int32_t known = cached ? levels[device_id].load(std::memory_order_relaxed) : 0;
  if (known != 0) return known;
  int32_t level = 0;
  const int error = read_level(device_id, &level);
  if (error != 0) return -driver_failed(device_id, error);
  if (cached) levels[device_id].store(level, std::memory_order_relaxed);  // the same in every thread
  return level;
}

int32_t cuda_processors(int32_t device_id) noexcept {
  int device = 0, count = 0;
  if (!driver().found || driver().device_get(&device, device_id) != 0) return 0;
  return driver().device_attribute(&count, kMultiprocessors, device) == 0 ? count : 0;
}

// ---- The thread's device
// -------------------------------------------------------------------------------------------

// Contexts tell the thread's device. They can be restored without making one on a device that the caller
// never used.
std::atomic<void*> contexts[kMaxDevices];  // each device's context as last seen

// The primary context of a device, which the CUDA runtime uses too. It is kept until the process ends.
int primary_context(int32_t device_id, void** context) noexcept {
  static std::atomic<void*> retained[kMaxDevices];
  const bool cached = device_id >= 0 && device_id < kMaxDevices;
  *context = cached ? retained[device_id].load(std::memory_order_acquire) : nullptr;
  if (*context != nullptr) return 0;
  int device = 0;
  int error = driver().device_get(&device, device_id);
  if (error == 0) error = driver().primary_retain(context, device);
  if (error == 0 && cached) retained[device_id].store(*context, std::memory_order_release);
  return error;
}

// Makes the device the thread's current one.
int switch_device(int32_t device_id, Scope* scope) noexcept {
  const Driver& functions = driver();
  const bool cached = device_id >= 0 && device_id < kMaxDevices;
  if (functions.get_current(&scope->previous) != 0) scope->previous = nullptr;
  if (scope->previous != nullptr) {
    if (cached && contexts[device_id].load(std::memory_order_relaxed) == scope->previous) return 0;
    int device = -1, wanted = -2;  // another context of the same device, such as a green one, stays
    if (functions.current_device(&device) == 0 && functions.device_get(&wanted, device_id) == 0 &&
        device == wanted) {
      if (cached) contexts[device_id].store(scope->previous, std::memory_order_relaxed);
      return 0;
    }
  }
  void* context = nullptr;
  int error = primary_context(device_id, &context);
  if (error == 0) error = functions.set_current(context);
  if (error != 0) return error;
  scope->switched = true;
  if (cached) contexts[device_id].store(context, std::memory_order_relaxed);
  return 0;
}

void cuda_leave(const Scope& scope) noexcept {
  if (scope.switched) driver().set_current(scope.previous);
  int mode = scope.mode;
  driver().exchange_mode(&mode);
}

// A thread in relaxed mode may load modules and allocate memory while it or another thread captures a stream.
int32_t cuda_enter(int32_t device_id, Scope* scope) noexcept {
  int mode = kRelaxedCapture;
  int error = driver().found ? driver().exchange_mode(&mode) : int{kNotInitialized};
  if (error != 0) return driver_failed(device_id, error);
  *scope = {nullptr, mode, false};
  error = switch_device(device_id, scope);
  if (error == 0) return AOT_TUNE_OK;
  cuda_leave(*scope);
  return driver_failed(device_id, error);
}

// NULL in a process that was forked after CUDA was used. A launch of loaded code is allowed in any capture
// mode. So it does not need `cuda_enter` if the context is there.
void* cuda_context() noexcept {
  const Driver& functions = driver();
  void* context = nullptr;
  return functions.found && functions.get_current(&context) == 0 ? context : nullptr;
}

// The legacy stream cannot be captured. While other streams are captured, the question fails, and does not
// disturb them.
bool cuda_capturing(void* stream) noexcept {
  int state = 0;
  return driver().found && driver().is_capturing(stream, &state) == 0 && state == kActiveCapture;
}

// ---- Workspace
// -----------------------------------------------------------------------------------------------------

StreamMemory memories({"cuda", "CUDA", error_text});

int32_t cuda_workspace(int32_t device_id, void* stream, size_t size, Workspace* taken) noexcept {
  return memories.take(device_id, stream, size, driver().allocate, taken);
}

const char* cuda_describe(int32_t status) noexcept { return status > 0 ? error_text(status) : nullptr; }

}  // namespace

extern const Backend backend_cuda;
const Backend backend_cuda = {"cuda",     kDLCUDA,       cuda_level,   cuda_workspace, cuda_enter,
                              cuda_leave, cuda_describe, cuda_context, cuda_capturing, cuda_processors};

}  // namespace aot_tune
