// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_calls.hpp"

#include <algorithm>

#include "headrace/error.hpp"

namespace headrace::ranks {
namespace {
// A call is told in three numbers: what and of which group, whether shards are missing, and a print
// of a step's terms.
constexpr std::size_t kCallValues = 3;
constexpr std::size_t kTerms = 2;
constexpr std::uint64_t kKinds = 4;

void encode(const RankCall& call, double* values) {
  values[0] = static_cast<double>(static_cast<std::uint64_t>(call.kind) +
                                  kKinds * std::uint64_t{call.group.index});
  values[1] = call.join ? 1 : 0;
}
RankCall decode(const double* values) {
  const auto code = static_cast<std::uint64_t>(values[0]);
  return {static_cast<RankCall::Kind>(code % kKinds),
          {static_cast<std::uint32_t>(code / kKinds)},
          values[1] != 0};
}
}  // namespace

RankCalls::RankCalls(Collective& collective, const partition::Registry& registry)
    : collective_(collective), registry_(registry) {
  if (collective.world_size() > 1) calls_.resize(kCallValues * collective.world_size());
}

std::uint64_t RankCalls::bookkeeping_bytes(std::uint32_t world_size) noexcept {
  return world_size > 1 ? kCallValues * world_size * sizeof(double) : 0;
}

void RankCalls::exchange(std::string_view what, std::span<const double> mine,
                         std::vector<double>& values) {
  values.assign(mine.size() * collective_.world_size(), 0);
  std::copy(mine.begin(), mine.end(),
            values.begin() + static_cast<std::ptrdiff_t>(collective_.rank() * mine.size()));
  collective_.all_reduce_sum(next(what), values.data(), values.size());
}

std::string RankCalls::text_of(const RankCall& call) const {
  const auto of_group = [&] { return " of group '" + registry_.group(call.group).name + "'"; };
  switch (call.kind) {
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

RankAgreement RankCalls::agree(const RankCall& mine) {
  double values[kCallValues];
  encode(mine, values);
  values[kTerms] = mine.kind == RankCall::Kind::kStep ? print_of(mine.terms) : 0;
  try {
    exchange("next call of every rank", values, calls_);
  } catch (const Error& error) {
    throw Error(error.code(), text_of(mine) + ": " + error.what(), error.sys_errno());
  }
  // The lowest rank that needs the bucket: the same choice on every rank.
  RankAgreement agreement;
  for (std::uint32_t r = 0; r < collective_.world_size(); ++r) {
    const RankCall call = decode(&calls_[r * kCallValues]);
    if (call.kind == RankCall::Kind::kOpenBucket) return {call.group, false};
    agreement.join = agreement.join || call.join;
  }
  const RankCall first = decode(&calls_[0]);
  for (std::uint32_t r = 1; r < collective_.world_size(); ++r) {
    const RankCall other = decode(&calls_[r * kCallValues]);
    if (other.kind != first.kind || !(other.group == first.group)) refuse(r, other, first);
  }
  for (std::uint32_t r = 1; r < collective_.world_size(); ++r) {
    if (calls_[r * kCallValues + kTerms] != calls_[kTerms]) refuse_terms(mine.terms);
  }
  return agreement;
}

void RankCalls::refuse(std::uint32_t rank, const RankCall& other, const RankCall& first) {
  const std::string text = "rank " + std::to_string(rank) + " called " + text_of(other) +
                           " where rank 0 called " + text_of(first) +
                           ": neither was carried out, and no further call will be; make the same "
                           "calls in the same order on every rank";
  collective_.abort(text);
  throw Error(Code::kPeerLost, text);
}
}  // namespace headrace::ranks
