// SPDX-License-Identifier: Apache-2.0
// mover.hpp: makes transfers one after the other, timed, and compares what arrived.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/sizes.hpp"
#include "bench_copy/buffers.hpp"
#include "bench_copy/pattern.hpp"

namespace headrace::tools {
// Transfers follow one another through a buffer, region by region, and begin anew at its end. Each
// way has a stream of its own and a thread that queues: copies of pageable memory hold it up.
class TransferMover {
 public:
  // As an engine's gradients have them.
  static constexpr std::uint64_t kPieceElements = base::kBlockElements;

  //   buffer_bytes  at least the largest transfer's, and four times a gradient's
  //   region_bytes  that transfers wander over, where one is not larger
  TransferMover(Device& device, std::uint64_t buffer_bytes, std::uint64_t region_bytes,
                std::uint64_t seed);
  ~TransferMover();
  TransferMover(const TransferMover&) = delete;
  TransferMover& operator=(const TransferMover&) = delete;

  // The most of one kind whose sums are exact.
  static std::uint64_t most(const Transfer& transfer);
  // Another pattern lies where `count` of them begin; untimed.
  void prepare(const Transfer& transfer, std::uint64_t count);
  // Seconds from the first that is queued to the last that has arrived, of both ways. Throws
  // headrace::Error: kInterrupted, and what Device throws.
  double run(const Transfer& transfer, std::uint64_t count);
  // The bytes that arrived changed since prepare(), after one run(); empty if there are none. Adds
  // to verified_bytes().
  std::string difference(const Transfer& transfer, std::uint64_t count);

  std::uint64_t verified_bytes() const noexcept { return verified_bytes_; }
  std::uint64_t seed() const noexcept { return seed_; }

 private:
  // Where transfers of one size lie in a buffer.
  struct Region {
    std::uint64_t places = 1;
    std::uint64_t used = 1;  // by so many transfers
  };
  Region region_of(const Transfer& transfer, std::uint64_t count) const;
  Stream stream(Way way) const { return way == Way::kToDevice ? to_device_ : to_host_; }
  void copy_all(const Transfer& transfer, Way way, std::uint64_t count);
  void land_all(const Transfer& transfer, std::uint64_t count);
  void copy_now(void* target, const void* source, std::uint64_t bytes);
  std::string sums_difference(const Transfer& transfer, std::uint64_t count);
  std::string pieces_difference(const Transfer& transfer, std::uint64_t place,
                                std::uint32_t times) const;

  Device& device_;
  const std::uint64_t region_bytes_, seed_;
  std::uint64_t prepared_ = 0;  // patterns so far
  std::uint64_t verified_bytes_ = 0;
  SentPattern to_device_pattern_, to_host_pattern_;
  const CopyBuffers buffers_;
  std::vector<GradientPiece> pieces_;
  Stream to_device_, to_host_;
};
}  // namespace headrace::tools
