// SPDX-License-Identifier: Apache-2.0
// sequence.hpp: what the ranks of an engine did together in a step, and from that the order in
// which they join and reduce in the next one, ahead of the trainer's calls.
//
// Every rank records the same. The gathers of a step are the same on all ranks, and so are its
// reductions, which the ranks agreed on (rank_calls.hpp). Their position is the number of gathers
// that came before them in the step. So each rank derives the same order, and nobody has to send
// it.
//
// Example: forward and backward over two groups, and one group joined ahead of the trainer:
//
//   recorded   gather 0  gather 1  gather 1  gradients of 1   gather 0  gradients of 0   step
//   position   0         1         2         3: { 1 }         3         4: { 0 }
//
//   order      join 0, join 1 | join 1' | join 0' | reduce 3:1 | reduce 4:0
//              ahead of the trainer, who is in gather 0, then 1, 1', 0', step
//
// The gradients of a position are reduced when the trainer has left it by its next gather or by its
// step, since only then have all of them arrived: sums are in the order of ranks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "headrace/tensor.hpp"

namespace headrace::ranks {
struct Reduction {
  std::uint32_t position = 0;
  GroupId group = {};
  friend bool operator==(const Reduction& a, const Reduction& b) noexcept {
    return a.position == b.position && a.group == b.group;
  }
};

// In the order in which the ranks did it.
struct StepRecord {
  // A rank that never steps, as in an evaluation, may gather any number of times.
  static constexpr std::size_t kMostGathers = std::size_t{1} << 20;
  std::vector<GroupId> gathers;
  std::vector<Reduction> reductions;
  bool has_all = true;  // else no order can be derived from it

  void note_gather(GroupId group) {
    has_all = has_all && gathers.size() < kMostGathers;
    if (has_all) gathers.push_back(group);
  }
  void clear() noexcept {
    gathers.clear();
    reductions.clear();
    has_all = true;
  }
};

class Sequence {
 public:
  struct Entry {
    enum class Kind : std::uint8_t { kJoin, kReduce };
    Kind kind = Kind::kJoin;
    std::uint32_t at = 0;  // a join: the number of its gather; a reduction: its position
    GroupId group = {};
  };

  static constexpr std::uint32_t kAll = 1U << 30;
  // Joins run up to `ahead` gathers ahead of the trainer; kAll: all of them come first. The
  // sequence ends before the first position whose gradients need more than `buckets`, or of which a
  // group was reduced twice.
  void make(const StepRecord& record, std::uint32_t ahead, std::uint32_t buckets);

  bool empty() const noexcept { return entries_.empty(); }
  // Whether it has all of the step.
  bool whole() const noexcept { return whole_; }
  const std::vector<Entry>& entries() const noexcept { return entries_; }
  const std::vector<GroupId>& gathers() const noexcept { return gathers_; }
  bool reduces(const Reduction& reduction) const noexcept;
  // Of at most `entries` entries, from `first` on.
  std::uint64_t hash(std::size_t first, std::size_t entries) const noexcept;

 private:
  std::vector<Entry> entries_;
  std::vector<GroupId> gathers_;
  std::vector<Reduction> reductions_;
  bool whole_ = false;
};
}  // namespace headrace::ranks
