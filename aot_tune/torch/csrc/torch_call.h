// The tensors of one call from torch: read through LibTorch's stable ABI, checked, and made.
#ifndef AOT_TUNE_TORCH_CALL_H_
#define AOT_TUNE_TORCH_CALL_H_

#include <pybind11/pybind11.h>
#include <torch/csrc/stable/c/shim.h>

#include <string>
#include <vector>

#include "tables.h"

#define AOT_TUNE_WEAK extern "C" __attribute__((weak))

// What the stable ABI does not tell of a tensor, by symbols of torch's C++ functions. A torch may lack them.
// A tensor's handle is an at::Tensor, which is a pointer to its c10::TensorImpl.
#define AOT_TUNE_REQUIRES_GRAD _ZNK3c1010TensorImpl13requires_gradEv
#define AOT_TUNE_FW_GRAD _ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE
#define AOT_TUNE_BUMP_VERSION _ZN5torch8autograd4impl12bump_versionERKN2at6TensorE
#define AOT_TUNE_UNDEFINED _ZN3c1019UndefinedTensorImpl10_singletonE
AOT_TUNE_WEAK bool AOT_TUNE_REQUIRES_GRAD(const void* impl);
AOT_TUNE_WEAK const void* AOT_TUNE_FW_GRAD(const void* impl, uint64_t level, const void* tensor);
AOT_TUNE_WEAK void AOT_TUNE_BUMP_VERSION(const void* tensor);
AOT_TUNE_WEAK const char AOT_TUNE_UNDEFINED;

namespace aot_tune::torch_shim {

constexpr uint8_t kComplex = 5;  // DLPack's code; no operator takes them

// Frees the memory in which torch keeps an optional argument.
inline void free_optional(StableIValue* held) {
#if defined(TORCH_VERSION_2_13_0) && TORCH_FEATURE_VERSION >= TORCH_VERSION_2_13_0
  torch_delete_stable_ivalue(held);
#else
  delete held;
#endif
}

struct ElementType {
  DLDataType dlpack;
  int32_t torch;
};
inline std::vector<ElementType> element_types;

// An overload of an operator: which tensors it takes and makes, in the order of its schema.
struct Slot {
  const Library* library;
  const Operator* op;
  int inputs;
  int taken;
  int made;
  int8_t tensors[3 * kMaxTensors];  // inputs, then outputs that are passed, then those that are made
  bool differentiable;              // another part computes its gradients
  PyObject* type_error;
  PyObject* value_error;
  PyObject* runtime_error;
};

// Throws an error of the module's class, as Python's callers know it.
[[noreturn]] __attribute__((cold)) inline void fail(PyObject* type, const std::string& message) {
  pybind11::gil_scoped_acquire held;
  PyObject* const text =
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace");
  PyErr_SetObject(type, text);
  Py_XDECREF(text);
  throw pybind11::error_already_set();
}

[[noreturn]] __attribute__((cold)) inline void fail_by_status(const Slot& slot, int32_t status) {
  const std::string message = slot.library->last_error();
  PyObject* type = slot.value_error;
  if (status == AOT_TUNE_ERROR_NULL || status == AOT_TUNE_ERROR_DTYPE) type = slot.type_error;
  if (status >= AOT_TUNE_ERROR_WORKSPACE && status != AOT_TUNE_ERROR_VALUE) type = slot.runtime_error;
  fail(type, message);
}

// What a call was passed and what it made. It is freed when the call ends, in any way.
struct Call {
  const Slot& slot;
  AtenTensorHandle tensors[kMaxTensors] = {};
  DLTensor views[kMaxTensors];
  const DLTensor* given[kMaxTensors] = {};
  Scalar scalars[kMaxScalars];
  int32_t attributes[kMaxAttributes] = {};

  DLTensor folded[kMaxTensors];  // those with leading dims, as the library takes them
  int64_t folded_layouts[kMaxTensors][2 * kMaxRank];

  explicit Call(const Slot& of) : slot(of) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    for (int i = 0; i < slot.op->tensor_count; ++i) {
      if (tensors[i] != nullptr) aoti_torch_delete_tensor_object(tensors[i]);
    }
  }

  const char* name(int tensor) const { return slot.op->tensors[tensor].name; }
  std::string about(int tensor) const {
    return std::string(slot.op->name) + ": tensor '" + name(tensor) + "' ";
  }
  void check_gradients(int i) const;
  void view(int i);
  void prepare();
  int first() const {
    int i = 0;
    while (given[i] == nullptr) ++i;
    return i;
  }
};

