// SPDX-License-Identifier: Apache-2.0
// latency.hpp: a histogram of request times: any quantile within 1.6 %, the maximum exact.
#pragma once
#include <array>
#include <cstdint>

namespace headrace::tools {
class LatencyHistogram {
 public:
  void add(std::uint64_t nanoseconds) noexcept;
  void add(const LatencyHistogram& other) noexcept;

  std::uint64_t count() const noexcept { return count_; }
  std::uint64_t max_ns() const noexcept { return max_; }
  std::uint64_t min_ns() const noexcept { return count_ == 0 ? 0 : min_; }
  double mean_ns() const noexcept;
  // The least value that `share` (0..1) of all are at or below, at a bucket's upper end; 0 of none.
  std::uint64_t quantile_ns(double share) const noexcept;

 private:
  // Values below 64 have a bucket each; above, each power of two has 32.
  static constexpr std::uint32_t kSubBits = 5;
  static constexpr std::uint32_t kBuckets = 64 + (64 - 6) * (1u << kSubBits);
  static std::uint32_t bucket_of(std::uint64_t value) noexcept;
  static std::uint64_t upper_end(std::uint32_t bucket) noexcept;

  std::array<std::uint32_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0, sum_ = 0, max_ = 0, min_ = ~std::uint64_t{0};
};
}  // namespace headrace::tools
