// Checks of a call's tensors, and the normal form in which kernels get them.
#include <cinttypes>
#include <cstdio>

#include "plain.h"

namespace aot_tune {

// DLPack 1.1's codes. A dlpack.h of another version may lack them.
constexpr uint8_t kFloat8E4M3 = 10;  // kDLFloat8_e4m3fn
constexpr uint8_t kFloat8E5M2 = 12;  // kDLFloat8_e5m2

Name dtype_name(const DLDataType& type) noexcept {
  const char* kind = type.code == kDLInt      ? "i"
                     : type.code == kDLUInt   ? "u"
                     : type.code == kDLFloat  ? "f"
                     : type.code == kDLBfloat ? "bf"
                     : type.code == kDLBool   ? "bool"
                                              : nullptr;
  Name name;
  if (type.lanes == 1 && (type.code == kFloat8E4M3 || type.code == kFloat8E5M2)) {
    std::snprintf(name.text, sizeof name.text, type.code == kFloat8E4M3 ? "f8e4m3" : "f8e5m2");
  } else if (kind == nullptr) {
    std::snprintf(name.text, sizeof name.text, "DLPack type %u with %u bits", type.code, type.bits);
  } else if (type.lanes != 1) {
    std::snprintf(name.text, sizeof name.text, "%s%u x %u lanes", kind, type.bits, type.lanes);
  } else if (type.code == kDLBool) {
    std::snprintf(name.text, sizeof name.text, "bool");
  } else {
    std::snprintf(name.text, sizeof name.text, "%s%u", kind, type.bits);
  }
  return name;
}

Name device_name(const DLDevice& device) noexcept {
  const int type = static_cast<int>(device.device_type);
  const char* kind = type == 1    ? "cpu"
                     : type == 2  ? "cuda"
                     : type == 3  ? "cuda host"
                     : type == 10 ? "rocm"
                                  : nullptr;
  Name name;
  if (kind == nullptr) {
    std::snprintf(name.text, sizeof name.text, "DLPack device %d:%d", type,
                  static_cast<int>(device.device_id));
  } else {
    std::snprintf(name.text, sizeof name.text, "%s:%d", kind, static_cast<int>(device.device_id));
  }
  return name;
}

namespace {

const char* role_of(const TensorInfo& info) noexcept {
  return info.inout ? "tensor" : info.output ? "output" : "input";
}

int32_t too_large(const OperatorInfo& op, const TensorInfo& info) noexcept {
  return fail(AOT_TUNE_ERROR_SHAPE, "%s: tensor '%s' spans more than the address space", op.name, info.name);
}

int32_t read_strides(const OperatorInfo& op, const TensorInfo& info, const DLTensor& given,
                     View& view) noexcept {
  view.empty = false;
  for (int i = 0; i < given.ndim; ++i) {
    if (given.shape[i] < 0) {
      return fail(AOT_TUNE_ERROR_SHAPE, "%s: tensor '%s': axis %d has the extent %" PRId64, op.name,
                  info.name, i, given.shape[i]);
    }
    view.empty |= given.shape[i] == 0;
  }
  if (given.strides != nullptr) {
    for (int i = 0; i < given.ndim; ++i) view.strides[i] = given.strides[i];
  } else {
    int64_t step = 1;
    for (int i = given.ndim - 1; i >= 0; --i) {
      view.strides[i] = step;
      if (__builtin_mul_overflow(step, given.shape[i] > 0 ? given.shape[i] : 1, &step))
        return too_large(op, info);
    }
  }
  if (!view.empty) canonical_strides(given.shape, given.ndim, view.strides);
  return AOT_TUNE_OK;
}

int32_t read_span(const OperatorInfo& op, const TensorInfo& info, View& view) noexcept {
  const int64_t size = view.tensor.dtype.bits / 8;
  int64_t below = 0;
  int64_t above = size;
  for (int i = 0; i < view.tensor.ndim && !view.empty; ++i) {
    int64_t span;
    if (__builtin_mul_overflow(view.tensor.shape[i] - 1, view.strides[i], &span) ||
        __builtin_mul_overflow(span, size, &span) ||
        (span < 0 ? __builtin_add_overflow(below, span, &below)
                  : __builtin_add_overflow(above, span, &above))) {
      return too_large(op, info);
    }
  }
  const auto data = reinterpret_cast<uintptr_t>(view.tensor.data);
  view.low = data + static_cast<uintptr_t>(below);
  view.high = data + static_cast<uintptr_t>(above);
  const bool wraps = view.low > data || view.high < data;
  return wraps && data != 0 && !view.empty ? too_large(op, info) : AOT_TUNE_OK;
}

int32_t wrong_dtype(const OperatorInfo& op, const TensorInfo& info, const DLTensor& given) noexcept {
  return fail(AOT_TUNE_ERROR_DTYPE, "%s: tensor '%s' has dtype %s, wanted %s", op.name, info.name,
              dtype_name(given.dtype).text, info.dtype);
}

// Looks up the tensor's dtype among its variable's choices, or compares it with those of earlier tensors.
int32_t read_variable(const OperatorInfo& op, int tensor, const DLTensor* const* given,
                      int32_t* dtypes) noexcept {
  const TensorInfo& info = op.tensors[tensor];
  const VariableInfo& variable = op.variables[info.variable];
  int32_t& chosen = dtypes[info.variable];
  const DLDataType& type = given[tensor]->dtype;
  if (chosen >= 0) {
    const DType& wanted = variable.types[chosen];
    if (is_dtype(type, wanted.code, wanted.bits)) return AOT_TUNE_OK;
    int first = 0;
    while (given[first] == nullptr || op.tensors[first].variable != info.variable) ++first;
    return fail(AOT_TUNE_ERROR_DTYPE,
                "%s: tensor '%s' has dtype %s, but '%s' has %s; wanted one for all (%s)", op.name, info.name,
                dtype_name(type).text, op.tensors[first].name, variable.choices[chosen], variable.name);
  }
  for (int32_t i = 0; i < variable.count; ++i) {
    if (!is_dtype(type, variable.types[i].code, variable.types[i].bits)) continue;
    chosen = i;
    return AOT_TUNE_OK;
  }
  return wrong_dtype(op, info, *given[tensor]);
}

int32_t read_tensor(const OperatorInfo& op, const TensorInfo& info, const DLTensor& given,
                    View& view) noexcept {
  if (given.ndim != info.rank) {
    return fail(AOT_TUNE_ERROR_RANK, "%s: tensor '%s' has %d axes, wanted %d: %s", op.name, info.name,
                static_cast<int>(given.ndim), static_cast<int>(info.rank), info.shape);
  }
  if (info.variable < 0 && !is_dtype(given.dtype, info.type.code, info.type.bits))
    return wrong_dtype(op, info, given);
  if (given.shape == nullptr) {
    return fail(AOT_TUNE_ERROR_NULL, "%s: tensor '%s' has no shape: its pointer is NULL", op.name, info.name);
  }
  view.tensor = given;
  view.tensor.strides = view.strides;
  uintptr_t data;
  if (!first_element(given, data)) return too_large(op, info);
  view.tensor.data = reinterpret_cast<void*>(data);
  view.tensor.byte_offset = 0;
  if (int32_t status = read_strides(op, info, given, view)) return status;
  return read_span(op, info, view);
}

// Whether two elements of a tensor may share memory. From the smallest stride up, each axis must step over
// everything that the smaller ones reach.
bool self_overlap(const View& view) noexcept {
  int64_t extent[kMaxRank];
  int64_t stride[kMaxRank];
  int count = 0;
  for (int i = 0; i < view.tensor.ndim; ++i) {
    if (view.tensor.shape[i] == 1) continue;
    const int64_t step = view.strides[i] < 0 ? -view.strides[i] : view.strides[i];
    int k = count++;
    for (; k > 0 && stride[k - 1] > step; --k) {
      stride[k] = stride[k - 1];
      extent[k] = extent[k - 1];
    }
    stride[k] = step;
    extent[k] = view.tensor.shape[i];
  }
  int64_t reach = 0;
  for (int k = 0; k < count; ++k) {
    if (stride[k] <= reach) return true;
    reach += (extent[k] - 1) * stride[k];
  }
  return false;
}

// Whether two tensors with overlapping byte ranges are disjoint column blocks, in rows with the same stride.
bool interleaved_rows(const View& a, const View& b) noexcept {
  const int rank = a.tensor.ndim;
  if (rank < 2 || b.tensor.ndim != rank || a.tensor.dtype.bits != b.tensor.dtype.bits) return false;
  const int64_t row = a.strides[rank - 2];
  if (a.strides[rank - 1] != 1 || b.strides[rank - 1] != 1 || row <= 0 || b.strides[rank - 2] != row)
    return false;
  for (int i = rank - 3; i >= 0; --i) {
    if (a.strides[i] < 0 || a.strides[i] % row != 0 || b.strides[i] < 0 || b.strides[i] % row != 0)
      return false;
  }
  const View& first = a.low <= b.low ? a : b;
  const View& second = a.low <= b.low ? b : a;
  const auto size = static_cast<uintptr_t>(a.tensor.dtype.bits / 8);
  if ((second.low - first.low) % size != 0) return false;
  const auto column = static_cast<int64_t>((second.low - first.low) / size % static_cast<uintptr_t>(row));
  return first.tensor.shape[rank - 1] <= column && column + second.tensor.shape[rank - 1] <= row;
}

}  // namespace

int32_t read_tensors(const OperatorInfo& op, const DLTensor* const* given, View* views,
                     int32_t* dtypes) noexcept {
  int first = -1, missing = -1;
  for (int32_t i = 0; i < op.variable_count; ++i) dtypes[i] = -1;
  for (int i = 0; i < op.tensor_count; ++i) {
    const TensorInfo& info = op.tensors[i];
    if (given[i] == nullptr) {
      if (!info.optional && missing < 0) missing = i;
      continue;
    }
    if (info.variable >= 0) {
      if (int32_t status = read_variable(op, i, given, dtypes)) return status;
    }
    if (int32_t status = read_tensor(op, info, *given[i], views[i])) return status;
    if (first < 0) {
      first = i;
    } else if (!same_device(given[i]->device, given[first]->device)) {
      return fail(AOT_TUNE_ERROR_DEVICE,
                  "%s: tensor '%s' is on %s, but '%s' is on %s; wanted all on one device", op.name, info.name,
                  device_name(given[i]->device).text, op.tensors[first].name,
                  device_name(given[first]->device).text);
    }
  }
  if (missing < 0) return AOT_TUNE_OK;
  // This error comes last: an output is missing, and no input gave its size.
  const TensorInfo& info = op.tensors[missing];
  return fail(AOT_TUNE_ERROR_NULL, "%s: tensor '%s' is missing (NULL); wanted %s %s", op.name, info.name,
              info.dtype, info.shape);
}

int32_t check_memory(const OperatorInfo& op, const DLTensor* const* given, const View* views) noexcept {
  for (int i = 0; i < op.tensor_count; ++i) {
    if (given[i] == nullptr || views[i].empty) continue;
    const TensorInfo& info = op.tensors[i];
    const View& view = views[i];
    if (is_nowhere(view.tensor.data)) {
      return fail(AOT_TUNE_ERROR_NULL, "%s: tensor '%s' has no data: its pointer is NULL%s", op.name,
                  info.name, view.tensor.data == nullptr ? "" : " but for an offset");
    }
    const DLDataType& type = view.tensor.dtype;
    // elements have a power of two of bytes
    if ((reinterpret_cast<uintptr_t>(view.tensor.data) & (type.bits / 8u - 1u)) != 0) {
      return fail(AOT_TUNE_ERROR_LAYOUT,
                  "%s: tensor '%s' is at an address that is not a multiple of %d, the size of %s", op.name,
                  info.name, type.bits / 8, dtype_name(type).text);
    }
    if (!info.written()) continue;
    if (self_overlap(view)) {
      return fail(AOT_TUNE_ERROR_LAYOUT,
                  "%s: %s '%s' has elements that share memory; wanted distinct elements", op.name,
                  role_of(info), info.name);
    }
    for (int j = 0; j < op.tensor_count; ++j) {
      if (j == i || given[j] == nullptr || views[j].empty || (op.tensors[j].written() && j > i)) continue;
      const bool in_place = may_alias(op, static_cast<size_t>(i), static_cast<size_t>(j));
      if (in_place && are_same(view, views[j])) continue;
      if (view.low < views[j].high && views[j].low < view.high && !interleaved_rows(view, views[j])) {
        return fail(AOT_TUNE_ERROR_OVERLAP,
                    "%s: %s '%s' overlaps %s '%s' in memory; wanted separate memory%s", op.name,
                    role_of(info), info.name, role_of(op.tensors[j]), op.tensors[j].name,
                    in_place ? ", or the very same tensor" : "");
      }
    }
  }
  return AOT_TUNE_OK;
}

int32_t check_workspace(const OperatorInfo& op, const DLTensor* const* given, const View* views,
                        const void* memory, size_t size) noexcept {
  const auto low = reinterpret_cast<uintptr_t>(memory);
  for (int i = 0; i < op.tensor_count; ++i) {
    if (given[i] == nullptr || views[i].empty || views[i].high <= low || low + size <= views[i].low) continue;
    return fail(AOT_TUNE_ERROR_OVERLAP,
                "%s: the workspace overlaps %s '%s' in memory; wanted separate memory", op.name,
                role_of(op.tensors[i]), op.tensors[i].name);
  }
  return AOT_TUNE_OK;
}

namespace {

// The extent of an axis as the tensor declares it: the one in "[M, max(N, 1)]".
struct Symbol {
  const char* text;
  int length;
  Symbol(const TensorInfo& info, int axis) noexcept : text(info.shape + 1) {
    const char* end = text;
    for (int depth = 0; *end != '\0'; ++end) {
      if (*end == '(') ++depth;
      if (*end == ']' || (depth == 0 && *end == ',' && axis-- == 0)) break;
      if (*end == ')') --depth;
      if (depth == 0 && *end == ',') text = end + 2;
    }
    length = static_cast<int>(end - text);
  }
};

}  // namespace

int32_t wrong_extent(const OperatorInfo& op, int tensor, int axis, int64_t got, int64_t wanted) noexcept {
  const TensorInfo& info = op.tensors[tensor];
  const Symbol symbol(info, axis);
  if (wanted == kNoExtent) {
    return fail(
        AOT_TUNE_ERROR_SHAPE,
        "%s: tensor '%s': axis %d wanted %.*s as in %s, which divides by zero here or needs more than "
        "64 bits",
        op.name, info.name, axis, symbol.length, symbol.text, info.shape);
  }
  return fail(AOT_TUNE_ERROR_SHAPE,
              "%s: tensor '%s': axis %d has extent %" PRId64 ", wanted %.*s = %" PRId64 " as in %s", op.name,
              info.name, axis, got, symbol.length, symbol.text, wanted, info.shape);
}

int32_t unsolved(const OperatorInfo& op, int tensor, int axis, int64_t got, const char* dim) noexcept {
  const TensorInfo& info = op.tensors[tensor];
  const Symbol symbol(info, axis);
  return fail(AOT_TUNE_ERROR_SHAPE,
              "%s: tensor '%s': axis %d has extent %" PRId64 ", which is %.*s for no %s, as in %s", op.name,
              info.name, axis, got, symbol.length, symbol.text, dim, info.shape);
}

int32_t no_dim(const OperatorInfo& op, const char* scalar, int64_t got, const char* dim) noexcept {
  return fail(AOT_TUNE_ERROR_SHAPE, "%s: '%s' is %" PRId64 ", wanted an extent of the dim %s: 0 or more",
              op.name, scalar, got, dim);
}

int32_t other_dim(const OperatorInfo& op, const char* scalar, int64_t got, const char* dim,
                  int64_t wanted) noexcept {
  return fail(AOT_TUNE_ERROR_SHAPE,
              "%s: '%s' is %" PRId64 ", but the dim %s is %" PRId64 " in the tensors; wanted one for both",
              op.name, scalar, got, dim, wanted);
}

int32_t too_small(const OperatorInfo& op, const ScalarInfo& scalar, double got) noexcept {
  return fail(AOT_TUNE_ERROR_ATTRIBUTE, "%s: '%s' is %g, wanted %g or more", op.name, scalar.name, got,
              scalar.least);
}

int32_t wrong_attribute(const OperatorInfo& op, const AttributeInfo& attribute, int32_t got) noexcept {
  return fail(AOT_TUNE_ERROR_ATTRIBUTE, "%s: attribute '%s' is %d, wanted 0 (%s) to %d (%s)", op.name,
              attribute.name, static_cast<int>(got), attribute.choices[0],
              static_cast<int>(attribute.count - 1), attribute.choices[attribute.count - 1]);
}

int32_t not_legal(const OperatorInfo& op, int32_t code, const char* condition, const char* hint,
                  std::initializer_list<FoundFact> found) noexcept {
  char text[256];
  Text values(text, sizeof text);
  const char* comma = "";
  for (const FoundFact& one : found) {
    values.add("%s%s is ", comma, one.name);
    values.add(one.text != nullptr ? "%s (%" PRId64 ")" : "%s%" PRId64, one.text != nullptr ? one.text : "",
               one.value);
    comma = ", ";
  }
  return fail(code, "%s: not a call that it takes: %s must hold, and %s%s%s", op.name, condition, text,
              hint[0] != '\0' ? "; " : "", hint);
}

int64_t stride_class(const DLTensor& tensor) noexcept {
  int order[kMaxRank];
  for (int i = 0; i < tensor.ndim; ++i) {
    int k = i;
    for (; k > 0 && tensor.strides[order[k - 1]] < tensor.strides[i]; --k) order[k] = order[k - 1];
    order[k] = i;
  }
  int64_t code = tensor.ndim > 0 && tensor.strides[order[tensor.ndim - 1]] == 1;
  for (int i = 0; i < tensor.ndim; ++i) code = code * kMaxRank + order[i];
  return code;
}

}  // namespace aot_tune
