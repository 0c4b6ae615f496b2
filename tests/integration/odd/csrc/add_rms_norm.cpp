#include <cmath>

void add_rms_norm(float* x, float* residual, const float* w, int rows, int columns, float eps) {
  for (; rows > 0; --rows, x += columns, residual += columns) {
    float sum = 0;
    for (int j = 0; j < columns; ++j) residual[j] += x[j], sum += residual[j] * residual[j];
    const float scale = 1 / std::sqrt(sum / columns + eps);
    for (int j = 0; j < columns; ++j) x[j] = residual[j] * scale * w[j];
  }
}
