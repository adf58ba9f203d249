// SPDX-License-Identifier: Apache-2.0
// rank_calls.hpp: ensures that the ranks of an engine make the same collective calls.
//
// All ranks call gather, step and discard_gradients alike, but gradients arrive as they will: a
// parameter may have none on some rank. So before anything is joined or reduced, every rank says
// what it is about to do. One that needs the gradient bucket for another group goes first: the
// others reduce and open the bucket with it, and say again what they want. Of several that need it,
// the lowest rank goes first, and with it those that need the same group. But none passes a lower
// rank that needs another group: that rank may bring a gradient of this one later, and sums are in
// rank order.
//
// Example with two ranks. Their bucket is open for group 2, and rank 1 has no gradient of group 1:
//
//   rank 0                        rank 1                     both, from these words
//   says "bucket for group 1"     says "gather of group 0"   rank 0 goes first: reduce group 2,
//                                                            open the bucket for group 1
//   adds its gradient of group 1
//   says "gather of group 0"      says "gather of group 0"   the same call: join, if either must
//   says "step"                   says "step"                reduce group 1, update
//
// Example with three ranks, of which only rank 1 has a gradient of group 1:
//
//   rank 0                   rank 1                   rank 2
//   "bucket for group 0"     "bucket for group 1"     "bucket for group 0"   opened for rank 0
//   adds group 0
//   "gather of group 0"      "bucket for group 1"     "bucket for group 0"   opened for rank 1
//                            adds group 1
//   "gather of group 0"      "bucket for group 0"     "bucket for group 0"   opened for both
//
// Ranks that follow a recorded order (sequence_runner.hpp) join and reduce ahead of their trainers,
// and say each entry of it before they carry it out, with the number of entries that they can carry
// out from there on: all ranks carry out the least of these numbers. A rank that must leave the
// order says so in place of its entry, and one that has not begun it says its trainer's call. Then
// no rank carries the entry out, and all meet for their trainers' calls. From there on, trainers
// may be at different gathers, all of them joined. So every word has a position, the number of
// gathers before it in the step: of ranks that need the bucket, the one at the lowest position goes
// first.
//
// If rank 1 said "step" while rank 0 says "gather of group 0", both would throw, naming both calls.
#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/collective.hpp"
#include "headrace/optimizer.hpp"
#include "headrace/settings.hpp"
#include "partition/registry.hpp"

namespace headrace::ranks {
// The inputs of a step's arithmetic other than gradients and the registry's hyperparameters, and
// what the next order is derived from: equal on every rank.
struct StepTerms {
  StepOptions options;
  std::span<const std::uint64_t> step_counts;  // per parameter; outlives the call
  bool holds_commits = false;  // may differ: a background save of this rank reads the last commit
  std::span<const GroupId> gathers = {};  // as recorded since the last step (sequence.hpp)
};

// What a gather still has to join: nothing, the parts that the ranks of a node keep for it
// (tiles/node_shards.hpp), or the shards of all ranks.
enum class Join : std::uint8_t { kNone, kWithinNode, kAll };

// The next call of one rank. `wide`: gradients will have another dtype than their section.
struct RankCall {
  static constexpr std::size_t kMostEntries = 4;  // of a recorded order
  enum class Kind : std::uint8_t {
    kOpenBucket,
    kGather,
    kStep,
    kDiscard,
    kHash,
    kCommit,
    kLoad,
    kSaveCheckpoint,
    kSaveInBackground,
    kLoadCheckpoint,
    kLoadWeights,
    kExchange,
    // In place of an entry of the recorded order, or as one:
    kLeave,
    kJoinAhead,
    kReduce
  };
  Kind kind = Kind::kStep;
  GroupId group = {};  // for kOpenBucket, kGather, kJoinAhead and kReduce
  // For the same: the number of gathers before it in the step. For kExchange: bytes.
  std::uint32_t position = 0;
  // For kJoinAhead and kReduce: the number of entries that this rank can carry out, this one and
  // the joins behind it, and the hash of the order from here on.
  std::uint8_t entries = 1;
  std::uint64_t order = 0;
  std::array<Join, kMostEntries> joins = {};  // what this rank lacks, of each; [0]: for kGather too
  bool wide = false;                          // for kOpenBucket
  bool goes_on = false;  // for the same: with the open group, of which it has brought some
  bool clean = false;    // for kGather: this rank has no gradient of this step
  StepTerms terms = {};  // for kStep
};

// The next action of all ranks. Without `open`, all of them are at the same call.
struct RankAgreement {
  std::optional<GroupId> open;  // reduce the bucket's contents, then open it for this group
  std::uint32_t position = 0;   // of that
  bool wide = false;            // some rank needs it
  bool served = false;          // this rank may add to that group's; else it asks again
  std::uint8_t entries = 0;     // that all ranks carry out, of the recorded order
  std::array<Join, RankCall::kMostEntries> joins = {};  // the most that some rank lacks, of each
  bool clean = false;                                   // all ranks are
  bool left = false;           // some rank is not in the recorded order: nothing is done
  bool holds_commits = false;  // some rank does
  bool attached = false;       // what the ranks attached came with these words
};

// Threads: one at a time, by lock(), which is held during a rank's whole call.
class RankCalls {
 public:
  RankCalls(Collective& collective, const partition::Registry& registry,
            std::size_t most_attached = 0);

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  Collective& collective() noexcept { return collective_; }
  // The number and text of the next collective call.
  CollectiveTag next(std::string_view what) noexcept { return {sequence_++, what}; }
  // With a group's name behind it, and until the next one: allocates nothing.
  CollectiveTag next(std::string_view what, GroupId group);

