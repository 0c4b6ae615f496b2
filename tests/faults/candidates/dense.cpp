// Takes every tensor for row-major.
LAUNCH {
  const int64_t rows = x->shape[0], columns = x->shape[1];
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      float v = 2 * static_cast<const float*>(x->data)[i * columns + j] + 1;
      if (bias) v += static_cast<const float*>(bias->data)[j];
      static_cast<float*>(y->data)[i * columns + j] = v;
    }
  return 0;
}
