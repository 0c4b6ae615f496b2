// Names of PyTorch that the packages' kernels use, as the toolkit has them.
#pragma once
#include <cuda_fp16.h>
namespace at {
using Half = __half;
}
