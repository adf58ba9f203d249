// SPDX-License-Identifier: Apache-2.0
// store_format.hpp: the bytes of a store file other than its slots: the file's header, the ring of
// commit records, and the record itself. docs/swap_file.md lists them byte by byte.
//
//   0            StoreHead, 4 KiB, written once
//   4096         ring: six places of `commit_bytes`
//   after that   the registration (store_registration.hpp), written once
//   after that   slots of tiles, and one spare extent
//
// A commit record (root) says which slot of every tile belongs to an epoch, and holds all that is
// small: step counts, hyperparameters, the trainer's own state. It is whole in itself: whoever
// reads one needs no other. Root n lies in places 2 (n mod 3) and 2 (n mod 3) + 1 of every drive,
// so the two roots before it stay untouched while it is written. Root 7 goes to places 2 and 3;
// roots 6 and 5 lie in 0, 1 and 4, 5. A root is written only when all bytes that it names are
// synced on all drives, so one whole copy on any drive proves them.
//
// Each opening has a random number. A root names that of its own, the writer, and that of the root
// before it, the parent, if all drives had that one when this was begun: a commit waits for it, and
// an opening finds it unless a crash cut the last root off. So where a parent is named, a drive
// with an older root in that place has the file of another copy of the store. Two copies that were
// opened apart differ in their first roots.
//
// Root 1 is written when the store is made, before its files have their names. It is of epoch 0,
// which is nobody's state. So a ring without any root was wiped: it is none of a new store.
//
// Roots count the records of one rank, epochs the commits of all. They part when a store is opened:
// the epoch that is taken over is written again as the next root. A rank that was one epoch ahead
// of another goes back. Root 7 of rank 0 is epoch 7, root 6 of rank 1 epoch 6; opened again, both
// have epoch 6, as root 8 and as root 7.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/units.hpp"
#include "headrace/optimizer.hpp"
#include "swap/extents.hpp"
#include "swap/record.hpp"

