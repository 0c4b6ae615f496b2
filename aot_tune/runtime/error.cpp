// The message that goes with a non-zero status, one per thread.
#include <cstdarg>
#include <cstdio>

#include "runtime.h"

namespace aot_tune {
namespace {

thread_local char message[1024];

}  // namespace

int32_t fail(int32_t code, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return code;
}

const char* last_error() noexcept { return message; }

int32_t kernel_failed(const OperatorInfo& op, const VariantInfo& variant, const char* function,
                      int32_t status) noexcept {
  return fail(AOT_TUNE_ERROR_KERNEL, "%s: variant %s for %s: %s returned %d", op.name, variant.name,
              variant.target, function, static_cast<int>(status));
}

}  // namespace aot_tune
