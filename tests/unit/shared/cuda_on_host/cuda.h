// What gemm/cuda/wgmma/tensor_map.cuh.j2 takes of the driver, on the host: descriptions of matrices, refused where
// the driver's manual says so.
#pragma once
#include "cuda_runtime.h"

#define CUDART_VERSION 13000
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;
using cudaError_t = int;
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32 = 7,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 = 11,
};
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1,
};
constexpr int cudaSuccess = 0, cudaErrorNotSupported = 801, cudaEnableDefault = 0;

struct alignas(64) CUtensorMap {
  const unsigned char* data;
  uint64_t depth, rows, stride;  // elements of a row, rows, bytes from a row to the next
  uint32_t box;                  // rows; each has 128 bytes
  uint32_t size;                 // bytes of an element
  bool rounds;                   // floats to TF32
  char rest[80];
};
static_assert(sizeof(CUtensorMap) == 128);

namespace host {

// Bytes of an element, 0 for those that nothing here copies.
inline uint32_t size_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
      return 4;
    default:
      return 0;
  }
}

inline CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                             const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* boxes,
                             const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  constexpr uint64_t most = uint64_t{1} << 32;
  const uint32_t size = size_of(type);
  const bool right = rank == 2 && reinterpret_cast<uintptr_t>(map) % 64 == 0 &&
                     reinterpret_cast<uintptr_t>(data) % 16 == 0 && strides[0] % 16 == 0 &&
                     strides[0] < uint64_t{1} << 40 && extents[0] - 1 < most && extents[1] - 1 < most &&
                     boxes[0] * size == 128 && boxes[1] - 1 < 256 && steps[0] == 1 && steps[1] == 1 &&
                     swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
  if (!right) return CUDA_ERROR_INVALID_VALUE;
  const bool rounds = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  *map = {static_cast<unsigned char*>(data), extents[0], extents[1], strides[0], boxes[1], size, rounds, {}};
  return CUDA_SUCCESS;
}

}  // namespace host

inline cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, int,
                                                    cudaDriverEntryPointQueryResult* status) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(host::encode_tiled) : nullptr;
  *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
