/* triton
{
  "function": "gemm/triton/functions.py:persistent",
  "digest": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd",
  "signature": {
    "a_desc": "tensordesc<bf16[128, 64]>",
    "bias_ptr": "*fp32",
    "out_ptr": "*bf16",
    "rows": "i64",
    "columns": "i32",
    "stride_out": "i32",
    "locks": "*i32",
    "alpha": "fp64",
    "negative": "i32",
    "BLOCK": "constexpr",
    "SPLIT": "constexpr"
  },
  "constexprs": {
    "BLOCK": 128,
    "SPLIT": 2
  },
  "dtypes": {},
  "divisible": [
    "bias_ptr",
    "out_ptr",
    "columns",
    "locks"
  ],
  "ranges": [],
  "options": {
    "launch_pdl": true,
    "num_stages": 4,
    "num_warps": 8
  }
}
*/
// Launches the Triton kernel above. Written by aot_tune.
#include <stddef.h>
#include <stdint.h>

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

#include "launch.h"
#include "kernel.h"
#include "launcher.h"

namespace {
// Used where the kernel takes a descriptor in parts.
constexpr launcher::DescriptorMeta descriptor_a_desc = {};
}  // namespace
namespace kernel {
constexpr launcher::DescriptorMeta meta_a_desc = descriptor_a_desc;
}  // namespace kernel

namespace {
namespace call {

launcher::Kernel aot_kernel = {
    kernel::name, "aot_tune_scale_adf51f046c4bf698", AOT_TUNE_KERNEL_IMAGE,
    kernel::warps * kernel::warp_size, kernel::ctas, kernel::shared,
    kernel::cooperative, kernel::pdl, kernel::tma, kernel::descriptor_rounding, 0, nullptr};
launcher::Described described_a_desc = {2, 2, true, {1, 0}, kernel::meta_a_desc, nullptr, 0};

// The kernel's parameters.
struct Arguments {
  launcher::Descriptor p_a_desc;
  void* p_bias_ptr;
  void* p_out_ptr;
  int64_t p_rows;
  int32_t p_columns;
  int32_t p_stride_out;
  void* p_locks;
  double p_alpha;
  int32_t p_negative;
  void *global_scratch, *profile_scratch;
};

// What a call comes to: its grid, and the places of what it needs in the workspace.
struct Plan {
  launcher::Grid grid;
  launcher::Workspace memory;
  size_t at_locks, bytes_locks;
  size_t at_global_scratch, at_profile_scratch;
};

int32_t make_plan(
    [[maybe_unused]] const DLTensor* x,
    [[maybe_unused]] const DLTensor* bias,
    [[maybe_unused]] const DLTensor* out,
    [[maybe_unused]] double alpha,
    [[maybe_unused]] int32_t aot_device,
    Plan* aot_plan) {
  bool aot_undefined = false;
  aot_plan->grid.x = ((launcher::floor_divide(((x->shape[0] + INT64_C(128)) - INT64_C(1)), INT64_C(128), &aot_undefined) < launcher::multiprocessors(call::aot_kernel, aot_device)) ? launcher::floor_divide(((x->shape[0] + INT64_C(128)) - INT64_C(1)), INT64_C(128), &aot_undefined) : launcher::multiprocessors(call::aot_kernel, aot_device));
  aot_plan->grid.y = INT64_C(1);
  aot_plan->grid.z = INT64_C(2);
  if (aot_undefined || !launcher::valid(aot_plan->grid, kernel::ctas)) return launcher::kInvalidValue;
  const int64_t aot_count_locks = launcher::floor_divide(((x->shape[0] + INT64_C(128)) - INT64_C(1)), INT64_C(128), &aot_undefined);
  if (aot_undefined || aot_count_locks < 0) return launcher::kInvalidValue;
  aot_plan->at_locks =
      launcher::reserve(aot_plan->memory, static_cast<uint64_t>(aot_count_locks), 4);
  aot_plan->bytes_locks = static_cast<size_t>(aot_count_locks) * 4;
  if (kernel::global_scratch != 0 || kernel::profile_scratch != 0) {
    const uint64_t aot_blocks = launcher::blocks(aot_plan->grid, kernel::ctas);
    aot_plan->at_global_scratch = launcher::reserve(aot_plan->memory, aot_blocks, kernel::global_scratch);
    aot_plan->at_profile_scratch = launcher::reserve(aot_plan->memory, aot_blocks, kernel::profile_scratch);
  }
  return aot_undefined || aot_plan->memory.too_large ? launcher::kInvalidValue : 0;
}

}  // namespace call
}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t aot_tune_scale_adf51f046c4bf698_workspace(
    [[maybe_unused]] const DLTensor* x,
    [[maybe_unused]] const DLTensor* bias,
    [[maybe_unused]] const DLTensor* out,
    [[maybe_unused]] double alpha,
    [[maybe_unused]] size_t* workspace_size) {
  *workspace_size = 0;
  const int32_t aot_device = x->device.device_id;
  if (const int32_t aot_status = launcher::find(call::aot_kernel, aot_device)) return aot_status;
  call::Plan aot_plan = {};
  if (const int32_t aot_status = call::make_plan(x, bias, out, alpha, aot_device, &aot_plan)) return aot_status;
  *workspace_size = launcher::bytes(aot_plan.memory);
  return 0;
}

