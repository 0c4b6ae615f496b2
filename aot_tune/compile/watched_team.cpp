// OpenMP's teams in threads that the thread sanitizer knows, for kernels under it. GNU's runtime waits by system
// calls that the sanitizer does not see, so it would report every region. What is missing here does not link.
#include <pthread.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <vector>

namespace {

using Region = void (*)(void*);
constexpr int kThreads = 2;

// What is left of a loop that the threads of a team share.
struct Loop {
  long next, end, step, chunk;
};

struct Team {
  int size = 1;
  pthread_barrier_t barrier;
  std::mutex lock;
  std::deque<Loop> loops;
};

struct Member {
  Team* team = nullptr;
  int number = 0;
  size_t loops = 0;  // that it has begun
  Region region = nullptr;
  void* data = nullptr;
};

thread_local Team alone;
thread_local Member self;
std::mutex critical;

void* run(void* member) {
  const Member before = self;
  self = *static_cast<Member*>(member);
  self.region(self.data);
  self = before;
  return nullptr;
}

Team& team() { return self.team != nullptr ? *self.team : alone; }

bool take(long* from, long* to) {
  const std::lock_guard<std::mutex> guard(team().lock);
  Loop& loop = team().loops[self.loops - 1];
  const long left = (loop.end - loop.next + loop.step + (loop.step > 0 ? -1 : 1)) / loop.step;
  if (left <= 0) return false;
  *from = loop.next;
  *to = loop.next += loop.step * std::min(left, loop.chunk);
  return true;
}

bool begin(long from, long to, long step, long chunk, long* first, long* last) {
  {
    const std::lock_guard<std::mutex> guard(team().lock);
    if (team().loops.size() == self.loops++) team().loops.push_back({from, to, step, chunk});
  }
  return take(first, last);
}

}  // namespace

extern "C" {

// How many regions several threads have run.
__attribute__((visibility("default"))) int aot_tune_teams = 0;

int omp_get_max_threads() { return kThreads; }
int omp_get_num_procs() { return kThreads; }
int omp_get_num_threads() { return team().size; }
int omp_get_thread_num() { return self.number; }
int omp_in_parallel() { return team().size > 1; }
void omp_set_num_threads(int) {}

void GOMP_barrier() {
  if (team().size > 1) pthread_barrier_wait(&team().barrier);
}

void GOMP_parallel(Region region, void* data, unsigned threads, unsigned) {
  Team made;
  made.size = team().size > 1 ? 1 : threads == 0 ? kThreads : static_cast<int>(threads);
  if (made.size > 1) ++aot_tune_teams;
  pthread_barrier_init(&made.barrier, nullptr, static_cast<unsigned>(made.size));
  std::vector<Member> members;
  for (int i = 0; i < made.size; ++i) members.push_back({&made, i, 0, region, data});
  std::vector<pthread_t> others(members.size() - 1);
  for (size_t i = 0; i < others.size(); ++i) pthread_create(&others[i], nullptr, run, &members[i + 1]);
  run(&members[0]);
  for (const pthread_t other : others) pthread_join(other, nullptr);
  pthread_barrier_destroy(&made.barrier);
}

bool GOMP_loop_dynamic_start(long from, long to, long step, long chunk, long* first, long* last) {
  return begin(from, to, step, chunk, first, last);
}
bool GOMP_loop_dynamic_next(long* first, long* last) { return take(first, last); }
bool GOMP_loop_nonmonotonic_dynamic_start(long from, long to, long step, long chunk, long* first, long* last) {
  return begin(from, to, step, chunk, first, last);
}
bool GOMP_loop_nonmonotonic_dynamic_next(long* first, long* last) { return take(first, last); }
bool GOMP_loop_guided_start(long from, long to, long step, long chunk, long* first, long* last) {
  return begin(from, to, step, chunk, first, last);
}
bool GOMP_loop_guided_next(long* first, long* last) { return take(first, last); }
bool GOMP_loop_nonmonotonic_guided_start(long from, long to, long step, long chunk, long* first, long* last) {
  return begin(from, to, step, chunk, first, last);
}
bool GOMP_loop_nonmonotonic_guided_next(long* first, long* last) { return take(first, last); }
void GOMP_loop_end() { GOMP_barrier(); }
void GOMP_loop_end_nowait() {}

void GOMP_critical_start() { critical.lock(); }
void GOMP_critical_end() { critical.unlock(); }
void GOMP_critical_name_start(void**) { critical.lock(); }
void GOMP_critical_name_end(void**) { critical.unlock(); }
void GOMP_atomic_start() { critical.lock(); }
void GOMP_atomic_end() { critical.unlock(); }

}  // extern "C"
