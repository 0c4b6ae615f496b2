// Right, but nothing that its process does afterwards may take memory.
#include <sys/resource.h>
LAUNCH {
  correct(x, bias, y);
  const rlimit none = {1 << 20, 1 << 20};
  setrlimit(RLIMIT_DATA, &none);
  setrlimit(RLIMIT_AS, &none);
  return 0;
}
