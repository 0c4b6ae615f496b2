// A launcher's errors. The library asks for the last error after each launch, and an exception is a failure.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#define C10_CUDA_CHECK(CALL)                                  \
  if (const cudaError_t found = (CALL); found != cudaSuccess) \
  throw std::runtime_error(cudaGetErrorString(found))
#define C10_CUDA_KERNEL_LAUNCH_CHECK()
