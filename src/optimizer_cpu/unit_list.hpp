// SPDX-License-Identifier: Apache-2.0
// unit_list.hpp: divides many parameters into units of about equal work, so that threads take
// several small parameters at once and share large ones.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/sizes.hpp"

namespace headrace::optimizer_cpu {
using base::kBlockElements;
using base::kChunkElements;

// Elements of one parameter, at most a chunk, starting at a multiple of kChunkElements.
struct UnitPiece {
  std::uint32_t parameter = 0;  // an index into the given parameters
  std::uint32_t elements = 0;
  std::uint64_t first_element = 0;
  std::uint64_t first_block = 0;  // counted over all parameters
};

// A unit is a run of neighbouring pieces with at most a chunk of elements together.
class UnitList {
 public:
  void clear();
  void add(std::uint64_t elements);  // adds the next parameter
  std::uint64_t units() const noexcept { return begins_.size(); }
  std::uint64_t blocks() const noexcept { return blocks_; }  // of all parameters
  std::span<const UnitPiece> unit(std::uint64_t index) const noexcept;
  std::span<const UnitPiece> all() const noexcept { return pieces_; }

 private:
  std::vector<UnitPiece> pieces_;
  std::vector<std::uint64_t> begins_;  // of each unit, in pieces_
  std::uint64_t in_last_unit_ = 0;     // elements
  std::uint64_t blocks_ = 0;
  std::uint32_t parameters_ = 0;
};
}  // namespace headrace::optimizer_cpu
