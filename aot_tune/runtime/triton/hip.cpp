// The functions of launchers for AMD's devices. They use the HIP runtime, which is found with dlopen. They
// are compiled once, and linked into each library that has such a launcher. They were only tested with a
// stand-in, never on a card.
#define AOT_TUNE_LAUNCHER_FAMILY hip
#include "aot_tune/base.h"
#include "functions.h"
#include "hip_library.h"

namespace launcher {
namespace {

// ---- The HIP runtime, as far as it is used. Names and numbers are from hip_runtime_api.h of ROCm 6.

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

constexpr struct {
  const char* name;
  size_t offset;  // in Driver
} kSymbols[] = {
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
constexpr size_t kFirstOptional = sizeof(Driver);
constexpr int32_t kMultiprocessorCount = 63;  // attribute of devices

using Address = void*;                  // of memory
constexpr int32_t kHandles = kDevices;  // a kernel is loaded for each device

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

#include "common.h"

namespace launcher {
namespace {

int32_t start_driver() { return driver.init(0); }

bool has_all(const Kernel&) { return true; }

int32_t load_on(const Kernel& kernel, State& state, int32_t device) {
  const void* const image = kernel_image(kernel);
  if (image == nullptr) return kFileNotFound;
  void *module = nullptr, *function = nullptr;
  int32_t status = driver.device_attribute(&state.multiprocessors[device], kMultiprocessorCount, device);
  if (status == 0) status = driver.module_load(&module, image);
  if (status == 0) status = driver.module_function(&function, module, kernel.name);
  if (status == 0) {
    state.kernels[device] = function;
    return 0;
  }
  if (module != nullptr) driver.module_unload(module);
  driver.last_error();  // so that no later call of somebody else reports it again
  return status;
}

int32_t current_device(int32_t* device) { return driver.current_device(device); }

void reason(const Kernel&, int32_t status, char* buffer, size_t size) {
  if (status == kUnavailable && driver_lacks == nullptr) {
    std::snprintf(buffer, size, "libamdhip64.so of AMD's ROCm cannot be loaded: install ROCm");
  } else if (status == kUnavailable) {
    std::snprintf(buffer, size, "AMD's HIP runtime has no %s: update ROCm to version 6 or later",
                  driver_lacks);
  } else {
    std::snprintf(buffer, size,
                  "AMD's HIP runtime refuses the kernel's code, error %d: build with this device among "
                  "AOT_TUNE_TARGETS; see AOT_TUNE_KERNEL_DIR if it is set",
                  static_cast<int>(status));
  }
}

// Tensor descriptors are passed as their parts.
template <int kRank>
int32_t describe_axes(const Kernel& kernel, Described& how, const DLTensor& tensor, Descriptor* to,
                      void*** next) {
  if (const int32_t wrong = read_parts<kRank>(how, tensor, to)) return wrong;
  add_parts<kRank>(kernel, to, next);
  add_shape<kRank>(to, next);
  return 0;
}

}  // namespace

inline namespace AOT_TUNE_LAUNCHER_FAMILY {

int32_t launch(const Kernel& kernel, int32_t device, const Grid& grid, void** parameters, void* stream) {
  const unsigned threads = kernel.threads;
  if (grid.x * int64_t{threads} > int64_t{UINT32_MAX}) return kInvalidValue;  // threads have 32-bit numbers
  const auto x = static_cast<unsigned>(grid.x), y = static_cast<unsigned>(grid.y),
             z = static_cast<unsigned>(grid.z);
  void* const function = loaded(kernel).kernels[device];
  if (kernel.cooperative)
    return driver.launch_cooperative(function, x, y, z, threads, 1, 1, kernel.shared, stream, parameters);
  return driver.launch(function, x, y, z, threads, 1, 1, kernel.shared, stream, parameters, nullptr);
}

}  // namespace AOT_TUNE_LAUNCHER_FAMILY
}  // namespace launcher
