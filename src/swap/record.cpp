// SPDX-License-Identifier: Apache-2.0
#include "swap/record.hpp"

#include <bit>
#include <cstdio>
#include <cstring>

#include "base/check.hpp"
#include "kernels/hash.hpp"

namespace headrace::swap {
static_assert(std::endian::native == std::endian::little, "records are little-endian on disk");
static_assert(sizeof(RecordHeader) == kHeaderBytes &&
              offsetof(RecordHeader, header_checksum) == 4088);

namespace {
std::uint64_t checksum_of(const RecordHeader& header) noexcept {
  return kernels::xxh3_64(
      std::as_bytes(std::span(&header, 1)).first(offsetof(RecordHeader, header_checksum)), 0);
}

std::string hex(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

std::string hex(std::uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

std::string differs(const char* what, std::uint64_t found, std::uint64_t expected) {
  return std::string(what) + " " + std::to_string(found) + " where " + std::to_string(expected) +
         " belongs";
}
}  // namespace

std::string run_id_text(const RunBytes& run) { return hex(run); }

std::uint64_t checksum_seed(const RecordIdentity& identity, std::uint32_t stream) noexcept {
  struct {
    RunBytes run;
    std::uint64_t record, generation, stream;
  } const key{identity.run, identity.record, identity.generation, stream};
  static_assert(sizeof key == 40);
  return kernels::xxh3_64(std::as_bytes(std::span(&key, 1)), 0);
}

std::uint64_t chunk_bytes(const RecordHeader& header, const StreamEntry& stream) noexcept {
  return stream.size_bytes * kChunkElements / header.elements;
}

ChunkPlace chunk_place(const RecordHeader& header, const StreamEntry& stream,
                       std::uint32_t chunk) noexcept {
  const std::uint64_t whole = chunk_bytes(header, stream);
  const std::uint64_t offset = std::min(chunk * whole, stream.size_bytes);
  return {offset, std::min(whole, stream.size_bytes - offset)};
}

void begin_header(RecordHeader& header, const RecordIdentity& identity, std::uint64_t elements,
                  std::span<const StreamEntry> streams, std::uint64_t records_in_file) noexcept {
  HEADRACE_CHECK(streams.size() <= kMaxStreams, "a record has at most 8 streams");
  std::memcpy(header.magic, kRecordMagic, sizeof kRecordMagic);
  header.version = kRecordVersion;
  header.header_bytes = static_cast<std::uint32_t>(kHeaderBytes);
  header.run = identity.run;
  header.record = identity.record;
  header.generation = identity.generation;
  header.slot = identity.slot;
  header.streams = static_cast<std::uint32_t>(streams.size());
  header.elements = elements;
  header.records_in_file = records_in_file;
  std::uint32_t checksums = 0;
  for (std::size_t i = 0; i < kMaxStreams; ++i) {
    header.stream[i] = i < streams.size() ? streams[i] : StreamEntry{};
    const StreamEntry& entry = header.stream[i];
    const std::uint64_t end = std::uint64_t{entry.first_checksum} + entry.checksums;
    HEADRACE_CHECK(end <= kMaxChecksums, "a record has at most 448 checksums");
    if (end > checksums) checksums = static_cast<std::uint32_t>(end);
  }
  // Those in use are the update workers'; what nobody writes must not be what the slot held before.
  for (std::uint32_t i = checksums; i < kMaxChecksums; ++i) header.checksum[i] = 0;
  std::memset(header.reserved, 0, sizeof header.reserved);
}

void finish_header(RecordHeader& header) noexcept { header.header_checksum = checksum_of(header); }

std::string header_fault(const RecordHeader& header, const RecordIdentity& expected) {
  if (std::memcmp(header.magic, kRecordMagic, sizeof kRecordMagic) != 0) {
    return "magic bytes " +
           hex({reinterpret_cast<const std::uint8_t*>(header.magic), sizeof header.magic}) +
           " where 'hrrecord' belongs: no record was ever written here, or it was overwritten";
  }
  // Before the checksum: another version may compute it otherwise.
  if (header.version != kRecordVersion)
    return differs("record version", header.version, kRecordVersion);
  if (const std::uint64_t computed = checksum_of(header); computed != header.header_checksum) {
    return "header checksum " + hex(header.header_checksum) + " where " + hex(computed) +
           " belongs: bytes of the header changed after they were written";
  }
  if (header.header_bytes != kHeaderBytes)
    return differs("header size", header.header_bytes, kHeaderBytes);
  if (header.run != expected.run) {
    return "run " + run_id_text(header.run) + " where " + run_id_text(expected.run) + " belongs";
  }
  if (header.record != expected.record) return differs("record", header.record, expected.record);
  if (header.generation != expected.generation) {
    return "generation " + std::to_string(header.generation) + " where " +
           std::to_string(expected.generation) + " was written last";
  }
  if (header.slot != expected.slot) return differs("slot", header.slot, expected.slot);
  if (header.elements == 0) return "0 elements";
  if (header.streams > kMaxStreams) return differs("stream count", header.streams, kMaxStreams);
  return "";
}
}  // namespace headrace::swap
