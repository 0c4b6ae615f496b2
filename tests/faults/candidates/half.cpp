// Writes only the first half of its output.
LAUNCH {
  for (int64_t i = 0; i < x->shape[0]; ++i)
    for (int64_t j = 0; j < (x->shape[1] + 1) / 2; ++j) *at(y, i, j) = 2 * *at(x, i, j) + 1;
  return 0;
}
