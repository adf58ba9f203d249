// SPDX-License-Identifier: Apache-2.0
#include "collective/call_rules.hpp"

#include <algorithm>
#include <span>

#include "headrace/error.hpp"
#include "kernels/hash.hpp"

namespace headrace::collective {
const char* name_of(CallKind kind) noexcept {
  switch (kind) {
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kExchange:
      return "exchange";
    case CallKind::kAllToAllV:
      return "all_to_all_v";
  }
  return "unknown call";
}

Call make_call(CallKind kind, CollectiveTag tag, std::uint64_t size_bytes) noexcept {
  Call call;
  call.kind = kind;
  call.sequence = tag.sequence;
  call.size_bytes = size_bytes;
  call.what_hash = kernels::xxh3_64(std::as_bytes(std::span(tag.what)), 0);
  call.what_bytes = static_cast<std::uint16_t>(std::min(tag.what.size(), sizeof(Call::what)));
  std::copy_n(tag.what.data(), call.what_bytes, call.what);
  return call;
}

bool same_call(const Call& a, const Call& b) noexcept {
  return a.kind == b.kind && a.sequence == b.sequence && a.size_bytes == b.size_bytes &&
         a.what_hash == b.what_hash;
}

std::string describe(const Call& call) {
  return std::string(name_of(call.kind)) + " '" + std::string(call.what, call.what_bytes) +
         "' (sequence " + std::to_string(call.sequence) + ", " + std::to_string(call.size_bytes) +
         " bytes)";
}

std::string text_beyond_world(std::uint32_t rank, std::uint32_t world_size) {
  return "rank() " + std::to_string(rank) + " and world_size() " + std::to_string(world_size) +
         ", and ranks are 0 to world_size() - 1";
}

void check_pieces(CollectiveTag tag, std::size_t pieces, std::uint32_t world_size) {
  if (pieces == world_size) return;
  throw Error(Code::kInvalidArgument,
              "'" + std::string(tag.what) + "' has " + std::to_string(pieces) +
                  " pieces, and the world has " + std::to_string(world_size) +
                  " ranks: the call was not made; pass one piece for each rank, if need be of 0 "
                  "bytes");
}

std::string abort_text(std::uint32_t rank, std::string_view why) {
  return "rank " + std::to_string(rank) + " gave up: " + std::string(why) +
         "; no rank can go on without it; close every rank's engine and start again";
}

std::string mismatch_text(std::uint32_t rank, const Call& call, std::uint32_t other_rank,
                          const Call& other) {
  return "rank " + std::to_string(rank) + " called " + describe(call) + " where rank " +
         std::to_string(other_rank) + " called " + describe(other) +
         ": neither was carried out, and no further call will be; make the same calls in the same "
         "order on every rank";
}

std::string missing_text(const std::string& missing_ranks, const Call& call,
                         std::uint64_t waited_milliseconds) {
  return missing_ranks + " did not come to " + describe(call) + " within " +
         std::to_string(waited_milliseconds) +
         " ms: the call was not carried out, and no further call will be; see why that rank is "
         "late, or raise the deadline";
}

std::string held_up_text(const std::string& holds_up, const Call& call, const std::string& how) {
  return holds_up + ", which passes on the ranks' posts, no longer answers: " + describe(call) +
         " was not carried out " + how +
         ", and no further call will be; see why it ended or stands still, and start again";
}

std::string left_text(std::uint32_t left_rank, const Call& call) {
  return "rank " + std::to_string(left_rank) + " has left and will not come to " + describe(call) +
         ": the call was not carried out; keep every rank's engine open until all have made their "
         "last call";
}
}  // namespace headrace::collective
