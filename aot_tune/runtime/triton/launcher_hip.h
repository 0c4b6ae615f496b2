// Launchers for AMD's devices. Included after the generated `kernel.h`.
#ifndef AOT_TUNE_RUNTIME_TRITON_LAUNCHER_HIP_H_
#define AOT_TUNE_RUNTIME_TRITON_LAUNCHER_HIP_H_

#define AOT_TUNE_LAUNCHER_FAMILY hip
#include "functions.h"

static_assert(kernel::ctas == 1, "these devices have no clusters");
static_assert(!kernel::pdl, "these devices know no programmatic launch");
static_assert(!kernel::tma, "these devices know no tensor maps");

#endif  // AOT_TUNE_RUNTIME_TRITON_LAUNCHER_HIP_H_
