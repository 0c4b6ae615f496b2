// Leaves a process that nobody started and that has no environment, then crashes.
#include <unistd.h>

#include <csignal>
LAUNCH {
  if (fork() == 0) {
    setsid();
    if (fork() == 0) {
      const char* const arguments[] = {"sleep", "4321", nullptr};
      const char* const none[] = {nullptr};
      execve("/bin/sleep", const_cast<char**>(arguments), const_cast<char**>(none));
    }
    _exit(0);
  }
  usleep(100000);
  raise(SIGSEGV);
  return 0;
}
