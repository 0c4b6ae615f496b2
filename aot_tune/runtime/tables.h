// What a library's operators take and return: tables that generated code fills in. The library, its Python
// module and XLA's handlers are compiled with the same ones.
#ifndef AOT_TUNE_RUNTIME_TABLES_H_
#define AOT_TUNE_RUNTIME_TABLES_H_

#include <cstddef>
#include <cstdint>

#include "aot_tune/base.h"

namespace aot_tune {

constexpr int kMaxRank = 8;
constexpr int kMaxTensors = 16;
constexpr int kMaxScalars = 8;
constexpr int kMaxAttributes = 8;
constexpr int kMaxDims = 16;
constexpr int kMaxVariables = 4;
constexpr int64_t kNoExtent = INT64_MIN;

struct DType {
  uint8_t code;
  uint8_t bits;
  const char* framework;  // as frameworks spell it: "float32", "bfloat16"
  // Whether numpy and the array API have this dtype.
  constexpr bool standard() const {
    return code == kDLInt || code == kDLUInt || code == kDLFloat || code == kDLBool;
  }
};

struct AttributeInfo {
  const char* name;
  const char* const* choices;
  int32_t count;
};

// A dtype that several tensors share. In a call it is one of its choices, which are named as we do: "f32".
struct VariableInfo : AttributeInfo {
  const DType* types;
};

struct TensorInfo {
  const char* name;
  const char* shape;  // as declared, for messages: "[M, K]"
  const char* dtype;  // for messages: "f32", or all choices of a variable: "f32, bf16 or f16"
  DType type;         // with a variable, its first choice
  int8_t rank;
  int8_t variable;  // index of its dtype variable, or -1
  bool output;
  bool optional;
  bool inout = false;     // an input that is also written
  bool required = false;  // for an output: it tells a dim or dtype of the call
  int8_t layout_of = -1;  // for a new output: the input whose order of axes it gets
  bool folds = false;     // its first axis stands for any number of leading dims
  uint32_t aliases = 0;   // if it is written: a bit for each tensor whose memory it may use
  constexpr bool written() const { return output || inout; }
};

union Scalar {
  float f32;
  double f64;
  bool truth;
  int8_t i8;
  int16_t i16;
  int32_t i32;
  int64_t i64;
  uint8_t u8;
  uint16_t u16;
  uint32_t u32;
  uint64_t u64;
  Scalar() = default;
  constexpr Scalar(float value) : f32(value) {}
  constexpr Scalar(double value) : f64(value) {}
  constexpr Scalar(bool value) : truth(value) {}
  constexpr Scalar(int8_t value) : i8(value) {}
  constexpr Scalar(int16_t value) : i16(value) {}
  constexpr Scalar(int32_t value) : i32(value) {}
  constexpr Scalar(int64_t value) : i64(value) {}
  constexpr Scalar(uint8_t value) : u8(value) {}
  constexpr Scalar(uint16_t value) : u16(value) {}
  constexpr Scalar(uint32_t value) : u32(value) {}
  constexpr Scalar(uint64_t value) : u64(value) {}
};

struct ScalarInfo {
  const char* name;
  enum Kind : uint8_t { kF32, kF64, kBool, kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64 } kind;
  Scalar value;  // the value if the caller gives none
  bool required = false;
  int8_t binds = -1;  // index of the dim that it gives
  double least = -__builtin_inf();
};

// By ScalarInfo::Kind.
constexpr size_t kScalarBytes[] = {4, 8, 1, 1, 2, 4, 8, 1, 2, 4, 8};
constexpr const char* kScalarNames[] = {"f32", "f64", "bool", "i8",  "i16", "i32",
                                        "i64", "u8",  "u16",  "u32", "u64"};
// The integer of a scalar that gives a dim.
inline int64_t dim_of(const ScalarInfo& info, const Scalar& scalar) noexcept {
  switch (info.kind) {
    case ScalarInfo::kI8:
      return scalar.i8;
    case ScalarInfo::kI16:
      return scalar.i16;
    case ScalarInfo::kI32:
      return scalar.i32;
    case ScalarInfo::kU8:
      return scalar.u8;
    case ScalarInfo::kU16:
      return scalar.u16;
    case ScalarInfo::kU32:
      return scalar.u32;
    default:
      return scalar.i64;
  }
}

// Whether a number is 0 or infinite in 32 bits only if it is so in 64.
inline bool fits_f32(double number) noexcept {
  const auto single = static_cast<float>(number);
  return (single == 0) == (number == 0) && __builtin_isinf(single) == __builtin_isinf(number);
}

// A scalar as a number, to be compared.
inline double value_of(const ScalarInfo& info, const Scalar& scalar) noexcept {
  return info.kind == ScalarInfo::kF32   ? static_cast<double>(scalar.f32)
         : info.kind == ScalarInfo::kF64 ? scalar.f64
         : info.kind == ScalarInfo::kU64 ? static_cast<double>(scalar.u64)
                                         : static_cast<double>(dim_of(info, scalar));
}

using Tensors = const DLTensor* const*;

struct OperatorInfo {
  const char* name;
  const TensorInfo* tensors;
  int32_t tensor_count;
  const ScalarInfo* scalars;
  int32_t scalar_count;
  const AttributeInfo* attributes;
  int32_t attribute_count;
  const char* const* dims;
  int32_t dim_count;
  const VariableInfo* variables;
  int32_t variable_count;
  uint32_t bound;   // a bit for each tensor that tells dims
  uint32_t beside;  // a bit for each dim that may be 0 though every input has elements
  // Gives kNoExtent for an extent that divides by zero or needs more than 64 bits.
  void (*shape)(int tensor, const int64_t* dims, int64_t* extents);
  // What a tensor's numbers are below, or kNoExtent.
  int64_t (*below)(int tensor, const int64_t* dims) = nullptr;
};

// Whether a tensor that is written may use exactly another tensor's memory.
constexpr bool may_alias(const OperatorInfo& op, size_t output, size_t other) {
  return (op.tensors[output].aliases >> other & 1u) != 0;
}

// Whether a tensor has leading dims for which only one axis is declared.
inline bool leads(const TensorInfo& info, const DLTensor* tensor) {
  return info.folds && tensor != nullptr && tensor->ndim != info.rank;
}

// The dtype of a tensor in a call: that of its variable in the tensors that are there.
inline const DType& type_of(const OperatorInfo& op, int tensor, Tensors given) {
  const TensorInfo& info = op.tensors[tensor];
  for (int i = 0; info.variable >= 0 && i < op.tensor_count; ++i) {
    if (given[i] == nullptr || op.tensors[i].variable != info.variable) continue;
    const VariableInfo& variable = op.variables[info.variable];
    for (int32_t k = 0; k < variable.count; ++k) {
      const DType& type = variable.types[k];
      if (given[i]->dtype.code == type.code && given[i]->dtype.bits == type.bits) return type;
    }
    break;  // a call is refused for it
  }
  return info.type;
}

// An operator with the library's functions for it, which take arguments as arrays.
struct Operator : OperatorInfo {
  int32_t (*call)(Tensors, const Scalar*, const int32_t*, const aot_tune_exec*);
  int32_t (*explain)(Tensors, const Scalar*, const int32_t*, const aot_tune_exec*, char*, size_t);
  int32_t (*is_tuned)(Tensors, const Scalar*, const int32_t*, int32_t*);
  // Fills in outputs that are to be made, and tensors with their leading dims as one axis.
  int32_t (*infer)(Tensors, const Scalar*, const int32_t*, DLTensor* const* made, DLTensor* const* taken);
};

// A function of C that takes the arguments one by one, as one that takes them as arrays.
template <typename Pass, auto Function, typename... More>
int32_t by_arrays(Tensors tensors, const Scalar* scalars, const int32_t* attributes, More... more) {
  return Pass::to(Function, tensors, scalars, attributes, more...);
}

struct Library {
  uint64_t layout;  // kTablesLayout
  const char* name;
  const Operator* operators;
  int operator_count;
  const char* (*last_error)();
  const char* (*manifest)();
  int32_t (*preload)(int32_t device_type, int32_t device_id);
  int32_t (*set_num_threads)(int32_t threads);
  int32_t (*get_num_threads)();
  const char* signatures;  // the same as JSON, with shapes
};

// Tells code in other libraries if it was compiled with other tables than a module.
constexpr uint64_t kTablesLayout = sizeof(TensorInfo) | sizeof(ScalarInfo) << 8 |
                                   sizeof(AttributeInfo) << 16 | sizeof(Operator) << 24 |
                                   static_cast<uint64_t>(sizeof(Library)) << 40;

// The name of a module's capsule for code in other libraries. It contains the version of this file.
constexpr char kTablesCapsule[] = "aot_tune.tables.2";

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_TABLES_H_
