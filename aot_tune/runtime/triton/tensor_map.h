// Tensor maps: what a kernel for sm_90 and later takes in place of a tensor. It is part of cuda.cpp.
#ifndef AOT_TUNE_RUNTIME_TRITON_TENSOR_MAP_H_
#define AOT_TUNE_RUNTIME_TRITON_TENSOR_MAP_H_

namespace launcher {
namespace {

// What a map is made from, without what is the same in all calls.
template <int kRank>
struct MapKey {
  uint64_t words[2 * kRank];  // address, shape, strides in elements without the last

  MapKey(const Descriptor& of) {
    words[0] = reinterpret_cast<uintptr_t>(of.data);
    for (int i = 0; i < kRank; ++i) words[1 + i] = static_cast<uint64_t>(of.shape[i]);
    for (int i = 0; i + 1 < kRank; ++i) words[1 + kRank + i] = static_cast<uint64_t>(of.strides[i]);
  }
  uint64_t hash() const {
    uint64_t mixed = 0;
    for (const uint64_t word : words) mixed = (mixed ^ word ^ mixed >> 29) * UINT64_C(0x9e3779b97f4a7c15);
    return mixed >> 40;
  }
};

// The last maps of one parameter, for any number of threads. Readers take no lock. A map that is being
// replaced counts as missing.
template <int kRank>
class MapCache {
 public:
  explicit MapCache(Described& of) : of_(of) {}

  bool find(const MapKey<kRank>& key, TensorMap* map) const {
    const auto* const entries = static_cast<const Entry*>(__atomic_load_n(&of_.maps, __ATOMIC_ACQUIRE));
    if (entries == nullptr) return false;
    const Entry* const set = entries + key.hash() % kSets * kWays;
    for (int i = 0; i < kWays; ++i) {
      if (set[i].read(key, map)) return true;
    }
    return false;
  }

  void keep(const MapKey<kRank>& key, const TensorMap& map) {
    void* entries = __atomic_load_n(&of_.maps, __ATOMIC_ACQUIRE);
    if (entries == nullptr) {  // it stays until the process ends
      void* const made = std::calloc(kSets * kWays, sizeof(Entry));
      if (made == nullptr) return;
      if (__atomic_compare_exchange_n(&of_.maps, &entries, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        entries = made;
      else
        std::free(made);
    }
    Entry* const set = static_cast<Entry*>(entries) + key.hash() % kSets * kWays;
    int place = 0;
    while (place < kWays && set[place].used()) ++place;
    if (place == kWays)
      place = static_cast<int>(__atomic_fetch_add(&of_.next_map, 1, __ATOMIC_RELAXED) % kWays);
    set[place].write(key, map);
  }

 private:
  static constexpr int kSets = 128, kWays = 8;

  // `version` is odd while the rest is being written, and 0 before the first write.
  struct Entry {
    uint64_t version;
    uint64_t key[2 * kRank];
    uint64_t map[16];

    bool used() const { return __atomic_load_n(&version, __ATOMIC_RELAXED) != 0; }

    bool read(const MapKey<kRank>& wanted, TensorMap* to) const {
      const uint64_t before = __atomic_load_n(&version, __ATOMIC_ACQUIRE);
      if (before == 0 || before % 2 != 0) return false;
      for (int i = 0; i < 2 * kRank; ++i) {
        if (__atomic_load_n(&key[i], __ATOMIC_RELAXED) != wanted.words[i]) return false;
      }
      for (int i = 0; i < 16; ++i) to->words[i] = __atomic_load_n(&map[i], __ATOMIC_RELAXED);
      __atomic_thread_fence(__ATOMIC_ACQUIRE);
      return __atomic_load_n(&version, __ATOMIC_RELAXED) == before;
    }

    void write(const MapKey<kRank>& from, const TensorMap& made) {
      uint64_t before = __atomic_load_n(&version, __ATOMIC_RELAXED);
      if (before % 2 != 0) return;  // another thread is writing
      if (!__atomic_compare_exchange_n(&version, &before, before + 1, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED))
        return;
      __atomic_thread_fence(__ATOMIC_RELEASE);
      for (int i = 0; i < 2 * kRank; ++i) __atomic_store_n(&key[i], from.words[i], __ATOMIC_RELAXED);
      for (int i = 0; i < 16; ++i) __atomic_store_n(&map[i], made.words[i], __ATOMIC_RELAXED);
      __atomic_store_n(&version, before + 2, __ATOMIC_RELEASE);
    }
  };

  Described& of_;
};

// Numbers of cuda.h. Element types 8 to 10 have other numbers in kernels than in the driver.
constexpr int32_t kTypes[] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12, 13, 14, 15};
constexpr int32_t kNoInterleave = 0, kPromote128 = 2, kFillZeros = 0, kFillNan = 1;

int32_t driver_version = 0;

// Makes a map. Its axes run from the last to the first.
template <int kRank>
int32_t encode(const Described& how, Descriptor* to) {
  static_assert(kRank <= kMaxRank, "tensor maps have at most five axes");
  constexpr uint32_t kSteps[] = {1, 1, 1, 1, 1};
  const DescriptorMeta& meta = how.meta;
  uint64_t shape[kRank], strides[kRank] = {};
  uint32_t box[kRank];
  uint64_t last = 0;  // bytes before the last element
  for (int i = 0; i < kRank; ++i) {
    const int at = kRank - 1 - i;
    const int padded = at == 0 && meta.fp4_padded ? 2 : 1;
    shape[at] = static_cast<uint64_t>(to->shape[i] * padded);
    box[at] = static_cast<uint32_t>(meta.block[i]);
    const auto step =
        static_cast<uint64_t>(i + 1 < kRank ? to->strides[i] * meta.element_size : meta.element_size);
    if (at > 0) strides[at - 1] = step;
    last += (shape[at] - 1) * step;
  }
  const int32_t type = kTypes[meta.element_type & 15];
  const int32_t status =
      driver.encode_map(&to->map, type, kRank, to->data, shape, strides, box, kSteps, kNoInterleave,
                        meta.swizzle, kPromote128, how.fill_nan ? kFillNan : kFillZeros);
  // Drivers up to 13.1 set a bit that is wrong for tensors below 128 KiB: Triton 3.9 and CUTLASS clear it.
  if (status == 0 && driver_version <= 13010 && last + 1 < (128 << 10))
    to->map.words[1] &= ~(UINT64_C(1) << 21);
  return status;
}

// The map of a tensor whose parts were read. If it was made before, that one is used.
template <int kRank>
int32_t find_map(Described& how, Descriptor* to) {
  const MapKey<kRank> key(*to);
  MapCache<kRank> cache(how);
  if (cache.find(key, &to->map)) return 0;
  const int32_t status = encode<kRank>(how, to);
  if (status == 0) cache.keep(key, to->map);
  return status;
}

}  // namespace
}  // namespace launcher

#endif  // AOT_TUNE_RUNTIME_TRITON_TENSOR_MAP_H_
