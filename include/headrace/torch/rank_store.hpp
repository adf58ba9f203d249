// SPDX-License-Identifier: Apache-2.0
// headrace/torch/rank_store.hpp: the store at which the ranks of a launch meet before they connect:
// who has come, and who has failed. headrace/torch/gloo.hpp uses it.
//
// torch's calls to a store wait without a limit if the store's host stands still, and nothing can
// end them. So a thread makes them, and is left behind if the time is over:
//
//   rank 1, its caller    JoinWait     "has all_came() returned? was the program interrupted?"
//   rank 1, headrace-join PatientCalls GlooMeeting::all_came(), which asks rank 0's store
//   rank 0                is stopped
//   rank 1, its caller    throws at the deadline: "rank 0, ..., did not answer within 300 s"
//
// A rank that fails before all are connected leaves its cause in the store. Rank 1 cannot open its
// network interface after all ranks have met:
//
//   rank 1    leave(): "failed" = "rank 1 failed before ...: Gloo cannot use interface 'eth7'"
//   the rest  wait for rank 1's address, look for "failed" ten times a second, and throw that text
#pragma once
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/launch.hpp"
#include "headrace/torch/c10d.hpp"

namespace headrace::torch::detail {
// Someone whose answer a rank waits for: the beginning of "... does not answer yet", and the cure.
struct Awaited {
  std::string who, cure;
};

// Limits the time that ranks wait to meet. For one thread, the caller's.
class JoinWait {
 public:
  JoinWait(std::chrono::milliseconds within, std::function<void(const std::string& line)> warn,
           std::function<bool()> interrupted)
      : within_(within), warn_(std::move(warn)), interrupted_(std::move(interrupted)) {}
  bool is_over() const { return Clock::now() - begin_ > within_; }
  // For the next thing that is waited for.
  void begin_anew() {
    begin_ = Clock::now();
    warned_ = false;
  }
  // Called between two checks. A warning includes the text of missing(), such as "rank 1 did not
  // come yet".
  template <class Missing>
  void pause(const Missing& missing) {
    check(missing);
    std::this_thread::sleep_for(kBetweenChecks);
  }
  // The result of a call of PatientCalls. Throws kPeerLost once the time is over.
  template <class Result>
  Result result_of(std::future<Result> result, const Awaited& awaited) {
    const Clock::time_point end = std::max(begin_ + within_, Clock::now() + kOneCall);
    while (result.wait_for(kBetweenChecks) != std::future_status::ready) {
      check([&] { return awaited.who + " does not answer yet"; });
      if (Clock::now() < end) continue;
      throw Error(Code::kPeerLost, awaited.who + " did not answer within " + limit() +
                                       "; no transport was made; " + awaited.cure);
    }
    return result.get();
  }
  std::string limit() const {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(within_);
    return std::to_string(seconds.count()) + " s";
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBetweenChecks{20};
  static constexpr std::chrono::seconds kOneCall{1};  // of a call that begins late
  template <class Missing>
  void check(const Missing& missing) {
    if (interrupted_ && interrupted_())
      throw Error(Code::kInterrupted, "joining the ranks: interrupted; no transport was made");
    if (warned_ || Clock::now() - begin_ <= within_ / 4) return;
    warned_ = true;
    warn(missing() + "; this rank waits up to " + limit());
  }
  void warn(const std::string& line) const {
    if (warn_) return warn_(line);
    std::fprintf(stderr, "headrace: warning: %s\n", line.c_str());
  }
  const std::chrono::milliseconds within_;
  const std::function<void(const std::string& line)> warn_;
  const std::function<bool()> interrupted_;
  Clock::time_point begin_ = Clock::now();
  bool warned_ = false;
};

// Makes calls one after the other, on a thread that may outlive this object.
class PatientCalls {
 public:
  PatientCalls() try : calls_(std::make_shared<Calls>()) {
    quiet_thread("headrace-join", [calls = calls_] { calls->run(); }).detach();
  } catch (const std::system_error& error) {
    throw_no_thread(error);
  }
  ~PatientCalls() {
    const std::lock_guard lock(calls_->mutex);
    calls_->ending = true;
    calls_->changed.notify_all();
  }
  PatientCalls(const PatientCalls&) = delete;
  PatientCalls& operator=(const PatientCalls&) = delete;

  // call() must own what it uses.
  template <class Call>
  std::future<std::invoke_result_t<Call>> make(Call call) {
    using Task = std::packaged_task<std::invoke_result_t<Call>()>;
    const auto task = std::make_shared<Task>(std::move(call));
    auto result = task->get_future();
    const std::lock_guard lock(calls_->mutex);
    calls_->waiting.push_back([task] { (*task)(); });
    calls_->changed.notify_all();
    return result;
  }

