// SPDX-License-Identifier: Apache-2.0
#include "bench_ranks/rank_side.hpp"

#include <algorithm>

#include "headrace/error.hpp"

namespace headrace::tools {
namespace {
// Another row of bytes for each pair of ranks, wherever a piece begins.
std::byte byte_of(std::uint32_t from, std::uint32_t to, std::uint64_t at) {
  return static_cast<std::byte>((at + 7 * (at >> 12) + 31 * from + 101 * to) & 0xff);
}
constexpr std::uint32_t kAll = 3;  // of what goes to every rank alike
}  // namespace

RankMemory::RankMemory(Collective& collective, RawCalls& raw, std::uint64_t largest_piece)
    : collective_(collective),
      raw_(raw),
      rank_(collective.rank()),
      world_size_(collective.world_size()),
      whole_(world_size_ * largest_piece),
      give_((world_size_ - 1) * largest_piece),
      spans_(world_size_) {}

void RankMemory::call(RankCall call, RankSide side, std::uint64_t piece_bytes) {
  std::byte *const whole = whole_.data(), *const give = give_.data();
  std::string error;
  if (side == RankSide::kRaw) {
    error = call == RankCall::kAllGather  ? raw_.all_gather(whole, piece_bytes)
            : call == RankCall::kAllToAll ? raw_.all_to_all(give, whole, piece_bytes)
                                          : raw_.exchange(give, whole, piece_bytes);
    if (error.empty()) return;
    throw Error(Code::kIo, "a raw call failed: " + error +
                               "; the rounds so far are lost; see what the other ranks say");
  }
  const CollectiveTag tag = {sequence_++, "bench ranks"};
  if (call == RankCall::kAllGather) {
    for (std::uint32_t r = 0; r < world_size_; ++r)
      spans_[r] = {whole + r * piece_bytes, piece_bytes};
    return collective_.all_gather(tag, {}, spans_);
  }
  if (call == RankCall::kExchange)
    return collective_.exchange(tag, {give, piece_bytes}, {whole, world_size_ * piece_bytes});
  std::byte* at = give;
  for (std::uint32_t r = 0; r < world_size_; ++r) {
    spans_[r] = {at, piece_bytes};
    if (r != rank_) at += piece_bytes;
  }
  collective_.all_to_all(tag, {}, spans_, whole);
}

// Where rank `from`'s piece comes to lie.
std::byte* RankMemory::place(RankCall call, std::uint32_t from, std::uint64_t piece_bytes) const {
  const bool own_left_out = call == RankCall::kAllToAll && from > rank_;
  return whole_.data() + (from - (own_left_out ? 1 : 0)) * piece_bytes;
}

void RankMemory::fill(RankCall call, std::uint64_t piece_bytes) {
  std::ranges::fill(whole_, std::byte{0});
  const auto fill_piece = [&](std::byte* piece, std::uint32_t to) {
    for (std::uint64_t i = 0; i < piece_bytes; ++i) piece[i] = byte_of(rank_, to, i);
  };
  if (call == RankCall::kAllGather) return fill_piece(place(call, rank_, piece_bytes), kAll);
  if (call == RankCall::kExchange) return fill_piece(give_.data(), kAll);
  std::byte* piece = give_.data();
  for (std::uint32_t r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    fill_piece(piece, r);
    piece += piece_bytes;
  }
}

bool RankMemory::has_arrived(RankCall call, std::uint64_t piece_bytes) const {
  for (std::uint32_t from = 0; from < world_size_; ++from) {
    if (call == RankCall::kAllToAll && from == rank_) continue;
    const std::byte* const piece = place(call, from, piece_bytes);
    const std::uint32_t to = call == RankCall::kAllToAll ? rank_ : kAll;
    for (std::uint64_t i = 0; i < piece_bytes; ++i) {
      if (piece[i] != byte_of(from, to, i)) return false;
    }
  }
  return true;
}
}  // namespace headrace::tools
