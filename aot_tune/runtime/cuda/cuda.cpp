// CUDA devices: their capability, the thread's device, and workspace memory per stream. Needs the CUDA
// runtime, which is linked statically and finds the driver at the first call; nothing here runs when the
// library loads.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>

#include "runtime.h"

namespace aot_tune {
namespace {

constexpr int32_t kMaxDevices = 64;

// ---- Capability
// ----------------------------------------------------------------------------------------------------

std::atomic<int32_t> levels[kMaxDevices];  // 0 before it was asked for

int32_t driver_failed(int32_t device_id, cudaError_t error) noexcept {
  int version = 0;
  cudaGetLastError();  // so that the next call does not report it again
  const int have = CUDART_VERSION;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) {
    return fail(
        AOT_TUNE_ERROR_DRIVER,
        "cuda:%d: there is no CUDA driver here (libcuda.so.1 was not found); install NVIDIA's driver, "
        "or pass tensors on the CPU",
        static_cast<int>(device_id));
  }
  if (error == cudaErrorInsufficientDriver) {
    return fail(
        AOT_TUNE_ERROR_DRIVER,
        "cuda:%d: the driver is for CUDA %d.%d, but this library needs one for CUDA %d.%d; update the "
        "driver, or build the library with an older toolkit",
        static_cast<int>(device_id), version / 1000, version % 1000 / 10, have / 1000, have % 1000 / 10);
  }
  if (error == cudaErrorNoDevice) {
    return fail(AOT_TUNE_ERROR_DEVICE,
                "cuda:%d: the driver sees no device; look at nvidia-smi and CUDA_VISIBLE_DEVICES",
                static_cast<int>(device_id));
  }
  int count = 0;
  if (error == cudaErrorInvalidDevice && cudaGetDeviceCount(&count) == cudaSuccess) {
    return fail(AOT_TUNE_ERROR_DEVICE, "cuda:%d: there is no such device; the driver sees %d, from cuda:0 on",
                static_cast<int>(device_id), count);
  }
  const char* hint = "";
  if (error == cudaErrorDevicesUnavailable)
    hint = "; another process holds it, or its compute mode is exclusive or prohibited";
  if (error == cudaErrorInitializationError)
    hint = "; a process that was forked after CUDA was used cannot use it: start it anew (spawn)";
  return fail(AOT_TUNE_ERROR_DRIVER, "cuda:%d cannot be used: CUDA error %d (%s)%s",
              static_cast<int>(device_id), static_cast<int>(error), cudaGetErrorString(error), hint);
}

int32_t cuda_level(int32_t device_id) noexcept {
  const bool cached = device_id >= 0 && device_id < kMaxDevices;
  const int32_t known = cached ? levels[device_id].load(std::memory_order_relaxed) : 0;
  if (known != 0) return known;
  int major = 0, minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_id);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_id);
  if (error != cudaSuccess) return -driver_failed(device_id, error);
  const int32_t level = 10 * major + minor;
  if (cached) levels[device_id].store(level, std::memory_order_relaxed);  // the same whoever stores it
  return level;
}

// ---- The thread's device
// -------------------------------------------------------------------------------------------

// Functions of the driver that the runtime has no equal of: contexts tell the thread's device faster, and can
// be put back without making one on a device that the caller never used; neither function makes a context
// itself.
struct Driver {
  int (*get_current)(void** context) = nullptr;
  int (*set_current)(void* context) = nullptr;
  int (*exchange_mode)(int* mode) = nullptr;

  Driver() noexcept {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);  // the runtime has loaded it by now, and it stays
    if (library == nullptr) return;
    get_current = reinterpret_cast<int (*)(void**)>(dlsym(library, "cuCtxGetCurrent"));
    set_current = reinterpret_cast<int (*)(void*)>(dlsym(library, "cuCtxSetCurrent"));
    exchange_mode = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuThreadExchangeStreamCaptureMode"));
  }
  bool complete() const noexcept {
    return get_current != nullptr && set_current != nullptr && exchange_mode != nullptr;
  }
};

const Driver& driver() noexcept {
  static const Driver functions;
  return functions;
}

std::atomic<void*> contexts[kMaxDevices];  // each device's context as last seen

