// Launches one Triton kernel through CUDA's driver, which is found with dlopen and declared here as far as it
// is used: names, numbers and layouts are those of cuda.h of CUDA 12.4 and later.
#ifndef AOT_TUNE_RUNTIME_TRITON_LAUNCHER_H_
#define AOT_TUNE_RUNTIME_TRITON_LAUNCHER_H_

#include <dlfcn.h>

#include "launch.h"

namespace {
namespace launcher {

// ---- The driver
// ----------------------------------------------------------------------------------------------------

struct LaunchAttribute {
  uint32_t id;
  uint32_t padding;
  uint64_t value[8];
};
struct LaunchConfig {
  uint32_t grid[3], block[3];
  uint32_t shared;
  void* stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
};
enum LaunchAttributeId : uint32_t {
  kCooperative = 2,
  kClusterDimension = 4,
  kClusterSchedulingPolicy = 5,
  kProgrammaticStreamSerialization = 6,
};
constexpr uint64_t kSpread = 1;
constexpr int32_t kMaxDynamicShared = 8, kNonPortableCluster = 14;  // attributes of kernels
constexpr int32_t kPreferShared = 1;
constexpr int32_t kMultiprocessorCount = 16;  // attribute of devices
constexpr int64_t kSharedWithoutAsking = 48 << 10;
constexpr unsigned kPortableCluster = 8;

struct Driver {
  int32_t (*init)(unsigned);
  int32_t (*version)(int32_t*);
  int32_t (*current_device)(int32_t* device);
  int32_t (*device_get)(int32_t* device, int32_t ordinal);
  int32_t (*device_attribute)(int32_t* value, int32_t attribute, int32_t device);
  int32_t (*library_load)(void** library, const void* code, void* jit_options, void** jit_values,
                          unsigned jit_count, void* options, void** values, unsigned count);
  int32_t (*library_unload)(void* library);
  int32_t (*library_kernel)(void** kernel, void* library, const char* name);
  int32_t (*kernel_attribute)(int32_t attribute, int32_t value, void* kernel, int32_t device);
  int32_t (*kernel_cache)(void* kernel, int32_t preference, int32_t device);
  int32_t (*kernel_function)(void** function, void* kernel);
  int32_t (*launch)(const LaunchConfig* config, void* kernel, void** parameters, void** extra);
  int32_t (*memset_line)(uint64_t at, unsigned char value, size_t count, void* stream);
  int32_t (*memset_plane)(uint64_t at, size_t pitch, unsigned char value, size_t width, size_t height,
                          void* stream);
  // The rest may be missing.
  int32_t (*function_load)(void* function);
  int32_t (*encode_map)(void* map, int32_t type, uint32_t rank, void* data, const uint64_t* shape,
                        const uint64_t* strides, const uint32_t* box, const uint32_t* steps,
                        int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill);
};

struct Symbol {
  const char* name;
  size_t offset;  // in Driver
};
constexpr Symbol kSymbols[] = {
    {"cuInit", offsetof(Driver, init)},
    {"cuDriverGetVersion", offsetof(Driver, version)},
    {"cuCtxGetDevice", offsetof(Driver, current_device)},
    {"cuDeviceGet", offsetof(Driver, device_get)},
    {"cuDeviceGetAttribute", offsetof(Driver, device_attribute)},
    {"cuLibraryLoadData", offsetof(Driver, library_load)},
    {"cuLibraryUnload", offsetof(Driver, library_unload)},
    {"cuLibraryGetKernel", offsetof(Driver, library_kernel)},
    {"cuKernelSetAttribute", offsetof(Driver, kernel_attribute)},
    {"cuKernelSetCacheConfig", offsetof(Driver, kernel_cache)},
    {"cuKernelGetFunction", offsetof(Driver, kernel_function)},
    {"cuLaunchKernelEx", offsetof(Driver, launch)},
    {"cuMemsetD8Async", offsetof(Driver, memset_line)},
    {"cuMemsetD2D8Async", offsetof(Driver, memset_plane)},
    {"cuFuncLoad", offsetof(Driver, function_load)},
    {"cuTensorMapEncodeTiled", offsetof(Driver, encode_map)},
};
constexpr size_t kFirstOptional = offsetof(Driver, function_load);

// ---- One kernel, loaded once for all devices
// -----------------------------------------------------------------------

struct State {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  Driver driver = {};
  bool driver_known = false;
  int32_t driver_status = 0;  // 0, kUnavailable or what cuInit said
  int32_t driver_version = 0;
  void* kernel = nullptr;
  uint64_t ready = 0;              // a bit per device
  int32_t refused[kDevices] = {};  // why the driver will never run the kernel on a device
  int32_t multiprocessors[kDevices] = {};
};
State state;  // written under the lock, read by others behind their device's bit of `ready`

inline int32_t open_functions() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return kUnavailable;
  for (const Symbol& symbol : kSymbols) {
    void* const address = dlsym(library, symbol.name);
    if (address == nullptr && symbol.offset < kFirstOptional) return kUnavailable;  // older than CUDA 12.0
    std::memcpy(reinterpret_cast<char*>(&state.driver) + symbol.offset, &address, sizeof(address));
  }
  if (kernel::tma && state.driver.encode_map == nullptr) return kUnavailable;
  if (const int32_t status = state.driver.init(0)) return status;
  return state.driver.version(&state.driver_version);
}

// Under the lock.
inline int32_t find_driver() {
  if (!state.driver_known) state.driver_status = open_functions();
  state.driver_known = true;
  return state.driver_status;
}

// Whether a status means that the kernel does not suit the driver or the device, now or later.
inline bool is_lasting(int32_t status) {
  switch (status) {
    case 200:  // CUDA_ERROR_INVALID_IMAGE
    case 209:  // CUDA_ERROR_NO_BINARY_FOR_GPU
    case 218:  // CUDA_ERROR_INVALID_PTX
    case 221:  // CUDA_ERROR_JIT_COMPILER_NOT_FOUND
    case 222:  // CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    case 223:  // CUDA_ERROR_JIT_COMPILATION_DISABLED
    case 300:  // CUDA_ERROR_INVALID_SOURCE
    case 500:  // CUDA_ERROR_NOT_FOUND
    case 801:  // CUDA_ERROR_NOT_SUPPORTED
    case kInvalidValue:
      return true;
    default:
      return false;
  }
}

inline int32_t load_library(const char* symbol) {
  const void* const image = kernel_image(symbol);
  if (image == nullptr) return kFileNotFound;
  void* library = nullptr;
  if (const int32_t status =
          state.driver.library_load(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0))
    return status;
  const int32_t status = state.driver.library_kernel(&state.kernel, library, kernel::name);
  if (status != 0) {
    state.kernel = nullptr;
    state.driver.library_unload(library);
  }
  return status;
}

// What a device must know of the kernel, as Triton's own driver tells it.
inline int32_t prepare_kernel(int32_t device) {
  const Driver& driver = state.driver;
  int32_t handle = 0;
  int32_t status = driver.device_get(&handle, device);
  if (status == 0)
    status = driver.device_attribute(&state.multiprocessors[device], kMultiprocessorCount, handle);
  if (status == 0 && kernel::shared > kSharedWithoutAsking) {
    status = driver.kernel_cache(state.kernel, kPreferShared, handle);
    if (status == 0)
      status = driver.kernel_attribute(kMaxDynamicShared, static_cast<int32_t>(kernel::shared), state.kernel,
                                       handle);
  }
  if (status == 0 && kernel::ctas > kPortableCluster)
    status = driver.kernel_attribute(kNonPortableCluster, 1, state.kernel, handle);
  if (status != 0) return status;
  void* function = nullptr;  // in the thread's context, so that the first launch need not load it
  status = driver.kernel_function(&function, state.kernel);
  return status == 0 && driver.function_load != nullptr ? driver.function_load(function) : status;
}

inline int32_t load_on(int32_t device, const char* symbol) {
  if (const int32_t status = find_driver()) return status;
  if ((state.ready >> device & 1) != 0) return 0;
  if (state.refused[device] != 0) return state.refused[device];
  int32_t status = state.kernel == nullptr ? load_library(symbol) : 0;
  if (status == 0) status = prepare_kernel(device);
  if (status == 0) __atomic_store_n(&state.ready, state.ready | uint64_t{1} << device, __ATOMIC_RELEASE);
  if (is_lasting(status)) state.refused[device] = status;
  return status;
}

// The number of the context's device.
inline int32_t current_device(int32_t* device) {
  pthread_mutex_lock(&state.lock);
  int32_t status = find_driver();
  pthread_mutex_unlock(&state.lock);
  int32_t wanted = 0, handle = 0;
  if (status == 0) status = state.driver.current_device(&wanted);
  for (*device = 0; status == 0 && *device < kDevices; ++*device) {
    status = state.driver.device_get(&handle, *device);
    if (status == 0 && handle == wanted) return 0;
  }
  return status != 0 ? status : kInvalidDevice;
}

// ---- Calls: `load` must have succeeded for the device
// --------------------------------------------------------------

inline int64_t multiprocessors(int32_t device) { return state.multiprocessors[device]; }

// Sets memory to zero, for `clear`.
struct Zeros {
  void* stream;