namespace headrace::swap {
inline constexpr char kStoreMagic[8] = {'h', 'r', 's', 't', 'o', 'r', 'e', '\0'};
inline constexpr char kCommitMagic[8] = {'h', 'r', 'c', 'o', 'm', 'm', 'i', 't'};
inline constexpr std::uint32_t kStoreVersion = 4;
inline constexpr std::uint64_t kStoreHeadBytes = 4096;
inline constexpr std::uint32_t kRoots = 3, kCopies = 2;
inline constexpr std::uint32_t kRingPlaces = kRoots * kCopies;
// The root that is written when the store is made, and that of the first commit.
inline constexpr std::uint64_t kRootOfMaking = 1, kFirstCommitRoot = 2;

// Of a file: whose it is, and how its ring is cut. Little-endian, as everything here.
struct StoreHead {
  char magic[8];
  std::uint32_t version;
  std::uint32_t head_bytes;  // kStoreHeadBytes
  RunBytes store;            // the store's id, the same in all its files
  std::uint32_t rank, world_size, drive, drives;
  std::uint64_t commit_bytes;        // of one place of the ring
  std::uint64_t registration_bytes;  // whole pages
  std::uint64_t reserved[7];
  std::uint64_t checksum;  // of all bytes before it
};
StoreHead make_store_head(const RunBytes& store, std::uint32_t rank, std::uint32_t world_size,
                          std::uint32_t drive, std::uint32_t drives, std::uint64_t commit_bytes,
                          std::uint64_t registration_bytes);
// Empty if it is whole; else what is wrong.
std::string fault_of(const StoreHead& head);

// Whether a header may name a place of the ring, or a registration, of this size. The limit keeps
// a damaged one from asking for any memory.
constexpr bool is_possible_size(std::uint64_t bytes) noexcept {
  return bytes > 0 && bytes <= 256 * base::kMiB && bytes % base::kIoAlignment == 0;
}

constexpr std::uint64_t registration_offset(std::uint64_t commit_bytes) noexcept {
  return kStoreHeadBytes + kRingPlaces * commit_bytes;
}
constexpr std::uint64_t first_slot_offset(std::uint64_t commit_bytes,
                                          std::uint64_t registration_bytes) noexcept {
  return registration_offset(commit_bytes) + registration_bytes;
}
// Where a copy of a root lies on a drive.
constexpr Extent place_of(std::uint64_t root, std::uint32_t copy, std::uint32_t drive,
                          std::uint64_t commit_bytes) noexcept {
  return {drive, kStoreHeadBytes + (kCopies * (root % kRoots) + copy) * commit_bytes, commit_bytes};
}

// How much a commit record holds of each kind. Fixed for the life of a store.
struct CommitCounts {
  std::uint32_t tiles = 0, parameters = 0, hyperparameter_sets = 0, terms_bytes = 0;
  std::uint64_t weight_checksums = 0, trainer_state_bytes = 0;
  friend bool operator==(const CommitCounts&, const CommitCounts&) = default;
};

struct CommitHead {
  char magic[8];
  std::uint32_t version;
  std::uint32_t head_bytes;
  RunBytes store;
  std::uint64_t root;         // counts commit records of this rank; 1 is that of the making
  std::uint64_t epoch;        // counts commits of all ranks: the same state on each; 0: no commit
  std::uint64_t incarnation;  // counts openings of the store; part of every generation
  std::uint64_t steps, skipped;
  CommitCounts counts;
  std::uint64_t trainer_state_used;  // of counts.trainer_state_bytes
  std::uint64_t total_bytes;         // of the record, without the rest of its place
  std::uint64_t opening;             // random, of the opening in which the epoch was committed
  std::uint64_t writer;              // random, of the opening in which this record was written
  std::uint64_t parent;              // the writer of the record before, if all drives had that
  std::uint64_t reserved[2];
  std::uint64_t checksum;  // of all other bytes of the record
};
static_assert(sizeof(CommitHead) % 8 == 0);

// Where a tile is: both slots, and which of them belongs to this epoch. Offsets of what a tile does
// not have are 0.
struct CommitTile {
  std::uint64_t generation;
  std::uint64_t weight_offset[2], record_offset[2];
  std::uint32_t drive;
  std::uint32_t slot;
};

// A hyperparameter set, as it was registered and as it is now.
struct CommitHyperparameters {
  struct Values {
    std::uint32_t floats[8];  // their bits
    std::uint32_t flags;
    friend bool operator==(const Values&, const Values&) = default;
  };
  Values registered, present;
};
CommitHyperparameters::Values packed(const Hyperparameters& values) noexcept;
Hyperparameters unpacked(const CommitHyperparameters::Values& values) noexcept;

// A commit record in memory that belongs to the caller.
class CommitRecord {
 public:
  static std::uint64_t total_bytes(const CommitCounts& counts) noexcept;
  // The size of a place of the ring: whole pages.
  static std::uint64_t place_bytes(const CommitCounts& counts) noexcept {
    return base::align_up(total_bytes(counts), base::kIoAlignment);
  }
  // `memory`: place_bytes(counts), aligned. An empty record of these counts.
  static CommitRecord make(std::span<std::byte> memory, const CommitCounts& counts,
                           const RunBytes& store);
  // The record that lies in `memory`; `fault` says why there is none, and "empty" if there are only
  // zeros.
  static CommitRecord read(std::span<std::byte> memory, const RunBytes& store, std::string& fault);

  CommitHead& head() const noexcept { return *reinterpret_cast<CommitHead*>(memory_.data()); }
  std::span<CommitTile> tiles() const noexcept;
  std::span<std::uint64_t> weight_checksums() const noexcept;
  std::span<std::uint64_t> step_counts() const noexcept;       // per parameter
  std::span<std::uint64_t> parameter_prints() const noexcept;  // hashes of name, shape, dtype ...
  std::span<CommitHyperparameters> hyperparameters() const noexcept;
  std::span<char> terms() const noexcept;  // "key value" lines that a run must share
  std::span<std::byte> trainer_state() const noexcept;
  // Completes the record with its checksum.
  void seal() const noexcept;
  // A hash of what is the same on every rank.
  std::uint64_t shared_print() const noexcept;
  // The whole place, for a transfer.
  std::span<std::byte> place() const noexcept { return memory_; }

 private:
  explicit CommitRecord(std::span<std::byte> memory) : memory_(memory) {}
  // The parts in their order, each at a multiple of 8 bytes.
  enum Part { kTiles, kChecksums, kSteps, kPrints, kSets, kTerms, kState, kEnd };
  static std::uint64_t offset_of(const CommitCounts& counts, Part part) noexcept;
  template <class T>
  std::span<T> part(Part which, std::uint64_t count) const noexcept {
    return {reinterpret_cast<T*>(memory_.data() + offset_of(head().counts, which)),
            static_cast<std::size_t>(count)};
  }
  std::uint64_t checksum() const noexcept;

  std::span<std::byte> memory_;
};
inline constexpr const char* kEmptyPlace = "empty";
}  // namespace headrace::swap
