// Layouts in which Python frameworks exchange tensors: DLPack 1.x and numpy's array interface. These are
// facts of those ABIs.
#ifndef AOT_TUNE_LINK_EXCHANGE_H_
#define AOT_TUNE_LINK_EXCHANGE_H_

#include <Python.h>

#include <cstdint>

#include "aot_tune/base.h"

namespace aot_tune::python {

struct Version {
  uint32_t major;
  uint32_t minor;
};

// The contents of a capsule named "dltensor_versioned".
struct Managed {
  Version version;
  void* context;
  void (*deleter)(Managed*);
  uint64_t flags;
  DLTensor tensor;
};

constexpr uint64_t kReadOnly = 1;
constexpr uint64_t kCopied = 2;

// The contents of a capsule named "dltensor".
struct LegacyManaged {
  DLTensor tensor;
  void* context;
  void (*deleter)(LegacyManaged*);
};

// The contents of a type's capsule `__dlpack_c_exchange_api__`, which is named "dlpack_exchange_api".
struct ExchangeApi {
  Version version;
  const ExchangeApi* previous;
  int (*allocate)(DLTensor* prototype, Managed** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, Managed** out);
  int (*object_from_managed)(Managed* tensor, void** object);
  int (*view_from_object)(void* object, DLTensor* out);  // may be NULL
  int (*current_stream)(DLDeviceType type, int32_t id, void** stream);
};

// The contents of a numpy array's capsule `__array_struct__`. Strides are in bytes.
struct ArrayInterface {
  int two;
  int ndim;
  char kind;
  int itemsize;
  int flags;
  intptr_t* shape;
  intptr_t* strides;
  void* data;
};

constexpr int kArrayNativeOrder = 0x200;
constexpr int kArrayWriteable = 0x400;
constexpr int kArrayWarnOnWrite = 1 << 31;  // numpy exports such an array as one that cannot be written

// An array as it is in memory: PyArrayObject_fields of numpy's headers, which compiled code of others reads
// too. A call trusts this only after it was equal to what `__array_struct__` said of an array.
struct ArrayObject {
  Py_ssize_t references;
  void* type;
  void* data;
  int ndim;
  intptr_t* shape;
  intptr_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};

}  // namespace aot_tune::python

#endif  // AOT_TUNE_LINK_EXCHANGE_H_
