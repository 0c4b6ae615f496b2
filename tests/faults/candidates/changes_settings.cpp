// Right, but changes settings of its process.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <ctime>
LAUNCH {
  static bool done = false;
  static char stack[1 << 14];
  if (!done) {
    setlocale(LC_ALL, "C");
    const itimerval later = {{0, 0}, {3600, 0}};
    setitimer(ITIMER_VIRTUAL, &later, nullptr);
    sigevent none = {};
    none.sigev_notify = SIGEV_NONE;
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &none, &timer);
    const stack_t given = {stack, 0, sizeof stack};
    sigaltstack(&given, nullptr);
    chmod(".", 0711);
    umask(077);
    mlock(new char[1], 1);
    prctl(PR_SET_TIMERSLACK, 1000000);
    prctl(PR_SET_PDEATHSIG, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
  done = true;
  correct(x, bias, y);
  return 0;
}
