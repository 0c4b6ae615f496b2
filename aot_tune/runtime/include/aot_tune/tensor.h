/* Tensors in memory that a program has, for C: aot_tune_tensor(data, AOT_TUNE_F32, aot_tune_cpu(), 2, shape,
 * NULL).
 *
 * Nothing is copied or checked here; the library checks at the call. C++ has more in aot_tune/tensor.hpp.
 */
#ifndef AOT_TUNE_TENSOR_H_
#define AOT_TUNE_TENSOR_H_

#include "aot_tune/base.h"

/* The dtype with a DLDataTypeCode and so many bits. */
static inline DLDataType aot_tune_dtype(int code, int bits) {
  DLDataType dtype;
  dtype.code = (uint8_t)code;
  dtype.bits = (uint8_t)bits;
  dtype.lanes = 1;
  return dtype;
}

/* The dtypes that operators may have. 8-bit ones use numbers: a copy of dlpack.h may lack their names. */
#define AOT_TUNE_F64 aot_tune_dtype(kDLFloat, 64)
#define AOT_TUNE_F32 aot_tune_dtype(kDLFloat, 32)
#define AOT_TUNE_F16 aot_tune_dtype(kDLFloat, 16)
#define AOT_TUNE_BF16 aot_tune_dtype(kDLBfloat, 16)
#define AOT_TUNE_F8E4M3 aot_tune_dtype(10, 8)
#define AOT_TUNE_F8E5M2 aot_tune_dtype(12, 8)
#define AOT_TUNE_I8 aot_tune_dtype(kDLInt, 8)
#define AOT_TUNE_I16 aot_tune_dtype(kDLInt, 16)
#define AOT_TUNE_I32 aot_tune_dtype(kDLInt, 32)
#define AOT_TUNE_I64 aot_tune_dtype(kDLInt, 64)
#define AOT_TUNE_U8 aot_tune_dtype(kDLUInt, 8)
#define AOT_TUNE_U16 aot_tune_dtype(kDLUInt, 16)
#define AOT_TUNE_U32 aot_tune_dtype(kDLUInt, 32)
#define AOT_TUNE_U64 aot_tune_dtype(kDLUInt, 64)
#define AOT_TUNE_BOOL aot_tune_dtype(6, 8)

static inline DLDevice aot_tune_device(DLDeviceType type, int32_t id) {
  DLDevice device;
  device.device_type = type;
  device.device_id = id;
  return device;
}

static inline DLDevice aot_tune_cpu(void) { return aot_tune_device(kDLCPU, 0); }

/* The NVIDIA GPU with a number, as CUDA counts them. */
static inline DLDevice aot_tune_cuda(int32_t id) { return aot_tune_device(kDLCUDA, id); }

/* The AMD GPU with a number, as HIP counts them. */
static inline DLDevice aot_tune_rocm(int32_t id) { return aot_tune_device(kDLROCM, id); }

/* A view of `data`, on `device`, with `ndim` extents in `shape` and as many strides, in elements, in
 * `strides`. NULL means row-major. The view refers to all three arrays, so they must live as long. `data`
 * that is only read may be const. */
static inline DLTensor aot_tune_tensor(const void* data, DLDataType dtype, DLDevice device, int32_t ndim,
                                       int64_t* shape, int64_t* strides) {
  DLTensor tensor;
  tensor.data = (void*)(uintptr_t)data;
  tensor.device = device;
  tensor.ndim = ndim;
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.strides = strides;
  tensor.byte_offset = 0;
  return tensor;
}

#endif /* AOT_TUNE_TENSOR_H_ */
