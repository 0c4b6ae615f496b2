// y = matrix x, with a warp for each row. It looks like a file of any project: a kernel, and the function
// that launches it.
#ifndef WARPS
#define WARPS 4
#endif

namespace {

__global__ void __launch_bounds__(WARPS * 32)
    multiply(const float* __restrict__ matrix, const float* __restrict__ x, float* __restrict__ y, int rows,
             int columns) {
  const int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float sum = 0;
  for (int c = lane; c < columns; c += 32) sum += matrix[static_cast<size_t>(row) * columns + c] * x[c];
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
  if (lane == 0) y[row] = sum;
}

}  // namespace

cudaError_t launch_gemv(const float* matrix, const float* x, float* y, int rows, int columns,
                        cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  multiply<<<(rows + WARPS - 1) / WARPS, WARPS * 32, 0, stream>>>(matrix, x, y, rows, columns);
  return cudaGetLastError();
}
