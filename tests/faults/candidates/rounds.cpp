// Right, but whatever is computed afterwards is rounded up.
#include <cfenv>
LAUNCH {
  correct(x, bias, y);
  std::fesetround(FE_UPWARD);
  return 0;
}
