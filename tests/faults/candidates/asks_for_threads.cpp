// Right, by three threads of OpenMP, however many there are to be.
LAUNCH {
#pragma omp parallel for num_threads(3)
  for (int64_t i = 0; i < x->shape[0]; ++i)
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      float v = 2 * *at(x, i, j) + 1;
      if (bias) v += static_cast<const float*>(bias->data)[j * bias->strides[0]];
      *at(y, i, j) = v;
    }
  return 0;
}
