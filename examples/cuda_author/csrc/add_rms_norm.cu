// residual += x, then x = residual / sqrt(mean(residual^2) + eps) * weight. Both are in place, with a block
// for each row.
#include "block.cuh"

template <typename T>
__global__ void __launch_bounds__(BLOCK) add_rms_norm(T* x, T* residual, const T* weight, int64_t x_stride,
                                                      int64_t residual_stride, int width, float eps) {
  x += blockIdx.x * x_stride;
  residual += blockIdx.x * residual_stride;
  float squares = 0;
  for (int i = threadIdx.x; i < width; i += BLOCK) {
    const T sum = T(static_cast<float>(residual[i]) + static_cast<float>(x[i]));
    residual[i] = sum;
    squares += static_cast<float>(sum) * static_cast<float>(sum);
  }
  const float scale = rsqrtf(over_block(squares, Sum()) / width + eps);
  for (int i = threadIdx.x; i < width; i += BLOCK)
    x[i] = T(static_cast<float>(residual[i]) * scale * static_cast<float>(weight[i]));
}
