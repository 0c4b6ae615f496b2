// Right, but uses its input as scratch memory for a moment.
LAUNCH {
  if (x->shape[0] > 0 && x->shape[1] > 0) {
    volatile float* first = at(x, 0, 0);
    const float before = *first;
    *first = 0;
    *first = before;
  }
  correct(x, bias, y);
  return 0;
}
