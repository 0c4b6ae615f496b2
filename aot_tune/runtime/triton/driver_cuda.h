// CUDA's driver, declared as far as it is used. Names, numbers and layouts are from cuda.h of CUDA 12.4 and
// later. It is part of cuda.cpp.
#ifndef AOT_TUNE_RUNTIME_TRITON_DRIVER_CUDA_H_
#define AOT_TUNE_RUNTIME_TRITON_DRIVER_CUDA_H_

#include "launch.h"

namespace launcher {
namespace {

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

}  // namespace
}  // namespace launcher

#endif  // AOT_TUNE_RUNTIME_TRITON_DRIVER_CUDA_H_
