// How a library's call is read: its arguments are checked, and bring its shape, device and level.
#ifndef AOT_TUNE_RUNTIME_READ_CALL_H_
#define AOT_TUNE_RUNTIME_READ_CALL_H_

#include "decision.h"

namespace aot_tune {

// ---- What generated code has for an operator

// The functions of a variant. The last two may be null.
template <typename... Arguments>
struct Functions {
  int32_t (*workspace)(Arguments..., size_t*);
  int32_t (*launch)(Arguments..., void*, size_t, void*);
  int32_t (*preload)();
  int32_t (*note)(Arguments..., char*, size_t);
};

// The indices of the operator's arguments of a kind. Where time matters, they are used in place of loops, so
// that the compiler keeps no array.
template <typename Op>
using TensorIndices = std::make_index_sequence<static_cast<size_t>(Op::kOperator.tensor_count)>;
template <typename Op>
using ScalarIndices = std::make_index_sequence<static_cast<size_t>(Op::kOperator.scalar_count)>;
template <typename Op>
using AttributeIndices = std::make_index_sequence<static_cast<size_t>(Op::kOperator.attribute_count)>;

// ---- Reading a call

template <typename Op, size_t I>
int32_t check_shape(Tensors given, const int64_t* dims) noexcept {
  constexpr TensorInfo info = Op::kOperator.tensors[I];
  if (info.optional && given[I] == nullptr) return AOT_TUNE_OK;
  int64_t wanted[kMaxRank];
  Op::kOperator.shape(static_cast<int>(I), dims, wanted);
  for (int axis = 0; axis < info.rank; ++axis) {
    if (given[I]->shape[axis] != wanted[axis] || wanted[axis] == kNoExtent)
      return wrong_extent(Op::kOperator, static_cast<int>(I), axis, given[I]->shape[axis], wanted[axis]);
  }
  return AOT_TUNE_OK;
}

template <typename Op, size_t... I>
int32_t check_shapes(Tensors given, const int64_t* dims, std::index_sequence<I...>) noexcept {
  int32_t status = AOT_TUNE_OK;
  (void)(((status = check_shape<Op, I>(given, dims)) == AOT_TUNE_OK) && ...);
  return status;
}

// The scalars, some of which must be dims of the tensors, and the attributes.
template <typename Op>
int32_t check_values(const CallOf<Op>& c) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  for (int i = 0; i < op.scalar_count; ++i) {
    const ScalarInfo& info = op.scalars[i];
    if (info.least > -__builtin_inf() && !(value_of(info, c.arguments.scalars[i]) >= info.least))
      return too_small(op, info, value_of(info, c.arguments.scalars[i]));
    if (info.binds < 0) continue;
    const int64_t passed = dim_of(info, c.arguments.scalars[i]), dim = c.dims[info.binds];
    if (passed != dim) return other_dim(op, info.name, passed, op.dims[info.binds], dim);
  }
  for (int i = 0; i < op.attribute_count; ++i) {
    const int32_t value = c.arguments.attributes[i];
    if (value < 0 || value >= op.attributes[i].count) return wrong_attribute(op, op.attributes[i], value);
  }
  return AOT_TUNE_OK;
}

// Whether an output has elements, and whether an input, or what is computed from, has none.
template <typename Op>
void read_emptiness(CallOf<Op>& c, Tensors given) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  bool lacks = false;
  c.empty = true;
  for (int i = 0; i < op.tensor_count; ++i) {
    const bool is_empty = given[i] != nullptr && c.view[i].empty;
    if (op.tensors[i].written()) c.empty &= given[i] == nullptr || is_empty;
    if (!op.tensors[i].output) lacks |= is_empty;
  }
  for (int i = 0; i < op.dim_count; ++i) lacks |= (op.beside >> i & 1u) != 0 && c.dims[i] == 0;
  c.hollow = !c.empty && lacks;
}

// The call's device, and the variant that can always answer the call.
template <typename Op>
int32_t read_device(CallOf<Op>& c) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  const FamilyInfo* family = nullptr;
  if (int32_t status = find_family(op, Op::kFamilies, c.device(), &family, &c.level)) return status;
  c.backend = family->backend;
  c.generic = -1;
  const VariantInfo* first = nullptr;
  bool runs = false;
  for (const int16_t index : Op::kGenerics) {
    const VariantInfo& variant = Op::kVariants[index];
    if (variant.backend != c.backend) continue;
    if (first == nullptr) first = &variant;
    const bool right = variant.last == 0 || runs_on(variant, c.level);
    runs |= right;
    if (right && c.generic < 0 && Op::refusal(c, index) == nullptr) c.generic = index;
  }
  if (!runs && first != nullptr) return too_old(op, c.device(), c.level, *first, family->targets);
  if (c.generic < 0) return no_kernels(op, c.device(), c.dtypes, family->served);
  const VariantInfo& generic = Op::kVariants[c.generic];
  return runs_on(generic, c.level) ? AOT_TUNE_OK : too_old(op, c.device(), c.level, generic, family->targets);
}

// Checks a call and fills it in. `data` is false where no memory is touched.
template <typename Op>
__attribute__((noinline)) int32_t read(CallOf<Op>& c, bool data, const Arguments<Op>& a) noexcept {
  constexpr const OperatorInfo& op = Op::kOperator;
  const bool plain = read_plainly<op>(a.tensors, c.view, c.dtypes);
  if (!plain) {
    if (int32_t status = read_tensors(op, a.tensors, c.view, c.dtypes)) return status;
  }
  if (int32_t status = Op::bind(a.tensors, a.scalars, c.dims)) return status;
  if (int32_t status = check_shapes<Op>(a.tensors, c.dims, TensorIndices<Op>())) return status;
  c.arguments = a;
  if (int32_t status = check_values(c)) return status;
  read_emptiness(c, a.tensors);
  c.plain = data && plain && has_plain_memory<op>(a.tensors, c.view);
  if (data && !c.empty && !c.plain) {
    if (int32_t status = check_memory(op, a.tensors, c.view)) return status;
  }
  for (int i = 0; i < op.tensor_count; ++i) {
    if (a.tensors[i] != nullptr) c.arguments.tensors[i] = &c.view[i].tensor;
  }
  if (int32_t status = Op::check_legal(c)) return status;
  return read_device(c);
}

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_READ_CALL_H_
