// SPDX-License-Identifier: Apache-2.0
// nccl_posts.hpp: what ranks that share no memory tell each other at a call that blocks, and what
// follows from it: pure, the same on every rank.
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
// A Call that can be sent. The text is cut where it is long; its hash is of all.
struct PostedCall {
  CallKind kind = CallKind::kBarrier;
  DType dtype = DType::kF32;
  std::uint16_t what_bytes = 0;
  std::uint64_t sequence = 0;
  std::uint64_t size = 0;
  std::uint64_t what_hash = 0;
  char what[96] = {};
};
PostedCall posted_call(CallKind kind, CollectiveTag tag, DType dtype, std::uint64_t size) noexcept;
Call call_of(const PostedCall& posted);
bool same_call(const PostedCall& a, const PostedCall& b) noexcept;

struct Post {
  enum class Kind : std::uint32_t { kCall, kFailed, kLeft };
  // The how manieth round it is for, from 1: tells one that has come from what lay there.
  std::uint64_t number = 0;
  Kind kind = Kind::kCall;
  std::uint32_t body_bytes = 0;
  std::int64_t failed_at_ns = 0;  // of kFailed: since 1970, so that the first of several is known
  std::uint64_t queued = 0;       // calls made so far that did not block, and their hash
  std::uint64_t queued_hash = 0;
  PostedCall call;
  // Of kCall: what the rank gives, where it fits. Of kFailed: why.
  std::array<char, 856> body = {};

  std::string_view text() const noexcept;
  void set_text(std::string_view text) noexcept;
};
static_assert(sizeof(Post) == 1024 && std::is_trivially_copyable_v<Post>);

// The last calls that did not block. Nothing is compared when they are made; the next round finds a
// difference. Two ranks gather different groups, and come to the same barrier:
//
//   rank 0  queues all_gather 'gather of h.3' (7), posts barrier 'step' (8), 1 call, hash a
//   rank 1  queues all_gather 'gather of h.4' (7), posts barrier 'step' (8), 1 call, hash b
//   both    the barriers are the same, the hashes are not: a second round sends the QueuedCalls
//   both    call 0 is the first that differs: rank 1 called all_gather 'gather of h.4' ...
//
// Had rank 1 queued none, its call 0 would be what it posted: the barrier.
struct QueuedCalls {
  static constexpr std::uint64_t kKept = 32;
  std::uint64_t count = 0;  // since the beginning; call i is at i % kKept
  std::uint64_t hash = 0;
  std::array<PostedCall, kKept> calls = {};

  void add(const PostedCall& call) noexcept;
};
static_assert(std::is_trivially_copyable_v<QueuedCalls>);

// posts[r] is rank r's. Why none of the ranks goes on, if so: one that failed (the first, by its
// clock), one that left, one that called something else. `rank` is this one.
std::optional<std::string> refusal_of(std::span<const Post> posts, std::uint32_t rank);
// The first of those that failed; null: none did.
const Post* first_failed(std::span<const Post> posts) noexcept;
bool queued_the_same(std::span<const Post> posts) noexcept;
// Where ranks did not queue the same: both calls of the first difference.
std::string queued_difference(std::span<const Post> posts, std::span<const QueuedCalls> queued);
// "rank 1, rank 2": those without a post of this number.
std::string missing_ranks(std::span<const Post> posts, std::uint64_t number);
}  // namespace headrace::collective
