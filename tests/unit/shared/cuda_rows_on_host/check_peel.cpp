// Goes through how rows are cut: each element once, each piece aligned, nothing beside the row. Says what is
// wrong.
#include <cstdint>
#include <cstdio>
#include <vector>

#define __host__
#define __device__
#include "peel.h"

namespace {

struct Block {
  int pieces, blocks, threads;
};

void fail(const char* what, int lanes, int past, int n, const Block& block) {
  std::printf("%s: %d lanes, past %d, n %d, %d blocks of %d threads\n", what, lanes, past, n, block.blocks,
              block.threads);
}

// Counts what the threads of a row take, in as many turns as it needs.
template <int Lanes, int Pieces>
int check_row(int past, int n, bool more, const Block& block) {
  Peel peel = peel_row<Lanes>(past, n);
  if (more) peel = peel_more<Lanes>(peel);
  std::vector<int> taken(static_cast<size_t>(n));
  const int turns = turns_of<Pieces>(peel.pieces, block.blocks, block.threads);
  if (n / Lanes <= Pieces * block.blocks * block.threads && turns > 1)
    return fail("registers hold it, but it takes turns", Lanes, past, n, block), 1;
  for (int rank = 0; rank < block.blocks; ++rank)
    for (int thread = 0; thread < block.threads; ++thread) {
      const int edge = rank == 0 ? edge_element<Lanes>(peel, thread) : -1;
      if (edge >= n) return fail("an edge beside the row", Lanes, past, n, block), 1;
      if (edge >= 0) ++taken[static_cast<size_t>(edge)];
      for (int turn = 0; turn < turns; ++turn)
        for (int v = 0; v < Pieces; ++v) {
          const int piece = piece_of_turn<Pieces>(turn, block.blocks, rank, block.threads, thread) + 32 * v;
          if (piece >= peel.pieces) continue;
          const int at = peel.head + piece * Lanes;
          if ((past + at) % Lanes != 0) return fail("an unaligned piece", Lanes, past, n, block), 1;
          if (at < 0 || at + Lanes > n) return fail("a piece beside the row", Lanes, past, n, block), 1;
          for (int i = 0; i < Lanes; ++i) ++taken[static_cast<size_t>(at + i)];
        }
    }
  for (const int times : taken)
    if (times != 1) return fail("an element that is not taken once", Lanes, past, n, block), 1;
  return 0;
}

// The two aligned pieces that an unaligned one touches lie within the row.
template <int Lanes>
int check_apart(int past, int n) {
  const Peel peel = peel_more<Lanes>(peel_row<Lanes>(past, n));
  for (int off = 1; off < Lanes; ++off)
    for (int piece = 0; piece < peel.pieces; ++piece) {
      const int first = peel.head + piece * Lanes - off;
      if (first < 0 || first + 2 * Lanes > n)
        return fail("a piece that touches another row", Lanes, past, n, {}), 1;
    }
  return 0;
}

int check_narrow(int n) {
  const int lanes = lanes_of_narrow(n);
  if (lanes < 1 || lanes > 32 || (lanes & (lanes - 1)) != 0 || lanes * 4 < n)
    return fail("lanes that are too few, or no power of two", lanes, 0, n, {}), 1;
  return 0;
}

template <int Lanes, int Pieces>
int check_blocks(int past, int n, bool more) {
  int wrong = 0;
  for (const int blocks : {1, 2, 8})
    for (const int threads : {32, 96, 416})
      if (wrong == 0 && (n < 700 || threads == 96))
        wrong = check_row<Lanes, Pieces>(past, n, more, {Pieces, blocks, threads});
  return wrong;
}

template <int Lanes>
int check_lanes() {
  int wrong = 0;
  for (int past = 0; past < Lanes; ++past)
    for (int n = 0; n < 50000; n = n < 70 ? n + 1 : n < 700 ? n + 37 : n * 5 / 2 + 1)
      for (const bool more : {false, true}) {
        wrong += check_blocks<Lanes, 1>(past, n, more) + check_blocks<Lanes, 2>(past, n, more);
        wrong += check_blocks<Lanes, 4>(past, n, more) + check_blocks<Lanes, 8>(past, n, more);
      }
  for (int past = 0; past < Lanes; ++past)
    for (int n = 0; n < 2000; ++n) wrong += check_apart<Lanes>(past, n);
  for (uintptr_t bytes = 0; bytes < 64; bytes += 16 / Lanes)
    wrong +=
        past_piece<Lanes>(reinterpret_cast<const void*>(bytes)) != static_cast<int>(bytes % 16 * Lanes / 16);
  return wrong;
}

}  // namespace

int main() {
  int wrong = check_lanes<4>() + check_lanes<8>();
  for (int n = 1; n <= 128; ++n) wrong += check_narrow(n);
  return wrong == 0 ? 0 : 1;
}
