// SPDX-License-Identifier: Apache-2.0
// What only the real conductor shows: its thread, and posts from others.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <vector>

#include "async/conductor_conformance.hpp"

namespace headrace::async::testing {
namespace {
struct ThreadFacts {
  std::string name;
  sigset_t blocked;
};
ThreadFacts this_thread_facts() {
  ThreadFacts facts;
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  facts.name = name;
  pthread_sigmask(SIG_SETMASK, nullptr, &facts.blocked);
  return facts;
}

TEST(ConductorAsio, ItsThreadIsNamedAndBlocksTheHostsSignals) {
  const auto conductor = make_conductor_asio();
  const ThreadFacts facts =
      call(*conductor, nullptr, []() -> Task<ThreadFacts> { co_return this_thread_facts(); });
  EXPECT_EQ(facts.name, "headrace-cond");
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGALRM, SIGCHLD, SIGPROF, SIGPIPE}) {
    EXPECT_EQ(sigismember(&facts.blocked, number), 1) << number;
  }
  EXPECT_EQ(sigismember(&facts.blocked, SIGSEGV), 0);  // for the host's crash handler
}

TEST(ConductorAsio, LeavesTheCallersSignalMaskAsItWas) {
  const sigset_t before = this_thread_facts().blocked;
  const auto conductor = make_conductor_asio();
  const sigset_t after = this_thread_facts().blocked;
  for (int number = 1; number < 32; ++number) {
    EXPECT_EQ(sigismember(&before, number), sigismember(&after, number)) << number;
  }
}

TEST(ConductorAsio, RunsWhatOneThreadPostedInThatOrderAmongManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  struct Item : Work {
    std::vector<int>* seen = nullptr;
    int number = 0;
  };
  const auto conductor = make_conductor_asio();
  std::array<std::vector<int>, kThreads> seen;
  std::array<std::vector<Item>, kThreads> items;
  for (int thread = 0; thread < kThreads; ++thread) {
    seen[thread].reserve(kEach);
    items[thread].resize(kEach);
    for (int i = 0; i < kEach; ++i) {
      Item& item = items[thread][i];
      item.seen = &seen[thread];
      item.number = i;
      item.run = [](Work* work) noexcept {
        const auto* const self = static_cast<Item*>(work);
        self->seen->push_back(self->number);
      };
    }
  }
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (Item& item : items[thread]) conductor->post(item);
    });
  }
  for (std::thread& thread : threads) thread.join();
  call(*conductor, nullptr, []() -> Task<> { co_return; });  // behind all of them
  for (int thread = 0; thread < kThreads; ++thread) {
    ASSERT_EQ(seen[thread].size(), static_cast<std::size_t>(kEach));
    EXPECT_TRUE(std::is_sorted(seen[thread].begin(), seen[thread].end()));
  }
}

TEST(ConductorAsio, ServesCallsOfSeveralThreadsAtOnce) {
  const auto conductor = make_conductor_asio();
  std::array<int, 4> sums{};
  std::vector<std::thread> threads;
  for (int& sum : sums) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        sum += call(*conductor, nullptr, [&]() -> Task<int> {
          co_await Yield{*conductor};
          co_return 1;
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums, (std::array<int, 4>{200, 200, 200, 200}));
}

TEST(ConductorAsio, AnEarlierTimerOvertakesTheOneThatIsWaitedFor) {
  const auto conductor = make_conductor_asio();
  Timer hour;
  hour.run = [](Work*) noexcept { ADD_FAILURE() << "waited for an hour"; };
  call(*conductor, nullptr, [&]() -> Task<> {
    conductor->after(std::chrono::hours(1), hour);
    for (int i = 3; i > 0; --i) co_await Delay{*conductor, std::chrono::microseconds(100 * i)};
    // Several at once, each before the last.
    TaskGroup group;
    for (int i = 5; i > 0; --i) {
      group.spawn([](Conductor& conductor, int i) -> Task<> {
        co_await Delay{conductor, std::chrono::microseconds(200 * i)};
      }(*conductor, i));
    }
    co_await group.join();
  });
}

TEST(ConductorAsio, ComesAndGoesManyTimes) {
  for (int i = 0; i < 100; ++i) {
    const auto conductor = make_conductor_asio();
    if (i % 2 == 0) {
      EXPECT_EQ(call(*conductor, nullptr, []() -> Task<int> { co_return 7; }), 7);
    }
  }
}

TEST(ConductorAsioDeathTest, RefusesToBeWaitedForByItsOwnWork) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto conductor = make_conductor_asio();
        call(*conductor, nullptr, [&]() -> Task<> {
          call(*conductor, nullptr, []() -> Task<> { co_return; });
          co_return;
        });
      },
      "waited for by the work that it runs");
}
}  // namespace
}  // namespace headrace::async::testing
