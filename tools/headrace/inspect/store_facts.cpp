// SPDX-License-Identifier: Apache-2.0
#include "inspect/store_facts.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "swap/store_format.hpp"

namespace headrace::tools {
namespace {
constexpr int kOpeningShift = 40;  // docs/swap_file.md
constexpr int kLooksAtRecord = 20;
constexpr std::chrono::milliseconds kBetweenLooks{5};

std::string head_fault(const swap::StoreHead& head, std::uint64_t file_bytes) {
  if (std::string fault = swap::fault_of(head); !fault.empty()) return fault;
  if (!swap::is_possible_size(head.commit_bytes) ||
      swap::first_slot_offset(head.commit_bytes, head.registration_bytes) > file_bytes)
    return "its header has an impossible size, or the file was cut off";
  return {};
}

void read_whole(FileWindow& file, std::uint64_t offset, std::span<std::byte> to) {
  for (std::uint64_t done = 0; done < to.size();) {
    const std::uint64_t size = std::min<std::uint64_t>(FileWindow::kBytes, to.size() - done);
    std::ranges::copy(file.at(offset + done, size), to.begin() + static_cast<std::ptrdiff_t>(done));
    done += size;
  }
}

void take_tiles(StoreFacts& facts, const swap::CommitRecord& record) {
  const auto tiles = record.tiles();
  facts.tiles_of_rank = tiles.size();
  facts.tiles.clear();
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    const swap::CommitTile& tile = tiles[t];
    if (tile.drive != facts.drive) continue;
    StoreTile& to = facts.tiles.emplace_back();
    to.tile = t;
    to.generation = tile.generation;
    to.slot = tile.slot & 1;
    to.frozen = tile.record_offset[to.slot] == 0;
    std::ranges::copy(tile.record_offset, to.record_offset);
    std::ranges::copy(tile.weight_offset, to.weight_offset);
  }
}

void take_record(StoreFacts& facts, const swap::CommitRecord& record) {
  const swap::CommitHead& head = record.head();
  facts.commit = head.root;
  facts.epoch = head.epoch;
  facts.opening = head.incarnation;
  facts.steps = head.steps;
  facts.skipped = head.skipped;
  facts.trainer_state_bytes = head.trainer_state_used;
  take_tiles(facts, record);
}

// One that an engine is writing just now is whole soon after.
swap::CommitRecord read_record(FileWindow& file, std::uint64_t offset, std::span<std::byte> memory,
                               const swap::RunBytes& store, std::string& fault) {
  for (int look = 1;; ++look) {
    read_whole(file, offset, memory);
    const auto record = swap::CommitRecord::read(memory, store, fault);
    if (fault.empty() || fault == swap::kEmptyPlace || look == kLooksAtRecord) return record;
    std::this_thread::sleep_for(kBetweenLooks);
    file.forget();
  }
}

// As CommitRing::read_newest() judges: a first commit that did not end is no damage. `made`: the
// record of the store's making is there.
void judge_ring(StoreFacts& facts, bool made) {
  if (facts.commit != 0) return;
  const auto is_first = [&](const StoreFacts::Torn& torn) {
    const std::uint64_t place = (torn.offset_bytes - swap::kStoreHeadBytes) / facts.place_bytes;
    return place / swap::kCopies == swap::kFirstCommitRoot % swap::kRoots;
  };
  if (made && std::ranges::all_of(facts.torn, is_first)) return;
  const bool wiped = facts.torn.empty();
  facts.damage_offset = wiped ? swap::kStoreHeadBytes : facts.torn.front().offset_bytes;
  facts.damage = wiped ? "no commit record is left: there are zeros where the ring was"
                       : "no commit record is whole: " + facts.torn.front().fault;
}
}  // namespace

bool is_store_file(const std::string& path, FileWindow& file) {
  if (path.ends_with(".store")) return true;
  if (file.size_bytes() < swap::kStoreHeadBytes) return false;
  const auto begin = file.at(0, sizeof swap::kStoreMagic);
  return std::memcmp(begin.data(), swap::kStoreMagic, sizeof swap::kStoreMagic) == 0;
}

StoreFacts read_store(FileWindow& file) {
  StoreFacts facts;
  swap::StoreHead head{};
  if (file.size_bytes() >= swap::kStoreHeadBytes)
    std::memcpy(&head, file.at(0, sizeof head).data(), sizeof head);
  facts.damage = head_fault(head, file.size_bytes());
  if (!facts.damage.empty()) return facts;
  facts.id = head.store;
  facts.rank = head.rank;
  facts.ranks = head.world_size;
  facts.drive = head.drive;
  facts.drives = head.drives;
  facts.place_bytes = head.commit_bytes;
  std::vector<std::uint64_t> memory(head.commit_bytes / sizeof(std::uint64_t));
  bool made = false;
  for (std::uint32_t place = 0; place < swap::kRingPlaces; ++place) {
    const std::uint64_t offset = swap::kStoreHeadBytes + place * head.commit_bytes;
    std::string fault;
    const auto record =
        read_record(file, offset, std::as_writable_bytes(std::span(memory)), head.store, fault);
    if (fault.empty() && record.head().epoch == 0) {
      made = true;
    } else if (fault.empty() && record.head().root > facts.commit) {
      take_record(facts, record);
    }
    if (!fault.empty() && fault != swap::kEmptyPlace) facts.torn.push_back({offset, fault});
  }
  judge_ring(facts, made);
  file.forget();
  return facts;
}

std::string generation_text(std::uint64_t generation) {
  return std::to_string(generation & ((std::uint64_t{1} << kOpeningShift) - 1)) + " of opening " +
         std::to_string(generation >> kOpeningShift);
}
}  // namespace headrace::tools
