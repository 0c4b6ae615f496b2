#include "xla_call.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace aot_tune::xla {
namespace {

constexpr char kTensors[] = ".tensors";
constexpr char kLayout[] = ".layout";

struct ElementType {
  XLA_FFI_DataType xla;
  DLDataType dlpack;
};
constexpr ElementType kElementTypes[] = {
    {XLA_FFI_DataType_F32, {kDLFloat, 32, 1}},
    {XLA_FFI_DataType_BF16, {kDLBfloat, 16, 1}},
    {XLA_FFI_DataType_F16, {kDLFloat, 16, 1}},
    {XLA_FFI_DataType_F64, {kDLFloat, 64, 1}},
    {XLA_FFI_DataType_F8E4M3FN, {kDLFloat8_e4m3fn, 8, 1}},
    {XLA_FFI_DataType_F8E5M2, {kDLFloat8_e5m2, 8, 1}},
    {XLA_FFI_DataType_S8, {kDLInt, 8, 1}},
    {XLA_FFI_DataType_S16, {kDLInt, 16, 1}},
    {XLA_FFI_DataType_S32, {kDLInt, 32, 1}},
    {XLA_FFI_DataType_S64, {kDLInt, 64, 1}},
    {XLA_FFI_DataType_U8, {kDLUInt, 8, 1}},
    {XLA_FFI_DataType_U16, {kDLUInt, 16, 1}},
    {XLA_FFI_DataType_U32, {kDLUInt, 32, 1}},
    {XLA_FFI_DataType_U64, {kDLUInt, 64, 1}},
    {XLA_FFI_DataType_PRED, {kDLBool, 8, 1}},
};

// In the order of ScalarInfo::Kind.
constexpr XLA_FFI_DataType kScalarTypes[] = {
    XLA_FFI_DataType_F32, XLA_FFI_DataType_F64, XLA_FFI_DataType_PRED, XLA_FFI_DataType_S8,
    XLA_FFI_DataType_S16, XLA_FFI_DataType_S32, XLA_FFI_DataType_S64,  XLA_FFI_DataType_U8,
    XLA_FFI_DataType_U16, XLA_FFI_DataType_U32, XLA_FFI_DataType_U64};

XLA_FFI_Error* error(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const char* message) {
  XLA_FFI_Error_Create_Args made{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
  return api->XLA_FFI_Error_Create(&made);
}

// The parts of a call.
struct Call {
  const Handler& handler;
  const XLA_FFI_CallFrame& frame;
  uint32_t present = 0;  // one bit for each tensor
  DLTensor views[kMaxTensors];
  const DLTensor* given[kMaxTensors] = {};
  int64_t strides[kMaxTensors][kMaxRank];
  Scalar scalars[kMaxScalars];
  int32_t attributes[kMaxAttributes] = {};

  Call(const Handler& of, const XLA_FFI_CallFrame& by) : handler(of), frame(by) {}

  const Operator& op() const { return handler.op; }
  bool has(int tensor) const { return (present >> tensor & 1u) != 0; }

  __attribute__((cold, format(printf, 2, 3))) XLA_FFI_Error* wrong(const char* format, ...) const {
    char message[512];
    const int used = std::snprintf(message, sizeof message, "%s: ", op().name);
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message + used, sizeof message - static_cast<size_t>(used), format, arguments);
    va_end(arguments);
    return error(frame.api, XLA_FFI_Error_Code_INVALID_ARGUMENT, message);
  }

  XLA_FFI_Error* read_attributes();
  XLA_FFI_Error* read_attribute(const XLA_FFI_ByteSpan& name, XLA_FFI_AttrType type, const void* value,
                                bool* scalar_given);
  XLA_FFI_Error* read_scalar(int i, XLA_FFI_AttrType type, const void* value);
  XLA_FFI_Error* read_choice(int i, XLA_FFI_AttrType type, const void* value);
  XLA_FFI_Error* view(int i, const XLA_FFI_Buffer& buffer, int32_t device);
  XLA_FFI_Error* view_all(int32_t device);
  XLA_FFI_Error* read_layouts();
  XLA_FFI_Error* read_layout(int i, const XLA_FFI_Array& order);
};

bool same(const XLA_FFI_ByteSpan& span, const char* text) {
  return std::strlen(text) == span.len && std::memcmp(span.ptr, text, span.len) == 0;
}

// The tensor whose layout an attribute gives, or -1.
int laid_out(const Operator& op, const XLA_FFI_ByteSpan& name) {
  constexpr size_t kEnd = sizeof kLayout - 1;
  if (name.len <= kEnd || std::memcmp(name.ptr + name.len - kEnd, kLayout, kEnd) != 0) return -1;
  for (int i = 0; i < op.tensor_count; ++i) {
    if (same({name.ptr, name.len - kEnd}, op.tensors[i].name)) return i;
  }
  return -1;
}

XLA_FFI_Error* Call::read_scalar(int i, XLA_FFI_AttrType type, const void* value) {
  const ScalarInfo& argument = op().scalars[i];
  const auto* const found = static_cast<const XLA_FFI_Scalar*>(value);
  if (type != XLA_FFI_AttrType_SCALAR || found->dtype != kScalarTypes[argument.kind])
    return wrong("scalar '%s' is no scalar of %s", argument.name, kScalarNames[argument.kind]);
  std::memcpy(static_cast<void*>(&scalars[i]), found->value, kScalarBytes[argument.kind]);
  return nullptr;
}

XLA_FFI_Error* Call::read_choice(int i, XLA_FFI_AttrType type, const void* value) {
  const AttributeInfo& argument = op().attributes[i];
  if (type != XLA_FFI_AttrType_STRING) return wrong("attribute '%s' is no string", argument.name);
  const auto* const found = static_cast<const XLA_FFI_ByteSpan*>(value);
  for (int32_t k = 0; k < argument.count; ++k) {
    if (same(*found, argument.choices[k])) {
      attributes[i] = k;
      return nullptr;
    }
  }
  char choices[256] = "";
  size_t used = 0;
  for (int32_t k = 0; k < argument.count && used < sizeof choices; ++k) {
    const int more = std::snprintf(choices + used, sizeof choices - used, "%s'%s'", k > 0 ? ", " : "",
                                   argument.choices[k]);
    used += static_cast<size_t>(more);
  }
  return wrong("attribute '%s' is '%.*s', wanted one of %s", argument.name,
               static_cast<int>(found->len < 80 ? found->len : 80), found->ptr, choices);
}

XLA_FFI_Error* Call::read_attribute(const XLA_FFI_ByteSpan& name, XLA_FFI_AttrType type, const void* value,
                                    bool* scalar_given) {
  for (int i = 0; i < op().scalar_count; ++i) {
    if (!same(name, op().scalars[i].name)) continue;
    scalar_given[i] = true;
    return read_scalar(i, type, value);
  }
  for (int i = 0; i < op().attribute_count; ++i) {
    if (same(name, op().attributes[i].name)) return read_choice(i, type, value);
  }
  if (same(name, kTensors)) {
    const auto* const found = static_cast<const XLA_FFI_Scalar*>(value);
    if (type != XLA_FFI_AttrType_SCALAR || found->dtype != XLA_FFI_DataType_S64)
      return wrong("'%s' is no scalar of i64", kTensors);
    int64_t bits;
    std::memcpy(&bits, found->value, sizeof bits);
    if (bits < 0 || bits >> op().tensor_count != 0)
      return wrong("'%s' has bits beyond its %d tensors", kTensors, op().tensor_count);
    present = static_cast<uint32_t>(bits);
    return nullptr;
  }
  if (laid_out(op(), name) >= 0) return nullptr;  // it is read once the tensors are known
  return wrong("it has no '%.*s'", static_cast<int>(name.len < 80 ? name.len : 80), name.ptr);
}

XLA_FFI_Error* Call::read_attributes() {
  bool scalar_given[kMaxScalars] = {};
  for (int i = 0; i < op().tensor_count; ++i) present |= op().tensors[i].optional ? 0u : 1u << i;
  for (int i = 0; i < op().scalar_count; ++i) scalars[i] = op().scalars[i].value;
  for (int64_t k = 0; k < frame.attrs.size; ++k) {
    if (XLA_FFI_Error* const found =
            read_attribute(*frame.attrs.names[k], frame.attrs.types[k], frame.attrs.attrs[k], scalar_given))
      return found;
  }
  for (int i = 0; i < op().scalar_count; ++i) {
    if (op().scalars[i].required && !scalar_given[i])
      return wrong("scalar '%s' is missing", op().scalars[i].name);
  }
  return nullptr;
}

XLA_FFI_Error* Call::view(int i, const XLA_FFI_Buffer& buffer, int32_t device) {
  DLTensor& out = views[i];
  if (buffer.rank > INT32_MAX || buffer.struct_size < XLA_FFI_Buffer_STRUCT_SIZE)
    return wrong("tensor '%s' is no buffer of this version", op().tensors[i].name);
  out.data = buffer.data;
  out.device = {handler.device, device};
  out.ndim = static_cast<int32_t>(buffer.rank);
  out.dtype = {UINT8_MAX, 0, 1};  // a dtype that the library refuses
  for (const ElementType& known : kElementTypes) {
    if (known.xla == buffer.dtype) {
      out.dtype = known.dlpack;
      break;
    }
  }
  out.shape = buffer.dims;
  out.strides = nullptr;
  out.byte_offset = 0;
  given[i] = &out;
  return nullptr;
}

XLA_FFI_Error* Call::view_all(int32_t device) {
  int64_t arguments = 0, results = 0;
  for (int i = 0; i < op().tensor_count; ++i) {
    if (!has(i)) continue;
    arguments += op().tensors[i].output ? 0 : 1;
    results += op().tensors[i].written() ? 1 : 0;
  }
  if (frame.args.size != arguments || frame.rets.size != results) {
    return wrong("it got %lld arguments and %lld results, wanted %lld and %lld for these tensors",
                 static_cast<long long>(frame.args.size), static_cast<long long>(frame.rets.size),
                 static_cast<long long>(arguments), static_cast<long long>(results));
  }
  int64_t argument = 0, result = 0;
  for (int i = 0; i < op().tensor_count; ++i) {
    if (!has(i)) continue;
    const TensorInfo& declared = op().tensors[i];
    const void* read = nullptr;
    if (!declared.output) {
      if (frame.args.types[argument] != XLA_FFI_ArgType_BUFFER)
        return wrong("tensor '%s' is no buffer", declared.name);
      const auto* const buffer = static_cast<const XLA_FFI_Buffer*>(frame.args.args[argument++]);
      read = buffer->data;
      if (XLA_FFI_Error* const found = view(i, *buffer, device)) return found;
    }
    if (declared.written()) {
      if (frame.rets.types[result] != XLA_FFI_RetType_BUFFER)
        return wrong("tensor '%s' is no buffer", declared.name);
      const auto* const buffer = static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[result++]);
      if (!declared.output && buffer->data != read)
        return wrong("tensor '%s' is changed in place, but its result is other memory; alias them",
                     declared.name);
      if (XLA_FFI_Error* const found = view(i, *buffer, device)) return found;
    }
  }
  return nullptr;
}

