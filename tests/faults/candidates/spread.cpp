// Takes a stride of 0 for 1, as if no tensor were broadcast.
LAUNCH {
  if (bias && bias->strides[0] == 0) {
    int64_t one = 1;
    DLTensor other = *bias;
    other.strides = &one;
    correct(x, &other, y);
  } else {
    correct(x, bias, y);
  }
  return 0;
}
