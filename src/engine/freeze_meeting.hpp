// SPDX-License-Identifier: Apache-2.0
// freeze_meeting.hpp: what several ranks tell each other while they allocate: when to measure their
// drives, and at which epoch of a store all of them go on.
//
// Drives are measured by all ranks at once, as they work later: a drive or a link that ranks share
// gives each of them its part. So the ranks meet before each pass of the measurement.
//
// A rank commits an epoch only once it knows that all ranks have the one before. So wherever a
// crash ends the ranks, none is more than one epoch ahead of another, and each still has the least
// of them whole. Example: rank 0 was killed before its commit of epoch 7, rank 1 after it:
//
//   rank 0                            rank 1
//   "my newest epoch is 6"            "my newest epoch is 7"      agree(): both go on at 6
//   reads and checks epoch 6          does so too: nobody has written its slots since
//   "ready"                           "ready"                     all_ready(): both may write
//
// Until all_ready() has returned, no rank has written a byte of a store that goes on. A rank that
// refuses or fails before says so in the place of its next message: then every rank throws, and
// names it.
#pragma once
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "headrace/error.hpp"
#include "ranks/meeting.hpp"
#include "ranks/rank_calls.hpp"
#include "swap/record.hpp"
#include "swap/store_format.hpp"

namespace headrace::engine {
// For the trainer's thread. With one rank, nobody is met.
class FreezeMeeting {
 public:
  // `store`: its name, or empty without one.
  FreezeMeeting(ranks::RankCalls& ranks, std::string store)
      : meeting_(ranks, "freeze"), store_(std::move(store)) {}

  static constexpr std::uint32_t kNoRank = ~0u;
  struct Found {
    bool has_files = false;
    bool half_made = false;                 // files were cut off while they were made: none counts
    std::uint64_t epoch = 0;                // the newest; 0: none
    swap::RunBytes store{};                 // of the files
    swap::RunBytes fresh{};                 // for a new store
    std::uint32_t files_of_rank = kNoRank;  // another rank whose files lie on this one's paths
  };
  struct Agreed {
    std::uint64_t epoch = 0;  // 0: the store is made anew
    swap::RunBytes store{};
    std::uint64_t opening = 0;  // random: tells the epochs of this opening from those of another
  };
  // Collective, once, before the drives are measured. Whether any rank measures some: then all of
  // them call begin_pass() as often as there are passes.
  bool any_measures(bool mine);
  void begin_pass();
  // Collective, once, of a store. Throws what any rank found to refuse, also where ranks do not
  // fit together.
  Agreed agree(const Found& mine);
  // Collective, twice, where the store is made anew: before any rank erases a first commit, since
  // until then a rank may still refuse; and before any rank removes files, since a rank that still
  // had a commit would take the others' missing files for lost.
  void before_loss() { meeting_.meet({}); }
  // Collective, once, after all else. `record`: of the epoch that the files hold, null if they are
  // new or there is no store. Throws kWrongState if its steps, step counts or hyperparameters
  // differ among the ranks, or if they were committed in different openings.
  void all_ready(const swap::CommitRecord* record);
  // After an error of this rank: if others wait for it in a call above, they throw it too.
  void withdraw(const std::exception_ptr& error) noexcept { meeting_.withdraw(error); }

 private:
  // Whole words, the same bytes on every rank.
  struct Said {
    std::uint64_t epoch = 0, steps = 0, print = 0;
    swap::RunBytes store{}, fresh{};
    std::uint32_t has_files = 0, files_of_rank = kNoRank, measures = 0, half_made = 0;
  };
  static_assert(ranks::Meeting<Said>::kMessageBytes == 1032,
                "headrace/collective.hpp names the size");
  [[noreturn]] void refuse(Code code, const std::string& what) const;
  void refuse_unlike(const std::vector<Said>& all) const;
  void refuse_files_of_others(const std::vector<Said>& all) const;

  ranks::Meeting<Said> meeting_;
  const std::string store_;
};
}  // namespace headrace::engine
