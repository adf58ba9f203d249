// SPDX-License-Identifier: Apache-2.0
#include "bench/latency.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace headrace::tools {
std::uint32_t LatencyHistogram::bucket_of(std::uint64_t value) noexcept {
  if (value < 64) return static_cast<std::uint32_t>(value);
  const auto power = static_cast<std::uint32_t>(std::bit_width(value)) - 1;  // >= 6
  const std::uint64_t sub = (value >> (power - kSubBits)) & ((1u << kSubBits) - 1);
  return 64 + (power - 6) * (1u << kSubBits) + static_cast<std::uint32_t>(sub);
}

std::uint64_t LatencyHistogram::upper_end(std::uint32_t bucket) noexcept {
  if (bucket < 64) return bucket;
  const std::uint32_t power = 6 + (bucket - 64) / (1u << kSubBits);
  const std::uint64_t sub = (bucket - 64) % (1u << kSubBits);
  const std::uint64_t width = std::uint64_t{1} << (power - kSubBits);
  return (std::uint64_t{1} << power) + sub * width + width - 1;
}

void LatencyHistogram::add(std::uint64_t nanoseconds) noexcept {
  ++buckets_[bucket_of(nanoseconds)];
  ++count_;
  sum_ += nanoseconds;
  max_ = std::max(max_, nanoseconds);
  min_ = std::min(min_, nanoseconds);
}

void LatencyHistogram::add(const LatencyHistogram& other) noexcept {
  for (std::uint32_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  max_ = std::max(max_, other.max_);
  min_ = std::min(min_, other.min_);
}

double LatencyHistogram::mean_ns() const noexcept {
  return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_);
}

std::uint64_t LatencyHistogram::quantile_ns(double share) const noexcept {
  if (count_ == 0) return 0;
  const auto wanted = std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count_))));
  std::uint64_t seen = 0;
  for (std::uint32_t i = 0; i < kBuckets; ++i) {
    seen += buckets_[i];
    if (seen >= wanted) return std::min(upper_end(i), max_);
  }
  return max_;
}
}  // namespace headrace::tools
