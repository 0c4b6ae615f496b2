// Wrong in the last element, by little.
LAUNCH {
  correct(x, bias, y);
  *at(y, y->shape[0] - 1, y->shape[1] - 1) *= 1.0001f;
  return 0;
}
