// SPDX-License-Identifier: Apache-2.0
#include "collective/peer_watch.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <utility>

#include "async/thread.hpp"
#include "headrace/error.hpp"

namespace headrace::collective {
namespace {
using std::chrono::milliseconds;
// A call that takes no longer costs no post.
constexpr milliseconds kLook(50);
constexpr milliseconds kSignOfLife(300);
// A rank that has posted nothing for so long has ended. Some posts may come late.
constexpr milliseconds kSilence(1200);
constexpr milliseconds kSearch(1500);

std::string rank_text(std::size_t rank) { return "rank " + std::to_string(rank); }
}  // namespace

PeerWatch::PeerWatch(const CollectiveOptions& options)
    : transport_(options.transport),
      deadline_(options.deadline),
      warn_(options.warn),
      interrupted_(options.interrupted),
      raw_(transport_->world_size()),
      posts_(transport_->world_size()),
      lives_(transport_->world_size(), Life{0, Clock::now()}) {
  if (transport_->world_size() == 1) return;
  thread_ = async::start_thread("headrace-ranks", [this] { run(); });
}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (why_ || last_words_) return;  // what this rank posted last says why
  Post post = own_post();
  post.kind = Post::Kind::kLeft;
  say(post);
}

void PeerWatch::begin(const Call& call, const QueuedCalls& queued) {
  std::unique_lock lock(mutex_);
  if (last_words_ || why_) throw_why(lock);
  ++calls_;
  call_ = call;
  since_ = Clock::now();
  warned_ = false;
  queued_ = queued.count;
  queued_hash_ = queued.hash;
}

void PeerWatch::end() noexcept {
  const std::lock_guard lock(mutex_);
  call_.reset();
}

void PeerWatch::throw_why(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return why_.has_value(); });
  throw Error(code_, *why_);
}

Post PeerWatch::own_post() const {
  Post post;
  post.number = calls_;
  post.kind = call_ ? Post::Kind::kCall : Post::Kind::kIdle;
  post.queued = queued_;
  post.queued_hash = queued_hash_;
  if (call_) post.call = *call_;
  return post;
}

void PeerWatch::say(const Post& post) noexcept {
  transport_->post(std::as_bytes(std::span(&post, 1)));
}

void PeerWatch::read_posts() {
  transport_->read_posts(raw_);
  for (std::size_t r = 0; r < raw_.size(); ++r) {
    if (raw_[r].number == lives_[r].posts || raw_[r].size_bytes != sizeof(Post)) continue;
    lives_[r] = {raw_[r].number, Clock::now()};
    std::memcpy(&posts_[r], raw_[r].bytes.data(), sizeof(Post));
  }
}

// Why the call that this rank is in will not be carried out, by what the others have posted.
std::optional<std::string> PeerWatch::verdict() const {
  const std::uint32_t own = transport_->rank();
  std::vector<Post> posts = posts_;
  posts[own] = own_post();
  if (first_failed(posts) != nullptr) return refusal_of(posts, own);
  std::optional<std::size_t> first;  // the lowest rank in this same call
  for (std::size_t r = 0; r < posts.size(); ++r) {
    const Post& post = posts[r];
    if (post.kind == Post::Kind::kLeft && post.number < calls_)
      return left_text(static_cast<std::uint32_t>(r), *call_);
    if (post.kind != Post::Kind::kCall || post.number != calls_) continue;
    if (!first) first = r;
    if (!same_call(post.call, posts[*first].call)) {
      return mismatch_text(static_cast<std::uint32_t>(r), post.call,
                           static_cast<std::uint32_t>(*first), posts[*first].call);
    }
  }
  return std::nullopt;
}

std::string PeerWatch::late_ranks() const {
  std::string text = transport_->posts_held_up_by();
  if (!text.empty()) return text;
  for (std::size_t r = 0; r < posts_.size(); ++r) {
    if (r == transport_->rank() || posts_[r].number >= calls_) continue;
    text += (text.empty() ? "" : ", ") + rank_text(r);
  }
  return text;
}

// A rank whose last post was its farewell, or its last words, is silent for a known reason.
std::string PeerWatch::silent_ranks() const {
  std::string text = transport_->posts_held_up_by();
  if (!text.empty()) return text;
  for (std::size_t r = 0; r < lives_.size(); ++r) {
    const bool posts = posts_[r].kind == Post::Kind::kCall || posts_[r].kind == Post::Kind::kIdle;
    if (r == transport_->rank() || !posts || Clock::now() - lives_[r].since < kSilence) continue;
    text += (text.empty() ? "" : ", ") + rank_text(r);
  }
  return text;
}

// `lock` is open while the line is written.
void PeerWatch::warn_of_late_ranks(std::unique_lock<std::mutex>& lock) {
  warned_ = true;
  const std::string late = late_ranks(), silent = silent_ranks();
  std::string line =
      rank_text(transport_->rank()) + " has waited " +
      std::to_string(std::chrono::duration_cast<milliseconds>(Clock::now() - since_).count()) +
      " ms in " + describe(*call_) + " for " + (late.empty() ? "its bytes" : late);
  if (!silent.empty()) line += " (" + silent + " shows no sign of life)";
  line += "; it gives up after " + std::to_string(deadline_.count()) + " ms in all";
  lock.unlock();
  if (warn_) {
    warn_(line);
  } else {
    std::fprintf(stderr, "headrace: %s\n", line.c_str());
  }
  lock.lock();
}

