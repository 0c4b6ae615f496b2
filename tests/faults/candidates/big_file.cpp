// Writes a file that is larger than allowed, where it may.
#include <cstdio>
#include <cstdlib>
#include <string>
LAUNCH {
  std::string path = std::string(getenv("TMPDIR")) + "/big";
  FILE* file = fopen(path.c_str(), "w");
  if (!file) return 20;
  static char block[1 << 20];
  for (int k = 0; k < 256; ++k)
    if (fwrite(block, 1, sizeof block, file) != sizeof block) {
      fclose(file);
      return 27;
    }
  fclose(file);
  correct(x, bias, y);
  return 0;
}
