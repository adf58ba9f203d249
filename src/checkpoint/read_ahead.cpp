// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read_ahead.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "async/thread.hpp"
#include "base/units.hpp"
#include "residency/plan.hpp"

namespace headrace::checkpoint {
namespace {
// Each waits for the drive, and then computes checksums: with two, a drive waits for them.
constexpr std::size_t kReaders = 4;
constexpr std::size_t kArenaBytes =
    ReadAhead::kLanes * ReadAhead::kChunks * ReadAhead::kMemoryBytes;
static_assert(base::align_up(kArenaBytes, base::kHugePage) == residency::kLoadBufferBytes);
}  // namespace

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReadAhead::start() {
  memory_ = std::make_unique<pinned::Arena>(kArenaBytes, 1);
  std::uint64_t at = 0;
  for (Lane& lane : lanes_) {
    for (Chunk& chunk : lane) {
      chunk.memory = memory_->range(at, kMemoryBytes).data();
      at += kMemoryBytes;
    }
  }
  for (std::size_t i = 0; i < kReaders; ++i) {
    threads_.push_back(
        async::start_thread("headrace-load" + std::to_string(i), [this] { read_chunks(); }));
  }
}

std::span<const std::byte> ReadAhead::get(std::size_t lane_index, ChunkId id) {
  if (threads_.empty()) start();
  std::array<ChunkId, kChunks> wanted;
  for (std::size_t i = 0; i < kChunks; ++i) {
    wanted[i] = id;
    if (id) id = next_(id);
  }
  std::unique_lock lock(mutex_);
  Chunk& chunk = request(lanes_[lane_index], wanted, lock);
  changed_.wait(lock, [&] { return chunk.state == State::kReady; });
  if (!chunk.error) return chunk.bytes;
  chunk.id = {};  // a repeated call reads it again
  chunk.state = State::kIdle;
  std::rethrow_exception(chunk.error);
}

// Makes sure that the wanted chunks are there, or on their way. Returns the first.
ReadAhead::Chunk& ReadAhead::request(Lane& lane, std::span<const ChunkId> wanted,
                                     std::unique_lock<std::mutex>& lock) {
  for (const ChunkId& id : wanted) {
    if (!id || find(lane, id) != nullptr) continue;
    // Guesses that were wrong are being read: the first wanted chunk waits for one of them.
    if (id == wanted[0]) changed_.wait(lock, [&] { return free_chunk(lane, wanted) != nullptr; });
    Chunk* const free = free_chunk(lane, wanted);
    if (free == nullptr) continue;
    free->id = id;
    free->error = nullptr;
    if (free->state != State::kWaiting) waiting_.push_back(free);
    free->state = State::kWaiting;
  }
  changed_.notify_all();
  return *find(lane, wanted[0]);
}

ReadAhead::Chunk* ReadAhead::find(Lane& lane, ChunkId id) noexcept {
  const auto found = std::ranges::find(lane, id, &Chunk::id);
  return found == lane.end() ? nullptr : &*found;
}

ReadAhead::Chunk* ReadAhead::free_chunk(Lane& lane, std::span<const ChunkId> keep) noexcept {
  const auto found = std::ranges::find_if(lane, [&](const Chunk& chunk) {
    return chunk.state != State::kReading && std::ranges::find(keep, chunk.id) == keep.end();
  });
  if (found != lane.end()) return &*found;
  const auto idle = std::ranges::find(lane, State::kIdle, &Chunk::state);
  return idle == lane.end() ? nullptr : &*idle;
}

void ReadAhead::read_chunks() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    Chunk& chunk = *waiting_.front();
    waiting_.pop_front();
    chunk.state = State::kReading;
    const ChunkId id = chunk.id;
    lock.unlock();
    std::span<const std::byte> bytes;
    std::exception_ptr error;
    try {
      bytes = read_(id, chunk.memory);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    chunk.bytes = bytes;
    chunk.error = error;
    chunk.state = State::kReady;
    changed_.notify_all();
  }
}
}  // namespace headrace::checkpoint
