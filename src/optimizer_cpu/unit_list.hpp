// SPDX-License-Identifier: Apache-2.0
// unit_list.hpp: many parameters as units of about equal work, so that small ones do not wait for a
// thread each and large ones are shared.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/sizes.hpp"

namespace headrace::optimizer_cpu {
using base::kBlockElements;
using base::kChunkElements;

// Elements of one parameter, from a multiple of kChunkElements on: at most a chunk.
struct UnitPiece {
  std::uint32_t parameter = 0;  // an index into what was given
  std::uint32_t elements = 0;
  std::uint64_t first_element = 0;
  std::uint64_t first_block = 0;  // of all parameters' blocks
};

// A unit is as many neighbouring pieces as have at most a chunk's elements.
class UnitList {
 public:
  void clear();
  void add(std::uint64_t elements);  // the next parameter
  std::uint64_t units() const noexcept { return begins_.size(); }
  std::uint64_t blocks() const noexcept { return blocks_; }  // of all
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
