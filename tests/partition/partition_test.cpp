// SPDX-License-Identifier: Apache-2.0
#include "partition/partition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace headrace::partition {
namespace {
std::vector<GroupShape> random_groups(std::mt19937_64& random) {
  std::vector<GroupShape> groups(1 + random() % 4);
  for (GroupShape& group : groups) {
    const std::size_t count = 1 + random() % 7;
    for (std::size_t i = 0; i < count; ++i) {
      const auto elements =
          static_cast<std::int64_t>(1 + random() % (random() % 4 == 0 ? 400'000 : 700));
      group.parameters.push_back({std::to_string(i),
                                  random() % 3 ? DType::kBf16 : DType::kF32,
                                  {elements},
                                  {},
                                  random() % 3 == 0});
    }
  }
  return groups;
}

TEST(Partition, KeepsDTypesOfAGroupInSectionsOfTheirOwn) {
  const std::vector<GroupShape> groups = {
      {{{"a", DType::kBf16, {10}, {}}, {"b", DType::kF32, {3}, {}}, {"c", DType::kBf16, {5}, {}}}}};
  const Partition p = make_partition(groups, kBlockElements, 0, 1);
  ASSERT_EQ(p.sections.size(), 2u);
  EXPECT_EQ(p.parameters[0].section, p.parameters[2].section);
  EXPECT_NE(p.parameters[0].section, p.parameters[1].section);
  EXPECT_EQ(p.parameters[2].first_element, 256u);
  EXPECT_EQ(p.sections[0].elements, 261u);
  EXPECT_EQ(p.sections[0].buffer_elements, 2048u);
}

// A group's buffer of a dtype has its trained parameters first: tiles have all or none of them.
TEST(Partition, KeepsFrozenParametersInASectionBehindTheTrainedOnes) {
  const std::vector<GroupShape> groups = {{{{"a", DType::kBf16, {3000}, {}, true},
                                            {"b", DType::kF32, {3}, {}, true},
                                            {"c", DType::kBf16, {5000}, {}},
                                            {"d", DType::kBf16, {7}, {}, true},
                                            {"e", DType::kBf16, {300}, {}}}}};
  for (const std::uint32_t world : {1u, 2u}) {
    const Partition p = make_partition(groups, kBlockElements, 0, world);
    ASSERT_EQ(p.sections.size(), 3u);
    for (const Section& section : p.sections) {
      for (const std::uint32_t i : section.parameters)
        EXPECT_EQ(groups[0].parameters[i].frozen, section.frozen);
    }
    const std::uint64_t trained = p.sections[0].buffer_elements;
    EXPECT_EQ(p.first_in_buffer(p.parameters[2]), 0u);
    EXPECT_EQ(p.first_in_buffer(p.parameters[4]), 5120u);
    EXPECT_EQ(p.first_in_buffer(p.parameters[0]), trained);
    EXPECT_EQ(p.first_in_buffer(p.parameters[3]), trained + 3072);
    EXPECT_EQ(p.first_in_buffer(p.parameters[1]), 0u);
    EXPECT_EQ(p.buffer_elements(0, DType::kBf16), trained + p.sections[1].buffer_elements);
    EXPECT_EQ(p.buffer_elements(0, DType::kF32), p.sections[2].buffer_elements);
    EXPECT_EQ(p.buffer_elements(0, DType::kF16), 0u);
  }
}

TEST(Partition, CutsTheLastTileAtWhatIsUsed) {
  const std::vector<GroupShape> groups = {{{{"a", DType::kBf16, {3 * 65536 + 1}, {}}}}};
  const Partition p = make_partition(groups, 2 * kBlockElements, 0, 1);
  ASSERT_EQ(p.tiles.size(), 2u);
  EXPECT_EQ(p.tiles[0].elements, 2 * kBlockElements);
  EXPECT_EQ(p.tiles[1].elements, kBlockElements + kUsedAlignment);
  EXPECT_EQ(p.parameters[0].pieces, 4u);
}

// Every element of every parameter lies in exactly one segment of exactly one rank's tile;
// parameters are aligned and do not overlap; the pieces are the blocks touched.
TEST(Partition, CoversEveryElementOnceOnAnyNumberOfRanks) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    const auto groups = random_groups(random);
    const std::uint64_t tile = kBlockElements * (1 + random() % 3);
    const auto world = static_cast<std::uint32_t>(1 + random() % 4);
    std::vector<std::uint64_t> covered;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const Partition p = make_partition(groups, tile, rank, world);
      covered.resize(p.parameters.size());
      for (const Tile& t : p.tiles) {
        EXPECT_LE(t.elements, tile);
        EXPECT_EQ(t.elements % kUsedAlignment, 0u);
        EXPECT_GT(t.segments, 0u);
        const Section& section = p.sections[t.section];
        EXPECT_GE(t.first_element, p.shard_first_element(section));
        EXPECT_LE(t.first_element + t.elements,
                  p.shard_first_element(section) + section.shard_elements);
        std::uint64_t end = 0;
        for (const Segment& s : p.segments_of(t)) {
          EXPECT_GE(s.first_element, end);
          end = s.first_element + s.elements;
          EXPECT_LE(end, t.elements);
          covered[s.parameter] += s.elements;
        }
      }
    }
    const Partition p = make_partition(groups, tile, 0, world);
    std::uint64_t pieces = 0;
    for (std::size_t i = 0; i < p.parameters.size(); ++i) {
      const Parameter& parameter = p.parameters[i];
      EXPECT_EQ(covered[i], parameter.elements);
      EXPECT_EQ(parameter.first_element % kParameterAlignment, 0u);
      EXPECT_EQ(parameter.first_piece, pieces);
      pieces += parameter.pieces;
    }
    EXPECT_EQ(p.pieces, pieces);
  }
}

TEST(Partition, PlacesParametersAlikeForEveryTileSizeAndRank) {
  std::mt19937_64 random(7);
  const auto groups = random_groups(random);
  const Partition a = make_partition(groups, kBlockElements, 0, 3);
  const Partition b = make_partition(groups, 4 * kBlockElements, 2, 3);
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_EQ(a.parameters[i].first_element, b.parameters[i].first_element);
    EXPECT_EQ(a.parameters[i].first_piece, b.parameters[i].first_piece);
  }
}
}  // namespace
}  // namespace headrace::partition
