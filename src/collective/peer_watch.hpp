// SPDX-License-Identifier: Apache-2.0
// peer_watch.hpp: watches the other ranks while this one waits for them, and determines why a call
// cannot be completed.
//
// If a call takes long, a thread reads the ranks' posts, and posts this rank's own. Example: rank
// 1's drive fails while rank 0 waits in call 12.
//
//   rank 1, any thread   abort("EIO"): posts { 12, kFailed, "EIO" }, and ends its own calls
//   rank 0, its watch    has waited 50 ms: posts { 12, kCall, all_gather 'gather of h.3' }
//   rank 0, its watch    reads rank 1's post 50 ms later: "rank 1 gave up: EIO; ...". Posts
//                        { 12, kEnded, that text }, reads the posts once more, and takes the text
//                        of the first that ended, so that all ranks say the same. Then it ends the
//                        transport's calls, and rank 0's call throws the text
//
// If rank 1 had died without a post, the transport would have ended rank 0's call with an error.
// Then rank 0 watches for 1.5 seconds whose posts stop: every rank posts three times a second. If
// posts pass through one rank, and that one has died, the posts of all stop: then it is named.
#pragma once
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collective/posts.hpp"
#include "headrace/error.hpp"
#include "headrace/transport.hpp"

namespace headrace::collective {
// Threads: begin(), end() and fail() come from the thread that makes calls; abort() from any.
class PeerWatch {
 public:
  explicit PeerWatch(const CollectiveOptions& options);
  // Posts that this rank leaves.
  ~PeerWatch();

  // This rank makes its next call. Throws kPeerLost if the ranks can no longer continue.
  void begin(const Call& call, const QueuedCalls& queued);
  void end() noexcept;
  std::uint64_t calls() const noexcept { return calls_; }
  // The call has thrown on this rank alone, with this cause: the others end with it. Returns when
  // the transport no longer uses the call's memory. Does nothing if the ranks have ended already.
  void give_up(std::string_view cause) noexcept;
  // After give_up(): throws what the other ranks do.
  [[noreturn]] void throw_end();
  // The transport has ended the call with an error. Throws kPeerLost with its cause.
  [[noreturn]] void fail(std::string_view transport_error);
  // Throws kPeerLost with `why` no rank can continue. Every rank knows it or will find it here.
  [[noreturn]] void refuse(const std::string& why);
  void abort(std::string_view why) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Life {  // of another rank
    std::uint64_t posts = 0;
    Clock::time_point since;  // the time of its last post
  };

  void run();
  void look(std::unique_lock<std::mutex>& lock);
  void read_posts();
  Post own_post() const;
  void say(const Post& post) noexcept;
  std::optional<std::string> verdict() const;
  std::string late_ranks() const;
  void warn_of_late_ranks(std::unique_lock<std::mutex>& lock);
  std::string silent_ranks() const;
  std::string text_at_deadline() const;
  std::string text_of_loss(const std::string& transport_error) const;
  void end_if_interrupted();
  void start_to_end(std::string why, Post::Kind kind);
  void end_for_all(std::unique_lock<std::mutex>& lock);
  [[noreturn]] void throw_why(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<Transport> transport_;
  const std::chrono::milliseconds deadline_;
  const std::function<void(const std::string&)> warn_;
  const std::function<bool()> interrupted_;
  std::mutex mutex_;  // protects the rest; not held in the transport's abort() or in warn_
  std::condition_variable changed_;
  std::uint64_t calls_ = 0;
  std::optional<Call> call_;  // the call that this rank is in
  Clock::time_point since_;
  bool warned_ = false;
  std::uint64_t queued_ = 0, queued_hash_ = 0;
  std::optional<Post> last_words_;  // set when this rank has announced that it stops
  std::optional<std::string> why_;  // why no rank can continue
  Code code_ = Code::kPeerLost;     // of `why_`
  std::vector<Transport::Post> raw_;
  std::vector<Post> posts_;  // as far as known; an empty one: none yet
  std::vector<Life> lives_;
  bool closing_ = false;
  std::thread thread_;
};
}  // namespace headrace::collective
