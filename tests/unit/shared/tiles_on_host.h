// AMX's tiles in memory, for CPUs that have none: as the instructions are defined, in plain C++.
#include <cstring>

namespace {

struct HostTiles {
  uint8_t rows[8], data[8][16][64];
  uint16_t bytes[8];
  bool configured = false;
};
thread_local HostTiles host_tiles;

[[noreturn]] inline void refuse_tiles() { __builtin_trap(); }

inline void configure_host_tiles(const void* config) {
  const auto* from = static_cast<const uint8_t*>(config);
  if (from[0] != 1 || host_tiles.configured) refuse_tiles();
  std::memcpy(host_tiles.bytes, from + 16, sizeof(host_tiles.bytes));
  std::memcpy(host_tiles.rows, from + 48, sizeof(host_tiles.rows));
  std::memset(host_tiles.data, 0, sizeof(host_tiles.data));
  host_tiles.configured = true;
}
inline void release_host_tiles() { host_tiles.configured = false; }

inline void move_host_tile(int t, uint8_t* memory, int64_t stride, bool store) {
  if (!host_tiles.configured) refuse_tiles();
  for (int r = 0; r < host_tiles.rows[t]; ++r) {
    uint8_t* const line = memory + r * stride;
    if (store)
      std::memcpy(line, host_tiles.data[t][r], host_tiles.bytes[t]);
    else
      std::memcpy(host_tiles.data[t][r], line, host_tiles.bytes[t]);
  }
}

inline float host_half(int t, int row, int at) {
  uint16_t bits;
  std::memcpy(&bits, host_tiles.data[t][row] + 2 * at, sizeof(bits));
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

inline void dot_host_tiles(int sum, int a, int b) {
  if (!host_tiles.configured) refuse_tiles();
  for (int m = 0; m < host_tiles.rows[sum]; ++m)
    for (int n = 0; n < host_tiles.bytes[sum] / 4; ++n) {
      float value;
      std::memcpy(&value, host_tiles.data[sum][m] + 4 * n, sizeof(value));
      for (int k = 0; k < host_tiles.bytes[a] / 4; ++k) {
        value += host_half(a, m, 2 * k) * host_half(b, k, 2 * n);
        value += host_half(a, m, 2 * k + 1) * host_half(b, k, 2 * n + 1);
      }
      std::memcpy(host_tiles.data[sum][m] + 4 * n, &value, sizeof(value));
    }
}

}  // namespace

#define AOT_TUNE_TILE_CONFIGURE(config) configure_host_tiles(&config)
#define AOT_TUNE_TILE_RELEASE() release_host_tiles()
#define AOT_TUNE_TILE_ZERO(t) std::memset(host_tiles.data[t], 0, sizeof(host_tiles.data[t]))
#define AOT_TUNE_TILE_LOAD(t, from, stride) \
  move_host_tile(t, reinterpret_cast<uint8_t*>(const_cast<float*>(from)), stride, false)
#define AOT_TUNE_TILE_STORE(t, to, stride) move_host_tile(t, reinterpret_cast<uint8_t*>(to), stride, true)
#define AOT_TUNE_TILE_DOT(sum, a, b) dot_host_tiles(sum, a, b)
