// SPDX-License-Identifier: Apache-2.0
// headrace/torch/c10d.hpp: a transport over a Gloo process group of torch.distributed.
//
//   auto transport = headrace::torch::make_c10d_transport(group);   // on every rank
//
// Each lane has a group of its own, split from the given one, and a thread that issues the sends
// and receives of one call at a time and waits for them. The trainer may use the given group at the
// same time.
//
//   all_to_all on rank 1 of 3   recv from 0, recv from 2, send to 0, send to 2; wait for all four
//   rank 2 dies                 its connection closes, and the call fails with torch's error
//   abort()                     ends the wait; pending transfers are dropped, and the call fails
//
// Posts are kept in the group's store, under a key for each rank. Only one thread accesses the
// store. If the store's host is lost, an access may block for minutes, but that delays only posts:
// posts_held_up_by() names the host then.
#pragma once
#include <torch/version.h>
#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 11)
#error "headrace/torch/c10d.hpp needs torch 2.11 or newer: it was never checked with an older one"
#endif
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <pthread.h>
#include <signal.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/transport.hpp"

namespace headrace::torch {
namespace detail {
using C10dWork = c10::intrusive_ptr<c10d::Work>;
using C10dBackend = c10::intrusive_ptr<c10d::Backend>;
using C10dStore = c10::intrusive_ptr<c10d::Store>;

// torch has no endless wait. When a wait times out, torch closes every connection.
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 3650);
constexpr std::uint64_t kChunkBytes = 16 << 20;  // abort() may wait for a chunk that is arriving
constexpr std::chrono::milliseconds kBetweenLooks(150);
constexpr std::chrono::seconds kForTheStore(1);   // the destructor's longest wait for the store
constexpr std::chrono::seconds kForTheOthers(2);  // longest wait of the rank that serves the store
// The same after a failure, so that the others read this rank's last post.
constexpr std::chrono::milliseconds kForTheLastPost(500);
constexpr std::chrono::milliseconds kNoAnswer(1200);  // of a store that does not hold up posts

// The text of a torch error, without its stack trace.
inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// Starts a thread that receives none of the program's signals.
inline std::thread quiet_thread(const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const std::unique_ptr<sigset_t, void (*)(sigset_t*)> as_before(
      &before, [](sigset_t* mask) { pthread_sigmask(SIG_SETMASK, mask, nullptr); });
  return std::thread([name, body = std::move(body)] {
    pthread_setname_np(pthread_self(), name);
    body();
  });
}

[[noreturn]] inline void throw_no_thread(const std::system_error& error) {
  throw Error(Code::kUnsupported,
              "no thread could be started: " + first_line(error) +
                  "; no transport was made; raise the limit on tasks (ulimit -u, pids.max)",
              error.code().value());
}

// Throws kIo if that is what torch's error says: torch has only words for it.
inline void require_files(const std::string& what, const std::exception& error) {
  const std::string text = first_line(error);
  if (text.find("Too many open files") == std::string::npos &&
      text.find("EMFILE") == std::string::npos)
    return;
  throw Error(Code::kIo,
              what + ": " + text +
                  "; no transport was made; raise the limit on open files (ulimit -n), or close "
                  "some",
              EMFILE);
}

// The reason why calls no longer work. Only the first cause is kept.
class C10dFailure {
 public:
  void set(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why;
  }
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  mutable std::mutex mutex_;
  std::string why_;
};

// A lane's calls, which its thread executes one after the other.
class C10dLane {
 public:
  struct Call {
    std::vector<Transport::Piece> give, take;  // by rank
    Transport::Done done;
  };
  C10dLane(C10dBackend group, const char* thread_name, C10dFailure& failure)
      : group_(std::move(group)), failure_(failure) {
    thread_ = quiet_thread(thread_name, [this] { run(); });
  }
  ~C10dLane() {
    wake();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    called_.notify_one();
    thread_.join();
  }
  C10dLane(const C10dLane&) = delete;
  C10dLane& operator=(const C10dLane&) = delete;