 private:
  struct Calls {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> waiting;
    bool ending = false;
    void run() {
      std::unique_lock lock(mutex);
      for (;;) {
        changed.wait(lock, [&] { return ending || !waiting.empty(); });
        if (waiting.empty()) return;
        std::function<void()> call = std::move(waiting.front());
        waiting.pop_front();
        lock.unlock();
        call();
        call = nullptr;
        lock.lock();
      }
    }
  };
  const std::shared_ptr<Calls> calls_;
};

inline std::string place_of(const Launch& launch) {
  return launch.master_address + ":" + std::to_string(launch.master_port);
}
inline bool serves_store(const Launch& launch) {
  return launch.rank == 0 && !launch.agent_serves_store;
}
inline std::string keeper_of(const Launch& launch) {
  return launch.agent_serves_store ? "torchrun's agent" : "rank 0";
}
inline Awaited store_of(const Launch& launch) {
  return {keeper_of(launch) + ", which serves the ranks' store at MASTER_ADDR:MASTER_PORT (" +
              place_of(launch) + "),",
          "see whether it stands still, or another program listens there"};
}

// Throws kIo if this process may not open so many files more. Gloo ends the process if it cannot
// accept a connection, and torch tries for as long as it may to open one to a store.
inline void require_files(const std::string& what, std::size_t needed) {
  std::vector<int> open;
  while (open.size() < needed) {
    const int file = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (file < 0) break;
    open.push_back(file);
  }
  const int error = errno;
  for (const int file : open) ::close(file);
  if (open.size() == needed) return;
  throw Error(Code::kIo,
              what + " takes " + std::to_string(needed) +
                  " open files, and this process may open only " + std::to_string(open.size()) +
                  " more; no transport was made; raise the limit on open files (ulimit -n)",
              error);
}

inline void require_resolved(const Launch& launch, PatientCalls& calls, JoinWait& wait) {
  const std::string why =
      wait.result_of(calls.make([launch] { return master_fault(launch); }),
                     {"the name service, asked for MASTER_ADDR '" + launch.master_address + "',",
                      "set MASTER_ADDR to the name or address of rank 0's machine"});
  if (why.empty()) return;
  throw Error(Code::kInvalidArgument,
              "MASTER_ADDR is '" + launch.master_address + "', which cannot be resolved: " + why +
                  "; no transport was made; set it to the name or address of rank 0's machine");
}

// Torch would wait for the store in a single call, which nothing could end.
inline void wait_for_the_store(const Launch& launch, PatientCalls& calls, JoinWait& wait) {
  const auto answers = [&] {
    return wait.result_of(calls.make([launch] { return master_answers(launch); }),
                          store_of(launch));
  };
  while (!answers()) {
    if (wait.is_over()) {
      throw Error(Code::kPeerLost,
                  "the ranks' store at " + place_of(launch) + " did not answer within " +
                      wait.limit() + "; no transport was made; see whether rank 0 runs, and " +
                      "whether MASTER_ADDR and MASTER_PORT are the same on every rank");
    }
    wait.pause([&] { return "the ranks' store at " + place_of(launch) + " does not answer yet"; });
  }
}

[[noreturn]] inline void refuse_store(const Launch& launch, const std::exception& error) {
  const std::string why = first_line(error);
  require_files("the ranks' store at " + place_of(launch), error);
  if (serves_store(launch)) {
    throw Error(Code::kInvalidArgument, "rank 0 cannot serve the ranks' store at " +
                                            place_of(launch) + ": " + why +
                                            "; no transport was made; choose a free MASTER_PORT");
  }
  throw Error(Code::kPeerLost,
              "the ranks' store at " + place_of(launch) + " did not answer: " + why +
                  "; no transport was made; see whether rank 0 runs, and whether MASTER_ADDR and "
                  "MASTER_PORT are the same on every rank");
}

// Opens the store at which the ranks meet.
inline C10dStore open_store(const Launch& launch, PatientCalls& calls, JoinWait& wait,
                            std::chrono::milliseconds timeout) {
  // To look up the name, and for two connections. A server has its own, and three of each rank.
  constexpr std::size_t kFiles = 6, kFilesOfServer = 12;
  require_files("meeting the other ranks",
                serves_store(launch) ? kFiles + kFilesOfServer + 3 * launch.world_size : kFiles);
  require_resolved(launch, calls, wait);
  if (!serves_store(launch)) wait_for_the_store(launch, calls, wait);
  c10d::TCPStoreOptions options;
  options.port = launch.master_port;
  options.isServer = serves_store(launch);
  options.waitWorkers = false;  // GlooMeeting waits for them
  options.timeout = timeout;
  try {
    return wait.result_of(calls.make([address = launch.master_address, options]() -> C10dStore {
      return c10::make_intrusive<c10d::TCPStore>(address, options);
    }),
                          store_of(launch));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    refuse_store(launch, error);
  }
}

// The traces that ranks leave in the store while they meet, so that errors can name surplus,
// missing and failed ranks. For the thread of PatientCalls: all of this may wait without a limit.
class GlooMeeting {
 public:
  GlooMeeting(C10dStore store, Launch launch)
      : store_(std::move(store)), launch_(std::move(launch)) {}
  // Takes this rank's place, and says so.
  void come() {
    if (store_->add(seat(launch_.rank), 1) != 1) {
      refuse("rank " + std::to_string(launch_.rank) + " is there already, at " + place_of(launch_),
             "give each process a RANK of its own, and each launch that runs a MASTER_PORT of its "
             "own");
    }
    const std::string world = std::to_string(launch_.world_size);
    const std::string others = store_->compareSet("world", "", world);
    if (others != world) {
      refuse("rank " + std::to_string(launch_.rank) + " has WORLD_SIZE " + world +
                 ", another rank at " + place_of(launch_) + " " + others,
             "set the same WORLD_SIZE for every rank");
    }
    store_->add("came", 1);
    has_come_ = true;
  }
  // `over`: the time is. Throws why they will not all come.
  bool all_came(bool over, const std::string& limit) {
    if (store_->add("came", 0) >= launch_.world_size) return true;
    if (store_->check({"refused"}))
      throw Error(Code::kInvalidArgument, store_->get_to_str("refused"));
    require_no_failure();
    // The first rank to give up also ends the others' wait, so that each names the missing ranks.
    if (!over && !store_->check({"given up"})) return false;
    const std::string missing = this->missing();
    store_->set("given up", "");
    throw Error(Code::kPeerLost, missing + " did not come to " + place_of(launch_) + " within " +
                                     limit +
                                     "; no transport was made; see whether each process was "
                                     "started and what it said");
  }
  // "rank 1 and 2 more"
  std::string missing() {
    std::uint32_t first = 0, count = 0;
    for (std::uint32_t r = launch_.world_size; r-- > 0;) {
      if (store_->check({seat(r)})) continue;
      first = r;
      ++count;
    }
    return "rank " + std::to_string(first) +
           (count > 1 ? " and " + std::to_string(count - 1) + " more" : "");
  }