inline void Call::check_gradients(int i) const {
  const void* const impl = *reinterpret_cast<const void* const*>(tensors[i]);
  if (!slot.differentiable && aoti_torch_grad_mode_is_enabled() && AOT_TUNE_REQUIRES_GRAD(impl)) {
    fail(slot.value_error, about(i) +
                               "requires a gradient, which this operator does not compute; pass backward= to "
                               "aot_tune.torch.register(), call it under torch.no_grad() or pass " +
                               name(i) + ".detach()");
  }
  if (*static_cast<const void* const*>(AOT_TUNE_FW_GRAD(impl, 0, tensors[i])) != &AOT_TUNE_UNDEFINED) {
    fail(slot.value_error, about(i) +
                               "carries a forward-mode gradient, which this operator does not compute; pass "
                               "torch.autograd.forward_ad.unpack_dual(" +
                               name(i) + ").primal");
  }
}

// What torch makes of None where a schema has a tensor.
inline bool is_undefined(AtenTensorHandle tensor) {
  return *reinterpret_cast<const void* const*>(tensor) == &AOT_TUNE_UNDEFINED;
}

inline void Call::view(int i) {
  AtenTensorHandle tensor = tensors[i];
  DLTensor& out = views[i];
  int32_t layout = 0, type = 0, device = 0, index = 0;
  int64_t rank = 0;
  aoti_torch_get_layout(tensor, &layout);
  if (layout != aoti_torch_layout_strided()) {
    fail(slot.type_error, about(i) + "is not strided; wanted a dense tensor, as .to_dense() makes");
  }
  aoti_torch_get_device_type(tensor, &device);
  aoti_torch_get_device_index(tensor, &index);
  aoti_torch_get_dim(tensor, &rank);
  aoti_torch_get_dtype(tensor, &type);
  aoti_torch_get_sizes(tensor, &out.shape);
  aoti_torch_get_strides(tensor, &out.strides);
  const void* data = nullptr;
  const bool read = slot.op->tensors[i].written()
                        ? torch_get_mutable_data_ptr(tensor, const_cast<void**>(&data)) == 0
                        : torch_get_const_data_ptr(tensor, &data) == 0;
  if (!read && is_undefined(tensor)) fail(slot.type_error, about(i) + "is None; wanted a tensor");
  if (!read) fail(slot.value_error, about(i) + "has no memory of its own; wanted a tensor that can be read");
  out.data = const_cast<void*>(data);
  out.byte_offset = 0;
  out.ndim = static_cast<int32_t>(rank);
  out.device = {kDLCPU, 0};
  if (device == aoti_torch_device_type_cuda()) {
    out.device = {AOT_TUNE_GPU, index};
  } else if (device != aoti_torch_device_type_cpu()) {
    out.device = {static_cast<DLDeviceType>(INT16_MAX),
                  index};  // the library reports that it has nothing for it
  }
  out.dtype = {UINT8_MAX, 0, 1};
  for (const ElementType& known : element_types) {
    if (known.torch == type) {
      out.dtype = known.dlpack;
      break;
    }
  }
  given[i] = &out;
}

inline int32_t torch_type(const DLDataType& type) {
  for (const ElementType& known : element_types) {
    if (known.dlpack.code == type.code && known.dlpack.bits == type.bits) return known.torch;
  }
  return element_types.front().torch;  // the library refuses this dtype
}

// Makes the outputs of the overload, and takes leading dims as one axis.
inline void Call::prepare() {
  const Operator& op = *slot.op;
  const int8_t* const places = slot.tensors + slot.inputs + slot.taken;
  DLTensor* made[kMaxTensors] = {};
  DLTensor* taken[kMaxTensors];
  int64_t layouts[kMaxTensors][2 * kMaxRank];
  for (int i = 0; i < op.tensor_count; ++i) {
    taken[i] = &folded[i];
    folded[i].shape = folded_layouts[i];
    folded[i].strides = folded_layouts[i] + kMaxRank;
  }
  for (int k = 0; k < slot.made; ++k) {
    const int i = places[k];
    made[i] = &views[i];
    views[i].shape = layouts[i];
    views[i].strides = layouts[i] + kMaxRank;
  }
  const int32_t status = op.infer(given, scalars, attributes, made, taken);
  if (status != AOT_TUNE_OK) fail_by_status(slot, status);
  int32_t device = 0, index = 0;
  const AtenTensorHandle like = tensors[first()];
  aoti_torch_get_device_type(like, &device);
  aoti_torch_get_device_index(like, &index);
  for (int k = 0; k < slot.made; ++k) {
    const int i = places[k];
    const DLTensor& wanted = views[i];
    const int failed = aoti_torch_empty_strided(wanted.ndim, wanted.shape, wanted.strides,
                                                torch_type(wanted.dtype), device, index, &tensors[i]);
    if (failed != 0)
      fail(slot.runtime_error, std::string(op.name) + ": no memory for output '" + name(i) + "'");
    view(i);
  }
  for (int i = 0; i < op.tensor_count; ++i) {
    if (!leads(op.tensors[i], given[i])) continue;
    folded[i].data = views[i].data;
    given[i] = &folded[i];
  }
}

}  // namespace aot_tune::torch_shim

#endif  // AOT_TUNE_TORCH_CALL_H_
