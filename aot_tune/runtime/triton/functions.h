// The functions that launchers call: defined once in a library, by cuda.cpp or hip.cpp, in a namespace of the
// family, which launcher.h and launcher_hip.h name. Included behind DLPack's `DLTensor`.
#ifndef AOT_TUNE_RUNTIME_TRITON_FUNCTIONS_H_
#define AOT_TUNE_RUNTIME_TRITON_FUNCTIONS_H_

#include "launch.h"

#pragma GCC visibility push(hidden)
namespace launcher {
inline namespace AOT_TUNE_LAUNCHER_FAMILY {

// ---- Loading: status is 0 or what the driver said
// -----------------------------------------------------------------------------------------

// Loads the kernel on a device, which must be the thread's, unless that was done before.
int32_t load(Kernel& kernel, int32_t device);
// As `load`, but a kernel that the driver refuses is one that is not here: another variant serves.
int32_t find(Kernel& kernel, int32_t device);
// As `find`, on the thread's device.
int32_t preload(Kernel& kernel);
// Why `find` says kUnavailable and what to do, one line; empty where it does not.
void tell(Kernel& kernel, int32_t device, char* buffer, size_t size);

// ---- Calls: `load` must have succeeded for the device
// --------------------------------------------------------------

int64_t multiprocessors(const Kernel& kernel, int32_t device);
// The bits of a number in 16 bits as the JIT passes it: fp16 rounded to nearest even, bf16 cut off.
uint16_t bfloat16_bits(double value);
uint16_t float16_bits(double value);
// Room for `count` pieces of `bytes`; the result is a place for `at`.
size_t reserve(Workspace& memory, uint64_t count, uint64_t bytes);
// Whether memory of a caller is enough; then it is taken.
bool place(Workspace& memory, void* given, size_t size);
// Sets memory to zero on a stream.
int32_t zero(void* at, size_t bytes, void* stream);
// Sets a tensor's elements to zero and leaves what lies between them; `element` is bytes.
int32_t clear(const DLTensor& tensor, int64_t element, void* stream);
// Fills in a descriptor of a tensor and adds the parameters that it comes to behind `next`.
int32_t describe(const Kernel& kernel, Described& how, const DLTensor& tensor, Descriptor* to, void*** next);
int32_t launch(const Kernel& kernel, int32_t device, const Grid& grid, void** parameters, void* stream);

}  // namespace AOT_TUNE_LAUNCHER_FAMILY
}  // namespace launcher
#pragma GCC visibility pop

#endif  // AOT_TUNE_RUNTIME_TRITON_FUNCTIONS_H_
