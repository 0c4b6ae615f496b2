// AMD's HIP runtime, declared as far as it is used. Names and numbers are from hip_runtime_api.h of ROCm 6.
// It is part of hip.cpp.
#ifndef AOT_TUNE_RUNTIME_TRITON_DRIVER_HIP_H_
#define AOT_TUNE_RUNTIME_TRITON_DRIVER_HIP_H_

#include "launch.h"

namespace launcher {
namespace {

struct Driver {
  int32_t (*init)(unsigned);
  int32_t (*current_device)(int32_t* device);
  int32_t (*device_attribute)(int32_t* value, int32_t attribute, int32_t device);
  int32_t (*last_error)();
  int32_t (*module_load)(void** module, const void* image);
  int32_t (*module_unload)(void* module);
  int32_t (*module_function)(void** function, void* module, const char* name);
  int32_t (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                    unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** parameters,
                    void** extra);
  int32_t (*launch_cooperative)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                void* stream, void** parameters);
  int32_t (*memset_line)(void* at, int32_t value, size_t bytes, void* stream);
  int32_t (*memset_plane)(void* at, size_t pitch, int32_t value, size_t width, size_t height, void* stream);
};

struct Symbol {
  const char* name;
  size_t offset;  // in Driver
};
constexpr Symbol kSymbols[] = {
    {"hipInit", offsetof(Driver, init)},
    {"hipGetDevice", offsetof(Driver, current_device)},
    {"hipDeviceGetAttribute", offsetof(Driver, device_attribute)},
    {"hipGetLastError", offsetof(Driver, last_error)},
    {"hipModuleLoadData", offsetof(Driver, module_load)},
    {"hipModuleUnload", offsetof(Driver, module_unload)},
    {"hipModuleGetFunction", offsetof(Driver, module_function)},
    {"hipModuleLaunchKernel", offsetof(Driver, launch)},
    {"hipModuleLaunchCooperativeKernel", offsetof(Driver, launch_cooperative)},
    {"hipMemsetAsync", offsetof(Driver, memset_line)},
    {"hipMemset2DAsync", offsetof(Driver, memset_plane)},
};
constexpr int32_t kMultiprocessorCount = 63;  // attribute of devices

// Whether a status means that the kernel does not suit the driver or the device, now or later.
inline bool is_lasting(int32_t status) {
  switch (status) {
    case 98:   // hipErrorInvalidDeviceFunction
    case 200:  // hipErrorInvalidImage
    case 209:  // hipErrorNoBinaryForGpu
    case 218:  // hipErrorInvalidKernelFile
    case 300:  // hipErrorInvalidSource
    case 303:  // hipErrorSharedObjectInitFailed
    case 500:  // hipErrorNotFound
    case 801:  // hipErrorNotSupported
    case kInvalidValue:
      return true;
    default:
      return false;
  }
}

}  // namespace
}  // namespace launcher

#endif  // AOT_TUNE_RUNTIME_TRITON_DRIVER_HIP_H_
