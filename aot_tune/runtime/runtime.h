// What generated dispatch code and the backends share. Internal to a library: nothing here is exported.
#ifndef AOT_TUNE_RUNTIME_RUNTIME_H_
#define AOT_TUNE_RUNTIME_RUNTIME_H_

#include <cstddef>
#include <cstdint>

#include "aot_tune/base.h"

namespace aot_tune {

constexpr int kMaxRank = 8;

// ---- What an operator declares
// -------------------------------------------------------------------------------------

struct TensorInfo {
  const char* name;
  const char* shape;  // as declared, for messages: "[M, K]"
  const char* dtype;
  uint8_t code;
  uint8_t bits;
  int8_t rank;
  bool output;
  bool optional;
};

struct AttributeInfo {
  const char* name;
  const char* const* choices;
  int32_t count;
};

struct OperatorInfo {
  const char* name;
  const TensorInfo* tensors;
  int32_t count;
};

struct VariantInfo {
  const char* name;
  const char* target;
  const char* kernel;
  const char* digest;  // sha256 of the object that was measured and linked
};

// ---- Errors
// --------------------------------------------------------------------------------------------------------

// Sets the thread's message from a printf format and returns `code`.
int32_t fail(int32_t code, const char* format, ...) noexcept __attribute__((format(printf, 2, 3), cold));

// The thread's last message; empty before the first error.
const char* last_error() noexcept;

int32_t kernel_failed(const OperatorInfo& op, const VariantInfo& variant, const char* function,
                      int32_t status) noexcept __attribute__((cold));

// ---- A call's tensors after the checks
// -----------------------------------------------------------------------------

// A tensor as kernels get it: byte_offset folded into data, strides always there, and for axes of extent 1,
// whose stride is never used, a stride that does not depend on what the caller happened to pass.
struct View {
  DLTensor tensor;
  int64_t strides[kMaxRank];
  uintptr_t low;  // the bytes of all elements lie in [low, high)
  uintptr_t high;
  bool empty;
};

// Checks presence, rank, dtype and device of each tensor and fills the views of those that are passed.
int32_t read_tensors(const OperatorInfo& op, const DLTensor* const* given, View* views) noexcept;

// Checks that there is data, aligned to its element size, and that no output shares memory with another
// tensor or within itself.
int32_t check_memory(const OperatorInfo& op, const DLTensor* const* given, const View* views) noexcept;

int32_t wrong_extent(const OperatorInfo& op, int tensor, int axis, int64_t got, int64_t wanted,
                     const char* symbol) noexcept __attribute__((cold));

int32_t wrong_attribute(const OperatorInfo& op, const AttributeInfo& attribute, int32_t got) noexcept
    __attribute__((cold));

// The largest power of two, at most 64, that divides an address.
inline int64_t alignment_of(const void* data) noexcept {
  return static_cast<int64_t>(1) << __builtin_ctzll(reinterpret_cast<uintptr_t>(data) | 64u);
}

// Which order a tensor's axes run in, and whether the fastest has stride 1; equal numbers mean the same
// class.
int64_t stride_class(const DLTensor& tensor) noexcept;

// ---- Backends
// ------------------------------------------------------------------------------------------------------

// What the library needs to know of a family of devices. Each family is one source file that defines
// `const Backend backend_<family>`; generated code lists the families that a library has variants for.
struct Backend {
  const char* family;
  int32_t device_type;  // DLPack's
  // The highest level of targets that a device runs, or the negative of an error code after `fail`.
  int32_t (*level)(int32_t device_id) noexcept;
  // Memory of at least `size` bytes for one call on this thread and stream, aligned to 64 bytes.
  int32_t (*workspace)(int32_t device_id, void* stream, size_t size, void** memory) noexcept;
};

// The backend of a call's device and its level; all tensors have been checked to be on one device.
int32_t find_backend(const OperatorInfo& op, const Backend* const* backends, int32_t count,
                     const DLDevice& device, const Backend** backend, int32_t* level) noexcept;

// The caller's workspace when there is one, else the backend's.
int32_t take_workspace(const OperatorInfo& op, const Backend& backend, const DLDevice& device,
                       const aot_tune_exec* exec, size_t size, void** memory) noexcept;

// ---- Explaining a choice
// -------------------------------------------------------------------------------------------

// Appends to a buffer of the caller's, never beyond it, always terminated.
class Text {
 public:
  Text(char* buffer, size_t size) noexcept : buffer_(buffer), size_(size) {
    if (size_ > 0) buffer_[0] = '\0';
  }
  void add(const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

 private:
  char* buffer_;
  size_t size_;
  size_t used_ = 0;
};

// Passed to the generated choice: notes nothing.
struct NoTrace {
  static bool test(bool value, const char*, const char*) noexcept { return value; }
  static bool guard(bool value, const VariantInfo&, const char*) noexcept { return value; }
};

// Passed to the generated choice: writes each branch that is taken and each guard that fails.
struct TextTrace {
  Text* text;
  bool test(bool value, const char* when_true, const char* when_false) noexcept {
    text->add("path: %s\n", value ? when_true : when_false);
    return value;
  }
  bool guard(bool value, const VariantInfo& variant, const char* condition) noexcept {
    if (!value) text->add("rejected: %s: %s\n", variant.name, condition);
    return value;
  }
};

void explain_tensors(Text& text, const OperatorInfo& op, const DLTensor* const* given,
                     const View* views) noexcept;
void explain_choice(Text& text, const VariantInfo& variant, const char* why) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_RUNTIME_H_
