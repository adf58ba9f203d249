// SPDX-License-Identifier: Apache-2.0
// workload.hpp: a workload: an access pattern at a block size and a depth, and the number of
// threads.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "headrace/settings.hpp"

namespace headrace::tools {
// By fio's names. kMixed is the update phase's pattern: each slot reads a block and writes it back,
// so that a read and a write of neighbouring blocks are always under way; fio's "rw" reads and
// writes as many.
enum class Pattern : std::uint8_t { kRead, kWrite, kRandRead, kRandWrite, kMixed };

// The code that moves the bytes.
enum class Mover : std::uint8_t {
  kQueue,  // the raw queue: a thread per drive that submits and reaps
  kFio,    // fio, on the same file, same blocks, same depth, 2 MiB pages
};

struct Workload {
  Pattern pattern = Pattern::kRead;
  std::uint64_t block_bytes = 1 << 20;
  std::uint32_t depth = 16;        // requests in flight per drive and job
  std::uint32_t jobs = 1;          // threads per drive, each with a queue and a part of the file
  std::uint32_t submit_batch = 2;  // requests per system call
  bool register_buffers = true;    // uring: where the limits allow
  IoQueueKind queue = IoQueueKind::kAuto;
  Mover mover = Mover::kQueue;
  std::string fio_engine = {};  // kFio: "io_uring", "libaio"
  friend bool operator==(const Workload&, const Workload&) = default;
};

constexpr bool writes(Pattern pattern) {
  return pattern == Pattern::kWrite || pattern == Pattern::kRandWrite || pattern == Pattern::kMixed;
}
constexpr bool reads(Pattern pattern) {
  return pattern == Pattern::kRead || pattern == Pattern::kRandRead || pattern == Pattern::kMixed;
}
constexpr bool is_random(Pattern pattern) {
  return pattern == Pattern::kRandRead || pattern == Pattern::kRandWrite;
}

std::string_view name_of(Pattern pattern);  // "read", "write", "randread", "randwrite", "rw"
std::optional<Pattern> pattern_of(std::string_view name);
// "1M", "256k", as fio writes sizes; bytes where neither divides.
std::string block_text(std::uint64_t bytes);
// "headrace", "fio io_uring".
std::string mover_text(const Workload& workload);
// "read 1M x 16", with what differs from the defaults: "read 1M x 16, aio, 2 jobs".
std::string text_of(const Workload& workload);
}  // namespace headrace::tools
