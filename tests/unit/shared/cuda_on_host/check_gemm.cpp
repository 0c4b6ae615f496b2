// Calls a rendered gemm (SYMBOL, element type ELEMENT) on small integers, whose products and sums are exact,
// and compares every element. Arguments: B M N K, then strides of a and b (along M, K; K, N), of out (M, N),
// padding between batches, bias, residual, relu. With FINE=tf32 or FINE=ieee in the environment a is finer than
// TF32, and counts as rounded to it or as it is; products and sums are exact again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

struct Matrix {
  std::vector<ELEMENT> data;
  ELEMENT* first;
  int64_t shape[3], strides[3];
  DLTensor tensor;

  Matrix(int64_t batch, int64_t rows, int64_t columns, int64_t row_step, int64_t column_step, int rank)
      : shape{batch, rows, columns}, strides{0, row_step, column_step}, tensor() {
    const int64_t high =
        std::max<int64_t>(0, (rows - 1) * row_step) + std::max<int64_t>(0, (columns - 1) * column_step);
    const int64_t low =
        std::min<int64_t>(0, (rows - 1) * row_step) + std::min<int64_t>(0, (columns - 1) * column_step);
    strides[0] = (high - low + 64) / 64 * 64;
    data.resize(static_cast<size_t>(strides[0] * batch + 128),
                from_float<ELEMENT>(std::numeric_limits<float>::quiet_NaN()));
    first = data.data();
    while (reinterpret_cast<uintptr_t>(first) % 64 != 0) ++first;
    first -= low;
    tensor.data = first;
    tensor.ndim = rank;
    tensor.shape = shape + 3 - rank;
    tensor.strides = strides + 3 - rank;
    const auto* const start = reinterpret_cast<const unsigned char*>(first);
    const int64_t after = strides[0] * (batch - 1) + high + (rows != 0 && columns != 0 && batch != 0);
    const int64_t size = sizeof(ELEMENT);
    host::inputs.push_back({start + low * size, start + after * size});
  }
  ELEMENT& at(int64_t b, int64_t i, int64_t j) {
    return first[b * strides[0] + i * strides[1] + j * strides[2]];
  }
  void fill(int seed, float unit = 1) {
    unsigned state = static_cast<unsigned>(seed);
    for (int64_t b = 0; b < shape[0]; ++b)
      for (int64_t i = 0; i < shape[1]; ++i)
        for (int64_t j = 0; j < shape[2]; ++j) {
          state = state * 1664525u + 1013904223u;
          at(b, i, j) = from_float<ELEMENT>(unit * static_cast<float>(static_cast<int>(state >> 28) % 4 - 1));
        }
  }
};

int main(int, char** argv) {
  const auto number = [&](int i) { return std::strtoll(argv[i], nullptr, 10); };
  const int64_t batch = number(1), m = number(2), n = number(3), k = number(4);
  constexpr int rank = BATCHED ? 3 : 2;
  Matrix a(batch, m, k, number(5), number(6), rank), b(batch, k, n, number(7), number(8), rank);
  Matrix out(batch, m, n, number(9), number(10), rank), residual(batch, m, n, n, 1, rank),
      bias(1, 1, n, n, 1, 1);
  const bool with_bias = number(11) != 0, with_residual = number(12) != 0, relu_after = number(13) != 0;
  const char* const fine = std::getenv("FINE");
  const float unit = fine != nullptr ? 1 + 3.0f / 4096 : 1;
  const float counts = fine != nullptr && std::strcmp(fine, "tf32") == 0 ? 1 + 4.0f / 4096 : unit;
  a.fill(1, unit), b.fill(2), bias.fill(3), residual.fill(4);
  size_t bytes = 0;
#if BATCHED
  if (WORKSPACE(&a.tensor, &b.tensor, &out.tensor, 1, &bytes) != 0) return 2;
  std::vector<float> workspace(bytes / 4 + 1);
  if (LAUNCH(&a.tensor, &b.tensor, &out.tensor, 1, workspace.data(), bytes, nullptr) != 0) return 2;
#else
  const DLTensor* const with[2] = {with_bias ? &bias.tensor : nullptr,
                                   with_residual ? &residual.tensor : nullptr};
  if (WORKSPACE(&a.tensor, &b.tensor, with[0], with[1], &out.tensor, relu_after, 1, &bytes) != 0) return 2;
  std::vector<float> workspace(bytes / 4 + 1);
  if (LAUNCH(&a.tensor, &b.tensor, with[0], with[1], &out.tensor, relu_after, 1, workspace.data(), bytes,
             nullptr))
    return 2;
#endif
  int wrong = 0;
  for (int64_t z = 0; z < batch; ++z)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        float sum = with_bias ? to_float(bias.at(0, 0, j)) : 0;
        for (int64_t p = 0; p < k; ++p) sum += to_float(a.at(z, i, p)) / unit * counts * to_float(b.at(z, p, j));
        if (relu_after && sum < 0) sum = 0;
        if (with_residual) sum += to_float(residual.at(z, i, j));
        const float got = to_float(out.at(z, i, j)), want = to_float(from_float<ELEMENT>(sum));
        if (got != want && ++wrong < 8)
          std::printf("out[%d,%d,%d] = %g, not %g\n", static_cast<int>(z), static_cast<int>(i),
                      static_cast<int>(j), got, want);
        out.at(z, i, j) = from_float<ELEMENT>(std::numeric_limits<float>::quiet_NaN());
      }
  for (const auto& element : out.data)
    if (to_float(element) == to_float(element) && ++wrong < 8)
      std::printf("something was written beside the output\n");
  std::printf("%d wrong\n", wrong);
  return wrong != 0;
}