  // Collective. `present` has a byte for each parameter of the open group, not 0 if this rank's
  // bucket holds a gradient of it. If calls or a step's terms differ, throws kPeerLost and names
  // both calls or the difference; after that, no call is carried out. `attached` travels with the
  // call; all ranks attach the same number of bytes, at most the constructor's.
  RankAgreement agree(const RankCall& mine, std::span<const std::uint8_t> present,
                      std::span<const std::byte> attached = {});
  // Runs this rank's part of what the ranks have agreed on. If it throws, ends the collective: the
  // others are waiting for that part, and a call that is made again would meet another of theirs.
  template <class Work>
  void carry_out(const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      collective_.abort(error.what());
      throw;
    }
  }
  // What rank `rank` attached. Until the next call.
  std::span<const std::byte> attached(std::uint32_t rank) const noexcept;
  // Whether rank `rank` announced a gradient of parameter `index` of that group.
  bool present(std::uint32_t rank, std::size_t index) const noexcept;
  // How many of the ranks below `rank` did.
  std::uint32_t present_below(std::uint32_t rank, std::size_t index) const noexcept {
    std::uint32_t count = 0;
    for (std::uint32_t r = 0; r < rank; ++r) count += present(r, index) ? 1 : 0;
    return count;
  }
  // Collective. Throws kPeerLost and names anything that a rank registered or set differently from
  // rank 0. `settings` has a line for each, "path = value".
  void compare_registration(const std::string& settings);

  // From the start on, where the ranks' gradients of a micro-batch must be reduced at once: of
  // several groups of one position, the last is served first, as backward brings them.
  void serve_in_order_of_backward() noexcept { of_backward_ = true; }

  // Collective: the least of what the ranks give, in freeze.
  std::uint32_t least(std::uint32_t mine);

  static std::uint64_t bookkeeping_bytes(const partition::Registry& registry,
                                         std::uint32_t world_size,
                                         std::size_t most_attached) noexcept;

 private:
  // A RankCall in the form in which it is sent: whole words, so that several can follow each other.
  struct Said {
    std::uint64_t terms = 0;  // for a step: their hash; for an entry: that of the order
    std::uint32_t group = 0;
    std::uint32_t position = 0;
    RankCall::Kind kind = RankCall::Kind::kStep;
    std::uint8_t entries = 1;
    std::uint8_t joins = 0;  // two bits of each
    std::uint8_t wide = 0;
    std::uint8_t clean = 0;
    std::uint8_t holds_commits = 0;
    std::uint8_t goes_on = 0;
    std::uint8_t unused = 0;
  };
  // The first number in which a rank differs from rank 0.
  struct Difference {
    std::uint32_t rank = 0;
    std::size_t index = 0;
    std::uint64_t value = 0, of_rank_0 = 0;
  };

  // Of one rank, at freeze.
  struct Counts {
    std::uint64_t groups = 0, parameters = 0;
    std::uint64_t settings_bytes = 0, settings_hash = 0;
  };

  static std::size_t largest_message(const partition::Registry& registry) noexcept;
  static std::size_t longest_text(const partition::Registry& registry) noexcept;
  RankAgreement agreement(const RankCall& mine);
  std::string text_of(const Said& said) const;
  void serve(RankAgreement& agreement) const noexcept;
  static bool alike(const Said& a, const Said& b) noexcept;
  [[noreturn]] void refuse(std::uint32_t rank, std::uint32_t other);
  [[noreturn]] void refuse_terms(const StepTerms& mine);
  [[noreturn]] void refuse_order(std::uint32_t rank);
  [[noreturn]] void end_all(const std::string& why);
  std::uint64_t terms_hash(const StepTerms& terms) const;
  std::uint64_t update_hash(ParameterId id) const;
  // `mine` has the same length on every rank.
  std::optional<Difference> compare(std::string_view what, std::span<const std::uint64_t> mine);
  std::string difference_in_terms(const StepTerms& mine);
  std::string difference_in_counts(std::span<const Counts> all) const;
  std::string difference_in_groups();
  std::string difference_in_settings(const std::string& mine, std::span<const Counts> all);

  Collective& collective_;
  const partition::Registry& registry_;
  std::mutex mutex_;
  std::uint64_t sequence_ = 1;  // find_local_ranks() has used 0
  const Said& said(std::uint32_t rank) const noexcept;
  // Of this rank; of all ranks. Each is a Said, and a bit for each parameter of the open group.
  std::vector<std::byte> message_, messages_;
  std::string text_;                // of the last call with a group
  std::size_t attached_bytes_ = 0;  // at the end of each
  bool of_backward_ = false;
};
}  // namespace headrace::ranks
