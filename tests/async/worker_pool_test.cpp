// SPDX-License-Identifier: Apache-2.0
#include "async/worker_pool.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "async/conductor_conformance.hpp"
#include "async/task.hpp"
#include "support/conductor_simulated.hpp"

namespace headrace::async::testing {
namespace {
// Counts, in plain memory, how often each unit ran: a data race here is one in the pool.
struct Counts {
  explicit Counts(std::size_t units) : runs(units) {}
  static void run(void* context, std::uint64_t unit) noexcept {
    ++static_cast<Counts*>(context)->runs[unit];
  }
  bool all_once() const {
    for (const int count : runs) {
      if (count != 1) return false;
    }
    return true;
  }
  std::vector<int> runs;
};

class WorkerPoolOf : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  std::unique_ptr<Conductor> conductor_ = make_conductor_asio();
};

TEST_P(WorkerPoolOf, RunsEveryUnitOnceAndResumesOnTheConductor) {
  WorkerPool pool(*conductor_, GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const std::size_t units : {0, 1, 2, 3, 100, 5000}) {
    Counts counts(units);
    call(*conductor_, &pool, [&]() -> Task<> {
      co_await pool.for_units(units, &Counts::run, &counts);
      EXPECT_TRUE(conductor_->on_conductor());
      EXPECT_TRUE(counts.all_once()) << units;
    });
  }
}

Task<> many_jobs(WorkerPool& pool, Counts& counts, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    co_await pool.for_units(counts.runs.size(), &Counts::run, &counts);
  }
}

TEST_P(WorkerPoolOf, ServesManyJobsAtOnce) {
  WorkerPool pool(*conductor_, GetParam());
  std::vector<Counts> counts;
  for (std::size_t i = 0; i < 20; ++i) counts.emplace_back(1 + i);
  call(*conductor_, &pool, [&]() -> Task<> {
    TaskGroup group;
    for (Counts& one : counts) group.spawn(many_jobs(pool, one, 50));
    co_await group.join();
  });
  for (const Counts& one : counts) EXPECT_EQ(one.runs, std::vector<int>(one.runs.size(), 50));
}

TEST_P(WorkerPoolOf, MayBeDestroyedAsSoonAsTheCallReturns) {
  for (int i = 0; i < 200; ++i) {
    Counts counts(3);
    WorkerPool pool(*conductor_, GetParam());
    call(*conductor_, &pool,
         [&]() -> Task<> { co_await pool.for_units(3, &Counts::run, &counts); });
    ASSERT_TRUE(counts.all_once());
  }
}

TEST_P(WorkerPoolOf, EndsTheWaitOfACallThatHasNoWorkForIt) {
  WorkerPool pool(*conductor_, GetParam());
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(call(*conductor_, &pool, []() -> Task<int> { co_return 1; }), 1);
  }
}

