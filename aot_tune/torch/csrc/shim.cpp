// Operators of tuned libraries as kernels of torch's dispatcher, without Python on their way: tensors come
// and go through LibTorch's stable ABI, and calls through the tables that a library's Python module has.
#include <pybind11/pybind11.h>
#include <torch/csrc/stable/c/shim.h>
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tables.h"

#define AOT_TUNE_SHIM extern "C" __attribute__((visibility("default")))
#define AOT_TUNE_WEAK extern "C" __attribute__((weak))

// What the stable ABI does not tell of a tensor, by the symbols of torch's C++ functions, which a torch may
// lack. A handle of a tensor is an at::Tensor, which is a pointer to its c10::TensorImpl.
#define AOT_TUNE_REQUIRES_GRAD _ZNK3c1010TensorImpl13requires_gradEv
#define AOT_TUNE_FW_GRAD _ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE
#define AOT_TUNE_BUMP_VERSION _ZN5torch8autograd4impl12bump_versionERKN2at6TensorE
#define AOT_TUNE_UNDEFINED _ZN3c1019UndefinedTensorImpl10_singletonE
AOT_TUNE_WEAK bool AOT_TUNE_REQUIRES_GRAD(const void* impl);
AOT_TUNE_WEAK const void* AOT_TUNE_FW_GRAD(const void* impl, uint64_t level, const void* tensor);
AOT_TUNE_WEAK void AOT_TUNE_BUMP_VERSION(const void* tensor);
AOT_TUNE_WEAK const char AOT_TUNE_UNDEFINED;