XLA_FFI_Error* Call::read_layout(int i, const XLA_FFI_Array& order) {
  const int64_t rank = views[i].ndim;
  if (order.dtype != XLA_FFI_DataType_S64 || static_cast<int64_t>(order.size) != rank || rank > kMaxRank)
    return wrong("the layout of tensor '%s' is no i64[%lld]", op().tensors[i].name,
                 static_cast<long long>(rank));
  const auto* const axes = static_cast<const int64_t*>(order.data);
  uint32_t seen = 0;
  int64_t step = 1;
  for (int64_t place = rank - 1; place >= 0; --place) {
    const int64_t axis = axes[place];
    if (axis < 0 || axis >= rank || (seen >> axis & 1u) != 0)
      return wrong("the layout of tensor '%s' is no order of its axes", op().tensors[i].name);
    seen |= 1u << axis;
    strides[i][axis] = step;
    step *= views[i].shape[axis] > 1 ? views[i].shape[axis] : 1;
  }
  views[i].strides = strides[i];
  return nullptr;
}

XLA_FFI_Error* Call::read_layouts() {
  for (int64_t k = 0; k < frame.attrs.size; ++k) {
    const int i = laid_out(op(), *frame.attrs.names[k]);
    if (i < 0 || given[i] == nullptr) continue;
    if (frame.attrs.types[k] != XLA_FFI_AttrType_ARRAY)
      return wrong("the layout of tensor '%s' is no array", op().tensors[i].name);
    if (XLA_FFI_Error* const found = read_layout(i, *static_cast<const XLA_FFI_Array*>(frame.attrs.attrs[k])))
      return found;
  }
  return nullptr;
}

