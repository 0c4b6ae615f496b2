/* What the headers of all tuned libraries share: the tensor layout, the execution struct and the error codes.
 *
 * Tensors are DLPack's DLTensor. If <dlpack/dlpack.h> can be found, or another header has defined DLPack's
 * types already, those definitions are used. Otherwise the types below are declared, which have the same
 * layout. A translation unit that has its own copy of dlpack.h must include that copy first.
 */
#ifndef AOT_TUNE_BASE_H_
#define AOT_TUNE_BASE_H_

#include <stddef.h>
#include <stdint.h>

#if !defined(DLPACK_DLPACK_H_) && !defined(AOT_TUNE_DLPACK_DEFINED) && defined(__has_include)
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif
#endif

/* The version of aot_tune that this header belongs to. AOT_TUNE_VERSION compares: 10203 is 1.2.3. */
#define AOT_TUNE_VERSION_MAJOR 0
#define AOT_TUNE_VERSION_MINOR 2
#define AOT_TUNE_VERSION_PATCH 0
#define AOT_TUNE_VERSION \
  (AOT_TUNE_VERSION_MAJOR * 10000 + AOT_TUNE_VERSION_MINOR * 100 + AOT_TUNE_VERSION_PATCH)

/* The version of what programs and libraries must agree on: the types and numbers of this header, and how
 * functions take their arguments. When it changes, programs must be compiled again. The library's name ends
 * with it, lib<name>.so.1, unless its project gives it a version of its own. */
#define AOT_TUNE_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

#if !defined(DLPACK_DLPACK_H_) && !defined(AOT_TUNE_DLPACK_DEFINED)
#define AOT_TUNE_DLPACK_DEFINED 1

/* Where memory is. Only the values that tuned libraries may meet. */
#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLROCM = 10,
  kDLROCMHost = 11
} DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

/* Kinds of elements. */
typedef enum {
  kDLInt = 0U,
  kDLUInt = 1U,
  kDLFloat = 2U,
  kDLBfloat = 4U,
  kDLBool = 6U,
  kDLFloat8_e4m3fn = 10U,
  kDLFloat8_e5m2 = 12U
} DLDataTypeCode;

typedef struct {
  uint8_t code;   /* a DLDataTypeCode */
  uint8_t bits;   /* bits of one lane */
  uint16_t lanes; /* 1 for plain elements */
} DLDataType;

/* A view of memory. Somebody else owns the memory. */
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;       /* ndim extents */
  int64_t* strides;     /* ndim strides in elements; NULL means row-major */
  uint64_t byte_offset; /* from data to the first element */
} DLTensor;
#endif /* DLPack's types */

#ifndef AOT_TUNE_EXEC_DEFINED
#define AOT_TUNE_EXEC_DEFINED 1
/* How a call is carried out. NULL means the default stream and the library's own workspace. */
typedef struct aot_tune_exec {
  void* stream;    /* the device's stream; ignored on a CPU */
  void* workspace; /* memory of the device, aligned to 64 bytes; NULL: the library's own. The variant that
                      <function>_workspace tells the need of runs when it fits, else the next best one */
  size_t workspace_size; /* bytes */
} aot_tune_exec;
#endif

/* What functions return. Nothing is written to an output when a call fails before a kernel runs. */
typedef enum {
  AOT_TUNE_OK = 0,
  AOT_TUNE_ERROR_NULL = 1,   /* a required tensor is NULL or has no data, or the place for a result is NULL */
  AOT_TUNE_ERROR_RANK = 2,   /* wrong number of axes */
  AOT_TUNE_ERROR_DTYPE = 3,  /* wrong element type */
  AOT_TUNE_ERROR_DEVICE = 4, /* the library has nothing for the device, or tensors are on several devices */
  AOT_TUNE_ERROR_SHAPE = 5,  /* an extent that does not fit the others, or is out of range */
  AOT_TUNE_ERROR_LAYOUT = 6, /* elements not aligned to their size, or elements of an output share memory */
  AOT_TUNE_ERROR_OVERLAP = 7,      /* an output shares memory with another tensor */
  AOT_TUNE_ERROR_ATTRIBUTE = 8,    /* the value of an attribute or a scalar is not one that is allowed */
  AOT_TUNE_ERROR_WORKSPACE = 9,    /* the workspace given is too small or not aligned to 64 bytes */
  AOT_TUNE_ERROR_MEMORY = 10,      /* no memory for the library's own workspace */
  AOT_TUNE_ERROR_KERNEL = 11,      /* the kernel reported a failure; outputs are undefined */
  AOT_TUNE_ERROR_ENVIRONMENT = 12, /* an environment variable that the library reads has a bad value */
  AOT_TUNE_ERROR_DRIVER = 13,      /* the device's driver is missing, too old, or not working */
  AOT_TUNE_ERROR_VALUE = 14        /* AOT_TUNE_CHECK: a number in an input is out of its range */
} aot_tune_status;

#ifdef __cplusplus
}
#endif

#endif /* AOT_TUNE_BASE_H_ */
