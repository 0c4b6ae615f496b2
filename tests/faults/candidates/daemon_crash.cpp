// Leaves a process behind and crashes.
#include <unistd.h>

#include <cstdlib>
LAUNCH {
  if (fork() == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    sleep(600);
    _exit(0);
  }
  abort();
}
