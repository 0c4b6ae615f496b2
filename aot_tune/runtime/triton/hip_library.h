// Where AMD's HIP runtime is. It is part of hip.cpp and of the runtime for these devices, because both
// must open the same library.
#ifndef AOT_TUNE_RUNTIME_TRITON_HIP_LIBRARY_H_
#define AOT_TUNE_RUNTIME_TRITON_HIP_LIBRARY_H_

#include <dlfcn.h>

namespace {

// A library that the process has loaded already (a framework's copy) comes first, so that one serves all.
inline void* open_library() {
  constexpr const char* kNames[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6",
                                    "libamdhip64.so.5"};
  constexpr int kFlags[] = {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL};
  for (const int flags : kFlags) {
    for (const char* name : kNames) {
      if (void* const found = dlopen(name, flags)) return found;
    }
  }
  return nullptr;
}

}  // namespace

#endif  // AOT_TUNE_RUNTIME_TRITON_HIP_LIBRARY_H_
