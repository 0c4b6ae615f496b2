// Reads a file that is none of its business, and is wrong if it cannot.
#include <cstdio>
LAUNCH {
  FILE* file = fopen("/etc/passwd", "r");
  if (!file) return 31;
  fclose(file);
  correct(x, bias, y);
  return 0;
}
