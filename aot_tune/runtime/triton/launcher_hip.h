// Launches one Triton kernel through AMD's HIP runtime, which is found with dlopen and declared here as far
// as it is used: names and numbers are those of hip_runtime_api.h of ROCm 6. Tested with a stand-in only,
// never on a card.
#ifndef AOT_TUNE_RUNTIME_TRITON_LAUNCHER_HIP_H_
#define AOT_TUNE_RUNTIME_TRITON_LAUNCHER_HIP_H_

#include <dlfcn.h>

#include "hip_library.h"
#include "launch.h"

namespace {
namespace launcher {

static_assert(kernel::ctas == 1, "these devices have no clusters");
static_assert(!kernel::pdl, "these devices know no programmatic launch");
static_assert(!kernel::tma, "these devices know no tensor maps");

// ---- The driver
// ----------------------------------------------------------------------------------------------------

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

// ---- One kernel, loaded once for each device
// -----------------------------------------------------------------------

struct State {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  Driver driver = {};
  bool driver_known = false;
  int32_t driver_status = 0;  // 0, kUnavailable or what hipInit said
  void* functions[kDevices] = {};
  uint64_t ready = 0;              // a bit per device
  int32_t refused[kDevices] = {};  // why the driver will never run the kernel on a device
  int32_t multiprocessors[kDevices] = {};
};
State state;  // written under the lock, read by others behind their device's bit of `ready`

inline int32_t open_functions() {
  void* const library = open_hip();
  if (library == nullptr) return kUnavailable;
  for (const Symbol& symbol : kSymbols) {
    void* const address = dlsym(library, symbol.name);
    if (address == nullptr) return kUnavailable;
    std::memcpy(reinterpret_cast<char*>(&state.driver) + symbol.offset, &address, sizeof(address));
  }
  return state.driver.init(0);
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

inline int32_t load_module(int32_t device, const char* symbol) {
  const Driver& driver = state.driver;
  const void* const image = kernel_image(symbol);
  if (image == nullptr) return kFileNotFound;
  void *module = nullptr, *function = nullptr;
  int32_t status = driver.device_attribute(&state.multiprocessors[device], kMultiprocessorCount, device);
  if (status == 0) status = driver.module_load(&module, image);
  if (status == 0) status = driver.module_function(&function, module, kernel::name);
  if (status == 0) {
    state.functions[device] = function;
    return 0;
  }
  if (module != nullptr) driver.module_unload(module);
  driver.last_error();  // so that nobody's next call reports it again
  return status;
}

inline int32_t load_on(int32_t device, const char* symbol) {
  if (const int32_t status = find_driver()) return status;
  if ((state.ready >> device & 1) != 0) return 0;
  if (state.refused[device] != 0) return state.refused[device];
  const int32_t status = load_module(device, symbol);
  if (status == 0) __atomic_store_n(&state.ready, state.ready | uint64_t{1} << device, __ATOMIC_RELEASE);
  if (is_lasting(status)) state.refused[device] = status;
  return status;
}

inline int32_t current_device(int32_t* device) {
  pthread_mutex_lock(&state.lock);
  const int32_t status = find_driver();
  pthread_mutex_unlock(&state.lock);
  return status == 0 ? state.driver.current_device(device) : status;
}

// ---- Calls: `load` must have succeeded for the device
// --------------------------------------------------------------

inline int64_t multiprocessors(int32_t device) { return state.multiprocessors[device]; }

// Sets memory to zero, for `clear`.
struct Zeros {
  void* stream;

  int32_t line(void* at, size_t bytes) const { return state.driver.memset_line(at, 0, bytes, stream); }
  int32_t plane(void* at, size_t pitch, size_t width, size_t height) const {
    return state.driver.memset_plane(at, pitch, 0, width, height, stream);
  }
};

inline int32_t launch(int32_t device, const Grid& grid, void** parameters, void* stream) {
  constexpr unsigned kThreads = kernel::warps * kernel::warp_size;
  if (grid.x * int64_t{kThreads} > int64_t{UINT32_MAX}) return kInvalidValue;  // threads have 32-bit numbers
  const auto x = static_cast<unsigned>(grid.x), y = static_cast<unsigned>(grid.y),
             z = static_cast<unsigned>(grid.z);
  void* const function = state.functions[device];
  if (kernel::cooperative)
    return state.driver.launch_cooperative(function, x, y, z, kThreads, 1, 1, kernel::shared, stream,
                                           parameters);
  return state.driver.launch(function, x, y, z, kThreads, 1, 1, kernel::shared, stream, parameters, nullptr);
}

// ---- Tensor descriptors come as their parts
// ------------------------------------------------------------------------

template <int kRank>
struct MapCache {};

template <int kRank>
struct Descriptor {
  TensorParts<kRank> parts;

  int32_t read(const DLTensor& tensor, int64_t element, bool fill_nan, const kernel::DescriptorMeta&,
               MapCache<kRank>*) {
    return parts.read(tensor, element, fill_nan);
  }
  template <int kMost>
  void add(Parameters<kMost>& parameters) {
    parts.add_parts(parameters);
    parts.add_shape(parameters);
  }
};

}  // namespace launcher
}  // namespace

#include "load.h"

#endif  // AOT_TUNE_RUNTIME_TRITON_LAUNCHER_HIP_H_
