// SPDX-License-Identifier: Apache-2.0
// gradient_exchange.hpp: brings the gradients of a section to the ranks that own them, which add
// them to their slabs. What did not arrive on a rank is not added.
//
// In rank order: every rank gives every other the part that the other owns, as it is or packed
// (packed_gradients.hpp), and the owner adds the ranks' parts, one after the other.
//
// Within nodes first (Plan::reduce_ranks N; rank r has place r % N in node r / N): the ranks of a
// node give each other what the ranks of their places own on all nodes, and add that in f32, in
// rank order. Then they give these sums to the owners, who add them in the order of the nodes. So
// one f32 of each gradient leaves a node, in place of N values.
//
// Four ranks, two nodes; what rank 2 owns, as each rank has it: a, b, c and d.
//
//   rank 1 gives b to rank 0     rank 0: a + b         rank 0 gives that to rank 2
//   rank 3 gives d to rank 2     rank 2: c + d         rank 2: slab + (a + b) + (c + d)
//
// The order of additions depends on N, and not on the number of nodes: one node with twice as many
// micro-batches makes the same additions. For this, all of a micro-batch's gradients of a parameter
// must pass in one reduction. In rank order they need not.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "ranks/gradient_sums.hpp"
#include "ranks/packed_gradients.hpp"
#include "ranks/sequence.hpp"

namespace headrace::ranks {
// Threads: as the bucket's.
class GradientExchange {
 public:
  GradientExchange(const GradientParts& parts, GradientSums& sums);  // which outlive this
  // `behind`: what the plan has behind the buckets. `nothing`: bytes that a rank without gradients
  // gives, and nobody adds.
  void use_memory(std::byte* behind, std::byte* nothing) noexcept;
  // Room for exchange_elements f32, between two reductions.
  std::byte* spare() const noexcept { return taken_; }

  // Collective, before the sections of a group are reduced. Throws kUnsupported on all ranks, and
  // ends the collective, if nodes could not sum what belongs together: others' gradients of this
  // position have been reduced already.
  void begin(const Reduction& of);
  // Collective, after the same agreement on all ranks. `values`: this rank's gradients of the whole
  // section, as `dtype`; null if it has none.
  void reduce(std::uint32_t section, std::byte* values, DType dtype, Stream stream);
  // All sections of the group are reduced.
  void note_added(GroupId group);
  // No parameter has a sum.
  void forget();

  static std::uint64_t bookkeeping_bytes(const partition::Partition& partition,
                                         bool in_nodes) noexcept;

 private:
  // Of a parameter: the ranks whose gradients of one position have been reduced.
  struct Summed {
    std::uint32_t position = 0;
    bool any = false;
  };
  std::span<std::uint64_t> ranks_summed(ParameterId id);
  [[noreturn]] void refuse_late(std::uint32_t rank, ParameterId id);

  // This rank's, of a section.
  struct Given {
    const partition::Section& section;
    std::byte* values = nullptr;
    DType dtype = DType::kF32;
    std::uint64_t bytes(std::uint64_t elements) const { return elements * size_bytes(dtype); }
  };
  ShardPart part_of(const partition::Section& section, std::uint32_t rank, std::uint64_t at) const;
  DeviceSpan piece_of(const Given& given, const ShardPart& part) const;
  CollectiveTag next(const partition::Section& section);
  void reduce_packed(const Given& given, std::uint64_t at, Stream stream);
  void reduce_in_rank_order(const Given& given, std::uint64_t at, Stream stream);
  void reduce_in_nodes(const Given& given, std::uint64_t at, Stream stream);
  void sum_within_node(const Given& given, std::uint32_t owner, std::uint64_t at, Stream stream);
  void give_sums(const partition::Section& section, std::uint64_t at, Stream stream);
  void add_sums(const ShardPart& own, Stream stream);
  void add(const ShardPart& own, std::size_t index, std::uint64_t first, std::uint64_t end,
           const void* values, DType dtype, bool is_first, Stream stream);
  std::uint32_t nodes() const { return p_.partition.world_size / p_.plan.reduce_ranks; }
  std::uint32_t place() const { return p_.partition.rank % p_.plan.reduce_ranks; }
  bool present_in_node(std::uint32_t node, std::size_t index) const;
  // Of this rank's node, what the rank in its place on `node` owns.
  float* node_sums(std::uint32_t node) const;
  // Of another node, what this rank owns.
  float* sums_from(std::uint32_t node) const;

  const GradientParts& p_;
  GradientSums& sums_;
  PackedGradients packed_{p_};
  std::byte* taken_ = nullptr;  // parts of other ranks
  std::byte* nothing_ = nullptr;
  float* node_sums_ = nullptr;           // of this node; behind them those of the others
  std::vector<std::uint8_t> in_slab_;    // per parameter: its slab already holds a sum
  std::vector<DeviceSpan> give_, take_;  // the parts of one call
  std::vector<Summed> summed_;           // per parameter, with nodes; its ranks as bits:
  std::vector<std::uint64_t> ranks_summed_;
};
}  // namespace headrace::ranks
