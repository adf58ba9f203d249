// SPDX-License-Identifier: Apache-2.0
// large_blocks.hpp: large tensors take each other's memory over, instead of the system's.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace train_gpt {
// Of a step's tensors the same sizes come again and again. With return_freed_memory() each would be
// mapped, filled with zeros page by page, and unmapped: up to a third of a backward pass. So a few
// that were freed are kept, for others of exactly their size. Thread-safe.
class LargeBlocks final : public c10::Allocator {
 public:
  static constexpr std::size_t kLarge = 1 << 20;  // smaller ones are `from`'s
  static constexpr std::size_t kKept = 4;         // times the largest block, at most

  explicit LargeBlocks(c10::Allocator& from) : from_(from) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < kLarge) return from_.allocate(bytes);
    std::unique_ptr<Block> block = take(bytes);
    if (!block) block = std::make_unique<Block>(this, bytes, from_.allocate(bytes));
    void* const data = block->memory.get();
    return {data, block.release(), give_back, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* values, std::size_t bytes) const override {
    std::memcpy(to, values, bytes);
  }

  std::size_t kept_bytes() const {
    const std::lock_guard lock(mutex_);
    return kept_bytes_;
  }

 private:
  struct Block {
    LargeBlocks* owner;
    std::size_t bytes;
    c10::DataPtr memory;
    Block(LargeBlocks* o, std::size_t b, c10::DataPtr m)
        : owner(o), bytes(b), memory(std::move(m)) {}
  };

  std::unique_ptr<Block> take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    largest_ = std::max(largest_, bytes);
    const auto found = std::find_if(kept_.rbegin(), kept_.rend(),
                                    [&](const auto& block) { return block->bytes == bytes; });
    if (found == kept_.rend()) return nullptr;
    std::unique_ptr<Block> block = std::move(*found);
    kept_.erase(std::next(found).base());
    kept_bytes_ -= bytes;
    return block;
  }
  static void give_back(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->owner->keep(std::move(block));
  }
  void keep(std::unique_ptr<Block> block) {
    const std::lock_guard lock(mutex_);
    kept_bytes_ += block->bytes;
    kept_.push_back(std::move(block));
    while (kept_bytes_ > kKept * largest_) {
      kept_bytes_ -= kept_.front()->bytes;
      kept_.pop_front();
    }
  }

  c10::Allocator& from_;
  mutable std::mutex mutex_;
  std::deque<std::unique_ptr<Block>> kept_;  // the oldest first
  std::size_t kept_bytes_ = 0;
  std::size_t largest_ = 0;
};

// From now on every large tensor on the CPU. They may outlive main(), and so does this.
inline void keep_large_blocks() {
  static LargeBlocks* const blocks = new LargeBlocks(*c10::GetCPUAllocator());
  c10::SetCPUAllocator(blocks, 1);
}
}  // namespace train_gpt
