// The functions that launchers call. cuda.cpp or hip.cpp defines them once in a library, in a namespace of
// the family, which launcher.h and launcher_hip.h name. It is included after DLPack's `DLTensor`.
#ifndef AOT_TUNE_RUNTIME_TRITON_FUNCTIONS_H_
#define AOT_TUNE_RUNTIME_TRITON_FUNCTIONS_H_

#include "launch.h"

#pragma GCC visibility push(hidden)
namespace launcher {
inline namespace AOT_TUNE_LAUNCHER_FAMILY {

// ---- Loading: status is 0 or what the driver said
// -----------------------------------------------------------------------------------------

// Loads the kernel on a device, unless that was done before. The device must be the thread's.
int32_t load(Kernel& kernel, int32_t device);
// Like `load`, but a kernel that the driver refuses counts as missing, so another variant serves.
int32_t find(Kernel& kernel, int32_t device);
// Like `find`, on the thread's device.
int32_t preload(Kernel& kernel);
// Why `find` returns kUnavailable and what to do, in one line. Empty if it does not.
void tell(Kernel& kernel, int32_t device, char* buffer, size_t size);

// ---- Calls: `load` must have succeeded for the device
// --------------------------------------------------------------

int64_t multiprocessors(const Kernel& kernel, int32_t device);
// The 16 bits of a number as the JIT passes it: fp16 is rounded to nearest even, bf16 is cut off.
uint16_t bfloat16_bits(double value);
uint16_t float16_bits(double value);
// Reserves `count` pieces of `bytes`. The result is a place for `at`.
size_t reserve(Workspace& memory, uint64_t count, uint64_t bytes);
// Whether a caller's memory is enough. If so, it is taken.
bool place(Workspace& memory, void* given, size_t size);
// Sets memory to zero on a stream.
int32_t zero(void* at, size_t bytes, void* stream);
// Sets a tensor's elements to zero, but not what is between them. `element` is in bytes.
int32_t clear(const DLTensor& tensor, int64_t element, void* stream);
// Fills in a descriptor of a tensor, and adds its parameters at `next`.
int32_t describe(const Kernel& kernel, Described& how, const DLTensor& tensor, Descriptor* to, void*** next);
int32_t launch(const Kernel& kernel, int32_t device, const Grid& grid, void** parameters, void* stream);

}  // namespace AOT_TUNE_LAUNCHER_FAMILY
}  // namespace launcher
#pragma GCC visibility pop

#endif  // AOT_TUNE_RUNTIME_TRITON_FUNCTIONS_H_
