// Operators of tuned libraries as kernels of torch's dispatcher, without Python. Tensors are passed through
// LibTorch's stable ABI, and calls go through the tables of a library's Python module.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "torch_call.h"

#define AOT_TUNE_SHIM extern "C" __attribute__((visibility("default")))

namespace aot_tune::torch_shim {
namespace {

constexpr int kMaxSlots = 1024;
Slot slots[kMaxSlots];
int slot_count = 0;

template <typename Number>
Number whole(const Slot& slot, const ScalarInfo& argument, int64_t value) {
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

float single(const Slot& slot, const ScalarInfo& argument, double value) {
  if (!fits_f32(value)) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    fail(PyExc_OverflowError, std::string(slot.op->name) + ": '" + argument.name + "' is " + text +
                                  ", which is " + (std::fabs(value) < 1 ? "0" : "infinite") +
                                  " as a number of 32 bits");
  }
  return static_cast<float>(value);
}

Scalar scalar_of(const Slot& slot, const ScalarInfo& argument, StableIValue value) {
  using torch::stable::detail::to;
  switch (argument.kind) {
    case ScalarInfo::kF32:
      return single(slot, argument, to<double>(value));
    case ScalarInfo::kF64:
      return to<double>(value);
    case ScalarInfo::kBool:
      return to<bool>(value);
    case ScalarInfo::kI8:
      return whole<int8_t>(slot, argument, to<int64_t>(value));
    case ScalarInfo::kI16:
      return whole<int16_t>(slot, argument, to<int64_t>(value));
    case ScalarInfo::kI32:
      return whole<int32_t>(slot, argument, to<int64_t>(value));
    case ScalarInfo::kI64:
      return to<int64_t>(value);
    case ScalarInfo::kU8:
      return whole<uint8_t>(slot, argument, to<int64_t>(value));
    case ScalarInfo::kU16:
      return whole<uint16_t>(slot, argument, to<int64_t>(value));
    case ScalarInfo::kU32:
      return whole<uint32_t>(slot, argument, to<int64_t>(value));
    default:
      return whole<uint64_t>(slot, argument, to<int64_t>(value));
  }
}

// Whether a schema has None as the scalar's default, because the default is not a finite number.
bool may_be_none(const ScalarInfo& argument) {
  const bool single = argument.kind == ScalarInfo::kF32;
  if (argument.required || (!single && argument.kind != ScalarInfo::kF64)) return false;
  return !std::isfinite(single ? static_cast<double>(argument.value.f32) : argument.value.f64);
}

// Reads a scalar from the stack. A schema may have None for it; then returns false.
bool take_scalar(const ScalarInfo& argument, StableIValue value, StableIValue* out) {
  *out = value;
  if (!may_be_none(argument)) return true;
  auto* const held = torch::stable::detail::to<StableIValue*>(value);
  if (held == nullptr) return false;
  *out = *held;
  free_optional(held);
  return true;
}

// The index of an attribute's value, or -1. The caller frees its text.
int32_t choice_of(const AttributeInfo& attribute, StringHandle text) {
  const char* chars = nullptr;
  torch_string_c_str(text, &chars);
  for (int32_t i = 0; i < attribute.count; ++i) {
    if (std::strcmp(attribute.choices[i], chars) == 0) return i;
  }
  return -1;
}

[[noreturn]] __attribute__((cold)) void wrong_choice(const Slot& slot, const AttributeInfo& attribute,
                                                     const std::string& found) {
  std::string choices;
  for (int32_t i = 0; i < attribute.count; ++i)
    choices += (i > 0 ? ", '" : "'") + std::string(attribute.choices[i]) + "'";
  fail(slot.value_error, std::string(slot.op->name) + ": attribute '" + attribute.name + "' is '" + found +
                             "', wanted one of (" + choices + ")");
}

// Takes the arguments off the stack. From then on the call owns all of them, before any error can occur.
void take(Call* call, StableIValue* stack) {
  using torch::stable::detail::to;
  const Slot& slot = call->slot;
  const Operator& op = *slot.op;
  const auto tensor = [&](int i, StableIValue value) {
    if (op.tensors[i].optional) {
      auto* const held = to<StableIValue*>(value);
      if (held == nullptr) return;
      call->tensors[i] = to<AtenTensorHandle>(*held);
      free_optional(held);
    } else {
      call->tensors[i] = to<AtenTensorHandle>(value);
    }
  };
  StableIValue* next = stack;
  for (int k = 0; k < slot.inputs; ++k) tensor(slot.tensors[k], *next++);
  StableIValue numbers[kMaxScalars];
  bool present[kMaxScalars];
  for (int i = 0; i < op.scalar_count; ++i) present[i] = take_scalar(op.scalars[i], *next++, &numbers[i]);
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
  for (int i = 0; i < op.scalar_count; ++i) {
    const ScalarInfo& argument = op.scalars[i];
    call->scalars[i] = present[i] ? scalar_of(slot, argument, numbers[i]) : argument.value;
  }
  if (wrong >= 0) wrong_choice(slot, op.attributes[wrong], found);
}

// Tells torch that a tensor was written to. A backward pass that needs the old values then raises.
void bump_version(AtenTensorHandle tensor) {
  try {
    AOT_TUNE_BUMP_VERSION(tensor);
  } catch (const std::exception&) {  // this tensor's versions are not counted
  }
}

void run(const Slot& slot, StableIValue* stack) {
  const Operator& op = *slot.op;
  Call call(slot);
  take(&call, stack);
  for (int i = 0; i < op.tensor_count; ++i) {
    if (call.tensors[i] == nullptr) continue;
    call.check_gradients(i);
    call.view(i);
  }
  bool any = slot.made > 0;
  for (int i = 0; i < op.tensor_count; ++i) any |= leads(op.tensors[i], call.given[i]);
  if (any) call.prepare();
  aot_tune_exec exec{nullptr, nullptr, 0};
#ifdef USE_CUDA
  const DLDevice device = call.given[call.first()]->device;
  if (device.device_type == AOT_TUNE_GPU) aoti_torch_get_current_cuda_stream(device.device_id, &exec.stream);
#endif
  const int32_t status = op.call(call.given, call.scalars, call.attributes, &exec);
  if (status != AOT_TUNE_OK) fail_by_status(slot, status);
  for (int k = 0; k < slot.inputs + slot.taken; ++k) {
    const int i = slot.tensors[k];
    if (op.tensors[i].written() && call.tensors[i] != nullptr) bump_version(call.tensors[i]);
  }
  const int8_t* const made = slot.tensors + slot.inputs + slot.taken;
  for (int k = 0; k < slot.made; ++k) {
    stack[k] = torch::stable::detail::from(std::exchange(call.tensors[made[k]], nullptr));
  }
}

using Boxed = void (*)(StableIValue*, uint64_t, uint64_t);

template <size_t I>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  run(slots[I], stack);
}

// Torch's kernels carry no data of their own, so each has its own function.
template <size_t... I>
Boxed function_of(int index, std::index_sequence<I...>) {
  static constexpr Boxed kFunctions[] = {boxed<I>...};
  return kFunctions[index];
}

}  // namespace
}  // namespace aot_tune::torch_shim

