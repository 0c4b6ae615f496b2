// Writes into the padding between the rows of its output.
LAUNCH {
  correct(x, bias, y);
  if (y->strides[1] == 1 && y->strides[0] > y->shape[1] && y->shape[0] > 1) at(y, 0, 0)[y->shape[1]] = 0;
  return 0;
}
