// SPDX-License-Identifier: Apache-2.0
#include "collective/posts.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "kernels/hash.hpp"

namespace headrace::collective {
namespace {
std::string rank_text(std::uint32_t rank) { return "rank " + std::to_string(rank); }
std::uint32_t place_in(std::span<const Post> posts, const Post* post) {
  return static_cast<std::uint32_t>(post - posts.data());
}
}  // namespace

std::string_view Post::text() const noexcept { return {body.data(), body_bytes}; }

void Post::set_text(std::string_view text) noexcept {
  body_bytes = static_cast<std::uint32_t>(std::min(text.size(), body.size()));
  std::copy_n(text.data(), body_bytes, body.data());
}

std::int64_t Post::now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void QueuedCalls::add(const Call& call) noexcept {
  const std::uint64_t facts[] = {static_cast<std::uint64_t>(call.kind), call.sequence,
                                 call.size_bytes, call.what_hash};
  hash = kernels::xxh3_64(std::as_bytes(std::span(facts)), hash);
  calls[count++ % kKept] = call;
}

const Post* first_failed(std::span<const Post> posts) noexcept {
  const Post* first = nullptr;
  for (const Post& post : posts) {
    if (post.kind != Post::Kind::kFailed && post.kind != Post::Kind::kEnded) continue;
    if (first == nullptr || post.failed_at_ns < first->failed_at_ns) first = &post;
  }
  return first;
}

std::optional<std::string> refusal_of(std::span<const Post> posts, std::uint32_t rank) {
  if (const Post* const failed = first_failed(posts)) {
    if (failed->kind == Post::Kind::kEnded) return std::string(failed->text());
    return abort_text(place_in(posts, failed), failed->text());
  }
  for (const Post& post : posts) {
    if (post.kind == Post::Kind::kLeft) return left_text(place_in(posts, &post), posts[rank].call);
  }
  if (!queued_the_same(posts)) return std::nullopt;  // that difference was before this one
  for (const Post& post : posts) {
    if (!same_call(post.call, posts[0].call))
      return mismatch_text(place_in(posts, &post), post.call, 0, posts[0].call);
  }
  return std::nullopt;
}

bool queued_the_same(std::span<const Post> posts) noexcept {
  return std::ranges::all_of(posts, [&](const Post& post) {
    return post.queued == posts[0].queued && post.queued_hash == posts[0].queued_hash;
  });
}

std::string queued_difference(std::span<const Post> posts, std::span<const QueuedCalls> queued) {
  // A rank that had queued fewer came to this call instead.
  const auto call_at = [&](std::size_t rank, std::uint64_t index) -> const Call& {
    return index < queued[rank].count ? queued[rank].calls[index % QueuedCalls::kKept]
                                      : posts[rank].call;
  };
  std::uint64_t end = 0, begin = 0;
  for (const QueuedCalls& of_rank : queued) {
    end = std::max(end, of_rank.count);
    if (of_rank.count > QueuedCalls::kKept)
      begin = std::max(begin, of_rank.count - QueuedCalls::kKept);
  }
  const std::string consequence =
      ": what was queued since has no meaning, and no further call will be carried out; make the "
      "same calls in the same order on every rank";
  for (std::uint64_t index = begin; index < end; ++index) {
    for (std::uint32_t rank = 1; rank < posts.size(); ++rank) {
      const Call &first = call_at(0, index), &other = call_at(rank, index);
      if (same_call(first, other)) continue;
      return rank_text(rank) + " called " + describe(other) + " where rank 0 called " +
             describe(first) + consequence;
    }
  }
  return "the ranks queued different calls, more than " + std::to_string(QueuedCalls::kKept) +
         " calls before " + describe(posts[0].call) + consequence;
}
}  // namespace headrace::collective
