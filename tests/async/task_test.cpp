// SPDX-License-Identifier: Apache-2.0
// Tasks without a conductor: stack depth, lifetimes, misuse.
#include "async/task.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace headrace::async {
namespace {
// Runs `task` on this thread until it suspends or ends.
struct Started {
  explicit Started(Task<> task) { group.spawn(std::move(task)); }
  TaskGroup group;
};

// A door that coroutines wait at and the test opens.
struct Door {
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept { waiting.push_back(handle); }
  void await_resume() const noexcept {}
  void open() {
    const auto handles = std::exchange(waiting, {});
    for (const std::coroutine_handle<> handle : handles) handle.resume();
  }
  std::vector<std::coroutine_handle<>> waiting;
};

// What a coroutine may suspend on, by reference: co_await At{door}.
struct At {
  Door& door;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) noexcept { door.await_suspend(handle); }
  void await_resume() const noexcept {}
};

Task<int> one() { co_return 1; }

TEST(Task, AMillionTasksThatFinishAtOnceNeedNoStack) {
  std::int64_t sum = 0;
  Started([](std::int64_t& sum) -> Task<> {
    for (int i = 0; i < 1'000'000; ++i) sum += co_await one();
  }(sum));
  EXPECT_EQ(sum, 1'000'000);
}

Task<int> nothing_or_throw(int i) {
  if (i % 100 == 0) throw i;
  co_return 0;
}

TEST(Task, ManyTasksThatThrowAtOnceNeedNoStack) {
  int thrown = 0;
  Started([](int& thrown) -> Task<> {
    for (int i = 0; i < 100'000; ++i) {
      try {
        co_await nothing_or_throw(i);
      } catch (int number) {
        EXPECT_EQ(number, i);
        ++thrown;
      }
    }
  }(thrown));
  EXPECT_EQ(thrown, 1000);
}

TEST(TaskGroup, ManyChildrenThatFinishAtOnceNeedNoStack) {
  std::int64_t sum = 0;
  Started([](std::int64_t& sum) -> Task<> {
    TaskGroup group;
    for (int i = 0; i < 20'000; ++i) {
      for (int j = 0; j < 10; ++j) {
        group.spawn([](std::int64_t& sum) -> Task<> {
          ++sum;
          co_return;
        }(sum));
      }
      co_await group.join();
    }
  }(sum));
  EXPECT_EQ(sum, 200'000);
}

TEST(Task, ALoopOfTasksThatSuspendNeedsNoStack) {
  Door door;
  int rounds = 0;
  Started started([](Door& door, int& rounds) -> Task<> {
    for (int i = 0; i < 100'000; ++i) {
      co_await [](Door& door) -> Task<> { co_await At{door}; }(door);
      ++rounds;
    }
  }(door, rounds));
  while (!door.waiting.empty()) door.open();
  EXPECT_EQ(rounds, 100'000);
}

Task<int> depth(Door& door, int levels) {
  if (levels == 0) {
    co_await At{door};
    co_return 0;
  }
  co_return 1 + co_await depth(door, levels - 1);
}

TEST(Task, AChainOfAwaitingTasksEndsFromTheInside) {
  Door door;
  int result = -1;
  Started started(
      [](Door& door, int& result) -> Task<> { result = co_await depth(door, 1000); }(door, result));
  EXPECT_EQ(result, -1);
  door.open();
  EXPECT_EQ(result, 1000);
}

TEST(Task, StartsOnlyWhenItIsAwaited) {
  bool ran = false;
  auto make = [](bool& ran) -> Task<> {
    ran = true;
    co_return;
  };
  {
    const Task<> unused = make(ran);
    EXPECT_FALSE(ran);
  }
  EXPECT_FALSE(ran);
  Started(make(ran));
  EXPECT_TRUE(ran);
}

TEST(Task, KeepsItsArgumentsUntilItHasEnded) {
  Door door;
  const auto value = std::make_shared<int>(5);
  {
    Started started([](Door& door, std::shared_ptr<int> value) -> Task<> {
      co_await At{door};
      EXPECT_EQ(*value, 5);
    }(door, value));
    EXPECT_EQ(value.use_count(), 2);
    door.open();
    EXPECT_EQ(value.use_count(), 1);
  }
}

TEST(TaskGroup, AChildThatEndsTheLastResumesItsParent) {
  Door first;
  Door second;
  bool joined = false;
  Started started([](Door& first, Door& second, bool& joined) -> Task<> {
    TaskGroup group;
    group.spawn([](Door& door) -> Task<> { co_await At{door}; }(first));
    group.spawn([](Door& door) -> Task<> { co_await At{door}; }(second));
    co_await group.join();
    joined = true;
  }(first, second, joined));
  second.open();
  EXPECT_FALSE(joined);
  first.open();
  EXPECT_TRUE(joined);
}

TEST(TaskDeathTest, MayNotBeDestroyedWhileItIsSuspended) {
  EXPECT_DEATH(
      {
        Door door;
        Task<> task = [](Door& door) -> Task<> { co_await At{door}; }(door);
        auto awaiter = std::move(task).operator co_await();
        awaiter.await_suspend(std::noop_coroutine());
        task = Task<>();
      },
      "destroyed while it was suspended");
}

TEST(TaskGroupDeathTest, MayNotBeDestroyedBeforeItWasJoined) {
  EXPECT_DEATH(
      {
        Door door;
        TaskGroup group;
        group.spawn([](Door& door) -> Task<> { co_await At{door}; }(door));
      },
      "destroyed before join");
}
}  // namespace
}  // namespace headrace::async
