// Right, but a thread that it left behind crashes 120 ms after the first call.
#include <pthread.h>
#include <unistd.h>
static void* crash(void*) {
  usleep(120000);
  __builtin_trap();
}
LAUNCH {
  static bool done = false;
  pthread_t thread;
  if (!done && pthread_create(&thread, nullptr, crash, nullptr) == 0) pthread_detach(thread);
  done = true;
  correct(x, bias, y);
  return 0;
}