  void begin(Call call) {
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back(std::move(call));
    }
    called_.notify_one();
  }
  // Makes the thread check whether the transport or any part of the thread's call has failed.
  void wake() noexcept {
    const std::lock_guard lock(mutex_);
    if (waited_for_) waited_for_->abort();  // ends one wait for that work, the current or the next
  }
  void wait_until_idle() noexcept {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return calls_.empty(); });
  }

 private:
  void run();
  std::string carry_out(const Call& call);
  struct Part {  // one chunk of a call, to or from another rank
    C10dWork work;
    int rank;
  };
  void issue(const Call& call, std::vector<Part>& parts);
  void wait_for(std::vector<Part>& parts);
  bool ended(const C10dWork& work);
  static bool ended_by(const Part& part, const std::function<bool(const C10dWork&)>& wait);
  template <class Issue>
  void in_chunks(const Transport::Piece& piece, const Issue& issue);

  const C10dBackend group_;
  C10dFailure& failure_;
  std::mutex mutex_;
  std::condition_variable called_, idle_;
  std::deque<Call> calls_;  // the first is in progress
  C10dWork waited_for_;
  bool stopping_ = false;
  std::thread thread_;
};

inline void C10dLane::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    called_.wait(lock, [&] { return stopping_ || !calls_.empty(); });
    if (calls_.empty()) return;
    const Call& call = calls_.front();
    lock.unlock();
    const std::string error = carry_out(call);
    call.done.function(call.done.context, error.empty() ? nullptr : error.c_str());
    lock.lock();
    calls_.pop_front();
    if (calls_.empty()) idle_.notify_all();
  }
}

// Returns the cause of a failure, or "". When it returns, torch holds no reference to the call.
inline std::string C10dLane::carry_out(const Call& call) {
  std::vector<Part> parts;
  try {
    issue(call, parts);
    wait_for(parts);
    return "";
  } catch (const std::exception& error) {
    failure_.set(first_line(error));
    return failure_.get();
  }
}

// A chunk's size is also its tag. Without the tag, if two ranks differed in the size, Gloo would
// end the process that receives less than the other sends. With the tag, both ranks wait, as they
// would for a call that was never made.
template <class Issue>
void C10dLane::in_chunks(const Transport::Piece& piece, const Issue& issue) {
  for (std::uint64_t at = 0; at < piece.size_bytes; at += kChunkBytes) {
    const std::uint64_t size = std::min(kChunkBytes, piece.size_bytes - at);
    std::vector<at::Tensor> bytes = {at::from_blob(static_cast<std::byte*>(piece.data) + at,
                                                   {static_cast<std::int64_t>(size)}, at::kByte)};
    issue(bytes, static_cast<int>(size));
  }
}

inline void C10dLane::issue(const Call& call, std::vector<Part>& parts) {
  const int own = group_->getRank(), world = group_->getSize();
  if (const std::string why = failure_.get(); !why.empty()) throw std::runtime_error(why);
  for (int r = 0; r < world; ++r) {
    if (r == own) continue;
    in_chunks(call.take[r], [&](auto& bytes, int tag) {
      parts.push_back({group_->recv(bytes, r, tag), r});
    });
  }
  for (int r = 0; r < world; ++r) {
    if (r == own) continue;
    in_chunks(call.give[r], [&](auto& bytes, int tag) {
      parts.push_back({group_->send(bytes, r, tag), r});
    });
  }
}

// If the wait throws, adds the rank at the other end of the connection to the error.
inline bool C10dLane::ended_by(const Part& part,
                               const std::function<bool(const C10dWork&)>& wait) try {
  return wait(part.work);
} catch (const std::exception& error) {
  throw std::runtime_error("with rank " + std::to_string(part.rank) + ": " + first_line(error));
}

inline void C10dLane::wait_for(std::vector<Part>& parts) {
  // Waits for the receives first, which are at the back now. When the receives are complete, the
  // sends are too, and need no wait of their own.
  std::ranges::reverse(parts);
  while (!parts.empty()) {
    if (ended_by(parts.back(), [this](const C10dWork& work) { return ended(work); })) {
      parts.pop_back();
      continue;
    }
    if (const std::string why = failure_.get(); !why.empty()) throw std::runtime_error(why);
    // Something woke this thread. Another part may have failed, which this wait would not show.
    std::erase_if(parts, [](const Part& part) {
      return ended_by(part, [](const C10dWork& work) {
        work->abort();  // so that wait() returns at once
        return work->wait(kForever);
      });
    });
  }
}