XLA_FFI_Error_Code code_of(int32_t status) {
  switch (status) {
    case AOT_TUNE_ERROR_MEMORY:
      return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    case AOT_TUNE_ERROR_WORKSPACE:
    case AOT_TUNE_ERROR_KERNEL:
      return XLA_FFI_Error_Code_INTERNAL;
    case AOT_TUNE_ERROR_ENVIRONMENT:
      return XLA_FFI_Error_Code_FAILED_PRECONDITION;
    case AOT_TUNE_ERROR_DRIVER:
      return XLA_FFI_Error_Code_UNAVAILABLE;
    default:
      return XLA_FFI_Error_Code_INVALID_ARGUMENT;
  }
}

// Tells XLA the version of the headers that this was compiled with. Calls are not declared fit for command
// buffers, because these share the library's workspace if they run at the same time.
XLA_FFI_Error* describe(const XLA_FFI_CallFrame& frame) {
  auto* const asked = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame.extension_start);
  if (asked->extension_base.struct_size < XLA_FFI_Metadata_Extension_STRUCT_SIZE ||
      asked->metadata->struct_size < XLA_FFI_Metadata_STRUCT_SIZE) {
    return error(frame.api, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                 "this library was built with the headers of a newer XLA; build it with those of this one");
  }
  asked->metadata->api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR,
                                  XLA_FFI_API_MINOR};
  asked->metadata->traits = 0;
  return nullptr;
}