namespace {

using namespace aot_tune::python;

constexpr int kMaxArguments = kMaxTensors + kMaxScalars + kMaxAttributes;
constexpr int kMaxSlots = 1024;

struct ElementType {
  DLDataType dlpack;
  int32_t torch;
};
std::vector<ElementType> element_types;

// An overload of an operator: which tensors it takes and makes, in the order of its schema.
struct Slot {
  const Library* library;
  const Operator* op;
  int inputs;
  int taken;
  int made;
  int8_t tensors[3 * kMaxTensors];  // inputs, then outputs that are passed, then those that are made
  bool differentiable;              // gradients are somebody else's
  PyObject* type_error;
  PyObject* value_error;
  PyObject* runtime_error;
};
Slot slots[kMaxSlots];
int slot_count = 0;

// Throws an error of the module's, as Python's callers know them.
[[noreturn]] __attribute__((cold)) void fail(PyObject* type, const std::string& message) {
  pybind11::gil_scoped_acquire held;
  PyObject* const text =
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace");
  PyErr_SetObject(type, text);
  Py_XDECREF(text);
  throw pybind11::error_already_set();
}

[[noreturn]] __attribute__((cold)) void fail_by_status(const Slot& slot, int32_t status) {
  const std::string message = slot.library->last_error();
  PyObject* type = slot.value_error;
  if (status == AOT_TUNE_ERROR_NULL || status == AOT_TUNE_ERROR_DTYPE) type = slot.type_error;
  if (status >= AOT_TUNE_ERROR_WORKSPACE) type = slot.runtime_error;
  fail(type, message);
}

// What a call was passed, and made; freed at its end, whatever that is.
struct Call {
  const Slot& slot;
  AtenTensorHandle tensors[kMaxTensors] = {};
  DLTensor views[kMaxTensors];
  const DLTensor* given[kMaxTensors] = {};
  Scalar scalars[kMaxScalars];
  int32_t attributes[kMaxAttributes] = {};

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
  void check_gradient(int i) const;
  void view(int i);
  void make(int i, const int64_t* dims);
  int first() const {
    int i = 0;
    while (given[i] == nullptr) ++i;
    return i;
  }
};

void Call::check_gradient(int i) const {
  const void* const impl = *reinterpret_cast<const void* const*>(tensors[i]);
  const std::string tensor = name(i);
  if (aoti_torch_grad_mode_is_enabled() && AOT_TUNE_REQUIRES_GRAD(impl)) {
    fail(slot.value_error, about(i) +
                               "requires a gradient, which this operator does not compute; pass backward= to "
                               "aot_tune.torch.register(), call it under torch.no_grad() or pass " +
                               tensor + ".detach()");
  }
  if (*static_cast<const void* const*>(AOT_TUNE_FW_GRAD(impl, 0, tensors[i])) != &AOT_TUNE_UNDEFINED) {
    fail(slot.value_error, about(i) +
                               "carries a forward-mode gradient, which this operator does not compute; pass "
                               "torch.autograd.forward_ad.unpack_dual(" +
                               tensor + ").primal");
  }
}

void Call::view(int i) {
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
  if (!read) fail(slot.value_error, about(i) + "has no memory of its own that could be read");
  out.data = const_cast<void*>(data);
  out.byte_offset = 0;
  out.ndim = static_cast<int32_t>(rank);
  out.device = {kDLCPU, 0};
  if (device == aoti_torch_device_type_cuda()) {
    out.device = {AOT_TUNE_GPU, index};
  } else if (device != aoti_torch_device_type_cpu()) {
    out.device = {static_cast<DLDeviceType>(INT16_MAX),
                  index};  // the library says that it has nothing for it
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

// The dtype of an output: that of its variable in the tensors that are there.
int32_t type_of(const Call& call, int tensor) {
  const Operator& op = *call.slot.op;
  DType wanted = op.tensors[tensor].type;
  const int variable = op.tensors[tensor].variable;
  for (int i = 0; variable >= 0 && i < op.tensor_count; ++i) {
    if (call.given[i] == nullptr || op.tensors[i].variable != variable) continue;
    wanted.code = call.given[i]->dtype.code;
    wanted.bits = call.given[i]->dtype.bits;
    break;
  }
  for (const ElementType& known : element_types) {
    if (known.dlpack.code == wanted.code && known.dlpack.bits == wanted.bits) return known.torch;
  }
  return element_types.front().torch;  // of a dtype that the library refuses
}

void Call::make(int i, const int64_t* dims) {
  const Operator& op = *slot.op;
  int64_t extents[kMaxRank], strides[kMaxRank];
  op.shape(i, dims, extents);
  const int rank = op.tensors[i].rank;
  int64_t step = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (extents[axis] < 0) {
      fail(slot.value_error,
           std::string(op.name) + ": output '" + name(i) +
               "' has no shape here: an extent is negative, divides by zero or needs more than 64 bits");
    }
    strides[axis] = step;
    step *= extents[axis] > 1 ? extents[axis] : 1;
  }
  int32_t device = 0, index = 0;
  const AtenTensorHandle like = tensors[first()];
  aoti_torch_get_device_type(like, &device);
  aoti_torch_get_device_index(like, &index);
  const int failed =
      aoti_torch_empty_strided(rank, extents, strides, type_of(*this, i), device, index, &tensors[i]);
  if (failed != 0)
    fail(slot.runtime_error, std::string(op.name) + ": no memory for output '" + name(i) + "'");
  view(i);
}

template <typename Number>
Number whole(const Slot& slot, const ScalarArgument& argument, int64_t value) {
  using Limits = std::numeric_limits<Number>;
  const bool below = std::is_signed_v<Number> ? value < static_cast<int64_t>(Limits::min()) : value < 0;
  const bool above = sizeof(Number) < 8 && value > static_cast<int64_t>(Limits::max());
  if (below || above) {
    fail(PyExc_OverflowError, std::string(slot.op->name) + ": '" + argument.name + "' is " +
                                  std::to_string(value) + ", wanted a whole number from " +
                                  std::to_string(Limits::min()) + " to " + std::to_string(Limits::max()));
  }
  return static_cast<Number>(value);
}

Scalar scalar_of(const Slot& slot, const ScalarArgument& argument, StableIValue value) {
  using torch::stable::detail::to;
  switch (argument.kind) {
    case ScalarArgument::kF32:
      return static_cast<float>(to<double>(value));
    case ScalarArgument::kF64:
      return to<double>(value);
    case ScalarArgument::kBool:
      return to<bool>(value);
    case ScalarArgument::kI8:
      return whole<int8_t>(slot, argument, to<int64_t>(value));
    case ScalarArgument::kI16:
      return whole<int16_t>(slot, argument, to<int64_t>(value));
    case ScalarArgument::kI32:
      return whole<int32_t>(slot, argument, to<int64_t>(value));
    case ScalarArgument::kI64:
      return to<int64_t>(value);
    case ScalarArgument::kU8:
      return whole<uint8_t>(slot, argument, to<int64_t>(value));
    case ScalarArgument::kU16:
      return whole<uint16_t>(slot, argument, to<int64_t>(value));
    case ScalarArgument::kU32:
      return whole<uint32_t>(slot, argument, to<int64_t>(value));
    default:
      return whole<uint64_t>(slot, argument, to<int64_t>(value));
  }
}

// The index of an attribute's value, or -1; the text of it is freed by who asks.
int32_t choice_of(const AttributeArgument& attribute, StringHandle text) {
  const char* chars = nullptr;
  torch_string_c_str(text, &chars);
  for (int32_t i = 0; i < attribute.count; ++i) {
    if (std::strcmp(attribute.choices[i], chars) == 0) return i;
  }
  return -1;
}

[[noreturn]] __attribute__((cold)) void wrong_choice(const Slot& slot, const AttributeArgument& attribute,
                                                     const std::string& found) {
  std::string choices;
  for (int32_t i = 0; i < attribute.count; ++i)
    choices += (i > 0 ? ", '" : "'") + std::string(attribute.choices[i]) + "'";
  fail(slot.value_error, std::string(slot.op->name) + ": attribute '" + attribute.name + "' is '" + found +
                             "', wanted one of (" + choices + ")");
}

// Takes the arguments off the stack: all of them are the call's before anything can be wrong.
void take(Call* call, StableIValue* stack) {
  using torch::stable::detail::to;
  const Slot& slot = call->slot;
  const Operator& op = *slot.op;
  const auto tensor = [&](int i, StableIValue value) {
    if (op.tensors[i].optional) {
      auto* const held = to<StableIValue*>(value);
      if (held == nullptr) return;
      call->tensors[i] = to<AtenTensorHandle>(*held);
      torch_delete_stable_ivalue(held);
    } else {
      call->tensors[i] = to<AtenTensorHandle>(value);
    }
  };
  StableIValue* next = stack;
  for (int k = 0; k < slot.inputs; ++k) tensor(slot.tensors[k], *next++);
  const StableIValue* const numbers = next;
  next += op.scalar_count;
  int wrong = -1;
  std::string found;
  for (int i = 0; i < op.attribute_count; ++i) {
    const auto text = to<StringHandle>(*next++);
    call->attributes[i] = choice_of(op.attributes[i], text);
    if (call->attributes[i] < 0 && wrong < 0) {
      const char* chars = nullptr;
      torch_string_c_str(text, &chars);
      wrong = i;
      found = chars;
    }
    torch_delete_string(text);
  }
  for (int k = 0; k < slot.taken; ++k) tensor(slot.tensors[slot.inputs + k], *next++);
  for (int i = 0; i < op.scalar_count; ++i) call->scalars[i] = scalar_of(slot, op.scalars[i], numbers[i]);
  if (wrong >= 0) wrong_choice(slot, op.attributes[wrong], found);
}

void run(const Slot& slot, StableIValue* stack) {
  const Operator& op = *slot.op;
  Call call(slot);
  take(&call, stack);
  for (int i = 0; i < op.tensor_count; ++i) {
    if (call.tensors[i] == nullptr) continue;
    if (!slot.differentiable) call.check_gradient(i);
    call.view(i);
  }
  const int8_t* const made = slot.tensors + slot.inputs + slot.taken;
  int64_t dims[kMaxDims];
  // Where a tensor has another number of axes, nothing is made, and the library says so.
  const bool bound = slot.made > 0 && op.bind(call.given, call.scalars, dims);
  for (int k = 0; bound && k < slot.made; ++k) call.make(made[k], dims);
  aot_tune_exec exec{nullptr, nullptr, 0};
#ifdef USE_CUDA
  const DLDevice device = call.given[call.first()]->device;
  if (device.device_type == AOT_TUNE_GPU) aoti_torch_get_current_cuda_stream(device.device_id, &exec.stream);
#endif
  const int32_t status = op.call(call.given, call.scalars, call.attributes, &exec);
  if (status != AOT_TUNE_OK) fail_by_status(slot, status);
  for (int k = 0; k < slot.inputs + slot.taken; ++k) {
    const int i = slot.tensors[k];
    if (op.tensors[i].written() && call.tensors[i] != nullptr) AOT_TUNE_BUMP_VERSION(call.tensors[i]);
  }
  for (int k = 0; k < slot.made; ++k) {
    stack[k] = torch::stable::detail::from(std::exchange(call.tensors[made[k]], nullptr));
  }
}

using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

template <size_t I>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  run(slots[I], stack);
}

// Torch's kernels carry no data of their own, so that each has a function.
template <size_t... I>
Boxed function_of(int index, std::index_sequence<I...>) {
  static constexpr Boxed kFunctions[] = {boxed<I>...};
  return kFunctions[index];
}

}  // namespace

