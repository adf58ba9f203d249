// SPDX-License-Identifier: Apache-2.0
// gradient_sums.hpp: the sums of a step's gradients, the parameters that have one, and their norm.
//
// This rank's shard of every section has a slab in host memory, which holds the sums. While the
// device adds to a slab, it computes the sum of squares of each piece. All ranks add up all pieces,
// whoever owns them, in the same order: so the norm is the same on all of them.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "headrace/device.hpp"
#include "partition/registry.hpp"
#include "pinned/arena.hpp"
#include "ranks/rank_calls.hpp"
#include "residency/lent.hpp"
#include "residency/plan.hpp"

namespace headrace::ranks {
// Over all ranks, for the sums before scaling.
struct GradientTotals {
  double sum_squares = 0;
  double non_finite = 0;
  std::string first_non_finite;  // the parameter, or empty
  bool holds_commits = false;    // a background save of some rank reads the last commit
};

// What a step's gradients need.
struct GradientParts {
  const partition::Registry& registry;
  const partition::Partition& partition;
  const residency::Plan& plan;
  residency::Lent& lent;
  pinned::Arena& arena;
  Device& device;
  RankCalls& ranks;
  // Of several ranks that pack them: Settings::rounding_seed, and updates so far, per parameter.
  std::uint64_t rounding_seed = 0;
  const std::vector<std::uint64_t>& update_counts;
  // Returns when no update reads the group's gradients of the last step any more.
  std::function<void(GroupId)> until_taken;
};

// Threads: several may add() at once, to different parameters; all else one at a time.
class GradientSums {
 public:
  explicit GradientSums(const GradientParts& parts);  // which outlive this

  // Adds elements [first, first + elements) of the parameter's section, which are this rank's, to
  // its slab; `source` is their first one. `overwrite`: the slab holds nothing of this step there.
  void add(ParameterId id, const void* source, DType source_dtype, std::uint64_t first,
           std::uint64_t elements, bool overwrite, Stream stream);
  // Of a whole gradient in host memory, which stays there.
  void measure(ParameterId id, const void* gradient, DType dtype);
  // The parameter has a gradient on some rank.
  void note(ParameterId id) noexcept { received_[id.index] = 1; }
  // Collective, unless the ranks have attached pack() to their last meeting. The device has made
  // all additions.
  GradientTotals total(bool attached = false);
  // With several ranks: this rank's share of the norm. Until the next call.
  std::span<const std::byte> pack();
  static std::size_t pack_bytes(const partition::Partition& partition);
  void clear();
  // Of one parameter, with one rank. The device has made its additions.
  GradientPiece statistics(ParameterId id) const;

  const std::uint8_t* received() const noexcept { return received_.data(); }  // per parameter
  bool any_received() const noexcept;
  const std::byte* of_section(std::uint32_t section) const;  // null if they are lent

  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition);

 private:
  void gather_pieces(bool attached);

  const GradientParts& p_;
  std::vector<std::uint8_t> received_;
  std::vector<GradientPiece> pieces_;
  std::vector<GradientPiece> own_pieces_, all_pieces_;  // with several ranks: as exchanged
  std::vector<std::size_t> next_piece_;                 // per rank, in all_pieces_
};
}  // namespace headrace::ranks
