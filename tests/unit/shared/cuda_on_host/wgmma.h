// What gemm/cuda/wgmma/wgmma_device.cuh.j2 defines, on the host: barriers in shared memory, boxes of matrices in
// tiles whose 16-byte pieces are swizzled, messages within a cluster, and products of warp groups. Copies
// come at once (HASTE), or when all threads wait and would else wait for ever. Products read shared memory as
// late as their waits allow. `describe_chunks` and `Sums` are the template's own.
#pragma once
#define AOT_TUNE_WGMMA_DEVICE_CUH
#include "cuda.h"

namespace host {

inline void check_own(uint32_t at) {
  if (static_cast<int>(at >> 24) != now().rank) fail("an address in another block");
}
inline uint32_t at_block(uint32_t at, int rank) { return at & 0xffffffu | static_cast<uint32_t>(rank) << 24; }
inline Known& known(uint32_t barrier) {
  auto& barriers = cluster->blocks.at(barrier >> 24).barriers;
  const auto found = barriers.find(barrier);
  if (found == barriers.end()) fail("a barrier that is not initialised");
  return found->second;
}
inline void count(uint32_t barrier, int bytes, bool arrives) {
  Known& of = known(barrier);
  ++cluster->events;
  of.brought |= bytes < 0;
  if (!count_in(shared_at(barrier, 8), bytes, arrives)) return;
  if (of.unseen) fail("bytes that nobody waited for");
  of.unseen = of.brought, of.brought = false;
}
inline void begin_flight(Flight flight) {
  if (!known(flight.barrier).published) fail("a barrier that copies do not know of");
  if (haste) return flight.arrive();
  cluster->flights.push_back(std::move(flight));
}
// Floats of 16 bytes to the nearest ones with 10 bits of mantissa.
inline void round_floats(unsigned char* at) {
  uint32_t words[4];
  std::memcpy(words, at, 16);
  for (uint32_t& word : words)
    if ((word >> 23 & 0xff) != 0xff) word = (word + 0x1000) & ~0x1fffu;
  std::memcpy(at, words, 16);
}
// Where piece p of row r of a box lies is piece p ^ r % 8 of that row, in atoms of 8 rows.
inline void fill_box(const CUtensorMap& matrix, unsigned char* to, uint64_t k, uint64_t row) {
  const uint64_t lanes = 16 / matrix.size;
  for (uint64_t r = 0; r < matrix.box; ++r)
    for (uint64_t piece = 0; piece < 8; ++piece) {
      unsigned char* const there = to + 128 * r + 16 * (piece ^ r % 8);
      const uint64_t first = k + lanes * piece;
      const uint64_t left = row + r < matrix.rows && first < matrix.depth ? matrix.depth - first : 0;
      const size_t bytes = left < lanes ? matrix.size * left : 16;
      const unsigned char* const from = matrix.data + (row + r) * matrix.stride + matrix.size * first;
      if (bytes != 0) check_readable(from, bytes);
      std::memset(there, 0, 16);
      std::memcpy(there, from, bytes);
      if (matrix.rounds) round_floats(there);
    }
}

// Piece 0 or 1 of the 32 bytes along K of a row: addresses are swizzled after the description's start is
// added.
inline const unsigned char* described_at(uint64_t description, int row, int piece) {
  if (description >> 62 != 1 || (description >> 49 & 7) != 0) fail("operands in another layout");
  const auto start = static_cast<uint32_t>(description & 0x3fff) << 4;
  const auto group = static_cast<uint32_t>(description >> 32 & 0x3fff) << 4;
  const auto within = static_cast<uint32_t>(row % 8 * 128 + piece * 16);
  const uint32_t at = start + group * static_cast<uint32_t>(row / 8) + within;
  return shared_range(static_cast<uint32_t>(now().rank) << 24 | (at ^ (at >> 7 & 7) << 4), 16, 16);
}
inline float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }
inline float as_float(__half x) { return __half2float(x); }
inline float as_float(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }  // TF32, cut off
template <typename T>
constexpr int depth_of = 32 / static_cast<int>(sizeof(T));  // elements of K that a product takes
template <typename T>
void load_described(uint64_t description, int row, float (&to)[depth_of<T>]) {
  constexpr int lanes = depth_of<T> / 2;
  for (int piece = 0; piece < 2; ++piece) {
    T elements[lanes];
    std::memcpy(elements, described_at(description, row, piece), 16);
    for (int i = 0; i < lanes; ++i) to[lanes * piece + i] = as_float(elements[i]);
  }
}
// This thread's sums of a product of 64 rows.
template <typename T>
void multiply_now(const Product& of) {
  const int lane = host::lane(), row = static_cast<int>(now().thread.x) / 32 % 4 * 16 + lane / 4;
  float rows[2][depth_of<T>], column[depth_of<T>];
  for (int half = 0; half < 2; ++half) load_described<T>(of.rows, row + 8 * half, rows[half]);
  for (int i = 0; i < of.width / 4; ++i) {
    load_described<T>(of.columns, i / 2 * 8 + lane % 4 * 2 + i % 2, column);
    for (int half = 0; half < 2; ++half)
      for (int k = 0; k < depth_of<T>; ++k) of.sums[i / 2 * 4 + half * 2 + i % 2] += rows[half][k] * column[k];
  }
}
// The same with rows in registers: 16 elements in bf16, of which the lanes of a row have four each.
inline void multiply_words(const Product& of) {
  const int lane = host::lane();
  uint32_t(&words)[32][8] = warp().words;
  std::memcpy(words[lane], of.words, 16);
  wait_warp();
  for (int i = 0; i < of.width / 4; ++i) {
    float column[16];
    load_described<__nv_bfloat16>(of.columns, i / 2 * 8 + lane % 4 * 2 + i % 2, column);
    for (int half = 0; half < 2; ++half) {
      float& sum = of.sums[i / 2 * 4 + half * 2 + i % 2];
      if (of.begins) sum = 0;
      for (int k = 0; k < 16; ++k) {
        const uint32_t word = words[lane / 4 * 4 + k % 8 / 2][k / 8 * 2 + half];
        sum += __uint_as_float(k % 2 == 0 ? word << 16 : word & 0xffff0000u) * column[k];
      }
    }
  }
  wait_warp();
}

}  // namespace host

