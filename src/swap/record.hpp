// SPDX-License-Identifier: Apache-2.0
// record.hpp: the 4 KiB header of a record: its writer, its generation, its streams, and a checksum
// for every 131,072 elements of each. docs/swap_file.md lists it byte by byte.
//
// The update workers compute and compare checksums chunk by chunk, during their pass over the data.
// This file only lays them out. All numbers are little-endian.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sizes.hpp"
#include "base/units.hpp"

namespace headrace::swap {
using base::kChunkElements;
inline constexpr std::uint64_t kHeaderBytes = 4 * base::kKiB;
inline constexpr char kRecordMagic[8] = {'h', 'r', 'r', 'e', 'c', 'o', 'r', 'd'};
inline constexpr std::uint32_t kRecordVersion = 2;
inline constexpr std::uint32_t kMaxStreams = 8;
// The stream number in the checksum seeds of a weight in an extent of its own. It has two other
// numbers: the weight is the last entry of a header, and stream 0 of a pass (tile_pass.hpp) and of
// errors, in front of the record's streams.
inline constexpr std::uint32_t kWeightStream = kMaxStreams - 1;
inline constexpr std::uint32_t kMaxChecksums = 448;

using RunBytes = std::array<std::uint8_t, 16>;  // make_run_id() in binary
std::string run_id_text(const RunBytes& run);   // 32 hex digits

struct RecordIdentity {
  RunBytes run{};
  std::uint64_t record = 0;      // number of the tile in the engine
  std::uint64_t generation = 0;  // grows with each write of this record; of a store, never repeats
  std::uint32_t slot = 0;        // always 0; generations tell the two slots of a store apart
};

// One stream as the header lists it.
struct StreamEntry {
  char name[16] = {};              // "residual", "exp_avg", "weight", ... zero-padded
  char codec[8] = {};              // "bf16", "e4m3", "e5m3", "e8m0", "f16", "f32", "u16"
  std::uint64_t offset_bytes = 0;  // from the record's first byte; for a weight elsewhere:
                                   // kElsewhere | the offset of its own extent. In a store the
                                   // commit record's offset counts: a weight that lives in memory
                                   // may be written elsewhere after the header.
  std::uint64_t size_bytes = 0;
  std::uint32_t first_checksum = 0;  // index of its first chunk's checksum
  std::uint32_t checksums = 0;
};
inline constexpr std::uint64_t kElsewhere = std::uint64_t{1} << 63;

struct RecordHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t header_bytes;
  RunBytes run;
  std::uint64_t record;
  std::uint64_t generation;
  std::uint32_t slot;
  std::uint32_t streams;
  StreamEntry stream[kMaxStreams];
  std::uint64_t checksum[kMaxChecksums];
  std::uint64_t elements;         // of the tile
  std::uint64_t records_in_file;  // how many the swap file holds, including this one; 0: unknown
  std::uint64_t reserved[6];
  std::uint64_t header_checksum;  // of all bytes before it, with seed 0
};
static_assert(sizeof(StreamEntry) == 48 && sizeof(RecordHeader) <= kHeaderBytes);

// The seed of a stream's checksums. It detects a chunk of another run, record, generation or
// stream.
std::uint64_t checksum_seed(const RecordIdentity& identity, std::uint32_t stream) noexcept;

// The size of a stream's chunks, except the last one, which may be shorter.
std::uint64_t chunk_bytes(const RecordHeader& header, const StreamEntry& stream) noexcept;
// The bytes of one chunk.
struct ChunkPlace {
  std::uint64_t offset_bytes, size_bytes;  // in its stream
};
ChunkPlace chunk_place(const RecordHeader& header, const StreamEntry& stream,
                       std::uint32_t chunk) noexcept;
constexpr std::uint64_t chunks_of(std::uint64_t elements) noexcept {
  return base::ceil_div(elements, kChunkElements);
}

// Writes everything except the chunk checksums and the header's own checksum.
void begin_header(RecordHeader& header, const RecordIdentity& identity, std::uint64_t elements,
                  std::span<const StreamEntry> streams, std::uint64_t records_in_file) noexcept;
void finish_header(RecordHeader& header) noexcept;
// Empty if the header is whole and matches `expected`; otherwise the difference: "generation 6
// where 7 was written last".
std::string header_fault(const RecordHeader& header, const RecordIdentity& expected);
}  // namespace headrace::swap
