// Right, but leaves folders 1,200 deep, a name that is no UTF-8, a pipe and a link to elsewhere.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
LAUNCH {
  int folder = open(".", O_RDONLY);
  mkfifoat(folder, "pipe", 0);
  symlinkat("/", folder, "link");
  for (int k = 0; k < 1200; ++k) {
    mkdirat(folder, "\xff\xfe", 0700);
    const int next = openat(folder, "\xff\xfe", O_RDONLY);
    close(folder);
    folder = next;
  }
  close(folder);
  correct(x, bias, y);
  return 0;
}
