// Memory of a thread.
#include <cstdlib>
#include <cstring>

#include "known.h"

namespace aot_tune {
namespace {

// This is before the memory.
struct alignas(64) Block {
  Block* next;
  void** place;
};

thread_local Block* blocks = nullptr;
thread_local bool ended = false;

struct Owner {
  bool used = false;
  ~Owner() {
    ended = true;  // destructors of others may call later, and get none
    while (Block* const block = blocks) {
      blocks = block->next;
      *block->place = nullptr;
      std::free(block);
    }
  }
};

thread_local Owner owner;

}  // namespace

void* thread_memory(size_t size, void** place) noexcept {
  if (*place != nullptr || ended) return *place;
  const size_t rounded = (sizeof(Block) + size + 63) / 64 * 64;
  void* const memory = std::aligned_alloc(64, rounded);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, rounded);
  auto* const block = static_cast<Block*>(memory);
  owner.used = true;  // so that its destructor runs
  block->next = blocks;
  block->place = place;
  blocks = block;
  return *place = block + 1;
}

}  // namespace aot_tune
