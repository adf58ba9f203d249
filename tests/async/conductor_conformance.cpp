// SPDX-License-Identifier: Apache-2.0
// The conformance suite of the conductor seam, run for each backend.
#include "async/conductor_conformance.hpp"

#include <algorithm>
#include <numeric>

namespace headrace::async::testing {
namespace {
using std::chrono::milliseconds;
using std::chrono::seconds;

std::unique_ptr<Conductor> simulated() { return make_conductor_simulated({.seed = 7}); }

struct Note : Work {
  std::vector<int>* notes = nullptr;
  int number = 0;
  static void write(Work* work) noexcept {
    auto* const self = static_cast<Note*>(work);
    self->notes->push_back(self->number);
  }
};

TEST_P(ConductorConformance, RunsEveryPostedWorkOnce) {
  std::vector<int> notes;
  std::vector<Note> work(100);
  for (int i = 0; i < 100; ++i) {
    work[i].run = &Note::write;
    work[i].notes = &notes;
    work[i].number = i;
  }
  const auto count = call(*conductor_, nullptr, [&]() -> Task<std::size_t> {
    for (Note& note : work) conductor_->post(note);
    while (notes.size() < work.size()) co_await Yield{*conductor_};
    co_return notes.size();
  });
  EXPECT_EQ(count, 100u);
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  if (!GetParam().in_posted_order) std::sort(notes.begin(), notes.end());
  EXPECT_EQ(notes, expected);
}

TEST_P(ConductorConformance, NeverRunsWorkInsidePost) {
  const bool inside = call(*conductor_, nullptr, [&]() -> Task<bool> {
    std::vector<int> notes;
    Note note;
    note.run = &Note::write;
    note.notes = &notes;
    conductor_->post(note);
    const bool ran = !notes.empty();
    while (notes.empty()) co_await Yield{*conductor_};
    co_return ran;
  });
  EXPECT_FALSE(inside);
}

TEST_P(ConductorConformance, AWorkMayBePostedAgainFromItsOwnRun) {
  struct Again : Work {
    Conductor* conductor = nullptr;
    int rounds = 0;
  } again;
  again.conductor = conductor_.get();
  again.run = [](Work* work) noexcept {
    auto* const self = static_cast<Again*>(work);
    if (++self->rounds < 1000) self->conductor->post(*self);
  };
  call(*conductor_, nullptr, [&]() -> Task<> {
    conductor_->post(again);
    while (again.rounds < 1000) co_await Yield{*conductor_};
  });
  EXPECT_EQ(again.rounds, 1000);
}

TEST_P(ConductorConformance, KnowsItsOwnWorkFromTheCallingThread) {
  EXPECT_FALSE(conductor_->on_conductor());
  EXPECT_TRUE(call(*conductor_, nullptr,
                   [&]() -> Task<bool> { co_return conductor_->on_conductor(); }));
  EXPECT_FALSE(conductor_->on_conductor());
}

TEST_P(ConductorConformance, TimersRunInTheOrderOfTheirDeadlinesAndNotBefore) {
  std::vector<int> order;
  bool early = false;
  call(*conductor_, nullptr, [&]() -> Task<> {
    const Nanoseconds start = conductor_->now();
    TaskGroup group;
    for (const int delay : {6, 2, 4, 1, 5, 3}) {
      group.spawn([](Conductor& conductor, Nanoseconds start, int delay, std::vector<int>& order,
                     bool& early) -> Task<> {
        co_await Delay{conductor, milliseconds(delay)};
        order.push_back(delay);
        early = early || conductor.now() - start < milliseconds(delay);
      }(*conductor_, start, delay, order, early));
    }
    co_await group.join();
  });
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4, 5, 6}));
  EXPECT_FALSE(early);
}

TEST_P(ConductorConformance, ATimerMayBeSetAgainFromItsOwnRun) {
  struct Tick : Timer {
    Conductor* conductor = nullptr;
    int ticks = 0;
  } tick;
  tick.conductor = conductor_.get();
  tick.run = [](Work* work) noexcept {
    auto* const self = static_cast<Tick*>(work);
    if (++self->ticks < 50) self->conductor->after(Nanoseconds(1), *self);
  };
  call(*conductor_, nullptr, [&]() -> Task<> {
    conductor_->after(Nanoseconds(-5), tick);
    while (tick.ticks < 50) co_await Delay{*conductor_, Nanoseconds(1)};
  });
  EXPECT_EQ(tick.ticks, 50);
}

TEST_P(ConductorConformance, ATimerFarAwayDoesNotOverflowAndHoldsUpNothing) {
  Timer never;
  never.run = [](Work*) noexcept { ADD_FAILURE() << "a timer of 292 years has run"; };
  call(*conductor_, nullptr, [&]() -> Task<> {
    conductor_->after(Nanoseconds::max(), never);
    co_await Delay{*conductor_, milliseconds(1)};
  });
  EXPECT_GT(never.deadline, conductor_->now());
  conductor_.reset();  // drops it
}

TEST_P(ConductorConformance, CallReturnsTheValueAlsoAMoveOnlyOne) {
  auto value = call(*conductor_, nullptr, [&]() -> Task<std::unique_ptr<int>> {
    co_await Yield{*conductor_};
    co_return std::make_unique<int>(42);
  });
  EXPECT_EQ(*value, 42);
}

Task<int> level(Conductor& conductor, int depth) {
  if (depth == 0) {
    co_await Yield{conductor};
    co_return 1;
  }
  const int below = co_await level(conductor, depth - 1);
  co_await Yield{conductor};
  co_return below + 1;
}

