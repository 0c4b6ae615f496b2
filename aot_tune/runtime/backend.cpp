// Which backend a call runs on, its workspace, and the loading of kernels.
#include <cstdio>

#include "cpu_level.h"
#include "runtime.h"

namespace aot_tune {

int32_t no_backend(const OperatorInfo& op, const DLDevice& device) noexcept {
  return fail(AOT_TUNE_ERROR_DEVICE,
              "%s: tensors are on %s, for which this library has no variants; AOT_TUNE_TARGETS of its build "
              "chooses its devices",
              op.name, device_name(device).text);
}

int32_t no_kernels(const OperatorInfo& op, const DLDevice& device, const int32_t* dtypes,
                   const char* served) noexcept {
  char wanted[128] = "";
  char named[256] = "";
  Text text(wanted, sizeof wanted);
  Text tensors(named, sizeof named);
  for (int32_t i = 0; i < op.variable_count; ++i) {
    const VariableInfo& variable = op.variables[i];
    text.add("%s%s=%s", i > 0 ? " " : "", variable.name, variable.choices[dtypes[i]]);
    tensors.add("; %s is the dtype of", variable.name);
    const char* between = " ";
    for (int32_t k = 0; k < op.tensor_count; ++k) {
      if (op.tensors[k].variable != i) continue;
      tensors.add("%s'%s'", between, op.tensors[k].name);
      between = ", ";
    }
  }
  return fail(AOT_TUNE_ERROR_DTYPE,
              "%s: tensors are on %s with %s, for which this library has no variants; it has %s%s", op.name,
              device_name(device).text, wanted, served, named);
}

int32_t too_old(const OperatorInfo& op, const DLDevice& device, int32_t level, const VariantInfo& generic,
                const char* targets) noexcept {
  const Name least = level_name(*generic.backend, generic.level);
  const bool one = generic.last != 0;  // its code only runs on one architecture
  return fail(AOT_TUNE_ERROR_DEVICE,
              "%s: %s has the architecture %s, but this library is for %s%s%s%s; build it again with "
              "AOT_TUNE_TARGETS naming a target of that device, where aot_tune has one, or use %s",
              op.name, device_name(device).text, level_name(*generic.backend, level).text, targets,
              one ? "" : " and needs ", one ? "" : least.text, one ? " alone" : " or later",
              one ? "a device of those" : "a later device");
}

Name level_name(const Backend& backend, int32_t level) noexcept {
  const auto number = static_cast<unsigned>(level);
  Name name;
  switch (backend.device_type) {
    case kDLCPU:
      std::snprintf(name.text, sizeof name.text, "x86-64-%s", name_of_level(level));
      break;
    case kDLCUDA:
      std::snprintf(name.text, sizeof name.text, "sm_%u", number);
      break;
    case kDLROCM:
      std::snprintf(name.text, sizeof name.text, "gfx%x", number);
      break;
    default:
      std::snprintf(name.text, sizeof name.text, "level %u", number);
  }
  return name;
}

int32_t find_workspace(const OperatorInfo& op, const Backend& backend, const DLDevice& device,
                       const aot_tune_exec* exec, size_t size, Workspace* taken) noexcept {
  if (exec == nullptr || exec->workspace == nullptr) {
    return backend.workspace(device.device_id, exec != nullptr ? exec->stream : nullptr, size, taken);
  }
  if (exec->workspace_size < size) {
    return fail(AOT_TUNE_ERROR_WORKSPACE, "%s: the workspace has %zu bytes, wanted %zu", op.name,
                exec->workspace_size, size);
  }
  if (reinterpret_cast<uintptr_t>(exec->workspace) % 64 != 0) {
    return fail(AOT_TUNE_ERROR_WORKSPACE, "%s: the workspace is not aligned to 64 bytes", op.name);
  }
  taken->memory = exec->workspace;
  return AOT_TUNE_OK;
}

int32_t load_now(const OperatorInfo& op, const VariantInfo& variant, int32_t (*preload)(), uint64_t bit,
                 std::atomic<uint64_t>& loaded) noexcept {
  const int32_t status = preload();  // at worst, several threads do this at once, which is allowed
  if (status == kUnavailable) return AOT_TUNE_OK;  // if the call gets this variant, it reports the status
  if (status != 0) return kernel_failed(op, variant, "preload", status);
  loaded.fetch_or(bit, std::memory_order_release);
  return AOT_TUNE_OK;
}

int32_t preload_all(const Backend* const* backends, int32_t count, const DLDevice& device,
                    const Preload* operators, int32_t operator_count) noexcept {
  int32_t found = 0;
  while (found < count && backends[found]->device_type != static_cast<int32_t>(device.device_type)) ++found;
  if (found == count)
    return fail(AOT_TUNE_ERROR_DEVICE,
                "this library has no variants for %s; AOT_TUNE_TARGETS of its build chooses its devices",
                device_name(device).text);
  const int32_t level = backends[found]->level(device.device_id);
  if (level < 0) return -level;
  Entered entered;
  if (int32_t status = entered.enter(*backends[found], device.device_id)) return status;
  for (int32_t i = 0; i < operator_count; ++i) {
    if (int32_t status = operators[i](*backends[found], level, device.device_id)) return status;
  }
  return AOT_TUNE_OK;
}

}  // namespace aot_tune
