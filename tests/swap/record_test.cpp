// SPDX-License-Identifier: Apache-2.0
#include "swap/record.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <set>

#include "kernels/hash.hpp"

namespace headrace::swap {
namespace {
RecordIdentity identity() {
  RecordIdentity it;
  for (std::size_t i = 0; i < it.run.size(); ++i) it.run[i] = static_cast<std::uint8_t>(0xa0 + i);
  it.record = 17;
  it.generation = 7;
  it.slot = 0;
  return it;
}

std::unique_ptr<RecordHeader> header_of(const RecordIdentity& it) {
  auto header = std::make_unique<RecordHeader>();
  std::memset(static_cast<void*>(header.get()), 0xee, sizeof *header);
  const StreamEntry streams[] = {
      {.name = "residual",
       .codec = "u16",
       .offset_bytes = 4096,
       .size_bytes = 2 << 20,
       .checksums = 8},
      {.name = "exp_avg",
       .codec = "f32",
       .offset_bytes = 4096 + (2 << 20),
       .size_bytes = 4 << 20,
       .first_checksum = 8,
       .checksums = 8},
      {.name = "weight",
       .codec = "bf16",
       .offset_bytes = kElsewhere | 8192,
       .size_bytes = 2 << 20,
       .first_checksum = 16,
       .checksums = 8},
  };
  for (std::uint32_t i = 0; i < 24; ++i) header->checksum[i] = 1000 + i;
  begin_header(*header, it, 1 << 20, streams, 12);
  finish_header(*header);
  return header;
}

TEST(RecordHeader, AWholeHeaderOfTheExpectedRecordHasNoFault) {
  EXPECT_EQ(header_fault(*header_of(identity()), identity()), "");
}

TEST(RecordHeader, KeepsTheChecksumsInUseAndClearsTheRest) {
  const auto header = header_of(identity());
  for (std::uint32_t i = 0; i < 24; ++i) EXPECT_EQ(header->checksum[i], 1000 + i);
  for (std::uint32_t i = 24; i < kMaxChecksums; ++i) EXPECT_EQ(header->checksum[i], 0u);
  EXPECT_EQ(header->stream[3].name[0], '\0');
  EXPECT_EQ(header->records_in_file, 12u);
  EXPECT_EQ(header->reserved[5], 0u);
}

TEST(RecordHeader, IsLaidOutAsTheDocumentSays) {
  const auto header = header_of(identity());
  const auto* const bytes = reinterpret_cast<const unsigned char*>(header.get());
  EXPECT_EQ(std::memcmp(bytes, "hrrecord", 8), 0);
  EXPECT_EQ(bytes[8], 2);  // version
  EXPECT_EQ(bytes[12] | bytes[13] << 8, 4096);
  EXPECT_EQ(bytes[16], 0xa0);  // run
  EXPECT_EQ(bytes[32], 17);    // record
  EXPECT_EQ(bytes[40], 7);     // generation
  EXPECT_EQ(bytes[48], 0);     // slot
  EXPECT_EQ(bytes[52], 3);     // streams
  EXPECT_EQ(std::memcmp(bytes + 56, "residual\0\0\0\0\0\0\0\0u16\0\0\0\0\0", 24), 0);
  EXPECT_EQ(bytes[80] | bytes[81] << 8, 4096);  // offset of the first stream
  EXPECT_EQ(bytes[96], 0);                      // its first checksum
  EXPECT_EQ(bytes[100], 8);                     // and their number
  EXPECT_EQ(bytes[440] | bytes[441] << 8, 1000);
  std::uint64_t stored = 0;
  std::memcpy(&stored, bytes + 4088, 8);
  EXPECT_EQ(stored, kernels::xxh3_64(std::as_bytes(std::span(bytes, 4088)), 0));
}

TEST(RecordHeader, EverySingleFlippedBitIsDetected) {
  const auto header = header_of(identity());
  auto* const bytes = reinterpret_cast<unsigned char*>(header.get());
  for (std::size_t bit = 0; bit < sizeof(RecordHeader) * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    ASSERT_NE(header_fault(*header, identity()), "") << "bit " << bit;
    bytes[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
  }
  EXPECT_EQ(header_fault(*header, identity()), "");
}

std::string fault(const std::function<void(RecordIdentity&)>& change) {
  RecordIdentity other = identity();
  change(other);
  return header_fault(*header_of(other), identity());
}

TEST(RecordHeader, NamesWhatDiffers) {
  EXPECT_EQ(fault([](RecordIdentity& it) { it.generation = 6; }),
            "generation 6 where 7 was written last");
  EXPECT_NE(fault([](RecordIdentity& it) { it.record = 18; }).find("record 18 where 17"),
            std::string::npos);
  EXPECT_NE(fault([](RecordIdentity& it) { it.slot = 1; }).find("slot 1 where 0"),
            std::string::npos);
  EXPECT_NE(fault([](RecordIdentity& it) { it.run[0] = 1; }).find("run 01a1"), std::string::npos);

  auto header = header_of(identity());
  header->version = 1;
  finish_header(*header);
  EXPECT_NE(header_fault(*header, identity()).find("version 1 where 2"), std::string::npos);

  header = header_of(identity());
  header->checksum[5] ^= 1;
  EXPECT_NE(header_fault(*header, identity()).find("header checksum"), std::string::npos);

  std::memset(static_cast<void*>(header.get()), 0, sizeof *header);
  EXPECT_NE(header_fault(*header, identity()).find("magic"), std::string::npos);

  header = header_of(identity());
  header->streams = 9;
  finish_header(*header);
  EXPECT_NE(header_fault(*header, identity()).find("stream count 9"), std::string::npos);
}

TEST(RecordHeader, SaysHowManyBytesOfEachStreamAChunkHas) {
  const auto header = header_of(identity());
  EXPECT_EQ(chunk_bytes(*header, header->stream[0]), 2 * kChunkElements);
  EXPECT_EQ(chunk_bytes(*header, header->stream[1]), 4 * kChunkElements);
  header->elements -= 5;
  header->stream[1].size_bytes -= 20;
  EXPECT_EQ(chunk_place(*header, header->stream[1], 0).size_bytes, 4 * kChunkElements);
  const ChunkPlace last = chunk_place(*header, header->stream[1], 7);
  EXPECT_EQ(last.offset_bytes, 7 * 4 * kChunkElements);
  EXPECT_EQ(last.size_bytes, 4 * (kChunkElements - 5));
  header->elements += 5;
  StreamEntry scale;
  scale.size_bytes = (1 << 20) / 256;
  EXPECT_EQ(chunk_bytes(*header, scale), kChunkElements / 256);
  header->elements = 0;
  finish_header(*header);
  EXPECT_EQ(header_fault(*header, identity()), "0 elements");
}

TEST(ChecksumSeed, DiffersByRunRecordGenerationAndStream) {
  std::set<std::uint64_t> seeds;
  RecordIdentity it = identity();
  for (std::uint32_t stream = 0; stream < 8; ++stream) seeds.insert(checksum_seed(it, stream));
  ++it.generation;
  seeds.insert(checksum_seed(it, 0));
  ++it.record;
  seeds.insert(checksum_seed(it, 0));
  it.run[15] ^= 1;
  seeds.insert(checksum_seed(it, 0));
  EXPECT_EQ(seeds.size(), 11u);
  EXPECT_EQ(checksum_seed(identity(), 2), checksum_seed(identity(), 2));
}
}  // namespace
}  // namespace headrace::swap
