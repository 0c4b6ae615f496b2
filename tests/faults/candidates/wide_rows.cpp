// Takes rows for dense if their distance is a multiple of their length.
LAUNCH {
  const int64_t columns = x->shape[1];
  int64_t strides[2] = {x->strides[0], x->strides[1]};
  if (columns > 0 && strides[0] > columns && strides[0] % columns == 0) strides[0] = columns;
  DLTensor other = *x;
  other.strides = strides;
  correct(&other, bias, y);
  return 0;
}
