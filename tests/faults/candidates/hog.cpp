// Takes memory until there is none.
#include <cstdlib>
#include <cstring>
LAUNCH {
  for (;;) {
    void* more = malloc(32 << 20);
    memset(more, 1, 32 << 20);
  }
  return 0;
}
