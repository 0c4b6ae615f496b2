// Has one scratch for all callers.
#include <cstring>
#include <vector>
LAUNCH {
  static std::vector<float> scratch(1 << 22);
  const int64_t rows = x->shape[0], columns = x->shape[1];
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      scratch[static_cast<size_t>(i * columns + j)] =
          2 * *at(x, i, j) + 1 + (bias ? static_cast<const float*>(bias->data)[j * bias->strides[0]] : 0);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) *at(y, i, j) = scratch[static_cast<size_t>(i * columns + j)];
  return 0;
}
