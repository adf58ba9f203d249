// SPDX-License-Identifier: Apache-2.0
#include "engine/freeze_meeting.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "headrace/error.hpp"

namespace headrace::engine {
namespace {
std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }
}  // namespace

void FreezeMeeting::refuse(Code code, const std::string& what) const {
  throw Error(code, "store '" + store_ + "': " + what);
}

bool FreezeMeeting::any_measures(bool mine) {
  Said said;
  said.measures = mine ? 1 : 0;
  return std::ranges::any_of(meeting_.meet(said),
                             [](const Said& one) { return one.measures != 0; });
}

void FreezeMeeting::begin_pass() { meeting_.meet({}); }

FreezeMeeting::Agreed FreezeMeeting::agree(const Found& mine) {
  Said said;
  said.has_files = mine.has_files ? 1 : 0;
  said.half_made = mine.half_made ? 1 : 0;
  said.epoch = mine.epoch;
  said.store = mine.store;
  said.fresh = mine.fresh;
  said.files_of_rank = mine.files_of_rank;
  const std::vector<Said> all = meeting_.meet(said);
  refuse_unlike(all);
  refuse_files_of_others(all);
  const std::uint64_t epoch = std::ranges::min(all, {}, &Said::epoch).epoch;
  std::uint64_t opening = 0;
  std::memcpy(&opening, all[0].fresh.data(), sizeof opening);
  return {epoch, epoch == 0 ? all[0].fresh : all[0].store, opening};
}

void FreezeMeeting::refuse_unlike(const std::vector<Said>& all) const {
  const auto newest = std::ranges::max_element(all, {}, &Said::epoch);
  if (newest->epoch == 0) return;
  const std::string of_newest = rank_text(static_cast<std::size_t>(newest - all.begin())) +
                                " has epoch " + std::to_string(newest->epoch) + " of it, and ";
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].half_made != 0) {
      refuse(Code::kNotFound,
             of_newest + rank_text(r) +
                 " lacks files of its drives; nothing was written. Mount all drives and give their "
                 "paths as before in headrace.nvme_paths, or name another store.");
    }
    if (all[r].has_files == 0) {
      refuse(Code::kNotFound,
             of_newest + rank_text(r) +
                 " finds no files on its paths; nothing was written. Give the paths of every "
                 "rank as before in headrace.nvme_paths, or name another store.");
    }
    if (all[r].store != newest->store) {
      refuse(Code::kWrongState,
             of_newest + rank_text(r) +
                 " has files of another store of that name; nothing was written. Put the files "
                 "back that belong together, or name another store.");
    }
    if (newest->epoch - all[r].epoch > 1) {
      refuse(Code::kWrongState,
             of_newest + rank_text(r) + " only epoch " + std::to_string(all[r].epoch) +
                 ": a crash leaves ranks one epoch apart, so some files are older copies; nothing "
                 "was written. Put the files back that belong together, or name another store.");
    }
  }
}

// Another rank's files on a path are those of a shared path, or paths were mixed up.
void FreezeMeeting::refuse_files_of_others(const std::vector<Said>& all) const {
  const auto has_some = [&](std::size_t r) { return (all[r].has_files | all[r].half_made) != 0; };
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::uint32_t other = all[r].files_of_rank;
    if (has_some(r) || other == kNoRank) continue;
    if (other < all.size() && has_some(other)) continue;
    refuse(Code::kNotFound,
           "the paths of " + rank_text(r) + " have files of " + rank_text(other) +
               " and none of its own; nothing was written. Give each of as many ranks as before "
               "its own paths in headrace.nvme_paths, or name another store.");
  }
}

void FreezeMeeting::all_ready(const swap::CommitRecord* record) {
  Said said;
  if (record != nullptr) {
    said.steps = record->head().steps;
    said.print = record->shared_print();
  }
  const std::vector<Said> all = meeting_.meet(said);
  meeting_.end();
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r].steps == all[0].steps && all[r].print == all[0].print) continue;
    refuse(Code::kWrongState,
           "rank 0 has step " + std::to_string(all[0].steps) + " as the common epoch, and " +
               rank_text(r) + " step " + std::to_string(all[r].steps) +
               ", or other step counts, hyperparameters or another run's commit: the files are of "
               "different runs; "
               "nothing was written. Put the files back that belong together, or name another "
               "store.");
  }
}
}  // namespace headrace::engine