  int32_t line(void* at, size_t bytes) const {
    return state.driver.memset_line(reinterpret_cast<uintptr_t>(at), 0, bytes, stream);
  }
  int32_t plane(void* at, size_t pitch, size_t width, size_t height) const {
    return state.driver.memset_plane(reinterpret_cast<uintptr_t>(at), pitch, 0, width, height, stream);
  }
};

inline int32_t launch(int32_t, const Grid& grid, void** parameters, void* stream) {
  LaunchAttribute attributes[4];
  uint32_t count = 0;
  const auto add = [&attributes, &count](LaunchAttributeId id, uint64_t first, uint64_t second = 0) {
    attributes[count++] = {id, 0, {first, second}};
  };
  if (kernel::pdl) add(kProgrammaticStreamSerialization, 1);
  if (kernel::cooperative) add(kCooperative, 1);
  if (kernel::ctas > 1) {
    add(kClusterDimension, kernel::ctas | uint64_t{1} << 32, 1);
    add(kClusterSchedulingPolicy, kSpread);
  }
  const LaunchConfig config = {{static_cast<uint32_t>(grid.x) * kernel::ctas, static_cast<uint32_t>(grid.y),
                                static_cast<uint32_t>(grid.z)},
                               {kernel::warps * kernel::warp_size, 1, 1},
                               kernel::shared,
                               stream,
                               attributes,
                               count};
  return state.driver.launch(&config, state.kernel, parameters, nullptr);
}

}  // namespace launcher
}  // namespace

#include "load.h"
#include "tensor_map.h"

#endif  // AOT_TUNE_RUNTIME_TRITON_LAUNCHER_H_
