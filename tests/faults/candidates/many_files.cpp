// Right, but writes twenty files, none of which is larger than allowed.
#include <cstdio>
#include <cstdlib>
#include <string>
LAUNCH {
  static bool written = false;
  static char block[1 << 20];
  for (int k = 0; k < 20 && !written; ++k) {
    const std::string path = std::string(getenv("TMPDIR")) + "/part" + std::to_string(k);
    FILE* file = fopen(path.c_str(), "w");
    if (!file) return 20;
    for (int m = 0; m < 60; ++m) fwrite(block, 1, sizeof block, file);
    fclose(file);
  }
  written = true;
  correct(x, bias, y);
  return 0;
}
