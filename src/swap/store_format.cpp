// SPDX-License-Identifier: Apache-2.0
#include "swap/store_format.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.hpp"
#include "kernels/hash.hpp"

namespace headrace::swap {
namespace {
template <class T>
std::span<const std::byte> bytes_before(const T& object, const std::uint64_t& field) {
  const auto* const begin = reinterpret_cast<const std::byte*>(&object);
  return {begin, static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&field) - begin)};
}
}  // namespace

StoreHead make_store_head(const RunBytes& store, std::uint32_t rank, std::uint32_t world_size,
                          std::uint32_t drive, std::uint32_t drives, std::uint64_t commit_bytes,
                          std::uint64_t registration_bytes) {
  StoreHead head{};
  std::memcpy(head.magic, kStoreMagic, sizeof head.magic);
  head.version = kStoreVersion;
  head.head_bytes = kStoreHeadBytes;
  head.store = store;
  head.rank = rank;
  head.world_size = world_size;
  head.drive = drive;
  head.drives = drives;
  head.commit_bytes = commit_bytes;
  head.registration_bytes = registration_bytes;
  head.checksum = kernels::xxh3_64(bytes_before(head, head.checksum), 0);
  return head;
}

std::string fault_of(const StoreHead& head) {
  if (std::memcmp(head.magic, kStoreMagic, sizeof head.magic) != 0)
    return "it does not begin with a store's header";
  if (head.version != kStoreVersion) {
    return "its format is version " + std::to_string(head.version) +
           ", and this build reads version " + std::to_string(kStoreVersion);
  }
  if (head.checksum != kernels::xxh3_64(bytes_before(head, head.checksum), 0))
    return "its header's checksum differs";
  return {};
}

CommitHyperparameters::Values packed(const Hyperparameters& values) noexcept {
  // Named one and all: with a new one this does not compile.
  const auto& [scale, beta1, beta2, eps, weight_decay, momentum, dampening, rate_decay, nesterov,
               bias_correction, maximize] = values;
  CommitHyperparameters::Values out{};
  std::ranges::transform(
      std::array{scale, beta1, beta2, eps, weight_decay, momentum, dampening, rate_decay},
      out.floats, [](float value) { return std::bit_cast<std::uint32_t>(value); });
  out.flags = (nesterov ? 1u : 0u) | (bias_correction ? 2u : 0u) | (maximize ? 4u : 0u);
  return out;
}

Hyperparameters unpacked(const CommitHyperparameters::Values& values) noexcept {
  Hyperparameters out;
  auto& [scale, beta1, beta2, eps, weight_decay, momentum, dampening, rate_decay, nesterov,
         bias_correction, maximize] = out;
  std::size_t at = 0;
  for (float* const field :
       {&scale, &beta1, &beta2, &eps, &weight_decay, &momentum, &dampening, &rate_decay})
    *field = std::bit_cast<float>(values.floats[at++]);
  nesterov = (values.flags & 1) != 0;
  bias_correction = (values.flags & 2) != 0;
  maximize = (values.flags & 4) != 0;
  return out;
}

std::uint64_t CommitRecord::offset_of(const CommitCounts& counts, Part part) noexcept {
  const std::uint64_t bytes[kEnd] = {
      counts.tiles * sizeof(CommitTile),
      counts.weight_checksums * sizeof(std::uint64_t),
      counts.parameters * sizeof(std::uint64_t),
      counts.parameters * sizeof(std::uint64_t),
      counts.hyperparameter_sets * sizeof(CommitHyperparameters),
      counts.terms_bytes,
      counts.trainer_state_bytes,
  };
  std::uint64_t at = sizeof(CommitHead);
  for (int before = 0; before < part; ++before) at += base::align_up(bytes[before], 8);
  return at;
}

std::uint64_t CommitRecord::total_bytes(const CommitCounts& counts) noexcept {
  return offset_of(counts, kEnd);
}

CommitRecord CommitRecord::make(std::span<std::byte> memory, const CommitCounts& counts,
                                const RunBytes& store) {
  HEADRACE_CHECK(memory.size() >= place_bytes(counts), "the plan sized the commit record");
  std::ranges::fill(memory, std::byte{0});
  CommitRecord record(memory);
  CommitHead& head = record.head();
  std::memcpy(head.magic, kCommitMagic, sizeof head.magic);
  head.version = kStoreVersion;
  head.head_bytes = sizeof(CommitHead);
  head.store = store;
  head.counts = counts;
  head.total_bytes = total_bytes(counts);
  return record;
}

CommitRecord CommitRecord::read(std::span<std::byte> memory, const RunBytes& store,
                                std::string& fault) {
  CommitRecord record(memory);
  const CommitHead& head = record.head();
  fault.clear();
  if (std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{0}; })) {
    fault = kEmptyPlace;
  } else if (std::memcmp(head.magic, kCommitMagic, sizeof head.magic) != 0) {
    fault = "it does not begin as a commit record";
  } else if (head.version != kStoreVersion || head.head_bytes != sizeof(CommitHead)) {
    fault = "its format is version " + std::to_string(head.version);
  } else if (head.counts.weight_checksums > memory.size() ||
             head.counts.trainer_state_bytes > memory.size() || head.total_bytes > memory.size() ||
             head.total_bytes != total_bytes(head.counts) ||
             head.trainer_state_used > head.counts.trainer_state_bytes) {
    fault = "its sizes contradict each other";
  } else if (head.checksum != record.checksum()) {
    fault = "its checksum differs";
  } else if (head.store != store) {
    fault = "it is of another store";
  }
  return record;
}

std::span<CommitTile> CommitRecord::tiles() const noexcept {
  return part<CommitTile>(kTiles, head().counts.tiles);
}
std::span<std::uint64_t> CommitRecord::weight_checksums() const noexcept {
  return part<std::uint64_t>(kChecksums, head().counts.weight_checksums);
}
std::span<std::uint64_t> CommitRecord::step_counts() const noexcept {
  return part<std::uint64_t>(kSteps, head().counts.parameters);
}
std::span<std::uint64_t> CommitRecord::parameter_prints() const noexcept {
  return part<std::uint64_t>(kPrints, head().counts.parameters);
}
std::span<CommitHyperparameters> CommitRecord::hyperparameters() const noexcept {
  return part<CommitHyperparameters>(kSets, head().counts.hyperparameter_sets);
}
std::span<char> CommitRecord::terms() const noexcept {
  return part<char>(kTerms, head().counts.terms_bytes);
}
std::span<std::byte> CommitRecord::trainer_state() const noexcept {
  return part<std::byte>(kState, head().counts.trainer_state_bytes);
}

// The head up to its checksum is the seed of the rest.
std::uint64_t CommitRecord::checksum() const noexcept {
  const std::uint64_t of_head = kernels::xxh3_64(bytes_before(head(), head().checksum), 0);
  return kernels::xxh3_64(
      memory_.subspan(sizeof(CommitHead), head().total_bytes - sizeof(CommitHead)), of_head);
}

void CommitRecord::seal() const noexcept { head().checksum = checksum(); }

std::uint64_t CommitRecord::shared_print() const noexcept {
  std::uint64_t hash = kernels::xxh3_64(std::as_bytes(step_counts()), head().epoch);
  hash = kernels::xxh3_64(std::as_bytes(hyperparameters()), hash);
  return hash + head().skipped + head().opening;
}
}  // namespace headrace::swap
