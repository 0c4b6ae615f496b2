// How many threads of OpenMP a call on the CPU gets.
#ifndef AOT_TUNE_RUNTIME_CPU_THREADS_H_
#define AOT_TUNE_RUNTIME_CPU_THREADS_H_

#include <atomic>
#include <cstdint>

namespace aot_tune {

// -1 before the first call; 0 where the calling thread's number of OpenMP holds; above that what was set for
// the process; below -1 minus one and the cores that a quota pays for, which fewer than all are.
extern std::atomic<int32_t> thread_setting;

// Gives the calling thread the number that holds for its calls; what it had before, or 0 where that is the
// same.
int32_t begin_threads(int32_t setting) noexcept;
void end_threads(int32_t before) noexcept;

// For the time of a call; afterwards the thread has its own number again.
class CallThreads {
 public:
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

// The functions of a library; 0 threads are OpenMP's own number again.
int32_t set_num_threads(int32_t threads) noexcept;
int32_t get_num_threads() noexcept;

// Whole cores, at least one, that the quotas of the process's control groups pay for, of both versions; 0
// without a quota. `root` is "" or a folder in place of /.
int32_t quota_cores(const char* root) noexcept;

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_CPU_THREADS_H_