// Returns false if this thread was woken before the work ended.
inline bool C10dLane::ended(const C10dWork& work) {
  {
    const std::lock_guard lock(mutex_);
    waited_for_ = work;
  }
  const std::unique_ptr<C10dLane, void (*)(C10dLane*)> over(this, [](C10dLane* lane) {
    const std::lock_guard lock(lane->mutex_);
    lane->waited_for_.reset();
  });
  if (!failure_.get().empty()) return false;  // woken even before the wait
  return work->wait(kForever);
}

// The posts of all ranks, in a store to which this object's thread has a connection of its own. The
// thread shares ownership of the object, because stop() leaves the thread behind if the store does
// not answer.
class C10dPosts : public std::enable_shared_from_this<C10dPosts> {
 public:
  enum class Store { kOfOthers, kServedHere };
  // keeper: whoever serves the store, such as "rank 0".
  C10dPosts(C10dStore store, Store kind, std::string keeper, std::uint32_t rank,
            std::uint32_t world_size)
      : store_(std::move(store)),
        kind_(kind),
        keeper_(std::move(keeper)),
        rank_(rank),
        posts_(world_size) {
    for (std::uint32_t r = 0; r < world_size; ++r) keys_.push_back("post/" + std::to_string(r));
    write(posts_[rank_]);  // so that no other rank waits for it
  }
  // Starts the thread, which calls look() a few times a second until stop().
  void start(std::function<void()> look) {
    look_ = std::move(look);
    thread_ = quiet_thread("headrace-posts", [self = shared_from_this()] { self->run(); });
  }
  enum class End { kFailed, kTogether };  // whether other ranks are expected to end too
  void stop(End end) noexcept {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    if (kind_ == Store::kServedHere)
      for_the_others_ = end == End::kTogether ? kForTheOthers : kForTheLastPost;
    changed_.notify_all();
    const bool over = ended_.wait_for(lock, kForTheStore + for_the_others_, [&] { return over_; });
    lock.unlock();
    if (!thread_.joinable()) return;
    if (over) return thread_.join();
    thread_.detach();
  }
  void post(std::span<const std::byte> bytes) noexcept {
    const std::lock_guard lock(mutex_);
    Transport::Post& own = posts_[rank_];
    ++own.number;
    own.size_bytes = static_cast<std::uint32_t>(std::min(bytes.size(), own.bytes.size()));
    std::copy_n(bytes.data(), own.size_bytes, own.bytes.data());
    changed_.notify_all();
  }
  void read(std::span<Transport::Post> of_all) noexcept {
    const std::lock_guard lock(mutex_);
    std::ranges::copy(posts_, of_all.begin());
  }
  std::string held_up_by() const {
    const std::lock_guard lock(mutex_);
    const bool waits = asked_ && std::chrono::steady_clock::now() - *asked_ > kNoAnswer;
    return lost_ || waits ? keeper_ : "";
  }

 private:
  void run() noexcept;
  void exchange(const Transport::Post& own, std::uint64_t& written,
                std::vector<Transport::Post>& of_others);
  void leave();
  void write(const Transport::Post& post);
  static void parse(const std::vector<std::uint8_t>& value, Transport::Post& post);

  C10dStore store_;
  const Store kind_;
  const std::string keeper_;
  const std::uint32_t rank_;
  std::vector<std::string> keys_;  // by rank
  std::function<void()> look_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, ended_;
  std::vector<Transport::Post> posts_;
  std::optional<std::chrono::steady_clock::time_point> asked_;  // the store, for what it lacks yet
  bool lost_ = false;                                           // the store
  bool stopping_ = false, over_ = false;
  std::chrono::milliseconds for_the_others_{0};
  std::thread thread_;
};