// The device and the stream of a call on a GPU.
XLA_FFI_Error* find_place(const XLA_FFI_CallFrame& frame, int32_t* device, void** stream) {
  XLA_FFI_DeviceOrdinal_Get_Args place{XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, nullptr, frame.ctx, 0};
  if (XLA_FFI_Error* const found = frame.api->XLA_FFI_DeviceOrdinal_Get(&place)) return found;
  XLA_FFI_Stream_Get_Args queue{XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame.ctx, nullptr};
  if (XLA_FFI_Error* const found = frame.api->XLA_FFI_Stream_Get(&queue)) return found;
  *device = place.device_ordinal;
  *stream = queue.stream;
  return nullptr;
}

}  // namespace

XLA_FFI_Error* answer(const Handler& handler, XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr && frame->extension_start->type == XLA_FFI_Extension_Metadata)
    return describe(*frame);
  Call call(handler, *frame);
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE)
    return call.wrong("it was called at another stage than that of execution");
  int32_t device = 0;
  aot_tune_exec exec{nullptr, nullptr, 0};
  if (handler.device != kDLCPU) {
    if (XLA_FFI_Error* const found = find_place(*frame, &device, &exec.stream)) return found;
  }
  if (XLA_FFI_Error* const found = call.read_attributes()) return found;
  if (XLA_FFI_Error* const found = call.view_all(device)) return found;
  if (XLA_FFI_Error* const found = call.read_layouts()) return found;
  const int32_t status = handler.op.call(call.given, call.scalars, call.attributes, &exec);
  return status == AOT_TUNE_OK ? nullptr : error(frame->api, code_of(status), handler.last_error());
}

}  // namespace aot_tune::xla
