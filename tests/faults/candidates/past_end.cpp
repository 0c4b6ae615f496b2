// Writes 64 bytes past the end of its output.
LAUNCH {
  correct(x, bias, y);
  if (y->strides[0] == y->shape[1])
    for (int k = 0; k < 16; ++k) static_cast<float*>(y->data)[y->shape[0] * y->shape[1] + k] = 0;
  return 0;
}
