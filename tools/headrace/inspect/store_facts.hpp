// SPDX-License-Identifier: Apache-2.0
// store_facts.hpp: what the header and the newest commit record of a store's file say
// (docs/swap_file.md, "Stores").
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "inspect/file_window.hpp"
#include "swap/record.hpp"

namespace headrace::tools {
// A tile of the newest commit, in this file. A frozen one has one slot, and a weight alone.
struct StoreTile {
  std::uint64_t tile = 0, generation = 0;
  std::uint32_t slot = 0;  // which of both belongs to the commit
  bool frozen = false;
  std::uint64_t record_offset[2] = {}, weight_offset[2] = {};
};

struct StoreFacts {
  swap::RunBytes id{};
  std::uint32_t rank = 0, ranks = 0, drive = 0, drives = 0;
  std::uint64_t place_bytes = 0;        // of the ring
  std::uint64_t commit = 0;             // the number of the newest whole record; 0: no commit
  std::uint64_t commits_meanwhile = 0;  // that an engine made while the file was looked at
  std::uint64_t unsettled_tiles = 0;    // written anew at every look: not verified
  std::uint64_t epoch = 0, opening = 0, steps = 0, skipped = 0, trainer_state_bytes = 0;
  std::uint64_t tiles_of_rank = 0;
  std::vector<StoreTile> tiles;
  struct Torn {
    std::uint64_t offset_bytes = 0;
    std::string fault;
  };
  std::vector<Torn> torn;  // places of the ring without a whole record that were written
  // Why nothing more is known; empty: it is.
  std::uint64_t damage_offset = 0;
  std::string damage;
};
// Whether it begins as one, or has the name of one.
bool is_store_file(const std::string& path, FileWindow& file);
// Of a store in use too: a record that is being written is read again. Leaves the window empty, so
// that slots are read after the record that names them.
StoreFacts read_store(FileWindow& file);

// "4 of opening 1": a store's generations count within an opening.
std::string generation_text(std::uint64_t generation);
}  // namespace headrace::tools