  // While the ranks connect, each calls this now and then, and all throw what the first to fail has
  // left.
  void show_life() {
    store_->add(life(launch_.rank), 1);
    require_no_failure();
  }
  void show_connected() { store_->add(life(launch_.rank), kConnected); }
  // Changes for each rank that shows life.
  std::vector<std::int64_t> lives() {
    std::vector<std::int64_t> lives;
    for (std::uint32_t r = 0; r < launch_.world_size; ++r) lives.push_back(store_->add(life(r), 0));
    return lives;
  }
  static std::string silent_ranks(const std::vector<std::int64_t>& before,
                                  const std::vector<std::int64_t>& after) {
    std::string text;
    for (std::size_t r = 0; r < after.size(); ++r) {
      if (after[r] != before[r] || after[r] >= kConnected) continue;
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(r);
    }
    return text;
  }

  // This rank ends without a transport. The others throw the text of the first that does.
  void leave(const std::string& text) {
    if (!has_come_) return;
    store_->compareSet("failed", "", text);
    store_->add("left", 1);
  }
  bool all_left() { return store_->add("left", 0) >= store_->add("came", 0); }

 private:
  static constexpr std::int64_t kConnected = std::int64_t{1} << 40;
  static std::string seat(std::uint32_t rank) { return "rank/" + std::to_string(rank); }
  static std::string life(std::uint32_t rank) { return "life/" + std::to_string(rank); }
  // Also rejects the ranks that are waiting.
  [[noreturn]] void refuse(const std::string& cause, const std::string& cure) {
    const std::string text = cause + "; no transport was made; " + cure;
    store_->set("refused", text);
    throw Error(Code::kInvalidArgument, text);
  }
  void require_no_failure() {
    if (store_->check({"failed"})) throw Error(Code::kPeerLost, store_->get_to_str("failed"));
  }

  const C10dStore store_;
  const Launch launch_;
  bool has_come_ = false;
};
}  // namespace headrace::torch::detail
