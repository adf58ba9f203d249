// SPDX-License-Identifier: Apache-2.0
// collective_threads.cpp: ranks that are threads of one process and read each other's memory. For
// tests, and for trainers with a thread per device; device memory must be readable by the CPU.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.hpp"
#include "collective/collectives.hpp"
#include "collective/meeting.hpp"
#include "collective/rank_sums.hpp"

namespace headrace::collective {
namespace {
class CollectiveThreads final : public Collective {
 public:
  CollectiveThreads(std::uint32_t rank, std::uint32_t world_size, std::shared_ptr<Device> device,
                    std::shared_ptr<Meeting> meeting)
      : rank_(rank),
        world_size_(world_size),
        device_(std::move(device)),
        meeting_(std::move(meeting)) {}
  ~CollectiveThreads() override { meeting_->leave(rank_); }

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return world_size_; }

  void all_gather(CollectiveTag tag, Stream stream, DeviceSpan whole) override;
  void reduce_scatter(CollectiveTag tag, Stream stream, void* buffer, DType dtype,
                      std::uint64_t elements) override;
  void all_reduce_sum(CollectiveTag tag, double* values, std::uint64_t count) override;
  void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                std::span<std::byte> all) override;
  void barrier(CollectiveTag tag) override {
    meeting_->meet(rank_, make_call(CallKind::kBarrier, tag, DType::kF32, 0, nullptr));
    meeting_->part();
  }
  void abort(std::string_view why) noexcept override { meeting_->abort(rank_, why); }

 private:
  static Call make_call(CallKind kind, CollectiveTag tag, DType dtype, std::uint64_t size,
                        void* data) {
    return {kind, tag.sequence, std::string(tag.what), dtype, size, data};
  }

  std::uint32_t rank_;
  std::uint32_t world_size_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Meeting> meeting_;
  std::vector<const void*> parts_;
  std::vector<const double*> value_parts_;
  std::vector<double> sums_;
};

// Rank q's own piece is read by all and written by none, so the pieces can be exchanged in place.
void CollectiveThreads::all_gather(CollectiveTag tag, Stream stream, DeviceSpan whole) {
  check_divides(tag, whole.size_bytes, "bytes", world_size_);
  device_->synchronize(stream);
  meeting_->meet(rank_,
                 make_call(CallKind::kAllGather, tag, DType::kF32, whole.size_bytes, whole.data));
  const std::size_t piece = whole.size_bytes / world_size_;
  for (std::uint32_t other = 0; other < world_size_ && piece != 0; ++other) {
    if (other == rank_) continue;
    const auto* from = static_cast<const char*>(meeting_->posted(other).data);
    std::memcpy(static_cast<char*>(whole.data) + other * piece, from + other * piece, piece);
  }
  meeting_->part();
}

// This rank writes its own piece of its own buffer, which no other rank reads.
void CollectiveThreads::reduce_scatter(CollectiveTag tag, Stream stream, void* buffer, DType dtype,
                                       std::uint64_t elements) {
  check_divides(tag, elements, "elements", world_size_);
  parts_.resize(world_size_);
  device_->synchronize(stream);
  meeting_->meet(rank_, make_call(CallKind::kReduceScatter, tag, dtype, elements, buffer));
  const std::uint64_t piece = elements / world_size_;
  const std::uint64_t begin_bytes = rank_ * piece * size_bytes(dtype);
  if (piece != 0) {
    for (std::uint32_t other = 0; other < world_size_; ++other) {
      parts_[other] = static_cast<const char*>(meeting_->posted(other).data) + begin_bytes;
    }
    sum_ranks(parts_, dtype, piece, static_cast<char*>(buffer) + begin_bytes);
  }
  meeting_->part();
}

void CollectiveThreads::all_reduce_sum(CollectiveTag tag, double* values, std::uint64_t count) {
  sums_.resize(count);
  value_parts_.resize(world_size_);
  meeting_->meet(rank_, make_call(CallKind::kAllReduceSum, tag, DType::kF32, count, values));
  for (std::uint32_t other = 0; other < world_size_; ++other) {
    value_parts_[other] = static_cast<const double*>(meeting_->posted(other).data);
  }
  sum_ranks(value_parts_, count, sums_.data());
  meeting_->part();
  if (count != 0) std::memcpy(values, sums_.data(), count * sizeof(double));
}

void CollectiveThreads::exchange(CollectiveTag tag, std::span<const std::byte> mine,
                                 std::span<std::byte> all) {
  meeting_->meet(rank_, make_call(CallKind::kExchange, tag, DType::kF32, mine.size(),
                                  const_cast<std::byte*>(mine.data())));
  for (std::uint32_t of = 0; of < world_size_; ++of) {
    std::copy_n(static_cast<const std::byte*>(meeting_->posted(of).data), mine.size(),
                all.begin() + static_cast<std::ptrdiff_t>(of * mine.size()));
  }
  meeting_->part();
}
}  // namespace

std::vector<std::shared_ptr<Collective>> make_collective_threads(
    std::vector<std::shared_ptr<Device>> devices, std::chrono::milliseconds deadline) {
  HEADRACE_CHECK(!devices.empty(), "a collective has at least one rank");
  const auto world_size = static_cast<std::uint32_t>(devices.size());
  auto meeting = std::make_shared<Meeting>(world_size, deadline);
  std::vector<std::shared_ptr<Collective>> ranks;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    ranks.push_back(
        std::make_shared<CollectiveThreads>(rank, world_size, std::move(devices[rank]), meeting));
  }
  return ranks;
}
}  // namespace headrace::collective
