// SPDX-License-Identifier: Apache-2.0
// sample_thread.hpp: one job of a sample: a thread with a queue of its own that keeps `depth`
// requests under way on its part of a file.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/latency.hpp"
#include "bench/stretch.hpp"
#include "bench/target.hpp"
#include "swap/io_queue.hpp"

namespace headrace::tools {
using BenchClock = std::chrono::steady_clock;

// How much of what is read is compared while measuring.
enum class Verify : std::uint8_t {
  kStamps,  // the first, middle and last page's stamp of each block
  kWhole,   // every byte: costs memory bandwidth, so figures are lower
};

// choose_io_queue(), or what a test puts in its place.
using QueueChooser = std::function<swap::ChosenIoQueue(IoQueueKind, const swap::IoQueueOptions&)>;

struct SampleThreadOptions {
  Target* target = nullptr;
  const Stamps* stamps = nullptr;
  Workload workload;
  std::uint64_t part_begin = 0, part_bytes = 0;
  std::uint64_t bytes = 0;  // to move; 0: until `seconds`
  double seconds = 0;       // no new request after this long; 0: no such limit
  std::uint32_t turn = 0;
  std::uint32_t generation = 1;
  Verify verify = Verify::kStamps;
  // Each holds depth blocks, 4 KiB-aligned. What is written comes from the second, filled before.
  std::span<std::byte> read_memory, write_memory;
  QueueChooser choose_queue;
  double deadline_seconds = 60;                   // without any completion
  std::span<const std::span<std::byte>> buffers;  // that both lie in: registered where possible
};

struct SampleThreadResult {
  BenchClock::time_point began, ended;  // first request submitted, last one completed
  std::uint64_t read_bytes = 0, written_bytes = 0, reads = 0, writes = 0;
  LatencyHistogram read_latency, write_latency;
  std::uint64_t stamps = 0, pages = 0, mismatches = 0;  // compared: stamps alone, whole pages
  std::string first_mismatch;
};

class SampleThread {
 public:
  // Makes the queue, on the thread that will call run(). Throws headrace::Error.
  explicit SampleThread(const SampleThreadOptions& options);
  // Throws headrace::Error kIo naming file, offset and what came; kInterrupted after a signal. No
  // request is under way then.
  // kIoStalled: the kernel may write to the memory for ever.
  //   moved  told how many bytes it has read and written so far
  SampleThreadResult run(std::atomic<std::uint64_t>& moved);

  const std::string& queue_text() const noexcept { return queue_text_; }
  const std::string& queue_notes() const noexcept { return queue_notes_; }

 private:
  struct Slot : swap::IoRequest {
    std::byte* read_memory = nullptr;
    std::byte* write_memory = nullptr;
    std::uint64_t block_offset = 0;
    std::uint64_t done_bytes = 0;  // of the block, by earlier requests
    std::uint32_t idle_attempts = 0;
    bool busy = false;  // with a block
    BenchClock::time_point submitted;
  };

  bool may_start(BenchClock::time_point now) const noexcept;
  bool is_under_way(std::uint64_t block_offset) const noexcept;
  void start(Slot& slot, BenchClock::time_point now);
  void end_block(Slot& slot, BenchClock::time_point now);
  void submit(Slot& slot, swap::IoKind kind, BenchClock::time_point now);
  void send(Slot& slot);
  void completed(Slot& slot, BenchClock::time_point now);
  void block_read(Slot& slot, BenchClock::time_point now);
  void block_written(Slot& slot, BenchClock::time_point now);
  void count(std::uint64_t& direction);
  void compare(const Slot& slot);
  void compare_page(const Slot& slot, std::uint64_t page_of_block, bool whole);
  void flush();
  void reap();
  [[noreturn]] void fail(const Slot& slot, std::int64_t result) const;

  SampleThreadOptions options_;
  BlockOrder order_;
  std::uint64_t blocks_wanted_;  // 0: no such limit
  std::unique_ptr<swap::IoQueue> queue_;
  std::string queue_text_, queue_notes_;
  std::vector<Slot> slots_;
  std::uint64_t started_ = 0;
  std::uint32_t under_way_ = 0;
  BenchClock::time_point last_completion_;
  std::exception_ptr error_;
  std::atomic<std::uint64_t>* moved_ = nullptr;
  SampleThreadResult result_;
};
}  // namespace headrace::tools