TEST_P(WorkerPoolOf, SeveralThreadsMayWaitWithItAtOnce) {
  WorkerPool pool(*conductor_, GetParam());
  std::array<std::thread, 3> callers;
  for (std::thread& caller : callers) {
    caller = std::thread([&] {
      for (int i = 0; i < 50; ++i) {
        Counts counts(10);
        call(*conductor_, &pool,
             [&]() -> Task<> { co_await pool.for_units(10, &Counts::run, &counts); });
        EXPECT_TRUE(counts.all_once());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

INSTANTIATE_TEST_SUITE_P(Threads, WorkerPoolOf, ::testing::Values(0, 1, 2, 3, 5));

struct Seen {
  static void run(void* context, std::uint64_t unit) noexcept {
    static_cast<Seen*>(context)->units.push_back(unit);
  }
  std::vector<std::uint64_t> units;
};

TEST(WorkerPool, OneThreadServesFirstComeFirst) {
  const auto conductor = make_conductor_asio();
  WorkerPool pool(*conductor, 1);
  struct Named {
    Seen* seen;
    std::uint64_t base;
    static void run(void* context, std::uint64_t unit) noexcept {
      const auto* const self = static_cast<Named*>(context);
      self->seen->units.push_back(self->base + unit);
    }
  };
  Seen seen;
  std::array<Named, 3> jobs{{{&seen, 0}, {&seen, 100}, {&seen, 200}}};
  call(*conductor, &pool, [&]() -> Task<> {
    TaskGroup group;
    for (Named& job : jobs) {
      group.spawn([](WorkerPool& pool, Named& job) -> Task<> {
        co_await pool.for_units(3, &Named::run, &job);
      }(pool, job));
    }
    co_await group.join();
  });
  EXPECT_EQ(seen.units, (std::vector<std::uint64_t>{0, 1, 2, 100, 101, 102, 200, 201, 202}));
}

// Each unit waits until all of them have begun, which takes as many threads as there are units.
struct Meeting {
  explicit Meeting(std::uint64_t wanted) : wanted(wanted) {}
  static void run(void* context, std::uint64_t) noexcept {
    auto* const self = static_cast<Meeting*>(context);
    {
      const std::lock_guard lock(self->mutex);
      self->threads.insert(std::this_thread::get_id());
    }
    self->begun.fetch_add(1);
    self->begun.notify_all();
    for (std::uint64_t begun = self->begun; begun < self->wanted; begun = self->begun) {
      self->begun.wait(begun);
    }
  }
  const std::uint64_t wanted;
  std::atomic<std::uint64_t> begun{0};
  std::mutex mutex;
  std::set<std::thread::id> threads;
};

TEST(WorkerPool, TheWaitingThreadTakesItsShareWhereThereIsMoreThanOne) {
  const auto conductor = make_conductor_asio();
  for (const std::uint32_t threads : {2u, 3u, 4u}) {
    WorkerPool pool(*conductor, threads);
    Meeting meeting(threads);
    call(*conductor, &pool,
         [&]() -> Task<> { co_await pool.for_units(threads, &Meeting::run, &meeting); });
    EXPECT_EQ(meeting.threads.size(), threads);
    EXPECT_EQ(meeting.threads.count(std::this_thread::get_id()), 1u);
  }
}

TEST(WorkerPool, OfOneThreadLeavesTheWaitingThreadAlone) {
  const auto conductor = make_conductor_asio();
  WorkerPool pool(*conductor, 1);
  Meeting meeting(0);
  call(*conductor, &pool,
       [&]() -> Task<> { co_await pool.for_units(100, &Meeting::run, &meeting); });
  EXPECT_EQ(meeting.threads.size(), 1u);
  EXPECT_EQ(meeting.threads.count(std::this_thread::get_id()), 0u);
}

TEST(WorkerPool, ItsThreadsAreNamedAndBlockTheHostsSignals) {
  struct Facts {
    char name[16] = {};
    sigset_t blocked;
    static void run(void* context, std::uint64_t) noexcept {
      auto* const self = static_cast<Facts*>(context);
      pthread_getname_np(pthread_self(), self->name, sizeof self->name);
      pthread_sigmask(SIG_SETMASK, nullptr, &self->blocked);
    }
  } facts;
  const auto conductor = make_conductor_asio();
  WorkerPool pool(*conductor, 1);
  call(*conductor, &pool, [&]() -> Task<> { co_await pool.for_units(1, &Facts::run, &facts); });
  EXPECT_STREQ(facts.name, "headrace-upd0");
  EXPECT_EQ(sigismember(&facts.blocked, SIGINT), 1);
  EXPECT_EQ(sigismember(&facts.blocked, SIGTERM), 1);
}

TEST(WorkerPool, UnderSimulationJobsInterleaveByTheSeed) {
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const auto conductor = make_conductor_simulated({.seed = seed});
    WorkerPool pool(*conductor, 0);
    std::vector<std::uint64_t> ended;
    call(*conductor, &pool, [&]() -> Task<> {
      TaskGroup group;
      for (std::uint64_t job = 0; job < 4; ++job) {
        group.spawn(
            [](WorkerPool& pool, std::uint64_t job, std::vector<std::uint64_t>& ended) -> Task<> {
              Counts counts(5);
              co_await pool.for_units(5, &Counts::run, &counts);
              EXPECT_TRUE(counts.all_once());
              ended.push_back(job);
            }(pool, job, ended));
      }
      co_await group.join();
    });
    EXPECT_EQ(ended.size(), 4u);
    orders.insert(ended);
  }
  EXPECT_GT(orders.size(), 8u);
}

TEST(WorkerPool, WithoutThreadsALongLoopNeedsNoStack) {
  const auto conductor = make_conductor_simulated({});
  WorkerPool pool(*conductor, 0);
  Counts counts(1);
  call(*conductor, &pool, [&]() -> Task<> { co_await many_jobs(pool, counts, 100'000); });
  EXPECT_EQ(counts.runs[0], 100'000);
}
}  // namespace
}  // namespace headrace::async::testing
