// SPDX-License-Identifier: Apache-2.0
// read_ahead.hpp: reads chunks of tensors before they are asked for.
//
// Chunks are asked for in lanes, one for each kind of content. In a lane they come in the order of
// the files, mostly: while the caller works on one, threads read and verify those that follow. A
// wrong guess costs a read, never a wrong byte.
#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "pinned/arena.hpp"

namespace headrace::checkpoint {
struct ChunkId {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::uint32_t tensor = kNone;
  std::uint64_t chunk = 0;
  bool operator==(const ChunkId&) const = default;
  explicit operator bool() const noexcept { return tensor != kNone; }
};

// For one thread.
class ReadAhead {
 public:
  static constexpr std::size_t kLanes = 4;
  static constexpr std::size_t kChunks = 6;  // of a lane: one in use, the others ahead
  // Memory for a chunk and the pages around it.
  static constexpr std::size_t kMemoryBytes = (std::size_t{1} << 20) + 8192;
  // Reads a chunk into memory of kMemoryBytes that is aligned to pages, and returns its bytes.
  // Called on any thread; what it throws, get() throws.
  using Read = std::function<std::span<const std::byte>(ChunkId, std::byte* memory)>;
  using Next = std::function<ChunkId(ChunkId)>;  // the one after it in its lane, if any

  ReadAhead(Read read, Next next) : read_(std::move(read)), next_(std::move(next)) {}
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Its bytes, until the next call for this lane.
  std::span<const std::byte> get(std::size_t lane, ChunkId id);

 private:
  enum class State { kIdle, kWaiting, kReading, kReady };
  struct Chunk {
    ChunkId id;
    State state = State::kIdle;
    std::byte* memory = nullptr;
    std::span<const std::byte> bytes;
    std::exception_ptr error;
  };
  using Lane = std::array<Chunk, kChunks>;

  void start();
  Chunk* find(Lane& lane, ChunkId id) noexcept;
  Chunk* free_chunk(Lane& lane, std::span<const ChunkId> keep) noexcept;
  Chunk& request(Lane& lane, std::span<const ChunkId> wanted, std::unique_lock<std::mutex>& lock);
  void read_chunks() noexcept;

  const Read read_;
  const Next next_;
  std::unique_ptr<pinned::Arena> memory_;  // on huge pages: small ones halve a drive's speed
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::array<Lane, kLanes> lanes_;
  std::deque<Chunk*> waiting_;
  bool ending_ = false;
};
}  // namespace headrace::checkpoint
