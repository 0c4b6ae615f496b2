// Takes a while, as a slow candidate does.
LAUNCH {
  correct(x, bias, y);
  for (volatile int k = 0; k < 30000; k = k + 1) {
  }
  return 0;
}
