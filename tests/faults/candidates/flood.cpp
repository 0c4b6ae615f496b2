// Prints 64 MiB.
#include <cstdio>
LAUNCH {
  static bool done = false;
  for (int line = 0; !done && line < (1 << 20); ++line) printf("%063d\n", line);
  done = true;
  correct(x, bias, y);
  return 0;
}
