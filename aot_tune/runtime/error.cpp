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
                      int32_t status, const char* note) noexcept {
  const char* meaning = *note != '\0'                          ? note
                        : status == kUnavailable               ? "something that it needs is not here"
                        : variant.backend->describe != nullptr ? variant.backend->describe(status)
                                                               : nullptr;
  return fail(AOT_TUNE_ERROR_KERNEL, "%s: variant %s for %s: %s returned %d%s%s%s", op.name, variant.name,
              variant.target, function, static_cast<int>(status), meaning != nullptr ? " (" : "",
              meaning != nullptr ? meaning : "", meaning != nullptr ? ")" : "");
}

}  // namespace aot_tune
