// CUDA devices. The driver is found with dlopen at the first call. Nothing here runs when the library loads,
// and building it needs no CUDA toolkit.
#include "gpu.h"

#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#endif

namespace aot_tune {
namespace {

const Words kWords = {
    "cuda",
    "CUDA",
    "driver",
    "nvidia-smi and CUDA_VISIBLE_DEVICES",
    {"cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventElapsedTime", "cuEventDestroy_v2"}};

// The CUDA version that the driver must have. If the runtime is linked with nvcc's kernels, it is the
// runtime's major version, because the driver's minor version may be older. Otherwise, it is the first
// version whose driver loads kernels without a context.
#ifdef CUDART_VERSION
constexpr int kNeeded = CUDART_VERSION / 1000 * 1000;
#else
constexpr int kNeeded = 12000;
#endif

// ---- The driver

enum : int {
  kRuntimeInsufficientDriver = 35,  // of the runtime only
  kMultiprocessors = 16,
  kDeviceUnavailable = 46,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
};

// Of these functions, only `primary_retain` makes a context.
struct Driver : Functions {
  int (*version)(int* version) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*device_attribute)(int* value, int attribute, int device) = nullptr;
  int (*primary_retain)(void** context, int device) = nullptr;
  int (*get_current)(void** context) = nullptr;
  int (*set_current)(void* context) = nullptr;
  int (*error_string)(int status, const char** text) = nullptr;

  Driver() noexcept {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
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
    usable = lacks == nullptr;
    if (usable) status = init(0);
  }
};

const Driver& driver() noexcept {
  static const Driver functions;
  return functions;
}

const Functions& functions() noexcept { return driver(); }

int forget(int status) noexcept { return status; }

const char* error_text(int status) noexcept {
  const char* text = nullptr;
  if (status == kRuntimeInsufficientDriver) return "the driver is older than the library's CUDA runtime";
  if (!driver().usable || driver().error_string(status, &text) != 0 || text == nullptr)
    return "unknown error";
  return text;
}

int32_t check_driver(int device) noexcept {
  int version = 0;
  if (!driver().usable || driver().version(&version) != 0 || version == 0) {
    return fail(
        AOT_TUNE_ERROR_DRIVER,
        "cuda:%d: there is no CUDA driver here (libcuda.so.1 was not found); install NVIDIA's driver, "
        "or pass tensors on the CPU",
        device);
  }
  if (version < kNeeded) {
    return fail(
        AOT_TUNE_ERROR_DRIVER,
        "cuda:%d: the driver is for CUDA %d.%d, but this library needs one for CUDA %d.%d; update the "
        "driver, or build the library with an older toolkit",
        device, version / 1000, version % 1000 / 10, kNeeded / 1000, kNeeded % 1000 / 10);
  }
  return 0;
}

const char* hint_for(int error) noexcept {
  if (error == kDeviceUnavailable)
    return "; another process holds it, or its compute mode is exclusive or prohibited";
  if (error == kNotInitialized)
    return "; a process that was forked after CUDA was used cannot use it: start it anew (spawn)";
  return "";
}

// The level is that of the compute capability: 90 for 9.0.
int read_level(int32_t device_id, int32_t* level) noexcept {
  const Driver& functions = driver();
  int version = 0, device = 0, major = 0, minor = 0;
  if (functions.version(&version) == 0 && version < kNeeded) return kRuntimeInsufficientDriver;
  int error = functions.device_get(&device, device_id);
  if (error == 0) error = functions.device_attribute(&major, kCapabilityMajor, device);
  if (error == 0) error = functions.device_attribute(&minor, kCapabilityMinor, device);
  *level = 10 * major + minor;
  return error;
}

int32_t cuda_processors(int32_t device_id) noexcept {
  int device = 0, count = 0;
  if (!driver().usable || driver().device_get(&device, device_id) != 0) return 0;
  return driver().device_attribute(&count, kMultiprocessors, device) == 0 ? count : 0;
}

int32_t cuda_copy(void* to, const void* from, size_t size, void* stream) noexcept {
  struct Copying {
    int (*copy)(void*, const void*, size_t, void*);
    int (*wait)(void* stream);
  };
  static const Copying found = {
      reinterpret_cast<decltype(Copying::copy)>(dlsym(driver().library, "cuMemcpyAsync")),
      reinterpret_cast<decltype(Copying::wait)>(dlsym(driver().library, "cuStreamSynchronize"))};
  if (found.copy == nullptr || found.wait == nullptr) return kNotInitialized;
  const int error = found.copy(to, from, size, stream);
  return error != 0 ? error : found.wait(stream);
}

void cuda_model(int32_t device_id, char* name, size_t size) noexcept {
  int device = 0;
  const auto ask = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver().library, "cuDeviceGetName"));
  if (ask != nullptr && driver().device_get(&device, device_id) == 0)
    ask(name, static_cast<int>(size), device);
}

// ---- The thread's device

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

void switch_back(const Scope& scope) noexcept { driver().set_current(scope.previous); }

// NULL in a process that was forked after CUDA was used. A launch of loaded code is allowed in any capture
// mode. So it does not need `gpu_enter` if the context is there.
void* cuda_context() noexcept {
  const Driver& functions = driver();
  void* context = nullptr;
  return functions.usable && functions.get_current(&context) == 0 ? context : nullptr;
}

}  // namespace

extern const Backend backend_cuda;
const Backend backend_cuda = {"cuda",    kDLCUDA,      gpu_level,    gpu_workspace, gpu_enter,
                              gpu_leave, gpu_describe, cuda_context, gpu_capturing, cuda_processors,
                              cuda_copy, gpu_mark,     gpu_between,  cuda_model};

}  // namespace aot_tune
