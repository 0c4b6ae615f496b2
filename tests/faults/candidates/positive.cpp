// Takes the strides of x without their sign.
LAUNCH {
  int64_t strides[2] = {x->strides[0] < 0 ? -x->strides[0] : x->strides[0],
                        x->strides[1] < 0 ? -x->strides[1] : x->strides[1]};
  DLTensor other = *x;
  other.strides = strides;
  correct(&other, bias, y);
  return 0;
}
