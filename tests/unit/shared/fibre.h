// Fibres for the tests that run CUDA kernels on the host: stacks of their own that take turns. ucontext makes
// them; it does not switch between them, because each swapcontext is a call of the kernel for the signal
// mask.
#pragma once
#include <ucontext.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace host {

/// Memory for a stack. What one fibre has used another takes: the pages of new memory cost more than most.
class Stack {
 public:
  Stack() = default;
  Stack(Stack&&) = default;
  ~Stack() { give_back(); }
  void reset(size_t bytes) {
    give_back();
    bytes_ = bytes;
    const std::lock_guard<std::mutex> locked(unused().changes);
    auto& free = unused().of[bytes];
    if (free.empty()) free.emplace_back(new char[bytes]);
    memory_ = std::move(free.back());
    free.pop_back();
  }
  char* get() { return memory_.get(); }

 private:
  struct Unused {
    std::mutex changes;  // a block of a cluster has a thread of its own
    std::map<size_t, std::vector<std::unique_ptr<char[]>>> of;
  };
  static Unused& unused() {
    static auto* const all = new Unused;  // outlives every fibre
    return *all;
  }
  void give_back() {
    if (memory_ == nullptr) return;
    const std::lock_guard<std::mutex> locked(unused().changes);
    unused().of[bytes_].push_back(std::move(memory_));
  }

  std::unique_ptr<char[]> memory_;
  size_t bytes_ = 0;
};

/// A place to go on from: a fibre, or whoever runs fibres.
class Context {
 public:
  /// Makes a fibre that runs `entry`, which never returns.
  void begin_at(void (*entry)(), size_t stack_bytes) {
    stack_.reset(stack_bytes);
    getcontext(&start_);
    start_.uc_stack.ss_sp = stack_.get();
    start_.uc_stack.ss_size = stack_bytes;
    start_.uc_link = nullptr;
    makecontext(&start_, entry, 0);
    begun_ = false;
  }
  /// Leaves this place for another, until somebody comes back to it.
  __attribute__((noinline)) void leave_for(Context& other) {
    if (__builtin_setjmp(place_) == 0) other.enter();
  }

 private:
  [[noreturn]] __attribute__((noinline)) void enter() {
    if (begun_) __builtin_longjmp(place_, 1);
    begun_ = true;
    setcontext(&start_);
    __builtin_unreachable();
  }

  ucontext_t start_;
  Stack stack_;
  void* place_[5];
  bool begun_ = true;
};

}  // namespace host
