// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_calls.hpp"

#include "headrace/error.hpp"

namespace headrace::ranks {
RankCalls::RankCalls(Collective& collective, const partition::Registry& registry)
    : collective_(collective), registry_(registry) {
  if (collective.world_size() > 1) said_.resize(collective.world_size());
}

std::uint64_t RankCalls::bookkeeping_bytes(std::uint32_t world_size) noexcept {
  return world_size > 1 ? world_size * sizeof(Said) : 0;
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
  }
  return "an unknown call";
}

// In every gather and step of several ranks: allocates nothing.
RankAgreement RankCalls::agree(const RankCall& mine) {
  Said said{.group = mine.group.index, .kind = mine.kind, .join = mine.join};
  if (mine.kind == RankCall::Kind::kStep) said.terms = terms_hash(mine.terms);
  try {
    collective_.exchange(next("next call of every rank"), std::as_bytes(std::span(&said, 1)),
                         std::as_writable_bytes(std::span(said_)));
  } catch (const Error& error) {
    throw Error(error.code(), text_of(mine.kind, mine.group) + ": " + error.what(),
                error.sys_errno());
  }
  // The lowest rank that needs the bucket: the same choice on every rank.
  RankAgreement agreement;
  for (const Said& one : said_) {
    if (one.kind == RankCall::Kind::kOpenBucket) return {GroupId{one.group}, false};
    agreement.join = agreement.join || one.join != 0;
  }
  const Said& first = said_[0];
  for (std::uint32_t r = 1; r < said_.size(); ++r) {
    if (said_[r].kind != first.kind || said_[r].group != first.group) refuse(r);
  }
  for (const Said& one : said_) {
    if (one.terms != first.terms) refuse_terms(mine.terms);
  }
  return agreement;
}

void RankCalls::refuse(std::uint32_t rank) {
  const auto called = [&](std::uint32_t r) {
    return "rank " + std::to_string(r) + " called " + text_of(said_[r].kind, {said_[r].group});
  };
  const std::string text = called(rank) + " where " + called(0) +
                           ": neither was carried out, and no further call will be; make the same "
                           "calls in the same order on every rank";
  collective_.abort(text);
  throw Error(Code::kPeerLost, text);
}
}  // namespace headrace::ranks
