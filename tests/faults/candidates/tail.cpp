// Leaves out the last columns unless there are multiples of 8.
LAUNCH {
  correct(x, bias, y);
  for (int64_t i = 0; i < y->shape[0]; ++i)
    for (int64_t j = y->shape[1] / 8 * 8; j < y->shape[1]; ++j) *at(y, i, j) = 0;
  return 0;
}
