// Host time of launches on a GPU, in loops without anything of Python between them.
#include <aot_tune/base.h>
#include <dlfcn.h>

#include "timing.h"

namespace {

typedef const DLTensor* In;
typedef int32_t (*Plain)(In, In, In, const aot_tune_exec*);
typedef int32_t (*Scaled)(In, In, In, float, const aot_tune_exec*);
typedef int32_t (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                          void**, void**);

}  // namespace

extern "C" {

// An operator of a library with two inputs and an output.
double launches_plain(void* function, In first, In second, In out, void* stream, int64_t count) {
  aot_tune_exec how{};
  how.stream = stream;
  const auto call = reinterpret_cast<Plain>(function);
  return time_calls(count, [&] { return call(first, second, out, &how); });
}

// The same with a scalar.
double launches_scaled(void* function, In first, In second, In out, float scalar, void* stream,
                       int64_t count) {
  aot_tune_exec how{};
  how.stream = stream;
  const auto call = reinterpret_cast<Scaled>(function);
  return time_calls(count, [&] { return call(first, second, out, scalar, &how); });
}

// cuLaunchKernel alone. A caller fills in what it passes at each call.
double launches_bare(void* function, unsigned blocks, unsigned threads, unsigned shared, uint64_t* slots,
                     int32_t used, void* stream, int64_t count) {
  static const auto launch =
      reinterpret_cast<Launch>(dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuLaunchKernel"));
  return time_calls(count, [&] {
    void* parameters[64];
    for (int32_t i = 0; i < used; ++i) parameters[i] = slots + i;
    return launch(function, blocks, 1, 1, threads, 1, 1, shared, stream, parameters, nullptr);
  });
}

}  // extern "C"
