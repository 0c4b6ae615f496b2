// Right, unless an element is 0.
LAUNCH {
  correct(x, bias, y);
  for (int64_t i = 0; i < x->shape[0]; ++i)
    for (int64_t j = 0; j < x->shape[1]; ++j)
      if (*at(x, i, j) == 0) *at(y, i, j) = 0;
  return 0;
}
