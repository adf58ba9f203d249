// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_calls.hpp"

#include <algorithm>
#include <cstring>

#include "headrace/error.hpp"

namespace headrace::ranks {
namespace {
constexpr std::size_t kLongestWhat = 32;  // "gradients of " and the like

std::size_t bytes_of_bits(std::size_t bits) { return (bits + 63) / 64 * 8; }

constexpr std::size_t kJoinBits = 2;
static_assert(RankCall::kMostEntries * kJoinBits <= 8 && static_cast<unsigned>(Join::kAll) < 4);

std::uint8_t packed(const std::array<Join, RankCall::kMostEntries>& joins) {
  unsigned bits = 0;
  for (std::size_t e = 0; e < joins.size(); ++e)
    bits |= static_cast<unsigned>(joins[e]) << (e * kJoinBits);
  return static_cast<std::uint8_t>(bits);
}
Join join_in(std::uint8_t bits, std::size_t entry) {
  return static_cast<Join>(bits >> (entry * kJoinBits) & 3U);
}
}  // namespace

RankCalls::RankCalls(Collective& collective, const partition::Registry& registry,
                     std::size_t most_attached)
    : collective_(collective), registry_(registry) {
  if (collective.world_size() == 1) return;
  const std::size_t most = largest_message(registry) + most_attached;
  message_.reserve(most);
  messages_.reserve(collective.world_size() * most);
  text_.reserve(longest_text(registry));
}

std::size_t RankCalls::largest_message(const partition::Registry& registry) noexcept {
  std::size_t parameters = 0;
  for (const partition::RegisteredGroup& group : registry.groups())
    parameters = std::max(parameters, group.parameters.size());
  return sizeof(Said) + bytes_of_bits(parameters);
}

std::size_t RankCalls::longest_text(const partition::Registry& registry) noexcept {
  std::size_t name = 0;
  for (const partition::RegisteredGroup& group : registry.groups())
    name = std::max(name, group.name.size());
  return kLongestWhat + name;
}

CollectiveTag RankCalls::next(std::string_view what, GroupId group) {
  text_.assign(what).append(registry_.group(group).name);
  return next(text_);
}

std::uint64_t RankCalls::bookkeeping_bytes(const partition::Registry& registry,
                                           std::uint32_t world_size,
                                           std::size_t most_attached) noexcept {
  if (world_size == 1) return 0;
  return (world_size + 1) * (largest_message(registry) + most_attached) + longest_text(registry);
}

const RankCalls::Said& RankCalls::said(std::uint32_t rank) const noexcept {
  return *reinterpret_cast<const Said*>(&messages_[rank * message_.size()]);
}

bool RankCalls::present(std::uint32_t rank, std::size_t index) const noexcept {
  const std::byte bits = messages_[rank * message_.size() + sizeof(Said) + index / 8];
  return (bits >> (index % 8) & std::byte{1}) != std::byte{0};
}

std::span<const std::byte> RankCalls::attached(std::uint32_t rank) const noexcept {
  return std::span(messages_).subspan((rank + 1) * message_.size() - attached_bytes_,
                                      attached_bytes_);
}

std::string RankCalls::text_of(const Said& said) const {
  const auto of_group = [&] { return " of group '" + registry_.group({said.group}).name + "'"; };
  switch (said.kind) {
    case RankCall::Kind::kOpenBucket:
      return "add_gradient" + of_group();
    case RankCall::Kind::kGather:
    case RankCall::Kind::kJoinAhead:
      return "gather" + of_group() + " (number " + std::to_string(said.position) + " of the step)";
    case RankCall::Kind::kReduce:
      return "a reduction" + of_group();
    case RankCall::Kind::kLeave:
      return "the next call";
    case RankCall::Kind::kExchange:
      return "exchange of " + std::to_string(said.position) + " bytes";
    case RankCall::Kind::kStep:
      return "step";
    case RankCall::Kind::kDiscard:
      return "discard_gradients";
    case RankCall::Kind::kHash:
      return "a hash of parameters or optimizer state";
    case RankCall::Kind::kCommit:
      return "commit";
    case RankCall::Kind::kLoad:
      return "load";
    case RankCall::Kind::kSaveCheckpoint:
      return "save_checkpoint";
    case RankCall::Kind::kSaveInBackground:
      return "save_checkpoint_in_background";
    case RankCall::Kind::kLoadCheckpoint:
      return "load_checkpoint";
    case RankCall::Kind::kLoadWeights:
      return "load_weights";
  }
  return "an unknown call";
}

// In every gather and step of several ranks: allocates nothing.
RankAgreement RankCalls::agree(const RankCall& mine, std::span<const std::uint8_t> present,
                               std::span<const std::byte> attached) {
  Said own{.group = mine.group.index,
           .position = mine.position,
           .kind = mine.kind,
           .entries = mine.entries,
           .joins = packed(mine.joins),
           .wide = static_cast<std::uint8_t>(mine.wide),
           .clean = static_cast<std::uint8_t>(mine.clean),
           .holds_commits = static_cast<std::uint8_t>(mine.terms.holds_commits),
           .goes_on = static_cast<std::uint8_t>(mine.goes_on)};
  own.terms = mine.kind == RankCall::Kind::kStep ? terms_hash(mine.terms) : mine.order;
  message_.assign(sizeof(Said) + bytes_of_bits(present.size()) + attached.size(), std::byte{0});
  std::memcpy(message_.data(), &own, sizeof(Said));
  for (std::size_t i = 0; i < present.size(); ++i) {
    if (present[i] != 0) message_[sizeof(Said) + i / 8] |= std::byte{1} << (i % 8);
  }
  attached_bytes_ = attached.size();
  std::ranges::copy(attached, message_.end() - static_cast<std::ptrdiff_t>(attached.size()));
  messages_.resize(collective_.world_size() * message_.size());
  try {
    collective_.exchange(next("next call of every rank"), message_, messages_);
  } catch (const Error& error) {
    throw Error(error.code(), text_of(own) + ": " + error.what(), error.sys_errno());
  }
  return agreement(mine);
}

// Of several ranks that need the bucket: the one at the lowest position, and of these the lowest.
// Those that need it for the same group are served with it, except behind a rank of that position
// that needs another group: it may bring a gradient of this one later. In the order of backward,
// the ranks of the last group are served, all of them: the others have none of it.
//
// Before all others comes one that goes on with the open group. Otherwise what it has brought of
// the group, and higher ranks have, would be reduced before what it still brings.
void RankCalls::serve(RankAgreement& agreement) const noexcept {
  const Said* first = nullptr;
  for (std::uint32_t r = 0; r < collective_.world_size(); ++r) {
    const Said& one = said(r);
    if (one.kind != RankCall::Kind::kOpenBucket) continue;
    if (first != nullptr && first->goes_on != 0) break;
    if (first == nullptr || one.goes_on != 0 || one.position < first->position ||
        (of_backward_ && one.position == first->position && one.group > first->group))
      first = &one;
  }
  if (first == nullptr) return;
  agreement.open = GroupId{first->group};
  agreement.position = first->position;
  bool in_order = true;
  for (std::uint32_t r = 0; r < collective_.world_size(); ++r) {
    const Said& one = said(r);
    if (one.kind != RankCall::Kind::kOpenBucket || one.position != first->position) continue;
    const bool same = one.group == first->group;
    in_order = (in_order && same) || of_backward_;
    if (same) agreement.wide = agreement.wide || one.wide != 0;
    if (r == collective_.rank()) agreement.served = same && (in_order || one.goes_on != 0);
  }
}

// Decides from all ranks' messages, so with the same outcome on every rank.
RankAgreement RankCalls::agreement(const RankCall& mine) {
  const std::uint32_t ranks = collective_.world_size();
  RankAgreement agreement;
  std::uint32_t of_order = 0;  // ranks that follow one, or leave it
  agreement.clean = true;
  agreement.attached = attached_bytes_ > 0;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const Said& one = said(r);
    for (std::size_t e = 0; e < agreement.joins.size(); ++e)
      agreement.joins[e] = std::max(agreement.joins[e], join_in(one.joins, e));
    agreement.entries = r == 0 ? one.entries : std::min(agreement.entries, one.entries);
    agreement.clean = agreement.clean && one.clean != 0;
    agreement.holds_commits = agreement.holds_commits || one.holds_commits != 0;
    agreement.left = agreement.left || one.kind == RankCall::Kind::kLeave;
    of_order += one.kind >= RankCall::Kind::kLeave ? 1 : 0;
  }
  agreement.left = agreement.left || (of_order > 0 && of_order < ranks);
  if (agreement.left) return agreement;
  serve(agreement);
  if (agreement.open) return agreement;
  for (std::uint32_t r = 1; r < ranks; ++r) {
    if (!alike(said(r), said(0))) refuse(r, 0);
  }
  for (std::uint32_t r = 1; r < ranks; ++r) {
    if (said(r).terms == said(0).terms) continue;
    if (mine.kind != RankCall::Kind::kStep) refuse_order(r);
    refuse_terms(mine.terms);
  }
  return agreement;
}

bool RankCalls::alike(const Said& a, const Said& b) noexcept {
  return a.kind == b.kind && a.group == b.group && a.position == b.position;
}

void RankCalls::end_all(const std::string& why) {
  collective_.abort(why);
  throw Error(Code::kPeerLost, why);
}

void RankCalls::refuse_order(std::uint32_t rank) {
  const std::string text = "rank " + std::to_string(rank) +
                           " follows another order than rank 0 behind " + text_of(said(0)) +
                           ": nothing was carried out, and no further call will be. All ranks "
                           "derive the same order, so this is a bug in Headrace; set "
                           "headrace.rank_agreement to \"each\", and report it";
  end_all(text);
}

void RankCalls::refuse(std::uint32_t rank, std::uint32_t other) {
  const auto called = [&](std::uint32_t r) {
    return "rank " + std::to_string(r) + " called " + text_of(said(r));
  };
  const std::string text = called(std::max(rank, other)) + " where " +
                           called(std::min(rank, other)) +
                           ": neither was carried out, and no further call will be; make the same "
                           "calls in the same order on every rank";
  end_all(text);
}
}  // namespace headrace::ranks
