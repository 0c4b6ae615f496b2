// Right, but needs 1 MiB of its caller's stack.
LAUNCH {
  volatile char large[1 << 20];
  for (size_t i = 0; i < sizeof large; i += 512) large[i] = 1;
  correct(x, bias, y);
  return large[512] - 1;
}
