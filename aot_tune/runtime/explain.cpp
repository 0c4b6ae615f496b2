// Text about a choice, one "key: value" per line.
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <iterator>

#include "choice.h"

namespace aot_tune {

void Text::add(const char* format, ...) noexcept {
  if (used_ + 1 >= size_) return;
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(buffer_ + used_, size_ - used_, format, arguments);
  va_end(arguments);
  if (length > 0) used_ += static_cast<size_t>(length);
  if (used_ >= size_) used_ = size_ - 1;
}

void explain_processors(Text& text, const Backend& backend, int32_t device_id, int32_t tuned) noexcept {
  const int32_t here = tuned > 0 && backend.processors != nullptr ? backend.processors(device_id) : 0;
  if (here <= 0 || here == tuned) return;
  const bool cpu = backend.device_type == kDLCPU;
  text.add("%s: tuned with %d, this %s has %d\n", cpu ? "threads" : "processors", static_cast<int>(tuned),
           cpu ? "process" : "device", static_cast<int>(here));
}

void explain_call(Text& text, const OperatorInfo& op, const int64_t* facts, const Backend& backend,
                  int32_t level, const DLTensor* const* given, const View* views) noexcept {
  text.add("operator: %s\n", op.name);
  if (backend.device_type == kDLROCM)  // people do not know the numbers of AMD's levels
    text.add("device: %s %s\n", backend.family, level_name(backend, level).text);
  else
    text.add("device: %s level %d\n", backend.family, static_cast<int>(level));
  for (int i = 0; i < op.dim_count; ++i) text.add("dim: %s=%" PRId64 "\n", op.dims[i], *facts++);
  for (int i = 0; i < op.variable_count; ++i)
    text.add("dtype: %s=%s\n", op.variables[i].name, op.variables[i].choices[*facts++]);
  for (int i = 0; i < op.tensor_count; ++i) {
    if (given[i] == nullptr) continue;
    const View& view = views[i];
    text.add("tensor: %s %s %s, strides (", op.tensors[i].name, dtype_name(view.tensor.dtype).text,
             op.tensors[i].shape);
    for (int axis = 0; axis < view.tensor.ndim; ++axis) {
      text.add("%s%" PRId64, axis == 0 ? "" : ", ", view.strides[axis]);
    }
    text.add("), aligned to %d bytes\n", static_cast<int>(alignment_of(view.tensor.data)));
  }
  for (int i = 0; i < op.attribute_count; ++i)
    text.add("attribute: %s=%s\n", op.attributes[i].name, op.attributes[i].choices[*facts++]);
}

void explain_hollow(Text& text, const OperatorInfo& op) noexcept {
  text.add("generic: an input has no elements");
  const char* before = ", or a dim is 0 (";
  for (int i = 0; i < op.dim_count; ++i) {
    if ((op.beside >> i & 1u) == 0) continue;
    text.add("%s%s", before, op.dims[i]);
    before = ", ";
  }
  if (op.beside != 0) text.add(")");
}

void explain_choice(Text& text, const VariantInfo& variant, size_t workspace, const char* note,
                    const char* why) noexcept {
  text.add("variant: %s\ntarget: %s\nkernel: %s\nobject: %s\nworkspace: %zu\n", variant.name, variant.target,
           variant.kernel, variant.digest, workspace);
  if (*note != '\0') text.add("note: %s\n", note);
  if (variant.varies) text.add("bits: results vary between equal calls\n");
  if (variant.uncaptured) text.add("graph: its calls could not be captured when they were timed\n");
  text.add("why: %s\n", why);
}

namespace {

// 2 to the power of n/4096. exp2 is newer than the C libraries that wheels are for.
double power_of_2(int64_t n) noexcept {
  double found = std::ldexp(1.0, static_cast<int>(n >> 12)), root = 2;
  for (int bit = 11; bit >= 0; --bit) {
    root = std::sqrt(root);
    if ((n >> bit & 1) != 0) found *= root;
  }
  return found;
}

}  // namespace

void FittingTrace::expected(const VariantInfo& variant, int64_t time, int32_t error) noexcept {
  if (text == nullptr) return;
  text->add("expected: %s takes about %.3g us, give or take %.0f %%\n", variant.name, power_of_2(time) / 1000,
            100 * (power_of_2(error) - 1));
  if (foreseen < static_cast<int>(std::size(seen))) seen[foreseen++] = &variant;
}

void FittingTrace::meets(const Rule& met) noexcept {
  rule = &met;
  if (text == nullptr) return;
  text->add("override: %s:%d: %.*s\n", override_path(), static_cast<int>(met.line),
            static_cast<int>(met.text.length), met.text.text);
}

void FittingTrace::rejected(const VariantInfo& variant, int32_t status, size_t size,
                            const char* note) noexcept {
  if (text == nullptr) return;
  if (status == 0) {
    text->add("rejected: %s: needs a workspace of %zu bytes, the caller's has %zu\n", variant.name, size,
              limit);
  } else {
    text->add("rejected: %s: %s\n", variant.name,
              *note != '\0' ? note : "something that it needs is not here");
  }
}

}  // namespace aot_tune