// Fills in what torch knows; NULL, or what the torch that is loaded lacks.
AOT_TUNE_SHIM const char* aot_tune_torch_start() {
  if (AOT_TUNE_REQUIRES_GRAD == nullptr) return "c10::TensorImpl::requires_grad";
  if (AOT_TUNE_FW_GRAD == nullptr) return "c10::TensorImpl::_fw_grad";
  if (AOT_TUNE_BUMP_VERSION == nullptr) return "torch::autograd::impl::bump_version";
  if (&AOT_TUNE_UNDEFINED == nullptr) return "c10::UndefinedTensorImpl";
  element_types = {{{kDLFloat, 32, 1}, aoti_torch_dtype_float32()},
                   {{kDLBfloat, 16, 1}, aoti_torch_dtype_bfloat16()},
                   {{kDLFloat, 16, 1}, aoti_torch_dtype_float16()},
                   {{kDLFloat, 64, 1}, aoti_torch_dtype_float64()},
                   {{kDLFloat8_e4m3fn, 8, 1}, aoti_torch_dtype_float8_e4m3fn()},
                   {{kDLFloat8_e5m2, 8, 1}, aoti_torch_dtype_float8_e5m2()},
                   {{kDLInt, 8, 1}, aoti_torch_dtype_int8()},
                   {{kDLInt, 16, 1}, aoti_torch_dtype_int16()},
                   {{kDLInt, 32, 1}, aoti_torch_dtype_int32()},
                   {{kDLInt, 64, 1}, aoti_torch_dtype_int64()},
                   {{kDLUInt, 8, 1}, aoti_torch_dtype_uint8()},
                   {{kDLUInt, 16, 1}, aoti_torch_dtype_uint16()},
                   {{kDLUInt, 32, 1}, aoti_torch_dtype_uint32()},
                   {{kDLUInt, 64, 1}, aoti_torch_dtype_uint64()},
                   {{kDLBool, 8, 1}, aoti_torch_dtype_bool()}};
  return nullptr;
}

