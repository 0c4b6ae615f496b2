// Calls a rendered gemm of floats (LAUNCH) on floats of all sizes and bits, and on what is no number. Prints
// what is wrong: products by one that are not the float itself, an error beyond that of one rounding of each
// product, an infinity or NaN that is none, or the other way round. Arguments: M N K.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

struct Matrix {
  std::vector<float> data;
  float* first;
  int64_t shape[2], strides[2];
  DLTensor tensor = {};

  // Rows of `columns`, which are the columns of a matrix where `turned`.
  Matrix(int64_t rows, int64_t columns, bool turned = false)
      : data(static_cast<size_t>(rows * columns + 16)),
        shape{turned ? columns : rows, turned ? rows : columns},
        strides{turned ? 1 : columns, turned ? columns : 1} {
    first = data.data();
    while (reinterpret_cast<uintptr_t>(first) % 64 != 0) ++first;
    tensor.data = first, tensor.ndim = 2, tensor.shape = shape, tensor.strides = strides;
  }
  float& at(int64_t i, int64_t j) { return first[i * strides[0] + j * strides[1]]; }
};

int main(int, char** argv) {
  const int64_t m = std::atoll(argv[1]), n = std::atoll(argv[2]), k = std::atoll(argv[3]);
  Matrix a(m, k), b(n, k, true), out(m, n);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> mantissa(1, 2);
  const auto draw = [&](int exponents) {
    const int exponent = static_cast<int>(random() % static_cast<unsigned>(exponents)) - exponents / 2;
    return std::ldexp(random() % 2 == 0 ? mantissa(random) : -mantissa(random), exponent);
  };
  int wrong = 0;
  const auto tell = [&](const char* what, int64_t i, int64_t j, float got, double want) {
    if (++wrong < 8)
      std::printf("%s: out[%d,%d] = %.9g, not %.9g\n", what, static_cast<int>(i), static_cast<int>(j), got,
                  want);
  };
  const auto multiply = [&] {
    for (float& x : out.data) x = std::numeric_limits<float>::quiet_NaN();
    if (LAUNCH(&a.tensor, &b.tensor, nullptr, nullptr, &out.tensor, 0, 0, nullptr, 0, nullptr) != 0)
      std::exit(2);
  };

  // One is at another place of each column: a float comes out as it is, from 2^-110 up to the largest.
  for (int64_t i = 0; i < m; ++i)
    for (int64_t p = 0; p < k; ++p) a.at(i, p) = i == 0 ? std::numeric_limits<float>::max() : draw(220);
  for (int64_t j = 0; j < n; ++j) b.at(j * 7 % k, j) = 1;
  multiply();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      if (out.at(i, j) != a.at(i, j * 7 % k)) tell("times one", i, j, out.at(i, j), a.at(i, j * 7 % k));

  // Sums in double, against the sizes of what they add.
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t i = 0; i < m; ++i) a.at(i, p) = draw(8);
    for (int64_t j = 0; j < n; ++j) b.at(p, j) = draw(8);
  }
  multiply();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, sizes = 0;
      for (int64_t p = 0; p < k; ++p) {
        sum += static_cast<double>(a.at(i, p)) * b.at(p, j);
        sizes += std::fabs(static_cast<double>(a.at(i, p)) * b.at(p, j));
      }
      if (!(std::fabs(out.at(i, j) - sum) <= std::ldexp(sizes, -23))) tell("sum", i, j, out.at(i, j), sum);
    }

  // Infinities that meet, NaN, and infinity times zero.
  const float infinity = std::numeric_limits<float>::infinity();
  a.at(0, 1) = infinity;
  a.at(1, 2) = -infinity;
  a.at(2, 3) = std::numeric_limits<float>::quiet_NaN();
  a.at(3, 1) = infinity, a.at(3, 2) = infinity;
  b.at(1, 0) = 0, b.at(2, 1) = infinity, b.at(3, 2) = 1.25f;
  multiply();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += static_cast<double>(a.at(i, p)) * b.at(p, j);
      const float got = out.at(i, j);
      const bool same = std::isnan(sum) ? std::isnan(got) : std::isinf(sum) ? got == sum : std::isfinite(got);
      if (!same) tell("no number", i, j, got, sum);
    }
  return wrong != 0;
}
