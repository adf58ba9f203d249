// SPDX-License-Identifier: Apache-2.0
#include "bench/stretch.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/check.hpp"

namespace headrace::tools {
BlockOrder::BlockOrder(const Workload& workload, std::uint64_t part_begin, std::uint64_t part_bytes,
                       std::uint64_t bytes, std::uint32_t turn)
    : block_bytes_(workload.block_bytes) {
  const std::uint64_t all = part_bytes / block_bytes_;
  HEADRACE_CHECK(all > 0, "a part holds at least one block");
  region_ = bytes == 0 ? all : std::clamp<std::uint64_t>(bytes / block_bytes_, 1, all);
  begin_ = part_begin + turn % (all / region_) * region_ * block_bytes_;
  if (!is_random(workload.pattern)) return;
  shuffled_.resize(region_);
  std::iota(shuffled_.begin(), shuffled_.end(), 0u);
  std::ranges::shuffle(shuffled_, std::mt19937(turn + 1));
}
}  // namespace headrace::tools