// A namespace of torch, in which kernels are put; NULL where torch refuses it. It is there for good.
AOT_TUNE_SHIM void* aot_tune_torch_namespace(const char* name) {
  TorchLibraryHandle library = nullptr;
  const char* const kept = strdup(name);
  return aoti_torch_library_init_impl(kept, "CompositeExplicitAutograd", "aot_tune", 0, &library) == 0
             ? library
             : nullptr;
}

// Makes an overload's kernel; `tensors` are the operator's places of its inputs, of the outputs that it
// takes, and of those that it makes. `errors` are the module's for types, values and calls. False where there
// is no room, or torch refuses it.
AOT_TUNE_SHIM bool aot_tune_torch_implement(void* space, const char* name, const void* library, int index,
                                            const int8_t* tensors, int inputs, int taken, int made,
                                            bool differentiable, PyObject* const* errors) {
  if (slot_count == kMaxSlots) return false;
  Slot& slot = slots[slot_count];
  slot.library = static_cast<const Library*>(library);
  slot.op = slot.library->operators + index;
  slot.inputs = inputs;
  slot.taken = taken;
  slot.made = made;
  std::copy(tensors, tensors + inputs + taken + made, slot.tensors);
  slot.differentiable = differentiable;
  slot.type_error = errors[0];
  slot.value_error = errors[1];
  slot.runtime_error = errors[2];
  const auto handle = static_cast<TorchLibraryHandle>(space);
  const Boxed function = function_of(slot_count, std::make_index_sequence<kMaxSlots>());
  if (torch_library_impl(handle, name, function, TORCH_ABI_VERSION) != 0) return false;
  ++slot_count;
  return true;
}
