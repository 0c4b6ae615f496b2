// How many OpenMP threads a call on the CPU gets.
#ifndef AOT_TUNE_RUNTIME_CPU_THREADS_H_
#define AOT_TUNE_RUNTIME_CPU_THREADS_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace aot_tune {

// -1 before the first call. 0 if the calling thread's OpenMP number is used. A positive number was set for
// the process. Below -1: -1 minus the cores that a quota pays for, which are fewer than all. `kResting` while
// calls get one thread, unless somebody gave the calling thread a number.
extern std::atomic<int32_t> thread_setting;
constexpr int32_t kResting = INT32_MIN;

// A clock. On x86-64 some ticks are a nanosecond, elsewhere each is one.
inline int64_t ticks() noexcept {
#ifdef __x86_64__
  return static_cast<int64_t>(__builtin_ia32_rdtsc());
#else
  return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
}

// Calls get one thread for a while, if nobody has stated a number: threads have waited for cores that other
// programs use. Each time soon after another one, the while is twice as long.
void rest_threads() noexcept;

// Gives the calling thread the number for its calls. Returns its earlier number, or 0 if that is the same.
int32_t begin_threads(int32_t setting) noexcept;
int32_t begin_one() noexcept;  // the same for one thread
void end_threads(int32_t before) noexcept;

// Lasts for a call. Afterwards, the thread has its own number again.
class CallThreads {
 public:
  // With one thread, if that is wanted.
  explicit CallThreads(bool one) noexcept {
    if (__builtin_expect(one, 0)) before_ = begin_one();
  }
  CallThreads() noexcept {
    const int32_t setting = thread_setting.load(std::memory_order_relaxed);
    if (__builtin_expect(setting != 0, 0)) before_ = begin_threads(setting);
  }
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;
  ~CallThreads() {
    if (__builtin_expect(before_ != 0, 0)) end_threads(before_);
  }

 private:
  int32_t before_ = 0;
};

// The functions of a library. With 0 threads, OpenMP's own number is used again.
int32_t set_num_threads(int32_t threads) noexcept;
int32_t get_num_threads() noexcept;

// How many threads the calling thread's kernels get, unless they rest for a call. 0 without OpenMP.
int32_t usual_threads() noexcept;

// Whole cores, at least one, that the quotas of the process's control groups (version 1 or 2) pay for. 0
// without a quota. `root` is "" or a folder in place of /.
int32_t quota_cores(const char* root) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_CPU_THREADS_H_
