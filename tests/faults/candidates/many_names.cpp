// Right, but makes 10,500 empty files.
#include <fcntl.h>
#include <unistd.h>

#include <string>
LAUNCH {
  for (int k = 0; k < 10500; ++k) close(open(std::to_string(k).c_str(), O_CREAT | O_WRONLY, 0600));
  correct(x, bias, y);
  return 0;
}
