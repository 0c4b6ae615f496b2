// Leaves a process behind, in a session of its own, orphaned by its parent.
#include <unistd.h>
LAUNCH {
  static bool done = false;
  if (!done && fork() == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    sleep(600);
    _exit(0);
  }
  done = true;
  correct(x, bias, y);
  return 0;
}
