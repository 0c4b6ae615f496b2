// Never returns, and takes off what ties it to the build. So does a process that it started, which has no
// environment.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
LAUNCH {
  signal(SIGTERM, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, 0);
  if (fork() == 0) {
    setsid();
    if (fork() == 0) {
      const char* const arguments[] = {"sleep", "4322", nullptr};
      const char* const none[] = {nullptr};
      execve("/bin/sleep", const_cast<char**>(arguments), const_cast<char**>(none));
    }
    _exit(0);
  }
  for (volatile bool forever = true; forever;) {
  }
  return 0;
}