std::string PeerWatch::text_at_deadline() const {
  const auto milliseconds = static_cast<std::uint64_t>(deadline_.count());
  if (const std::string holds_up = transport_->posts_held_up_by(); !holds_up.empty())
    return held_up_text(holds_up, *call_, "within " + std::to_string(milliseconds) + " ms");
  const std::string late = late_ranks();
  if (!late.empty()) return missing_text(late, *call_, milliseconds);
  return describe(*call_) + " did not end within " + std::to_string(milliseconds) +
         " ms, although every rank came to it: no further call will be carried out; see what holds "
         "up the network, or raise the deadline";
}

void PeerWatch::look(std::unique_lock<std::mutex>& lock) {
  read_posts();
  if (auto why = verdict()) return start_to_end(std::move(*why), Post::Kind::kEnded);
  const Clock::duration waited = Clock::now() - since_;
  if (waited > deadline_) {
    return start_to_end(text_at_deadline(), Post::Kind::kEnded);
  }
  if (!warned_ && waited > deadline_ / 4) warn_of_late_ranks(lock);
}

void PeerWatch::run() {
  std::unique_lock lock(mutex_);
  Clock::time_point said;
  std::uint64_t said_call = 0;
  while (!closing_) {
    const auto tick = std::clamp<milliseconds>(deadline_ / 8, milliseconds(1), kLook);
    changed_.wait_for(lock, tick, [&] { return closing_ || (last_words_ && !why_); });
    end_if_interrupted();
    if (last_words_ && !why_) end_for_all(lock);
    if (closing_ || why_) continue;
    const bool waits = call_ && Clock::now() - since_ > tick;
    if ((waits && said_call != calls_) || Clock::now() - said > kSignOfLife) {
      say(own_post());
      said = Clock::now();
      said_call = waits ? calls_ : 0;
    }
    if (waits) look(lock);
  }
}

void PeerWatch::end_if_interrupted() {
  if (last_words_ || why_ || !interrupted_ || !interrupted_()) return;
  code_ = Code::kInterrupted;
  start_to_end("interrupted", Post::Kind::kFailed);
}

// This rank goes on no more. The watch does the rest; without one, there is no other rank.
void PeerWatch::start_to_end(std::string why, Post::Kind kind) {
  if (last_words_ || why_) return;
  last_words_ = own_post();
  last_words_->kind = kind;
  last_words_->failed_at_ns = Post::now_ns();
  last_words_->set_text(why);
  say(*last_words_);
  changed_.notify_all();
  if (transport_->world_size() == 1) why_ = abort_text(0, why);
}

// Ranks that find at the same time that they cannot go on take the text of the first.
void PeerWatch::end_for_all(std::unique_lock<std::mutex>& lock) {
  changed_.wait_for(lock, kLook, [] { return false; });
  read_posts();
  std::vector<Post> posts = posts_;
  posts[transport_->rank()] = *last_words_;
  std::string why = refusal_of(posts, transport_->rank()).value_or("");
  lock.unlock();
  transport_->abort();
  lock.lock();
  why_ = std::move(why);
  changed_.notify_all();
}

void PeerWatch::abort(std::string_view why) noexcept try {
  const std::lock_guard lock(mutex_);
  start_to_end(std::string(why), Post::Kind::kFailed);
} catch (...) {  // no memory for the text: the abort holds without it
  const std::lock_guard lock(mutex_);
  if (!why_) why_.emplace();
  changed_.notify_all();
}

void PeerWatch::give_up(std::string_view cause) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    start_to_end((call_ ? describe(*call_) + ": " : "") + std::string(cause), Post::Kind::kFailed);
  } catch (const std::exception&) {  // no memory for the text
    abort(cause);
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return why_.has_value(); });
}

void PeerWatch::throw_end() {
  std::unique_lock lock(mutex_);
  throw_why(lock);
}

void PeerWatch::refuse(const std::string& why) {
  std::unique_lock lock(mutex_);
  start_to_end(why, Post::Kind::kEnded);
  throw_why(lock);
}

std::string PeerWatch::text_of_loss(const std::string& transport_error) const {
  if (const std::string holds_up = transport_->posts_held_up_by(); !holds_up.empty())
    return held_up_text(holds_up, *call_, "(" + transport_error + ")");
  const std::string silent = silent_ranks();
  return (silent.empty() ? std::string("the ranks lost each other")
                         : silent + " ended without a word") +
         " (" + transport_error + "): " + describe(*call_) +
         " was not carried out, and no further call will be; see why that rank ended, and start "
         "again";
}

// Some rank has failed, left, or called something else, and says so; or it has fallen silent.
void PeerWatch::fail(std::string_view transport_error) {
  std::unique_lock lock(mutex_);
  if (last_words_ || why_) throw_why(lock);
  say(own_post());
  const Clock::time_point end = Clock::now() + kSearch;
  std::optional<std::string> why;
  while (!why && !last_words_ && Clock::now() < end) {
    changed_.wait_for(lock, milliseconds(20), [&] { return last_words_.has_value(); });
    read_posts();
    why = verdict();
  }
  if (!why)
    why = text_of_loss(std::string(transport_->name()) + ": " + std::string(transport_error));
  start_to_end(std::move(*why), Post::Kind::kEnded);
  throw_why(lock);
}
}  // namespace headrace::collective