inline void C10dPosts::run() noexcept {
  std::uint64_t written = 0;  // the number of this rank's post in the store
  std::unique_lock lock(mutex_);
  while (!stopping_ || (store_ && written != posts_[rank_].number)) {
    if (!stopping_) look_();
    std::vector<Transport::Post> posts = posts_;
    if (store_) asked_ = std::chrono::steady_clock::now();
    lock.unlock();
    try {
      if (store_) exchange(posts[rank_], written, posts);
    } catch (...) {  // a lost store remains lost, and each call to it logs to stderr
      store_.reset();
    }
    lock.lock();
    asked_.reset();
    lost_ = !store_;
    for (std::uint32_t r = 0; r < posts.size(); ++r) {
      if (r != rank_) posts_[r] = posts[r];
    }
    changed_.wait_for(lock, kBetweenLooks,
                      [&] { return stopping_ || (store_ && written != posts_[rank_].number); });
  }
  lock.unlock();
  try {
    if (store_) leave();
  } catch (...) {  // the store is lost: there is nothing left to do
  }
  lock.lock();
  over_ = true;
  ended_.notify_all();
}

// The rank that serves the store leaves last. Otherwise, the other ranks' calls to the store would
// fail.
inline void C10dPosts::leave() {
  using Clock = std::chrono::steady_clock;
  const auto world_size = static_cast<std::int64_t>(keys_.size());
  const Clock::time_point end = Clock::now() + for_the_others_;
  store_->add("left", 1);
  while (Clock::now() < end && store_->add("left", 0) < world_size)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

inline void C10dPosts::exchange(const Transport::Post& own, std::uint64_t& written,
                                std::vector<Transport::Post>& posts) {
  if (written != own.number) write(own);
  written = own.number;
  // get() would wait for a missing key.
  if (posts.size() < 2 || !store_->check(keys_)) return;
  const auto values = store_->multiGet(keys_);
  for (std::uint32_t r = 0; r < values.size() && r < posts.size(); ++r) parse(values[r], posts[r]);
}

// Writes the post's number, as 8 bytes, followed by its bytes.
inline void C10dPosts::write(const Transport::Post& post) {
  std::vector<std::uint8_t> value(sizeof(post.number) + post.size_bytes);
  std::memcpy(value.data(), &post.number, sizeof(post.number));
  if (post.size_bytes > 0)
    std::memcpy(value.data() + sizeof(post.number), post.bytes.data(), post.size_bytes);
  store_->set(keys_[rank_], value);
}

inline void C10dPosts::parse(const std::vector<std::uint8_t>& value, Transport::Post& post) {
  if (value.size() < sizeof(post.number)) return;
  const std::size_t size = value.size() - sizeof(post.number);
  if (size > post.bytes.size()) return;
  std::memcpy(&post.number, value.data(), sizeof(post.number));
  if (size > 0) std::memcpy(post.bytes.data(), value.data() + sizeof(post.number), size);
  post.size_bytes = static_cast<std::uint32_t>(size);
}

class C10dTransport final : public Transport {
 public:
  // lanes: one group for each lane, all with the same ranks.
  C10dTransport(const std::array<C10dBackend, kLanes>& lanes, std::shared_ptr<C10dPosts> posts)
      : rank_(static_cast<std::uint32_t>(lanes[0]->getRank())),
        world_size_(static_cast<std::uint32_t>(lanes[0]->getSize())),
        posts_(std::move(posts)) {
    constexpr std::array<const char*, kLanes> kThreads = {"headrace-gather", "headrace-reduce",
                                                          "headrace-talk"};
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      lanes_[lane] = std::make_unique<C10dLane>(lanes[lane], kThreads[lane], failure_);
    posts_->start([this] {
      for (const auto& lane : lanes_) lane->wake();
    });
  }
  ~C10dTransport() override {
    const bool failed = !failure_.get().empty();
    abort();
    posts_->stop(failed ? C10dPosts::End::kFailed : C10dPosts::End::kTogether);
  }
  std::string_view name() const noexcept override { return "gloo"; }
  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return world_size_; }
  void all_to_all(Lane lane, Stream, std::span<const Piece> give, std::span<const Piece> take,
                  Done done) override {
    lanes_[static_cast<std::size_t>(lane)]->begin(
        {{give.begin(), give.end()}, {take.begin(), take.end()}, done});
  }
  void post(std::span<const std::byte> bytes) noexcept override { posts_->post(bytes); }
  void read_posts(std::span<Post> of_all) noexcept override { posts_->read(of_all); }
  std::string posts_held_up_by() const override { return posts_->held_up_by(); }
  void abort() noexcept override {
    failure_.set("this rank has aborted its transport");
    for (const auto& lane : lanes_) lane->wake();
    for (const auto& lane : lanes_) lane->wait_until_idle();
  }

 private:
  const std::uint32_t rank_, world_size_;
  C10dFailure failure_;
  std::shared_ptr<C10dPosts> posts_;
  std::array<std::unique_ptr<C10dLane>, kLanes> lanes_;
};
// Gloo writes to its sockets in a way that raises SIGPIPE if the other rank has closed its own, and
// by default that signal ends the process without a word. A handler of the program's stays.
inline void keep_broken_connections_from_killing() noexcept {
  struct sigaction before {};
  if (::sigaction(SIGPIPE, nullptr, &before) == 0 && (before.sa_flags & SA_SIGINFO) == 0 &&
      before.sa_handler == SIG_DFL)
    ::signal(SIGPIPE, SIG_IGN);
}

