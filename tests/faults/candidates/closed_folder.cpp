// Right, but leaves a folder, with one in it, that nobody may look into.
#include <sys/stat.h>
LAUNCH {
  mkdir("closed", 0700);
  mkdir("closed/inner", 0);
  chmod("closed", 0);
  correct(x, bias, y);
  return 0;
}