using namespace aot_tune::torch_shim;

// Fills in what torch knows. Returns NULL, or the name of what the loaded torch lacks.
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
                   {{kDLBool, 8, 1}, aoti_torch_dtype_bool()},
                   {{kComplex, 32, 1}, aoti_torch_dtype_complex32()},
                   {{kComplex, 64, 1}, aoti_torch_dtype_complex64()},
                   {{kComplex, 128, 1}, aoti_torch_dtype_complex128()}};
  return nullptr;
}

// Makes a namespace of torch, into which kernels are put; NULL if torch refuses it. It cannot be removed.
AOT_TUNE_SHIM void* aot_tune_torch_namespace(const char* name) {
  TorchLibraryHandle library = nullptr;
  const char* const kept = strdup(name);
  return aoti_torch_library_init_impl(kept, "CompositeExplicitAutograd", "aot_tune", 0, &library) == 0
             ? library
             : nullptr;
}

// Makes an overload's kernel. `tensors` are the operator's places of its inputs, of the outputs that it
// takes, and of those that it makes. `errors` are the module's errors for types, values and calls. Returns
// NULL, or why it failed.
AOT_TUNE_SHIM const char* aot_tune_torch_implement(void* space, const char* name, const void* library,
                                                   int index, const int8_t* tensors, int inputs, int taken,
                                                   int made, bool differentiable, PyObject* const* errors) {
  const auto* const tables = static_cast<const aot_tune::Library*>(library);
  if (tables->layout != aot_tune::kTablesLayout) return "another version of aot_tune built the module";
  if (slot_count == kMaxSlots) return "it has room for 1024 overloads in a process";
  Slot& slot = slots[slot_count];
  slot.library = tables;
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
  if (torch_library_impl(handle, name, function, TORCH_ABI_VERSION) != 0) return "torch refuses it";
  ++slot_count;
  return nullptr;
}
