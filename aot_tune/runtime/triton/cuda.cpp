// The functions of launchers for CUDA's devices. They use the driver, which is found with dlopen. They are
// compiled once, and linked into each library that has such a launcher.
#define AOT_TUNE_LAUNCHER_FAMILY cuda
#include <dlfcn.h>

#include "aot_tune/base.h"
#include "functions.h"

namespace launcher {
namespace {

// ---- The driver, as far as it is used. Names, numbers and layouts are from cuda.h of CUDA 12.4 and later.

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

constexpr struct {
  const char* name;
  size_t offset;  // in Driver
} kSymbols[] = {
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
constexpr size_t kFirstOptional = offsetof(Driver, function_load);  // CUDA 12.0 has those before it

using Address = uint64_t;        // of memory
constexpr int32_t kHandles = 1;  // a kernel is loaded once for all devices

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

void* open_library() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); }

}  // namespace
}  // namespace launcher

#include "common.h"
#include "tensor_map.h"

namespace launcher {
namespace {

int32_t start_driver() {
  const int32_t status = driver.init(0);
  return status == 0 ? driver.version(&driver_version) : status;
}

bool has_all(const Kernel& kernel) { return !kernel.tma || driver.encode_map != nullptr; }

int32_t load_library(const Kernel& kernel, State& state) {
  const void* const image = kernel_image(kernel);
  if (image == nullptr) return kFileNotFound;
  void* library = nullptr;
  if (const int32_t status = driver.library_load(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0))
    return status;
  const int32_t status = driver.library_kernel(&state.kernels[0], library, kernel.name);
  if (status != 0) {
    state.kernels[0] = nullptr;
    driver.library_unload(library);
  }
  return status;
}

// What a device must know of the kernel, as Triton's own driver tells it.
int32_t prepare_kernel(const Kernel& kernel, State& state, int32_t device) {
  int32_t handle = 0;
  int32_t status = driver.device_get(&handle, device);
  if (status == 0)
    status = driver.device_attribute(&state.multiprocessors[device], kMultiprocessorCount, handle);
  if (status == 0 && kernel.shared > kSharedWithoutAsking) {
    status = driver.kernel_cache(state.kernels[0], kPreferShared, handle);
    if (status == 0)
      status = driver.kernel_attribute(kMaxDynamicShared, static_cast<int32_t>(kernel.shared),
                                       state.kernels[0], handle);
  }
  if (status == 0 && kernel.ctas > kPortableCluster)
    status = driver.kernel_attribute(kNonPortableCluster, 1, state.kernels[0], handle);
  if (status != 0) return status;
  void* function = nullptr;  // in the thread's context, so that the first launch need not load it
  status = driver.kernel_function(&function, state.kernels[0]);
  return status == 0 && driver.function_load != nullptr ? driver.function_load(function) : status;
}

int32_t load_on(const Kernel& kernel, State& state, int32_t device) {
  const int32_t status = state.kernels[0] == nullptr ? load_library(kernel, state) : 0;
  return status == 0 ? prepare_kernel(kernel, state, device) : status;
}

// The number of the context's device.
int32_t current_device(int32_t* device) {
  int32_t wanted = 0, handle = 0;
  int32_t status = driver.current_device(&wanted);
  for (*device = 0; status == 0 && *device < kDevices; ++*device) {
    status = driver.device_get(&handle, *device);
    if (status == 0 && handle == wanted) return 0;
  }
  return status != 0 ? status : kInvalidDevice;
}

void reason(const Kernel& kernel, int32_t status, char* buffer, size_t size) {
  const bool here = driver_status == 0;
  if (status == kUnavailable && !here && driver_lacks == nullptr) {
    std::snprintf(buffer, size, "libcuda.so.1 of NVIDIA's driver cannot be loaded: install the driver");
  } else if (status == kUnavailable) {
    std::snprintf(buffer, size, "the driver has no %s: update it to one for CUDA 12.0 or later",
                  here ? "cuTensorMapEncodeTiled" : driver_lacks);
  } else if (status == 221 || status == 222 || status == 223) {
    std::snprintf(buffer, size,
                  "the driver does not translate the kernel's PTX, error %d: update it, unset "
                  "CUDA_DISABLE_PTX_JIT, or build with this device among AOT_TUNE_TARGETS",
                  static_cast<int>(status));
  } else if (status == kInvalidValue) {
    std::snprintf(buffer, size,
                  "the device does not run blocks of %u bytes of shared memory in clusters of %u, error %d: "
                  "build with it among AOT_TUNE_TARGETS",
                  kernel.shared, kernel.ctas, static_cast<int>(status));
  } else {
    std::snprintf(buffer, size,
                  "the driver refuses the kernel's code, error %d: build with this device among "
                  "AOT_TUNE_TARGETS; see AOT_TUNE_KERNEL_DIR if it is set",
                  static_cast<int>(status));
  }
}

template <int kRank>
int32_t describe_axes(const Kernel& kernel, Described& how, const DLTensor& tensor, Descriptor* to,
                      void*** next) {
  if (const int32_t wrong = read_parts<kRank>(how, tensor, to)) return wrong;
  if (kernel.tma) {
    if (const int32_t status = find_map<kRank>(how, to)) return status;
    *(*next)++ = &to->map;
  } else {
    add_parts<kRank>(kernel, to, next);
  }
  add_shape<kRank>(to, next);
  return 0;
}

}  // namespace

inline namespace AOT_TUNE_LAUNCHER_FAMILY {

int32_t launch(const Kernel& kernel, int32_t, const Grid& grid, void** parameters, void* stream) {
  LaunchAttribute attributes[4];
  uint32_t count = 0;
  const auto add = [&attributes, &count](LaunchAttributeId id, uint64_t first, uint64_t second = 0) {
    attributes[count++] = {id, 0, {first, second}};
  };
  if (kernel.pdl) add(kProgrammaticStreamSerialization, 1);
  if (kernel.cooperative) add(kCooperative, 1);
  if (kernel.ctas > 1) {
    add(kClusterDimension, kernel.ctas | uint64_t{1} << 32, 1);
    add(kClusterSchedulingPolicy, kSpread);
  }
  const LaunchConfig config = {{static_cast<uint32_t>(grid.x) * kernel.ctas, static_cast<uint32_t>(grid.y),
                                static_cast<uint32_t>(grid.z)},
                               {kernel.threads, 1, 1},
                               kernel.shared,
                               stream,
                               attributes,
                               count};
  return driver.launch(&config, loaded(kernel).kernels[0], parameters, nullptr);
}

}  // namespace AOT_TUNE_LAUNCHER_FAMILY
}  // namespace launcher
