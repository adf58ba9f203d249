// SPDX-License-Identifier: Apache-2.0
// partition.hpp: maps groups to sections, sections to shards, shards to tiles, and tiles to
// segments. This is pure arithmetic without bytes: the same on every rank, and for every placement.
//
//   section   parameters of one group with one dtype, all trained or all frozen, one after another,
//             each at a multiple of 256 elements
//   block     65,536 elements of a section; results depend on blocks, so their size is a constant
//   shard     a rank's blocks of a section, one after another; perhaps none
//   tile      whole blocks of a shard, up to the end of the section's used elements
//   segment   one parameter's elements inside one tile
//   piece     one parameter's elements inside one block: the unit of the gradient norm
//
// Blocks are dealt to the ranks as cards are, from section to section, so that over all sections of
// a kind (trained or frozen, of one dtype) no rank has two blocks more than another. Within each
// section, a rank's blocks lie together, in the order of the ranks. Example: 4 ranks, two sections
// of 5 blocks:
//
//   section 0   rank 0 has blocks 0 and 1, ranks 1, 2 and 3 have 2, 3 and 4
//   section 1   rank 0 has block 0, rank 1 has 1 and 2, ranks 2 and 3 have 3 and 4
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/sizes.hpp"
#include "headrace/tensor.hpp"

namespace headrace::partition {
using base::kBlockElements;
using base::kParameterAlignment;
// In elements: whole pages of the weights, and of all that is kept beside trained ones.
constexpr std::uint64_t used_alignment(DType dtype) { return dtype == DType::kU8 ? 4096 : 2048; }

struct GroupShape {
  std::vector<ParameterSpec> parameters;
};

struct Parameter {
  std::uint32_t group = 0;
  std::uint32_t section = 0;
  std::uint64_t first_element = 0;  // in its section
  std::uint64_t elements = 0;
  std::uint64_t first_piece = 0;  // index into all pieces of all parameters
  std::uint64_t pieces = 0;       // the blocks that it touches
};

// In elements of its section. Only the section's last block can be shorter than a block.
struct Shard {
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;
  std::uint64_t end() const { return first_element + elements; }
};

struct Section {
  std::uint32_t group = 0;
  DType dtype = DType::kF32;
  bool frozen = false;                // true if all its parameters are frozen
  std::uint64_t elements = 0;         // up to the end of the last parameter
  std::uint64_t buffer_elements = 0;  // of all shards: a multiple of used_alignment()
  std::uint32_t first_dealt_to = 0;   // the rank that got the first block
  Shard shard;                        // this rank's
  // Position in the group's buffer of this dtype: the trained section, then the frozen one.
  std::uint64_t first_in_buffer = 0;
  std::vector<std::uint32_t> parameters;  // in order of first_element
  std::uint32_t first_tile = 0;           // this rank's
  std::uint32_t tiles = 0;
};

struct Tile {
  std::uint32_t section = 0;
  std::uint64_t first_element = 0;  // in its section, not its shard
  std::uint64_t elements = 0;       // used ones, a multiple of used_alignment()
  std::uint32_t first_segment = 0;
  std::uint32_t segments = 0;
};

struct Segment {
  std::uint32_t parameter = 0;
  std::uint64_t first_element = 0;  // in its tile
  std::uint64_t elements = 0;
};

struct Partition {
  std::uint32_t rank = 0, world_size = 1;
  std::uint64_t tile_elements = 0;
  std::uint64_t parameter_elements = 0;  // of all parameters, all ranks
  std::uint64_t pieces = 0;
  std::vector<Parameter> parameters;
  std::vector<Section> sections;
  // Section indices of each group; sections of one dtype are adjacent.
  std::vector<std::vector<std::uint32_t>> group_sections;
  std::vector<Tile> tiles;  // this rank's
  std::vector<Segment> segments;

