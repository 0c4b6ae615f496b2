// Right, but two threads run on after it.
#include <thread>
LAUNCH {
  static bool begun = false;
  correct(x, bias, y);
  for (int k = 0; k < 2 && !begun; ++k)
    std::thread([] {
      for (volatile unsigned long n = 0;; n = n + 1) {
      }
    }).detach();
  begun = true;
  return 0;
}