// Makes the device the thread's.
cudaError_t switch_device(int32_t device_id, Scope* scope) noexcept {
  const Driver& functions = driver();
  const bool cached = device_id >= 0 && device_id < kMaxDevices;
  if (functions.get_current(&scope->previous) != 0) scope->previous = nullptr;
  if (scope->previous != nullptr) {
    if (cached && contexts[device_id].load(std::memory_order_relaxed) == scope->previous) return cudaSuccess;
    int device = -1;  // another context of the same device, such as a green one, stays
    if (cudaGetDevice(&device) == cudaSuccess && device == device_id) {
      if (cached) contexts[device_id].store(scope->previous, std::memory_order_relaxed);
      return cudaSuccess;
    }
  }
  const cudaError_t error = cudaSetDevice(device_id);
  if (error != cudaSuccess) return error;
  scope->switched = true;
  void* context = nullptr;
  if (cached && functions.get_current(&context) == 0)
    contexts[device_id].store(context, std::memory_order_relaxed);
  return cudaSuccess;
}

void cuda_leave(const Scope& scope) noexcept {
  if (scope.switched) driver().set_current(scope.previous);
  int mode = scope.mode;
  driver().exchange_mode(&mode);
}

// A thread in relaxed mode may load modules and get memory while it, or another thread, captures a stream.
int32_t cuda_enter(int32_t device_id, Scope* scope) noexcept {
  int mode = cudaStreamCaptureModeRelaxed;
  if (!driver().complete() || driver().exchange_mode(&mode) != 0)
    return driver_failed(device_id, cudaErrorInitializationError);
  *scope = {nullptr, mode, false};
  const cudaError_t error = switch_device(device_id, scope);
  if (error == cudaSuccess) return AOT_TUNE_OK;
  cuda_leave(*scope);
  return driver_failed(device_id, error);
}

// ---- Workspace
// -----------------------------------------------------------------------------------------------------

// Memory of one stream. Work on a stream runs in order, so that its calls can share the memory. It is never
// given back: a graph that was captured with it may run at any later time.
struct Buffer {
  int32_t device_id;
  const void* stream;
  void* memory;
  size_t size;
  Buffer* next;
};

std::mutex mutex;
Buffer* buffers = nullptr;  // guarded by `mutex`

// What tells streams apart: the handle, but for the stream that each thread has of its own under one handle.
const void* stream_key(void* stream) noexcept {
  static thread_local char own;
  return stream == cudaStreamPerThread ? &own : stream;
}

Buffer* find_buffer(int32_t device_id, const void* stream) noexcept {
  for (Buffer* buffer = buffers; buffer != nullptr; buffer = buffer->next) {
    if (buffer->device_id == device_id && buffer->stream == stream) return buffer;
  }
  auto* made = new (std::nothrow) Buffer{device_id, stream, nullptr, 0, buffers};
  if (made != nullptr) buffers = made;
  return made;
}

int32_t cuda_workspace(int32_t device_id, void* stream, size_t size, void** memory) noexcept {
  const std::lock_guard<std::mutex> lock(mutex);
  Buffer* buffer = find_buffer(device_id, stream_key(stream));
  if (buffer != nullptr && buffer->size < size) {
    const size_t wanted =
        size > 2 * buffer->size ? size : 2 * buffer->size;  // the old memory is not lost often
    const size_t rounded = (wanted + 65535) / 65536 * 65536;
    void* grown = nullptr;
    const cudaError_t error = rounded >= size ? cudaMalloc(&grown, rounded) : cudaErrorMemoryAllocation;
    if (error != cudaSuccess) {
      cudaGetLastError();
      return fail(
          AOT_TUNE_ERROR_MEMORY,
          "cuda:%d: no memory for a workspace of %zu bytes: CUDA error %d (%s); pass a workspace, or one "
          "that is smaller for another variant",
          static_cast<int>(device_id), size, static_cast<int>(error), cudaGetErrorString(error));
    }
    buffer->memory = grown;
    buffer->size = rounded;
  }
  if (buffer == nullptr) return fail(AOT_TUNE_ERROR_MEMORY, "no memory for the list of workspaces");
  *memory = buffer->memory;
  return AOT_TUNE_OK;
}

const char* cuda_describe(int32_t status) noexcept {
  return status > 0 ? cudaGetErrorString(static_cast<cudaError_t>(status)) : nullptr;
}

}  // namespace

extern const Backend backend_cuda;
const Backend backend_cuda = {"cuda",     kDLCUDA,    cuda_level,   cuda_workspace,
                              cuda_enter, cuda_leave, cuda_describe};

}  // namespace aot_tune
