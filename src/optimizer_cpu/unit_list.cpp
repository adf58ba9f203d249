// SPDX-License-Identifier: Apache-2.0
#include "optimizer_cpu/unit_list.hpp"

#include <algorithm>

namespace headrace::optimizer_cpu {
void UnitList::clear() {
  pieces_.clear();
  begins_.clear();
  in_last_unit_ = 0;
  blocks_ = 0;
  parameters_ = 0;
}

void UnitList::add(std::uint64_t elements) {
  for (std::uint64_t first = 0; first < elements; first += kChunkElements) {
    const std::uint64_t count = std::min(kChunkElements, elements - first);
    if (begins_.empty() || in_last_unit_ + count > kChunkElements) {
      begins_.push_back(pieces_.size());
      in_last_unit_ = 0;
    }
    in_last_unit_ += count;
    pieces_.push_back({parameters_, static_cast<std::uint32_t>(count), first, blocks_});
    blocks_ += (count + kBlockElements - 1) / kBlockElements;
  }
  ++parameters_;
}

std::span<const UnitPiece> UnitList::unit(std::uint64_t index) const noexcept {
  const std::uint64_t end = index + 1 < begins_.size() ? begins_[index + 1] : pieces_.size();
  return std::span(pieces_).subspan(begins_[index], end - begins_[index]);
}
}  // namespace headrace::optimizer_cpu
