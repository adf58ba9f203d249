// SPDX-License-Identifier: Apache-2.0
// posts.hpp: the posts of ranks about their calls, and the conclusions from them, in pure functions
// with the same results on every rank.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "collective/call_rules.hpp"

namespace headrace::collective {
struct Post {
  // kIdle: between calls. kFailed: this rank gave up. kEnded: it found that no rank can continue.
  enum class Kind : std::uint32_t { kCall, kFailed, kLeft, kIdle, kEnded };
  // The number of the call that the post is about, from 1, the same on every rank.
  std::uint64_t number = 0;
  Kind kind = Kind::kCall;
  std::uint32_t body_bytes = 0;
  // For kFailed and kEnded: the time since 1970, which determines the first of several.
  std::int64_t failed_at_ns = 0;
  std::uint64_t queued = 0;  // data-moving calls made so far, and their hash
  std::uint64_t queued_hash = 0;
  Call call;
  // For kCall: what the rank gives, if it fits. For kFailed: its cause. For kEnded: the whole text.
  std::array<char, 856> body = {};

  std::string_view text() const noexcept;
  void set_text(std::string_view text) noexcept;
  static std::int64_t now_ns() noexcept;  // for failed_at_ns
};
static_assert(sizeof(Post) == 1024 && std::is_trivially_copyable_v<Post>);

// The last calls that moved data. Ranks do not compare them when they are made; the next exchange
// detects a difference. Two ranks gather different groups, and then make the same exchange:
//
//   rank 0  queues all_gather 'gather of h.3' (7), posts exchange 'step' (8), 1 call, hash a
//   rank 1  queues all_gather 'gather of h.4' (7), posts exchange 'step' (8), 1 call, hash b
//   both    the exchanges are the same, the hashes are not: a second round sends the QueuedCalls
//   both    call 0 is the first that differs: rank 1 called all_gather 'gather of h.4' ...
//
// If rank 1 had queued none, its call 0 would be the one that it posted: the exchange.
struct QueuedCalls {
  static constexpr std::uint64_t kKept = 32;
  std::uint64_t count = 0;  // since the beginning; call i is at i % kKept
  std::uint64_t hash = 0;
  std::array<Call, kKept> calls = {};

  void add(const Call& call) noexcept;
};
static_assert(std::is_trivially_copyable_v<QueuedCalls>);

// posts[r] is rank r's. The reason why no rank can continue, if there is one: a rank failed (the
// first, by its clock), left, or called something else. `rank` is this one.
std::optional<std::string> refusal_of(std::span<const Post> posts, std::uint32_t rank);
// The first of the posts that report a failure; null if none does.
const Post* first_failed(std::span<const Post> posts) noexcept;
bool queued_the_same(std::span<const Post> posts) noexcept;
// If ranks did not queue the same: both calls of the first difference.
std::string queued_difference(std::span<const Post> posts, std::span<const QueuedCalls> queued);
}  // namespace headrace::collective
