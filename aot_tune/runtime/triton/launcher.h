// Launchers for CUDA's devices.
#ifndef AOT_TUNE_RUNTIME_TRITON_LAUNCHER_H_
#define AOT_TUNE_RUNTIME_TRITON_LAUNCHER_H_

#define AOT_TUNE_LAUNCHER_FAMILY cuda
#include "functions.h"

#endif  // AOT_TUNE_RUNTIME_TRITON_LAUNCHER_H_
