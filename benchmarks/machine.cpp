// What the machine can do: copies, reads and fused multiply-adds on several threads. Compiled where it runs.
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "timing.h"

namespace {

// The part of `size` bytes that belongs to this thread, in whole cache lines.
template <typename Work>
void split(size_t size, int threads, Work work) {
#pragma omp parallel num_threads(threads)
  {
    const auto count = static_cast<size_t>(omp_get_num_threads());
    const auto index = static_cast<size_t>(omp_get_thread_num());
    const size_t share = (size / count + 63) / 64 * 64;
    const size_t begin = std::min(size, share * index);
    work(begin, std::min(size, begin + share));
  }
}

#if defined(__AVX512F__)
constexpr int kBytes = 64;
constexpr int kChains = 16;
#elif defined(__AVX__)
constexpr int kBytes = 32;
constexpr int kChains = 12;
#else
constexpr int kBytes = 16;
constexpr int kChains = 12;
#endif
typedef float Vector __attribute__((vector_size(kBytes)));
constexpr int kLanes = kBytes / 4;

void stream(char* to, const char* from, size_t size) {
  size_t i = 0;
  for (; i + kBytes <= size; i += kBytes) {
#if defined(__AVX512F__)
    _mm512_stream_ps(reinterpret_cast<float*>(to + i), _mm512_loadu_ps(from + i));
#elif defined(__AVX__)
    _mm256_stream_ps(reinterpret_cast<float*>(to + i),
                     _mm256_loadu_ps(reinterpret_cast<const float*>(from + i)));
#else
    _mm_stream_ps(reinterpret_cast<float*>(to + i), _mm_loadu_ps(reinterpret_cast<const float*>(from + i)));
#endif
  }
  std::memcpy(to + i, from + i, size - i);
  _mm_sfence();
}

}  // namespace

extern "C" {

// memcpy of the C library, one part for each thread.
void machine_memcpy(char* to, const char* from, size_t size, int threads) {
  split(size, threads, [=](size_t begin, size_t end) { std::memcpy(to + begin, from + begin, end - begin); });
}

// Stores that bypass the caches; `to` is aligned to 64 bytes.
void machine_stream(char* to, const char* from, size_t size, int threads) {
  split(size, threads, [=](size_t begin, size_t end) { stream(to + begin, from + begin, end - begin); });
}

// Sums all floats, so that each is read once.
float machine_read(const char* from, size_t size, int threads) {
  float total = 0;
  split(size, threads, [=, &total](size_t begin, size_t end) {
    Vector sums[8] = {};
    for (size_t i = begin; i + 8 * kBytes <= end; i += 8 * kBytes) {
#pragma GCC unroll 8
      for (size_t k = 0; k < 8; ++k) {
        Vector value;
        std::memcpy(&value, from + i + k * kBytes, kBytes);
        sums[k] += value;
      }
    }
    float mine = 0;
    for (const Vector& sum : sums) {
      for (int lane = 0; lane < kLanes; ++lane) mine += sum[lane];
    }
#pragma omp atomic
    total += mine;
  });
  return total;
}

// GFLOP/s of independent multiply-adds in registers, all threads together.
double machine_gflops(int64_t steps, int threads) {
  double sink = 0;
  double slowest = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sink) reduction(max : slowest)
  {
    Vector chain[kChains];
    for (int c = 0; c < kChains; ++c) chain[c] = Vector{} + 1e-3f * static_cast<float>(c);
    Vector factor = Vector{} + 0.999f;
    Vector term = Vector{} + 1e-3f;
    asm volatile("" : "+x"(factor), "+x"(term));
#pragma omp barrier
    const double begin = now_ns();
    for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) chain[c] = chain[c] * factor + term;
    }
    for (int c = 0; c < kChains; ++c) {
      asm volatile("" : "+x"(chain[c]));
      sink += static_cast<double>(chain[c][0]);
    }
    slowest = now_ns() - begin;
  }
  const double flops = 2.0 * kLanes * kChains * static_cast<double>(steps) * threads;
  return sink == 0 ? 0 : flops / slowest;
}

}  // extern "C"