TEST_P(ConductorConformance, TasksAwaitTasks) {
  EXPECT_EQ(call(*conductor_, nullptr, [&] { return level(*conductor_, 50); }), 51);
}

Task<> fail(Conductor& conductor, std::string text) {
  co_await Yield{conductor};
  throw Error(Code::kIo, text, 5);
}

TEST_P(ConductorConformance, CallRethrowsTheError) {
  try {
    call(*conductor_, nullptr, [&]() -> Task<> {
      co_await fail(*conductor_, "the drive is gone");
      ADD_FAILURE() << "went on after an error";
    });
    FAIL() << "no error came through";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_EQ(error.sys_errno(), 5);
    EXPECT_STREQ(error.what(), "the drive is gone");
  }
  // And the conductor is as before.
  EXPECT_EQ(call(*conductor_, nullptr, []() -> Task<int> { co_return 3; }), 3);
}

TEST_P(ConductorConformance, CallRethrowsWhatTheMakerItselfThrows) {
  EXPECT_THROW(call(*conductor_, nullptr,
                    []() -> Task<int> { throw std::invalid_argument("before any coroutine"); }),
               std::invalid_argument);
}

TEST_P(ConductorConformance, AnErrorCanBeCaughtInsideTheTaskThatAwaits) {
  const std::string text = call(*conductor_, nullptr, [&]() -> Task<std::string> {
    std::string caught;
    try {
      co_await fail(*conductor_, "first try");
    } catch (const Error& error) {
      caught = error.what();
    }
    co_await Yield{*conductor_};
    co_return caught;
  });
  EXPECT_EQ(text, "first try");
}

Task<> child(Conductor& conductor, Nanoseconds delay, int& finished) {
  co_await Delay{conductor, delay};
  ++finished;
}
Task<> failing_child(Conductor& conductor, Nanoseconds delay, std::string text) {
  co_await Delay{conductor, delay};
  throw std::runtime_error(text);
}
Task<> careful_child(Conductor& conductor, TaskGroup& group, int& rounds) {
  while (!group.cancelled()) {
    co_await Delay{conductor, milliseconds(1)};
    ++rounds;
  }
}

TEST_P(ConductorConformance, ATaskGroupJoinsAllItsChildren) {
  int finished = 0;
  call(*conductor_, nullptr, [&]() -> Task<> {
    TaskGroup group;
    for (int i = 0; i < 20; ++i) group.spawn(child(*conductor_, milliseconds(i % 5), finished));
    EXPECT_EQ(group.running(), 20u);
    co_await group.join();
    EXPECT_EQ(group.running(), 0u);
    group.spawn(child(*conductor_, milliseconds(1), finished));
    co_await group.join();
  });
  EXPECT_EQ(finished, 21);
}

TEST_P(ConductorConformance, InATaskGroupTheFirstErrorWinsAndTheSiblingsDrain) {
  int finished = 0;
  int rounds = 0;
  try {
    call(*conductor_, nullptr, [&]() -> Task<> {
      TaskGroup group;
      group.spawn(failing_child(*conductor_, milliseconds(8), "second"));
      group.spawn(failing_child(*conductor_, milliseconds(2), "first"));
      group.spawn(child(*conductor_, milliseconds(12), finished));
      group.spawn(careful_child(*conductor_, group, rounds));
      EXPECT_FALSE(group.cancelled());
      co_await group.join();
    });
    FAIL() << "no error came through";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(finished, 1);
  EXPECT_GE(rounds, 1);
}

TEST_P(ConductorConformance, ATaskGroupWhoseChildrenFinishedAtOnceIsJoinedAtOnce) {
  call(*conductor_, nullptr, [&]() -> Task<> {
    TaskGroup group;
    group.spawn([]() -> Task<> { co_return; }());
    group.spawn([]() -> Task<> { throw std::logic_error("at once"); co_return; }());
    EXPECT_TRUE(group.cancelled());
    bool thrown = false;
    try {
      co_await group.join();
    } catch (const std::logic_error&) {
      thrown = true;
    }
    EXPECT_TRUE(thrown);
    EXPECT_FALSE(group.cancelled());
  });
}

TEST_P(ConductorConformance, FramesComeFromTheArenaAlsoAfterAResumption) {
  FrameArena frames(64 << 10);
  conductor_->use_frames(&frames);
  call(*conductor_, nullptr, [&]() -> Task<> {
    EXPECT_EQ(FrameArena::current(), &frames);
    co_await Yield{*conductor_};
    EXPECT_EQ(FrameArena::current(), &frames);
    co_await Delay{*conductor_, milliseconds(1)};
    EXPECT_EQ(FrameArena::current(), &frames);
    co_await level(*conductor_, 3);
  });
  EXPECT_EQ(FrameArena::current(), nullptr);
  EXPECT_GT(frames.used_bytes(), 0u);
  EXPECT_EQ(frames.overflow_frames(), 0u);
  conductor_.reset();  // the arena outlives the conductor
}

TEST_P(ConductorConformance, ManyCallsInARow) {
  int sum = 0;
  for (int i = 0; i < 500; ++i) {
    sum += call(*conductor_, nullptr, [&]() -> Task<int> { co_return 1; });
  }
  EXPECT_EQ(sum, 500);
}

INSTANTIATE_TEST_SUITE_P(
    Backends, ConductorConformance,
    ::testing::Values(ConductorCase{"asio", &make_conductor_asio, true},
                      ConductorCase{"simulated", &simulated, false}),
    [](const auto& info) { return std::string(info.param.name); });
}  // namespace
}  // namespace headrace::async::testing
