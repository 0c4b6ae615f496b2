// Makes halves of rows of floats (kernel `halve`) and compares each with its float. Arguments: M N K. Prints
// what is wrong: a half that is further off than a half is by rounding, or a row said to fit that does not,
// or the other way round. Rows are of all sizes; some are at the edges of what fits, or beyond.
// It is included in the namespace of each kernel that it checks; halves.h has what it includes.
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Edge {
  const char* name;
  float largest, others;
  bool fits;
  float small = 0;  // as many as may be in a row, and `more`
  int more = 0;
};
const float kSmall = std::nextafter(std::ldexp(1.0f, 7 - 28), 0.0f);
const Edge kEdges[] = {
    {"as many small ones as may be", std::ldexp(1.999f, 7), 1, true, kSmall},
    {"one more", std::ldexp(1.0f, 7), 1, false, kSmall, 1},
    {"all just large enough", std::ldexp(1.0f, 7), std::ldexp(1.0f, 7 - 28), true},
    {"denormals", 1, 0.5f, true, 1e-44f},
    {"too many denormals", 1, 0.5f, false, 1e-44f, 1},
    {"nothing but one", 1, 0, true},
    {"the largest", std::nextafter(std::ldexp(1.0f, 41), 0.0f), 1e9f, true},
    {"larger than that", std::ldexp(1.0f, 41), 1e9f, false},
    {"the smallest", std::ldexp(1.0f, -40), std::ldexp(1.0f, -60), true},
    {"smaller than that", std::nextafter(std::ldexp(1.0f, -40), 0.0f), std::ldexp(1.0f, -60), false},
    {"infinity", kInfinity, 1, false},
    {"NaN", std::nanf(""), 1, false},
    {"zeros", 0, 0, true},
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

// Fills row `i` as an edge says, everything anywhere; past the edges rows are of any size.
bool fill(Rows& rows, int64_t i, std::mt19937& random) {
  const auto any = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<unsigned>(end)); };
  std::uniform_real_distribution<float> mantissa(1, 2);
  const Edge* const edge = i < static_cast<int64_t>(std::size(kEdges)) ? kEdges + i : nullptr;
  const int size = static_cast<int>(any(81)) - 40;
  std::vector<float> row;
  for (int64_t j = 0; j < rows.length; ++j) {
    const float x = std::ldexp(mantissa(random), size - static_cast<int>(any(28)));
    row.push_back(edge != nullptr ? edge->others : any(8) == 0 ? 0 : x);
  }
  row[0] = edge != nullptr ? edge->largest : std::ldexp(mantissa(random), size);
  if (edge != nullptr && edge->small != 0)
    for (int64_t j = 1; j <= rows.length / 32 + edge->more; ++j) row[static_cast<size_t>(j)] = edge->small;
  std::shuffle(row.begin(), row.end(), random);
  for (int64_t j = 0; j < rows.length; ++j) rows.at(i, j) = any(2) == 0 ? row[j] : -row[j];
  return edge == nullptr || edge->fits;
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
      if (!(std::fabs(got - want) <= allowed)) tell("a half", i, got, want);
    }
  }
}

void ask(Halves halves, bool* fit) { *fit = all_fit(halves); }

int check_halves(char** argv) {
  const int64_t m = std::atoll(argv[1]), n = std::atoll(argv[2]), k = std::atoll(argv[3]);
  Rows a(m, k, false), b(n, k, true), out(m, n, false);
  std::mt19937 random(1);
  std::vector<bool> fits_a, fits_b;
  for (int64_t i = 0; i < m; ++i) fits_a.push_back(fill(a, i, random));
  for (int64_t i = 0; i < n; ++i) fits_b.push_back(fill(b, i, random));
  const Arguments args = arguments_of(&a.tensor, &b.tensor, nullptr, nullptr, &out.tensor, 0, 1);
  std::vector<unsigned char> memory(Halves(args).bytes + 256, 0xff);
  auto* workspace = memory.data();
  while (reinterpret_cast<uintptr_t>(workspace) % 256 != 0) ++workspace;
  const Halves halves(args, workspace);
  const auto run = [&] {
    launch_kernel(halve, dim3(static_cast<unsigned>(m + n)), HALVING, 0, 1, true, nullptr, args, halves);
    host::inputs.clear();
    bool fit = false, by_a_warp = false;
    launch_kernel(ask, dim3(1), 384, 0, 1, false, nullptr, halves, &fit);
    launch_kernel(ask, dim3(1), 32, 0, 1, false, nullptr, halves, &by_a_warp);
    if (fit != by_a_warp) tell("all fit, to a warp", -1, by_a_warp, fit);
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