// Creates the transport. make_lane() creates a group for each lane, over a store of its own.
inline std::shared_ptr<Transport> make_c10d(
    const C10dStore& store, C10dPosts::Store kind, const std::string& keeper, int rank,
    int world_size, const std::function<C10dBackend(const C10dStore& store)>& make_lane) try {
  const auto within = [](const std::string& name, const C10dStore& of) {
    return c10::make_intrusive<c10d::PrefixStore>("headrace/" + name, of);
  };
  keep_broken_connections_from_killing();
  // The number of transports that this rank has made over this store.
  const std::string n = std::to_string(store->add("headrace/made/" + std::to_string(rank), 1));
  auto posts = std::make_shared<C10dPosts>(within(n, store->clone()), kind, keeper,
                                           static_cast<std::uint32_t>(rank),
                                           static_cast<std::uint32_t>(world_size));
  std::array<C10dBackend, kLanes> lanes;
  for (std::size_t lane = 0; lane < kLanes; ++lane)
    lanes[lane] = make_lane(within(n + "/lane/" + std::to_string(lane), store));
  return std::make_shared<C10dTransport>(lanes, std::move(posts));
} catch (const std::system_error& error) {
  throw_no_thread(error);
} catch (const std::exception& error) {
  require_files("the ranks did not connect", error);
  throw Error(Code::kPeerLost, "the ranks did not connect: " + first_line(error) +
                                   "; no transport was made; see what the other ranks say");
}
}  // namespace detail

// Collective: every rank of `group` makes the same number of transports over `store`, in the same
// order.
//
//   group   must use Gloo, whose pieces lie in host memory, and whose waits can be ended.
//   store   must belong to the same ranks. The transport opens a connection of its own to the
//           store.
//
// The store must outlive the transports of all ranks: without it, posts are not delivered.
// If SIGPIPE has its default action, the process ignores it from now on, as every Python program
// does: Gloo raises it where a rank that has ended is to be an error.
// Throws headrace::Error with code
//   kUnsupported  the group has another backend.
//   kPeerLost     the ranks did not connect within the group's timeout.
inline std::shared_ptr<Transport> make_c10d_transport(
    const c10::intrusive_ptr<c10d::Backend>& group, const c10::intrusive_ptr<c10d::Store>& store) {
  if (const std::string backend = group->getBackendName(); backend != "gloo") {
    throw Error(Code::kUnsupported,
                "the process group's backend is '" + backend +
                    "', whose waiting calls Headrace cannot end; no transport was made; make a "
                    "group with torch.distributed.new_group(backend=\"gloo\") and give that");
  }
  std::vector<int> ranks(static_cast<std::size_t>(group->getSize()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return detail::make_c10d(store, detail::C10dPosts::Store::kOfOthers, "the process group's store",
                           group->getRank(), group->getSize(), [&](const auto& of_lane) {
                             return group->split(of_lane, ranks, group->getBackendOptions());
                           });
}

// Takes a group of torch.distributed that uses Gloo for tensors in host memory.
inline std::shared_ptr<Transport> make_c10d_transport(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return make_c10d_transport(group->getBackend(c10::DeviceType::CPU), group->getStore());
}
}  // namespace headrace::torch