  std::span<const Segment> segments_of(const Tile& tile) const {
    return std::span(segments).subspan(tile.first_segment, tile.segments);
  }
  const Section& section_of(std::uint32_t tile) const { return sections[tiles[tile].section]; }
  Shard shard_of(const Section& section, std::uint32_t of_rank) const;
  // Of a section, what the index-th of `node_ranks` ranks keeps for its node: the shards of
  // world_size / node_ranks ranks in a row. Those of a node are the whole section.
  Shard node_shard(const Section& section, std::uint32_t index, std::uint32_t node_ranks) const;
  // No rank has more. A rank with as many blocks has less only if one of them is the last.
  std::uint64_t largest_shard_elements(const Section& section) const;
  std::uint32_t owner_of(const Section& section, std::uint64_t element) const;
  // The ranks whose shards hold a parameter's elements: first to last. Some between may have none.
  struct Owners {
    std::uint32_t first = 0, last = 0;
  };
  Owners owners_of(const Parameter& parameter) const;
  // In elements of its dtype, from the start of the group's buffer of that dtype.
  std::uint64_t first_in_buffer(const Parameter& parameter) const {
    return sections[parameter.section].first_in_buffer + parameter.first_element;
  }
  std::uint64_t buffer_elements(std::uint32_t group, DType dtype) const;
  // One parameter's elements in one of this rank's tiles; 0 elements if there are none.
  Segment segment_of(const Tile& tile, std::uint32_t parameter) const;
  // This rank's tiles [first, end) that include all tiles with elements of a parameter.
  struct TileRange {
    std::uint32_t first = 0, end = 0;
  };
  TileRange tiles_with(const Parameter& parameter) const;
  // The memory of the partition itself, for the plan.
  std::uint64_t bookkeeping_bytes() const;
};

// The form in which values pass between ranks: as they are stored, or as codes with scales
// (kernels/packed_values.hpp).
struct Wire {
  static constexpr std::uint32_t kParameterBits = 8, kGradientBits = 4;
  bool packed_parameters = false, packed_gradients = false;

  bool packs(const Section& section) const noexcept {
    return packed_parameters && section.dtype != DType::kU8;
  }
  std::uint64_t parameter_bytes(const Section& section, std::uint64_t elements) const noexcept {
    return packs(section) ? base::packed_bytes(kParameterBits, elements)
                          : elements * size_bytes(section.dtype);
  }
  std::uint64_t gradient_bytes(const Section& section, std::uint64_t elements) const noexcept {
    return packed_gradients ? base::packed_bytes(kGradientBits, elements)
                            : elements * size_bytes(section.dtype);
  }
};

// Bytes that a rank sends to the others when a group's parameters are gathered once, and when all
// its gradients, in the parameters' dtypes, are reduced once.
struct SentBytes {
  std::uint64_t gathered = 0;  // its own shards, W - 1 times
  std::uint64_t reduced = 0;   // the other ranks' shards of what is trained
};
SentBytes sent_by(const Partition& partition, std::uint32_t group, std::uint32_t rank,
                  const Wire& wire = {});

// The same with nodes. A gather sends each shard to one rank of every node, the one that keeps it
// there; then these send what they keep to the others of their node, as it is stored.
struct SentWithNodes {
  std::uint64_t spread = 0;  // its own shards
  std::uint64_t joined = 0;  // what it keeps, node_ranks - 1 times
  // Of `spread`, and of SentBytes::reduced, to the ranks of other nodes.
  std::uint64_t spread_beyond = 0, reduced_beyond = 0;
};
SentWithNodes sent_with_nodes(const Partition& partition, std::uint32_t group, std::uint32_t rank,
                              std::uint32_t node_ranks, const Wire& wire = {});

// And where the ranks of a node add their gradients to each other first: each gets what the ranks
// of its place own on all nodes, and sends the sums, in f32, to these ranks.
struct ReducedInNodes {
  std::uint64_t within = 0, beyond = 0;
};
ReducedInNodes reduced_in_nodes(const Partition& partition, std::uint32_t group, std::uint32_t rank,
                                std::uint32_t node_ranks);

// `tile_elements` is a multiple of kBlockElements. Parameters keep their order; indices count
// across the groups.
Partition make_partition(std::span<const GroupShape> groups, std::uint64_t tile_elements,
                         std::uint32_t rank, std::uint32_t world_size);
}  // namespace headrace::partition
