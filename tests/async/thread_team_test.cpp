// SPDX-License-Identifier: Apache-2.0
// thread_team_test: each unit once, on the threads there are.
#include "async/thread_team.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "headrace/error.hpp"

namespace headrace::async {
namespace {
struct Seen {
  explicit Seen(std::uint64_t units) : times(units) {}
  std::vector<std::atomic<int>> times;
  std::mutex mutex;
  std::set<std::thread::id> threads;

  static void run(void* context, std::uint64_t unit) noexcept {
    auto& seen = *static_cast<Seen*>(context);
    seen.times[unit].fetch_add(1);
    const std::lock_guard lock(seen.mutex);
    seen.threads.insert(std::this_thread::get_id());
  }
};

TEST(ThreadTeam, RunsEachUnitOnceForAnyCountAndThreads) {
  for (const std::uint32_t threads : {1u, 2u, 3u, 7u}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.threads(), threads);
    for (const std::uint64_t units : {0u, 1u, 2u, 3u, 6u, 7u, 8u, 1000u}) {
      Seen seen(units);
      team.run(units, &Seen::run, &seen);
      for (const std::atomic<int>& times : seen.times) EXPECT_EQ(times.load(), 1);
    }
  }
}

// Each unit waits for the other: one thread alone would not come to an end.
TEST(ThreadTeam, LetsTheCallerAndItsOwnThreadWorkAtOnce) {
  ThreadTeam team(2);
  std::atomic<int> begun{0};
  const auto meet = [](void* context, std::uint64_t) noexcept {
    auto& count = *static_cast<std::atomic<int>*>(context);
    count.fetch_add(1);
    count.notify_all();
    for (int now = count.load(); now < 2; now = count.load()) count.wait(now);
  };
  team.run(2, meet, &begun);
  EXPECT_EQ(begun.load(), 2);
}

// Where the units of a team of `threads` may run: per unit the CPUs of its thread.
std::vector<std::vector<int>> cpus_of_units(std::uint32_t threads,
                                            const std::vector<std::vector<int>>& nodes) {
  struct Meeting {
    std::uint32_t threads;
    std::vector<std::vector<int>> cpus;
    std::atomic<std::uint32_t> begun{0};
  } meeting{.threads = threads, .cpus = std::vector<std::vector<int>>(threads)};
  ThreadTeam team(threads, {.nodes = nodes});
  const auto meet = [](void* context, std::uint64_t unit) noexcept {
    auto& all = *static_cast<Meeting*>(context);
    cpu_set_t set;
    CPU_ZERO(&set);
    ::sched_getaffinity(0, sizeof set, &set);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) all.cpus[unit].push_back(cpu);
    }
    all.begun.fetch_add(1);
    all.begun.notify_all();
    for (auto now = all.begun.load(); now < all.threads; now = all.begun.load())
      all.begun.wait(now);
  };
  team.run(threads, meet, &meeting);
  return meeting.cpus;
}

// On a machine of one CPU both nodes are that one.
TEST(ThreadTeam, KeepsItsOwnThreadsOnTheirNodes) {
  const std::vector<int> all = cpus_of_units(1, {})[0];
  ASSERT_FALSE(all.empty());
  const std::vector<int> first = {all.front()}, second = {all.back()};
  EXPECT_EQ(cpus_of_units(4, {first, second}),
            (std::vector<std::vector<int>>{all, first, second, second}));
  EXPECT_EQ(cpus_of_units(3, {first}), std::vector<std::vector<int>>(3, all));
  EXPECT_EQ(cpus_of_units(2, {}), std::vector<std::vector<int>>(2, all));
}

TEST(ThreadTeam, WorksOnWhereANodesCpusAreNotToBeHad) {
  EXPECT_EQ(cpus_of_units(2, {{0}, {1 << 19}}).size(), 2u);
}

TEST(ThreadTeam, LetsAThreadThatIsDoneTakeWhatAnotherHasNotBegun) {
  ThreadTeam team(2);
  constexpr std::uint64_t kUnits = 8;
  // The thread that takes unit 0 stays in it until all else is done.
  struct Held {
    std::atomic<std::uint64_t> others{0};
    static void run(void* context, std::uint64_t unit) noexcept {
      auto& others = static_cast<Held*>(context)->others;
      if (unit == 0) {
        for (auto now = others.load(); now < kUnits - 1; now = others.load()) others.wait(now);
      } else {
        others.fetch_add(1);
        others.notify_all();
      }
    }
  } held;
  team.run(kUnits, &Held::run, &held);
  EXPECT_EQ(held.others.load(), kUnits - 1);
}

TEST(ThreadTeam, ThatIsAloneWorksOnTheCallersThread) {
  ThreadTeam team(1);
  Seen seen(5);
  team.run(5, &Seen::run, &seen);
  EXPECT_EQ(seen.threads, std::set{std::this_thread::get_id()});
}

// A call that ends before the other threads have woken goes on without them; they are there for a
// later one, and no unit of one call is run with the context of another.
TEST(ThreadTeam, KeepsCallsThatFollowEachOtherApart) {
  ThreadTeam team(4);
  for (std::uint64_t call = 0; call < 20'000; ++call) {
    const std::uint64_t units = 2 + call % 5;
    std::vector<std::uint64_t> ran(units, ~std::uint64_t{0});
    auto work = [&ran, call](std::uint64_t unit) { ran[unit] = call; };
    team.run(units, work);
    ASSERT_EQ(ran, std::vector<std::uint64_t>(units, call));
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need address space
TEST(ThreadTeam, WorksWithTheThreadsThatTheMachineGives) {
  const ThreadTeam::Options fewer{.name = "headrace-sum",
                                  .where_refused = ThreadTeam::WhereRefused::kWorkWithFewer};
  const pid_t child = ::fork();
  if (child == 0) {
    // No room for the stacks of that many threads.
    const rlimit little{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    if (::setrlimit(RLIMIT_AS, &little) != 0) ::_exit(2);
    try {
      ThreadTeam refused(200);
      ::_exit(3);
    } catch (const Error&) {
    }
    ThreadTeam team(200, fewer);
    Seen seen(7);
    team.run(7, &Seen::run, &seen);
    for (const std::atomic<int>& times : seen.times)
      if (times.load() != 1) ::_exit(4);
    ::_exit(0);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}
#endif

TEST(ThreadTeam, KnowsThatAForkTookNoThreadsAlong) {
  auto team = std::make_unique<ThreadTeam>(2);
  ThreadTeam alone(1);
  EXPECT_FALSE(team->in_forked_child());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(team->in_forked_child() && !alone.in_forked_child() ? 0 : 1);
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}
}  // namespace
}  // namespace headrace::async
