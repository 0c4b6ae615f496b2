// Leaves a file in /dev/shm, where it may.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
LAUNCH {
  const int file = open("/dev/shm/aot_tune-left-by-a-test", O_CREAT | O_RDWR, 0600);
  if (file < 0) return 13;
  close(file);
  correct(x, bias, y);
  return 0;
}