inline void init_barrier(uint32_t barrier, uint32_t arrivals) {
  host::check_own(barrier);
  host::begin_phases(host::shared_at(barrier, 8), arrivals);
  host::block().barriers[barrier] = {};
}
inline void publish_barriers() {
  for (auto& [at, known] : host::block().barriers) known.published = true;
}
inline void expect_bytes(uint32_t barrier, uint32_t bytes) {
  host::check_own(barrier);
  host::count(barrier, static_cast<int>(bytes), true);
}
inline void arrive_at(uint32_t barrier) {
  host::check_own(barrier);
  host::count(barrier, 0, true);
}
inline void arrive_at_other(uint32_t barrier, int rank) {
  check_runs(rank);
  host::check_own(barrier);
  const uint32_t at = host::at_block(barrier, rank);
  host::begin_flight({at, -1, rank, [=] { host::count(at, 0, true); }});
}
inline void wait_at(uint32_t barrier, uint32_t parity) {
  host::check_own(barrier);
  host::Known& known = host::known(barrier);
  while (host::state_of(host::shared_at(barrier, 8)).parity == parity) host::yield();
  known.unseen = false;
}
inline void wait_for_sent(uint32_t barrier, uint32_t parity) { wait_at(barrier, parity); }

inline void copy_to(int rank, uint32_t to, const CUtensorMap* matrix, int k, int row, uint32_t barrier) {
  host::check_own(to), host::check_own(barrier);
  host::check_has_waited();
  if (k < 0 || row < 0) host::fail("a copy before the beginning");
  const uint32_t bytes = matrix->box * 128, at = host::at_block(barrier, rank);
  unsigned char* const there = host::shared_range(host::at_block(to, rank), bytes, 1024);
  host::begin_flight({at, -1, rank, [=] {
                        host::fill_box(*matrix, there, static_cast<uint64_t>(k), static_cast<uint64_t>(row));
                        host::count(at, -static_cast<int>(bytes), false);
                      }});
}
inline void copy_box(uint32_t to, const CUtensorMap* matrix, int k, int row, uint32_t barrier) {
  copy_to(host::now().rank, to, matrix, k, row, barrier);
}
inline void share_box(uint32_t to, const CUtensorMap* matrix, int k, int row, uint32_t barrier,
                      uint32_t blocks) {
  if (blocks >> host::cluster->blocks.size() != 0) host::fail("a copy to a block that does not exist");
  for (int rank = 0; blocks >> rank != 0; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    check_runs(rank);
    copy_to(rank, to, matrix, k, row, barrier);
  }
}
inline void stream_shared_box(uint32_t to, const CUtensorMap* matrix, int k, int row, uint32_t barrier,
                              uint32_t blocks) {
  share_box(to, matrix, k, row, barrier, blocks);
}
inline void stream_box(uint32_t to, const CUtensorMap* matrix, int k, int row, uint32_t barrier) {
  copy_box(to, matrix, k, row, barrier);
}
inline void prefetch_box(const CUtensorMap* matrix, int k, int row) {
  if (k < 0 || row < 0 || static_cast<uint64_t>(k) >= matrix->depth ||
      static_cast<uint64_t>(row) >= matrix->rows)
    host::fail("a prefetch of what does not exist");
}
inline void prefetch_map(const CUtensorMap*) {}

// Copies see what was stored before the last thread of a warp published it.
inline void publish_stores() {
  if (++host::warp().published % 32 == 0) host::block().published = host::block().memory;
}
inline void send_bytes(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier, int rank) {
  check_runs(rank);
  host::check_own(to), host::check_own(from), host::check_own(barrier);
  if (bytes == 0 || bytes % 16 != 0) host::fail("a message that is not of whole 16 bytes");
  const uint32_t at = host::at_block(barrier, rank);
  unsigned char* const place = host::shared_range(host::at_block(to, rank), bytes, 16);
  host::shared_range(from, bytes, 16);
  host::Block* const sender = &host::block();
  if (sender->published.empty()) host::fail("stores that copies do not see");
  host::begin_flight({at, host::now().rank, rank, [=] {
                        std::memcpy(place, sender->published.data() + (from & 0xffffffu), bytes);
                        host::count(at, -static_cast<int>(bytes), false);
                      }});
}
inline void wait_for_group(int threads) {
  if (static_cast<int>(host::now().thread.x) >= threads) host::fail("a thread beside the group");
  host::wait(host::block().named, threads);
}

template <size_t N>
void begin_products(float (&)[N]) {
  host::now().may_multiply = true;
}
template <size_t N>
void multiply_chunks(float (&sums)[N], uint64_t rows, uint64_t columns) {
  if (!host::now().may_multiply) host::fail("a product before its registers are ready");
  host::now().open_products.push_back({sums, 2 * N, rows, columns});
}
inline void commit_products() {
  host::now().products.push_back(std::move(host::now().open_products));
  host::now().open_products.clear();
}
template <int groups, size_t N>
void wait_for_products(float (&)[N]) {
  auto& products = host::now().products;
  for (; products.size() > groups; products.erase(products.begin()))
    for (const auto& product : products.front())
      product.words != nullptr ? host::multiply_words(product) : host::multiply_now<ELEMENT>(product);
  host::now().may_multiply = false;
}