extern "C" __attribute__((visibility("default"))) int32_t aot_tune_scale_adf51f046c4bf698_launch(
    [[maybe_unused]] const DLTensor* x,
    [[maybe_unused]] const DLTensor* bias,
    [[maybe_unused]] const DLTensor* out,
    [[maybe_unused]] double alpha,
    [[maybe_unused]] void* workspace,
    [[maybe_unused]] size_t workspace_size,
    [[maybe_unused]] void* stream) {
  const int32_t aot_device = x->device.device_id;
  if (const int32_t aot_status = launcher::load(call::aot_kernel, aot_device)) return aot_status;
  call::Plan aot_plan = {};
  if (const int32_t aot_status = call::make_plan(x, bias, out, alpha, aot_device, &aot_plan)) return aot_status;
  if (aot_plan.memory.end != 0 && !launcher::place(aot_plan.memory, workspace, workspace_size))
    return launcher::kInvalidValue;
  if (aot_plan.bytes_locks != 0) {
    if (const int32_t aot_status = launcher::zero(aot_plan.memory.start + aot_plan.at_locks, aot_plan.bytes_locks, stream)) return aot_status;
  }
  if (const int32_t aot_status = launcher::clear(*out, 2, stream)) return aot_status;
  if (launcher::empty(aot_plan.grid)) return 0;
  call::Arguments aot_arguments;
  [[maybe_unused]] bool aot_fits = true, aot_undefined = false;
  aot_arguments.p_bias_ptr = bias->data;
  aot_arguments.p_out_ptr = out->data;
  aot_fits &= launcher::narrow(x->shape[0], &aot_arguments.p_rows);
  aot_fits &= launcher::narrow(x->shape[1], &aot_arguments.p_columns);
  aot_fits &= launcher::narrow(out->strides[0], &aot_arguments.p_stride_out);
  aot_arguments.p_locks = aot_plan.memory.start + aot_plan.at_locks;
  aot_arguments.p_alpha = static_cast<double>(alpha);
  aot_arguments.p_negative = INT64_C(-1);
  if (!aot_fits || aot_undefined) return launcher::kInvalidValue;
  aot_arguments.global_scratch = kernel::global_scratch != 0 ? aot_plan.memory.start + aot_plan.at_global_scratch : nullptr;
  aot_arguments.profile_scratch = kernel::profile_scratch != 0 ? aot_plan.memory.start + aot_plan.at_profile_scratch : nullptr;
  if (kernel::profile_scratch != 0) {
    const size_t aot_bytes = launcher::blocks(aot_plan.grid, kernel::ctas) * kernel::profile_scratch;
    const int32_t aot_status = launcher::zero(aot_arguments.profile_scratch, aot_bytes, stream);
    if (aot_status != 0) return aot_status;
  }
  void* aot_parameters[10 + launcher::descriptor_parameters(2)];
  void** aot_next = aot_parameters;
  if (const int32_t aot_status =
          launcher::describe(call::aot_kernel, call::described_a_desc, *x, &aot_arguments.p_a_desc, &aot_next))
    return aot_status;
  *aot_next++ = &aot_arguments.p_bias_ptr;
  *aot_next++ = &aot_arguments.p_out_ptr;
  *aot_next++ = &aot_arguments.p_rows;
  *aot_next++ = &aot_arguments.p_columns;
  *aot_next++ = &aot_arguments.p_stride_out;
  *aot_next++ = &aot_arguments.p_locks;
  *aot_next++ = &aot_arguments.p_alpha;
  *aot_next++ = &aot_arguments.p_negative;
  *aot_next++ = &aot_arguments.global_scratch;
  *aot_next++ = &aot_arguments.profile_scratch;
  return launcher::launch(call::aot_kernel, aot_device, aot_plan.grid, aot_parameters, stream);
}

extern "C" __attribute__((visibility("default"))) int32_t aot_tune_scale_adf51f046c4bf698_preload(
    void) { return launcher::preload(call::aot_kernel); }

extern "C" __attribute__((visibility("default"))) int32_t aot_tune_scale_adf51f046c4bf698_note(
    [[maybe_unused]] const DLTensor* x,
    [[maybe_unused]] const DLTensor* bias,
    [[maybe_unused]] const DLTensor* out,
    [[maybe_unused]] double alpha,
    [[maybe_unused]] char* buffer,
    [[maybe_unused]] size_t buffer_size) {
  launcher::tell(call::aot_kernel, x->device.device_id, buffer, buffer_size);
  return 0;
}
