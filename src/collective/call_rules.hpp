// SPDX-License-Identifier: Apache-2.0
// call_rules.hpp: what must be equal in the calls that ranks make together, and how a difference is
// said.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "headrace/collective.hpp"

namespace headrace::collective {
enum class CallKind : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduceSum,
  kExchange,
  kBarrier
};
const char* name_of(CallKind kind) noexcept;

// One rank's side of a call. Everything but `data` must be equal on all ranks.
struct Call {
  CallKind kind = CallKind::kBarrier;
  std::uint64_t sequence = 0;
  std::string what;  // a copy: the caller's text may be gone when another rank reads it
  DType dtype = DType::kF32;
  std::uint64_t size = 0;  // bytes for all-gather and exchange, else elements
  void* data = nullptr;    // of an exchange, only read
};

bool same_call(const Call& a, const Call& b) noexcept;
// Throws kInvalidArgument where `size` of `what` makes no `world_size` equal pieces.
void check_divides(CollectiveTag tag, std::uint64_t size, const char* what,
                   std::uint32_t world_size);
// "all_gather 'gather h.3' (sequence 7, 4096 bytes)".
std::string describe(const Call& call);

std::string abort_text(std::uint32_t rank, std::string_view why);
std::string mismatch_text(std::uint32_t rank, const Call& call, std::uint32_t other_rank,
                          const Call& other);
// `missing` is not empty.
std::string missing_text(const std::string& missing_ranks, const Call& call,
                         std::uint64_t waited_milliseconds);
std::string left_text(std::uint32_t left_rank, const Call& call);
}  // namespace headrace::collective
