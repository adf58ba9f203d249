// SPDX-License-Identifier: Apache-2.0
// posts_test.cpp: reading the posts that ranks exchange.
#include "collective/posts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace headrace::collective {
namespace {
bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
Call gather(std::uint64_t sequence, std::string_view what) {
  return make_call(CallKind::kAllGather, {sequence, what}, 8);
}

TEST(Posts, TakeTheFirstOfSeveralFailures) {
  std::vector<Post> posts(3);
  EXPECT_EQ(refusal_of(posts, 0), std::nullopt);
  posts[0].kind = posts[2].kind = Post::Kind::kFailed;
  posts[0].failed_at_ns = 20;
  posts[2].failed_at_ns = 10;
  posts[0].set_text("later");
  posts[2].set_text("the drive is gone");
  EXPECT_TRUE(says(*refusal_of(posts, 1), "rank 2 gave up: the drive is gone"));
}

TEST(Posts, TellCallsApartWhoseTextsDifferBehindWhatIsKept) {
  const std::string head(200, 'x');
  std::vector<Post> posts(2);
  posts[0].call = gather(1, head + "a");
  posts[1].call = gather(1, head + "b");
  EXPECT_TRUE(refusal_of(posts, 0).has_value());
  posts[1].call = gather(1, head + "a");
  EXPECT_FALSE(refusal_of(posts, 0).has_value());
}

TEST(Posts, CutAReasonThatIsTooLong) {
  Post post;
  post.set_text(std::string(5000, 'y'));
  EXPECT_EQ(post.text(), std::string(post.body.size(), 'y'));
}

TEST(Posts, FindTheFirstQueuedCallThatDiffersWhereverItIsKept) {
  for (const std::uint64_t made : {1, 31, 32, 33, 500}) {
    for (const std::uint64_t different : {std::uint64_t{0}, made / 2, made - 1}) {
      std::vector<QueuedCalls> queued(2);
      for (std::uint64_t i = 0; i < made; ++i) {
        queued[0].add(gather(i, "same"));
        queued[1].add(gather(i, i >= different ? "other" : "same"));
      }
      std::vector<Post> posts(2);
      for (std::size_t r = 0; r < 2; ++r) {
        posts[r].queued = queued[r].count;
        posts[r].queued_hash = queued[r].hash;
      }
      EXPECT_FALSE(queued_the_same(posts));
      const std::string text = queued_difference(posts, queued);
      const std::uint64_t first_kept = made > 32 ? made - 32 : 0;
      const std::uint64_t named = std::max(different, first_kept);
      EXPECT_TRUE(says(text, "'other' (sequence " + std::to_string(named) + ", ")) << text;
    }
  }
}

TEST(Posts, SayWhenTheDifferenceIsNoLongerKept) {
  std::vector<QueuedCalls> queued(2);
  queued[0].add(gather(0, "one"));
  queued[1].add(gather(0, "other"));
  for (std::uint64_t i = 1; i < 40; ++i) {
    for (QueuedCalls& of_rank : queued) of_rank.add(gather(i, "same"));
  }
  const std::vector<Post> posts(2);
  EXPECT_NE(queued[0].hash, queued[1].hash);
  EXPECT_TRUE(says(queued_difference(posts, queued), "more than 32 calls before"));
}
}  // namespace
}  // namespace headrace::collective
