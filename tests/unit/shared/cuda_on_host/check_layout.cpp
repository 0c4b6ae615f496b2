// Prints how gemm/cuda/few_rows/even_shares.cu.j2 lays products on blocks. Arguments, four for each product: M N K and the
// number of multiprocessors. Of each, a line: columns of a block, blocks that share K, stages of the ring,
// blocks, bytes of shared memory, and how many bytes the kernel asked to have.
#include <cstdio>
#include <cstdlib>

int main(int count, char** argv) {
  for (int i = 1; i + 3 < count; i += 4) {
    Arguments args = {};
    args.dim_M = std::atoll(argv[i]), args.dim_N = std::atoll(argv[i + 1]);
    args.dim_K = std::atoll(argv[i + 2]);
    const Layout layout = layout_of(args, std::atoi(argv[i + 3]));
    std::printf("%d %d %d %u %d %d\n", layout.width, 1 << layout.halvings, layout.ring, layout.blocks,
                shared_bytes_of(layout), RING_BYTES + SUM_BYTES);
  }
  return 0;
}
