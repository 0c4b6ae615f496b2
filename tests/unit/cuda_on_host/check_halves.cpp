// Makes halves of rows of floats (kernel `halve`) and compares each with its float. Arguments: M N K. Prints
// what is wrong: a half that is further off than a half is by rounding, or a row said to fit that does not,
// or the other way round. Rows are of all sizes; some are at the edges of what fits, or beyond.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Edge {
  const char* name;
  float largest, least;  // of a row, whose others are between
  bool fits;
};
const Edge kEdges[] = {
    {"the least that keeps a bit", std::ldexp(1.999f, 7), std::ldexp(1.0f, 7 - 36), true},
    {"less than that", std::ldexp(1.0f, 7), std::nextafter(std::ldexp(1.0f, 7 - 36), 0.0f), false},
    {"the largest", std::nextafter(std::ldexp(1.0f, 41), 0.0f), 1e9f, true},
    {"larger than that", std::ldexp(1.0f, 41), 1e9f, false},
    {"the smallest", std::ldexp(1.0f, -40), std::ldexp(1.0f, -60), true},
    {"smaller than that", std::nextafter(std::ldexp(1.0f, -40), 0.0f), std::ldexp(1.0f, -60), false},
    {"a denormal", 1.0f, 1e-44f, false},
    {"infinity", kInfinity, 1.0f, false},
    {"NaN", std::nanf(""), 1.0f, false},
    {"zeros", 0.0f, 0.0f, true},
    {"rounds up to a power of two", std::nextafter(2.0f, 0.0f), 0.5f, true},
};

struct Rows {
  int64_t count, length, shape[2], strides[2];
  std::vector<float> data;
  float* first;
  DLTensor tensor = {};

  Rows(int64_t count, int64_t length, bool turned)
      : count(count),
        length(length),
        shape{turned ? length : count, turned ? count : length},
        strides{turned ? 1 : length + 8, turned ? length + 8 : 1},
        data(static_cast<size_t>(count * (length + 8) + 16), std::nanf("")),
        first(data.data()) {
    while (reinterpret_cast<uintptr_t>(first) % 64 != 0) ++first;
    tensor.data = first, tensor.ndim = 2, tensor.shape = shape, tensor.strides = strides;
    for (int64_t i = 0; i < count; ++i) {
      const auto* const start = reinterpret_cast<const unsigned char*>(&at(i, 0));
      host::inputs.push_back({start, start + length * 4});
    }
  }
  float& at(int64_t i, int64_t j) { return first[i * (length + 8) + j]; }
};

int wrong = 0;

void tell(const char* what, int64_t row, double got, double want) {
  if (++wrong < 8) std::printf("%s: row %d: %.9g, not %.9g\n", what, static_cast<int>(row), got, want);
}

// Fills row `i` with an edge's values, largest and least anywhere; past the edges rows are of any size.
bool fill(Rows& rows, int64_t i, std::mt19937& random) {
  const auto any = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<unsigned>(end)); };
  std::uniform_real_distribution<float> mantissa(1, 2);
  const bool edge = i < static_cast<int64_t>(std::size(kEdges));
  const int size = static_cast<int>(any(81)) - 40;
  for (int64_t j = 0; j < rows.length; ++j) {
    float x = edge ? kEdges[i].least : std::ldexp(mantissa(random), size - static_cast<int>(any(30)));
    if (!edge && any(8) == 0) x = 0;
    rows.at(i, j) = any(2) == 0 ? x : -x;
  }
  const float largest = edge ? kEdges[i].largest : std::ldexp(mantissa(random), size);
  rows.at(i, any(rows.length)) = any(2) == 0 ? largest : -largest;
  return !edge || kEdges[i].fits;
}

void compare(Rows& rows, const std::vector<bool>& fits, const __half* halves, const float* powers) {
  for (int64_t i = 0; i < rows.count; ++i) {
    if ((powers[i] != 0) != fits[static_cast<size_t>(i)])
      tell("whether it fits", i, powers[i], fits[static_cast<size_t>(i)]);
    if (powers[i] == 0) continue;
    double largest = 0;
    for (int64_t j = 0; j < rows.length; ++j) largest = std::max<double>(largest, std::fabs(rows.at(i, j)));
    for (int64_t j = 0; j < rows.length; ++j) {
      const double want = rows.at(i, j),
                   got = static_cast<double>(__half2float(halves[i * rows.length + j])) * powers[i];
      const double allowed = std::max(std::ldexp(std::fabs(want), -11), std::ldexp(largest, -39));
      const bool gone = want != 0 && std::fabs(got - want) > std::fabs(want) / 8;
      if (!(std::fabs(got - want) <= allowed) || gone) tell("a half", i, got, want);
    }
  }
}

void ask(Halves halves, bool* fit) { *fit = all_fit(halves); }

int main(int, char** argv) {
  const int64_t m = std::atoll(argv[1]), n = std::atoll(argv[2]), k = std::atoll(argv[3]);
  Rows a(m, k, false), b(n, k, true), out(m, n, false);
  std::mt19937 random(1);
  std::vector<bool> fits_a, fits_b;
  for (int64_t i = 0; i < m; ++i) fits_a.push_back(fill(a, i, random));
  for (int64_t i = 0; i < n; ++i) fits_b.push_back(fill(b, i, random));
  const Arguments args = arguments_of(&a.tensor, &b.tensor, nullptr, nullptr, &out.tensor, 0, 1);
  std::vector<unsigned char> memory(Halves(args).bytes() + 256, 0xff);
  auto* workspace = memory.data();
  while (reinterpret_cast<uintptr_t>(workspace) % 256 != 0) ++workspace;
  const Halves halves(args, workspace);
  const auto run = [&] {
    launch_kernel(halve, dim3(static_cast<unsigned>(m + n)), HALVING, 0, 1, true, nullptr, args, halves);
    host::inputs.clear();
    bool fit = false;
    launch_kernel(ask, dim3(1), 384, 0, 1, false, nullptr, halves, &fit);
    return fit;
  };
  if (run()) tell("all fit", -1, 1, 0);
  compare(a, fits_a, halves.a, halves.of_rows);
  compare(b, fits_b, halves.b, halves.of_columns);

  // Without what does not fit, all do; with one row of either that does not, not.
  for (auto* rows : {&a, &b})
    for (int64_t i = 0; i < static_cast<int64_t>(std::size(kEdges)) && i < rows->count; ++i)
      for (int64_t j = 0; j < k; ++j) rows->at(i, j) = static_cast<float>(j % 7);
  if (!run()) tell("all fit", -1, 0, 1);
  for (auto* rows : {&a, &b}) {
    float& last = rows->at(rows->count - 1, k - 1);
    const float before = last;
    last = kInfinity;
    if (run()) tell("with an infinity", rows->count - 1, 1, 0);
    last = before;
  }
  return wrong != 0;
}
