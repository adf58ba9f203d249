// SPDX-License-Identifier: Apache-2.0
// swap_inspection.hpp: lists the records of a swap file, found by their headers alone, or of a
// store's file, found by its newest commit record, and checks them chunk by chunk
// (docs/swap_file.md). Reads; never writes, locks or waits.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "inspect/store_facts.hpp"

namespace headrace::tools {
// One place where the bytes are not those that were written.
struct Damage {
  std::uint64_t offset_bytes = 0;  // of the chunk or header, in the file
  std::uint64_t record = 0;
  std::uint64_t generation = 0;
  std::string what;  // "stream exp_avg, chunk 2: checksum 12.. where 34.. belongs"
};

struct StreamTotals {
  std::uint64_t streams = 0;
  std::uint64_t size_bytes = 0;
};

struct SwapInspection {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::map<std::string, std::uint64_t> runs;  // run id: its records in this file
  std::uint64_t records = 0;
  std::uint64_t records_in_file = 0;   // as their headers say; 0: they do not
  std::uint64_t lost_records = 0;      // of which no header was found, whole or damaged
  std::uint64_t superseded = 0;        // an older write of a record that has a newer one
  std::vector<std::uint64_t> numbers;  // of the records, ascending
  std::uint64_t first_generation = 0, last_generation = 0;
  std::map<std::string, StreamTotals> streams;  // by name, "exp_avg"
  std::uint64_t verified_bytes = 0;
  std::uint64_t unchecked_bytes = 0;  // written with checksums off
  std::uint64_t damaged = 0;          // places in all
  std::vector<Damage> damage;         // the first kDamageKept of them
  std::optional<StoreFacts> store;    // of a store's file
};
inline constexpr std::size_t kDamageKept = 100;

// Told how many bytes of the file were looked at.
using InspectionProgress = std::function<void(std::uint64_t done_bytes)>;

// Cost: reads the file about twice; a few MiB of memory. Throws headrace::Error
// naming the file: kNotFound, kInvalidArgument when it cannot be opened, kIo when it cannot be
// read.
SwapInspection inspect_swap_file(const std::string& path, const InspectionProgress& progress);

// Swap files and files of stores at `path`: itself, or those in the directory of a run or store, in
// a user's, or in an nvme_path.
// Sorted; symbolic links are not followed. Throws kNotFound, kIo, kInvalidArgument.
std::vector<std::string> find_swap_files(const std::string& path);
}  // namespace headrace::tools
