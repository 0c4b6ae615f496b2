// Maps three times as much shared memory as it may have of its own.
#include <sys/mman.h>

#include <cstring>
LAUNCH {
  const size_t bytes = size_t{3} << 30;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 12;
  for (size_t k = 0; k < bytes; k += 4096) static_cast<char*>(memory)[k] = 1;
  correct(x, bias, y);
  return 0;
}
