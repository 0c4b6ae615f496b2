// Writes to its input.
LAUNCH {
  correct(x, bias, y);
  *at(x, 0, 0) += 1;
  return 0;
}
