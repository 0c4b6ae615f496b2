// Names of PyTorch that the packages' kernels use, as the toolkit has them.
#pragma once
#include <cuda_bf16.h>
namespace at {
using BFloat16 = __nv_bfloat16;
}
