// SPDX-License-Identifier: Apache-2.0
// headrace/mpi.hpp: ranks over MPI.
//
//   headrace::MpiSession session;  // MPI_Init_thread, and MPI_Finalize at the end
//   std::shared_ptr<headrace::Transport> transport =
//       headrace::make_mpi_transport(MPI_COMM_WORLD);
//
// Headers only. The program compiles them with the MPI that it uses (CMake: headrace::mpi), since
// MPIs have no common ABI. So the library contains none of this.
//
// A thread, headrace-mpi, makes a transport's MPI calls, and never blocks in one. A rank that
// blocks in MPI spins on a core that another rank could use, and most MPIs move bytes only during
// calls. A thread that waits for its call (Done::caller_waits) takes the place of headrace-mpi
// until the call has ended, which saves two changes of thread. Only one thread calls MPI at a time.
//
// That thread polls for 200 us after an event of a call, for 50 us after a note, and for 20 ms
// while chunks are in transit. Between polls it offers its core to others; one that waits for its
// call does so from 5 us after the last event on. Then it sleeps between polls: up to 1 ms while
// calls are pending, up to 20 ms otherwise.
//
// Pieces above 2 KiB travel in chunks, directly between the pieces' memory. A rank sends a chunk
// only once the other rank has made room for it:
//
//   rank 0  all_to_all: tells rank 1 "room for 8"
//   rank 1  all_to_all, later: the same; has heard of the room. Once rank 0 has read of rank 1's,
//           sends eight chunks, and then posts eight receives, as rank 0 does at the same time
//   both    a chunk has come: "room for 9", the next chunk, the next receive
//
// So a rank that has not made its call holds nobody's memory, and MPI never has to cancel a send.
// Ranks send each other their whole state, including the post, in one message of about 1 KiB. Each
// rank has at most one of them in transit to another, so a slow reader makes nobody's queue grow.
//
// abort()  Cancels this rank's receives, and waits for the chunks in transit. A chunk that another
//          rank sends later is received into the transport's own memory and dropped, so that rank's
//          call or abort() ends too. A rank that makes no progress (stopped, dead) delays abort()
//          only if a chunk is in transit to or from it: MPI then uses the piece's memory, and
//          nothing can stop that. If no chunk moves for MpiOptions::stand_still, abort() reports
//          this on stderr and calls std::terminate(), since it can neither return nor free the
//          memory. An MPI launcher then ends the job.
// Failure  An MPI error ends the calls as abort() does, with MPI's text. The library calls neither
//          MPI_Abort nor MPI_Finalize. After a failure, a program should report the cause and call
//          MPI_Abort(MPI_COMM_WORLD, 1): MPI_Finalize would wait for dead ranks, while the launcher
//          ends the ranks that still wait for this one.
#pragma once
#include <mpi.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/mpi/traffic.hpp"
#include "headrace/transport.hpp"

