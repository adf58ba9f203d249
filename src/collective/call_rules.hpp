// SPDX-License-Identifier: Apache-2.0
// call_rules.hpp: the rules for calls that ranks make together: the fields that must be equal, and
// the text for a difference.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "headrace/collective.hpp"

namespace headrace::collective {
enum class CallKind : std::uint8_t { kAllGather, kAllToAll, kExchange, kAllToAllV };
const char* name_of(CallKind kind) noexcept;

// One rank's side of a call, in the form in which it is sent. All of it must be equal on all ranks.
// A long text is cut, but the hash covers all of it.
struct Call {
  CallKind kind = CallKind::kExchange;
  std::uint16_t what_bytes = 0;
  std::uint64_t sequence = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t what_hash = 0;
  char what[96] = {};
};
Call make_call(CallKind kind, CollectiveTag tag, std::uint64_t size_bytes) noexcept;
bool same_call(const Call& a, const Call& b) noexcept;
// "all_gather 'gather h.3' (sequence 7, 4096 bytes)".
std::string describe(const Call& call);

// "rank() 3 and world_size() 2, and ranks are 0 to world_size() - 1".
std::string text_beyond_world(std::uint32_t rank, std::uint32_t world_size);

// Throws kInvalidArgument if there is not one piece for each rank.
void check_pieces(CollectiveTag tag, std::size_t pieces, std::uint32_t world_size);

std::string abort_text(std::uint32_t rank, std::string_view why);
std::string mismatch_text(std::uint32_t rank, const Call& call, std::uint32_t other_rank,
                          const Call& other);
// `missing_ranks` must not be empty.
std::string missing_text(const std::string& missing_ranks, const Call& call,
                         std::uint64_t waited_milliseconds);
// `holds_up` passes on all ranks' posts no more; `how`: "within 100 ms", "(gloo: no route)".
std::string held_up_text(const std::string& holds_up, const Call& call, const std::string& how);
std::string left_text(std::uint32_t left_rank, const Call& call);
}  // namespace headrace::collective
