// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_calls.hpp"

#include <algorithm>
#include <cstring>

#include "headrace/error.hpp"

namespace headrace::ranks {
namespace {
std::size_t bytes_of_bits(std::size_t bits) { return (bits + 63) / 64 * 8; }
}  // namespace

RankCalls::RankCalls(Collective& collective, const partition::Registry& registry)
    : collective_(collective), registry_(registry) {
  if (collective.world_size() == 1) return;
  message_.reserve(largest_message(registry));
  messages_.reserve(collective.world_size() * largest_message(registry));
}

std::size_t RankCalls::largest_message(const partition::Registry& registry) noexcept {
  std::size_t parameters = 0;
  for (const partition::RegisteredGroup& group : registry.groups())
    parameters = std::max(parameters, group.parameters.size());
  return sizeof(Said) + bytes_of_bits(parameters);
}

std::uint64_t RankCalls::bookkeeping_bytes(const partition::Registry& registry,
                                           std::uint32_t world_size) noexcept {
  return world_size > 1 ? (world_size + 1) * largest_message(registry) : 0;
}

const RankCalls::Said& RankCalls::said(std::uint32_t rank) const noexcept {
  return *reinterpret_cast<const Said*>(&messages_[rank * message_.size()]);
}

bool RankCalls::present(std::uint32_t rank, std::size_t index) const noexcept {
  const std::byte bits = messages_[rank * message_.size() + sizeof(Said) + index / 8];
  return (bits >> (index % 8) & std::byte{1}) != std::byte{0};
}

std::string RankCalls::text_of(RankCall::Kind kind, GroupId group) const {
  const auto of_group = [&] { return " of group '" + registry_.group(group).name + "'"; };
  switch (kind) {
    case RankCall::Kind::kOpenBucket:
      return "add_gradient" + of_group();
    case RankCall::Kind::kGather:
      return "gather" + of_group();
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
RankAgreement RankCalls::agree(const RankCall& mine, std::span<const std::uint8_t> present) {
  Said own{.group = mine.group.index,
           .kind = mine.kind,
           .join = mine.join,
           .wide = static_cast<std::uint8_t>(mine.wide),
           .holds_commits = static_cast<std::uint8_t>(mine.terms.holds_commits)};
  if (mine.kind == RankCall::Kind::kStep) own.terms = terms_hash(mine.terms);
  message_.assign(sizeof(Said) + bytes_of_bits(present.size()), std::byte{0});
  std::memcpy(message_.data(), &own, sizeof(Said));
  for (std::size_t i = 0; i < present.size(); ++i) {
    if (present[i] != 0) message_[sizeof(Said) + i / 8] |= std::byte{1} << (i % 8);
  }
  messages_.resize(collective_.world_size() * message_.size());
  try {
    collective_.exchange(next("next call of every rank"), message_, messages_);
  } catch (const Error& error) {
    throw Error(error.code(), text_of(mine.kind, mine.group) + ": " + error.what(),
                error.sys_errno());
  }
  return agreement(mine);
}

// Decides from all ranks' messages, so with the same outcome on every rank.
RankAgreement RankCalls::agreement(const RankCall& mine) {
  const std::uint32_t ranks = collective_.world_size();
  RankAgreement agreement;
  bool in_order = true;  // every lower rank that needs the bucket needs it for the same group
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const Said& one = said(r);
    agreement.join = agreement.join || one.join != 0;
    agreement.holds_commits = agreement.holds_commits || one.holds_commits != 0;
    if (one.kind != RankCall::Kind::kOpenBucket) continue;
    // The lowest rank that needs the bucket.
    if (!agreement.open) agreement.open = GroupId{one.group};
    const bool same = agreement.open->index == one.group;
    in_order = in_order && same;
    if (same) agreement.wide = agreement.wide || one.wide != 0;
    if (r == collective_.rank()) agreement.served = in_order;
  }
  if (agreement.open) return agreement;
  for (std::uint32_t r = 1; r < ranks; ++r) {
    if (said(r).kind != said(0).kind || said(r).group != said(0).group) refuse(r);
  }
  for (std::uint32_t r = 1; r < ranks; ++r) {
    if (said(r).terms != said(0).terms) refuse_terms(mine.terms);
  }
  return agreement;
}

void RankCalls::refuse(std::uint32_t rank) {
  const auto called = [&](std::uint32_t r) {
    return "rank " + std::to_string(r) + " called " + text_of(said(r).kind, {said(r).group});
  };
  const std::string text = called(rank) + " where " + called(0) +
                           ": neither was carried out, and no further call will be; make the same "
                           "calls in the same order on every rank";
  collective_.abort(text);
  throw Error(Code::kPeerLost, text);
}
}  // namespace headrace::ranks
