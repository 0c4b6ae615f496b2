// Takes the distance of rows for a number of 16 bits.
LAUNCH {
  int64_t strides[2] = {x->strides[0] < 0 ? x->strides[0] : static_cast<uint16_t>(x->strides[0]), x->strides[1]};
  DLTensor other = *x;
  other.strides = strides;
  correct(&other, bias, y);
  return 0;
}
