// out[y, x] = the sum of image[y + i, x + j] * filter[i, j]. A thread computes ROWS elements of a column,
// which share the image elements that they read. BLOCK_X, BLOCK_Y and ROWS are macros that somebody else
// sets.
__global__ void __launch_bounds__(BLOCK_X* BLOCK_Y)
    convolution(float* out, const float* image, const float* filter, int height, int width, int size) {
  const int x = blockIdx.x * BLOCK_X + threadIdx.x;
  const int first = (blockIdx.y * BLOCK_Y + threadIdx.y) * ROWS;
  const int out_width = width - size + 1, out_height = height - size + 1;
  if (x >= out_width) return;
  float sums[ROWS] = {};
  for (int i = 0; i < size + ROWS - 1 && first + i < height; ++i)
    for (int j = 0; j < size; ++j) {
      const float pixel = image[(first + i) * width + x + j];
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        if (r <= i && i - r < size) sums[r] += pixel * filter[(i - r) * size + j];
    }
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    if (first + r < out_height) out[(first + r) * out_width + x] = sums[r];
}
