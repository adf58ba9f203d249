// SPDX-License-Identifier: Apache-2.0
// Against published values: swap files and hashes of weights must mean the same on every build.
#include "kernels/hash.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.hpp"

namespace headrace::kernels {
namespace {
std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string hash128(std::string_view text) {
  Hash128 hash;
  hash.update(bytes_of(text));
  return hash.hex();
}

TEST(Hash, Xxh3Of64BitsGivesThePublishedValues) {
  EXPECT_EQ(xxh3_64({}, 0), 0x2d06800538d394c2u);
  EXPECT_EQ(xxh3_64({}, 0x9e3779b185ebca8du), 0xa8a6b918b2f0364au);
  EXPECT_EQ(xxh3_64(bytes_of("a"), 0), 0xe6c632b61e964e1fu);
}

TEST(Hash, Xxh3Of128BitsGivesThePublishedValuesInCanonicalOrder) {
  EXPECT_EQ(Hash128().hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash128(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash128("a"), "a96faf705af16834e6c632b61e964e1f");
}

TEST(Hash, TheSeedMatters) {
  EXPECT_NE(xxh3_64(bytes_of("tile"), 1), xxh3_64(bytes_of("tile"), 2));
}

TEST(Hash, AStreamHashesAsTheWholeHoweverItIsCut) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 7 + i / 251);
  const std::string whole = hash128(text);
  for (const std::size_t cut : {1u, 3u, 64u, 255u, 256u, 257u, 1024u, 4999u}) {
    Hash128 hash;
    for (std::size_t at = 0; at < text.size(); at += cut) {
      hash.update(bytes_of(std::string_view(text).substr(at, cut)));
    }
    EXPECT_EQ(hash.hex(), whole) << cut;
    EXPECT_EQ(hash.hex(), whole) << "asked twice";
  }
}

// Of every set this CPU runs, against the plainest.
TEST(Hash, InstructionSetsGiveTheSameValues) {
  const HashKernels& scalar = hash_kernels_of(Simd::kScalar);
  std::vector<std::byte> bytes((256 << 10) + 64);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte((i * 131 + i / 977) & 0xff);
  for (const Simd set : {Simd::kAvx2, Simd::kAvx512}) {
    if (!runs_here(set)) continue;
    const HashKernels& kernels = hash_kernels_of(set);
    EXPECT_NE(&kernels, &scalar) << name_of(set);
    const auto same = [&](std::size_t size) {
      for (const std::size_t start : {0, 1, 31}) {
        EXPECT_EQ(kernels.xxh3_64(bytes.data() + start, size, size),
                  scalar.xxh3_64(bytes.data() + start, size, size))
            << name_of(set) << ": " << size << " bytes from " << start;
      }
    };
    for (std::size_t size = 0; size <= 1100; ++size) same(size);
    same(256 << 10);
  }
}

TEST(Hash, OneFlippedBitChangesIt) {
  std::vector<std::byte> bytes(256 << 10);
  const std::uint64_t before = xxh3_64(bytes, 9);
  for (const std::size_t at : {std::size_t{0}, std::size_t{100'000}, bytes.size() - 1}) {
    bytes[at] ^= std::byte{4};
    EXPECT_NE(xxh3_64(bytes, 9), before);
    bytes[at] ^= std::byte{4};
  }
  EXPECT_EQ(xxh3_64(bytes, 9), before);
}
}  // namespace
}  // namespace headrace::kernels