namespace headrace {
struct MpiOptions {
  // Whether the program or another transport calls MPI while the transport exists. If so, MPI must
  // be initialised with MPI_THREAD_MULTIPLE, otherwise with at least MPI_THREAD_SERIALIZED.
  bool others_call_mpi = true;
  // How long abort() and the destructor wait for a chunk that does not move.
  std::chrono::milliseconds stand_still = std::chrono::seconds(10);
};

// This rank's transport between the ranks of `communicator`. Blocks until all of them have called
// it. Its destructor waits up to a second for the other ranks' threads to answer its farewell.
// Destroy it before MPI_Finalize.
// Throws headrace::Error
//   kWrongState   MPI is not initialised, or has been finalised.
//   kUnsupported  MPI's level of thread support is too low.
//   kIo           MPI failed; the text includes its message.
std::shared_ptr<Transport> make_mpi_transport(MPI_Comm communicator,
                                              const MpiOptions& options = {});

// Initialises MPI, unless the program has done so. At a clean end, the destructor finalises MPI if
// this object initialised it. An end is clean if no exception is in flight and no transport of this
// process has ended a call with an error. Otherwise MPI stays as it is. Some launchers then report
// a crash and end the job; MPI_Abort(MPI_COMM_WORLD, 1) ends it under all of them.
class MpiSession {
 public:
  explicit MpiSession(int thread_level = MPI_THREAD_MULTIPLE);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  bool owned_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

namespace mpi_detail {
using Pause = std::chrono::microseconds;
inline constexpr Pause kShortest(10), kLongest(1000), kLongestIdle(20'000);
inline constexpr Pause kSpinNoted(50), kSpinCalled(200), kSpinMoving(20'000);
inline constexpr Pause kCopying(20);  // a poll that takes longer has moved bytes
inline constexpr Pause kKeepCore(5);  // a caller that waits does not yield before

class TransportMpi final : public Transport {
 public:
  TransportMpi(const Communicators& communicators, std::uint32_t rank, std::uint32_t world_size,
               std::chrono::milliseconds stand_still);
  ~TransportMpi() override;
  std::string_view name() const noexcept override { return "mpi"; }
  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return world_size_; }
  void all_to_all(Lane lane, Stream stream, std::span<const Piece> give,
                  std::span<const Piece> take, Done done) override;
  void post(std::span<const std::byte> bytes) noexcept override;
  void read_posts(std::span<Post> of_all) noexcept override { posts_.read(of_all); }
  void abort() noexcept override;

 private:
  struct Wishes {
    std::vector<std::pair<Lane, Call>> calls;
    bool post = false, abort = false, leave = false;
  };
  enum class Driver { kThread, kCaller };
  // A call whose own thread drives.
  struct Driven {
    Done done;
    bool over = false;
  };
  void run();
  void drive_until_over(const Driven& call) noexcept;
  // Makes MPI's calls until over(). `driving` holds driving_.
  template <class Over>
  void drive(Driver driver, std::unique_lock<std::mutex>& driving, const Over& over);
  bool serve_wishes();
  void notice_closed();
  void wish() noexcept;  // mutex_ is held
  void pause(Driver driver, std::unique_lock<std::mutex>& driving, Pause time);

  Communicators communicators_;
  const std::uint32_t rank_, world_size_;
  Posts posts_;
  std::mutex driving_;  // of the thread that drives: the next two; locked before mutex_
  Traffic traffic_;
  bool leaving_ = false;
  std::mutex mutex_;  // the rest
  std::condition_variable wished_, over_changed_;
  Wishes wishes_;
  std::atomic<bool> wishing_ = false;   // whether there are any
  std::atomic<bool> borrowed_ = false;  // a caller drives, or is about to
  bool over_ = false;                   // no call is pending, and later ones fail
  std::thread thread_;
};

inline TransportMpi::TransportMpi(const Communicators& communicators, std::uint32_t rank,
                                  std::uint32_t world_size, std::chrono::milliseconds stand_still)
    : communicators_(communicators),
      rank_(rank),
      world_size_(world_size),
      posts_(world_size),
      traffic_(communicators_, rank, world_size, stand_still, posts_) {
  sigset_t blocked, before;  // the program's threads handle its signals
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

inline TransportMpi::~TransportMpi() {
  abort();
  {
    const std::lock_guard lock(mutex_);
    wishes_.leave = true;
    wish();
  }
  thread_.join();
}

inline void TransportMpi::wish() noexcept {
  wishing_ = true;
  wished_.notify_all();
}

inline void TransportMpi::all_to_all(Lane lane, Stream, std::span<const Piece> give,
                                     std::span<const Piece> take, Done done) {
  Driven driven = {.done = done};
  const Done driven_done = {[](void* context, const char* error) noexcept {
                              Driven& call = *static_cast<Driven*>(context);
                              call.done.function(call.done.context, error);
                              call.over = true;
                            },
                            &driven};
  std::unique_lock lock(mutex_);
  if (over_) {
    lock.unlock();
    return done.function(done.context, traffic_.error().c_str());
  }
  const bool borrows = done.caller_waits && !borrowed_;
  wishes_.calls.emplace_back(lane, Call{.give = {give.begin(), give.end()},
                                        .take = {take.begin(), take.end()},
                                        .done = borrows ? driven_done : done,
                                        .promised = {},
                                        .given = {},
                                        .taken = {}});
  if (!borrows) return wish();
  borrowed_ = true;
  wishing_ = true;
  lock.unlock();
  drive_until_over(driven);
}

// headrace-mpi sleeps on if nothing is left to do: waking it would take longer than a short call.
inline void TransportMpi::drive_until_over(const Driven& call) noexcept {
  std::unique_lock driving(driving_);
  drive(Driver::kCaller, driving, [&] { return call.over; });
  const std::lock_guard lock(mutex_);
  borrowed_ = false;
  if (wishing_ || traffic_.pending() || traffic_.closed()) wish();
}

inline void TransportMpi::post(std::span<const std::byte> bytes) noexcept {
  posts_.replace(rank_, bytes);
  const std::lock_guard lock(mutex_);
  wishes_.post = true;
  wish();
}

inline void TransportMpi::abort() noexcept {
  std::unique_lock lock(mutex_);
  wishes_.abort = true;
  wish();
  over_changed_.wait(lock, [&] { return over_; });
}

inline bool TransportMpi::serve_wishes() {
  if (!wishing_) return false;
  Wishes wishes;
  {
    const std::lock_guard lock(mutex_);
    wishes = std::exchange(wishes_, {});
    wishing_ = false;
  }
  for (auto& [lane, call] : wishes.calls) traffic_.of(lane).begin(std::move(call));
  if (wishes.post) traffic_.notes().post_changed();
  if (wishes.abort) traffic_.close("this rank has aborted its transport");
  leaving_ = leaving_ || wishes.leave;
  return true;
}

inline void TransportMpi::notice_closed() {
  if (!traffic_.closed()) return;
  const std::lock_guard lock(mutex_);
  if (!wishes_.calls.empty() || over_) return;
  over_ = true;
  over_changed_.notify_all();
}

inline void TransportMpi::run() {
  pthread_setname_np(pthread_self(), "headrace-mpi");
  std::unique_lock driving(driving_);
  while (!leaving_) {
    drive(Driver::kThread, driving, [&] { return leaving_ || borrowed_; });
    if (!leaving_) pause(Driver::kThread, driving, kLongestIdle);
  }
  if (traffic_.leave()) communicators_.free();
}

// While bytes move, longer polling pays off: in most MPIs they move only during calls.
template <class Over>
void TransportMpi::drive(Driver driver, std::unique_lock<std::mutex>& driving, const Over& over) {
  Clock::time_point before = Clock::now(), last = before, spin_until = before;
  Pause next = kShortest;
  while (!over()) {
    const bool wished = serve_wishes(), called = traffic_.pending();
    const bool any = traffic_.advance(before - last > kSpinNoted);
    notice_closed();
    const Clock::time_point now = Clock::now();
    if (any || wished || now - before > kCopying) {
      last = before = now;
      next = kShortest;
      spin_until = std::max(spin_until, now + (called ? kSpinCalled : kSpinNoted));
      continue;
    }
    before = now;
    if (driver == Driver::kCaller && now - last < kKeepCore) continue;
    if (now < spin_until || (traffic_.notes().moving() && now - last < kSpinMoving)) {
      std::this_thread::yield();
    } else {
      pause(driver, driving, next);
      next = std::min(next * 2, traffic_.pending() ? kLongest : kLongestIdle);
    }
    before = Clock::now();
  }
}

// headrace-mpi goes on only when no caller drives.
inline void TransportMpi::pause(Driver driver, std::unique_lock<std::mutex>& driving, Pause time) {
  const auto may_drive = [&] { return driver == Driver::kCaller || !borrowed_; };
  driving.unlock();
  {
    std::unique_lock lock(mutex_);
    do {
      wished_.wait_for(lock, time, [&] { return wishing_ && may_drive(); });
    } while (!may_drive());
  }
  driving.lock();
}

inline void require_threads(int needed, const std::string& why) {
  int initialised = 0, finalised = 0, level = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (initialised == 0 || finalised != 0) {
    throw Error(Code::kWrongState,
                std::string("MPI ") +
                    (finalised != 0 ? "has been finalised" : "is not initialised") +
                    ", so no transport was made. Keep a headrace::MpiSession, or "
                    "call MPI_Init_thread, for as long as the transport lives.");
  }
  MPI_Query_thread(&level);
  if (level >= needed) return;
  const auto name_of = [](int one) {
    return std::string(one == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
                       : one == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
                       : one == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                                      : "MPI_THREAD_MULTIPLE");
  };
  throw Error(Code::kUnsupported,
              "MPI was initialised with " + name_of(level) + ", but " + why + ", which takes " +
                  name_of(needed) +
                  "; no transport was made. Ask for it with "
                  "MPI_Init_thread, or leave that to headrace::MpiSession; if it gives no more, "
                  "this MPI was built without.");
}
}  // namespace mpi_detail

inline std::shared_ptr<Transport> make_mpi_transport(MPI_Comm communicator,
                                                     const MpiOptions& options) {
  if (options.others_call_mpi) {
    mpi_detail::require_threads(MPI_THREAD_MULTIPLE,
                                "the thread headrace-mpi calls MPI beside the program's");
  } else {
    mpi_detail::require_threads(MPI_THREAD_SERIALIZED, "the thread headrace-mpi calls MPI");
  }
  int rank = 0, world_size = 0;
  MPI_Comm_rank(communicator, &rank);
  MPI_Comm_size(communicator, &world_size);
  const mpi_detail::Communicators communicators(communicator);
  return std::make_shared<mpi_detail::TransportMpi>(communicators, static_cast<std::uint32_t>(rank),
                                                    static_cast<std::uint32_t>(world_size),
                                                    options.stand_still);
}

inline MpiSession::MpiSession(int thread_level) {
  int initialised = 0, given = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) return;
  const int code = MPI_Init_thread(nullptr, nullptr, thread_level, &given);
  if (code != MPI_SUCCESS)
    throw Error(Code::kIo, "MPI_Init_thread: " + mpi_detail::text_of(code) +
                               "; there are no ranks. Start the program with mpirun.");
  owned_ = true;
}

inline MpiSession::~MpiSession() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  const bool clean = std::uncaught_exceptions() == exceptions_ && !mpi_detail::call_failed;
  if (owned_ && finalised == 0 && clean) MPI_Finalize();
}
}  // namespace headrace
