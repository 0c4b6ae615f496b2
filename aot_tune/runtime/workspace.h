// A call's workspace.
#ifndef AOT_TUNE_RUNTIME_WORKSPACE_H_
#define AOT_TUNE_RUNTIME_WORKSPACE_H_

#include <pthread.h>

namespace aot_tune {

// The workspace of a call until its kernels are launched. The calls on a stream share memory, which is locked
// for that time. Otherwise, between two kernels of one call, another thread's could overwrite what the first
// left for the second.
struct Workspace {
  void* memory = nullptr;
  pthread_mutex_t* lock = nullptr;  // held if there is one
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (lock != nullptr) pthread_mutex_unlock(lock);
  }
};

}  // namespace aot_tune

#endif  // AOT_TUNE_RUNTIME_WORKSPACE_H_
