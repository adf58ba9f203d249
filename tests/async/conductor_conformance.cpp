// SPDX-License-Identifier: Apache-2.0
// The conformance suite of the conductor seam, run for each backend.
#include "async/conductor_conformance.hpp"
#include "support/conductor_simulated.hpp"

#include <algorithm>
#include <numeric>

namespace headrace::async::testing {
namespace {
using std::chrono::milliseconds;

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
  EXPECT_TRUE(
      call(*conductor_, nullptr, [&]() -> Task<bool> { co_return conductor_->on_conductor(); }));
  EXPECT_FALSE(conductor_->on_conductor());
}

TEST_P(ConductorConformance, TimersRunInTheOrderOfTheirDeadlinesAndNotBefore) {
  struct Ring : Timer {
    Conductor* conductor = nullptr;
    std::vector<Nanoseconds>* rung = nullptr;
    bool early = false;
  };
  std::vector<Nanoseconds> rung;
  std::vector<Ring> timers(6);
  call(*conductor_, nullptr, [&]() -> Task<> {
    int delay = 6;
    for (Ring& timer : timers) {
      timer.conductor = conductor_.get();
      timer.rung = &rung;
      timer.run = [](Work* work) noexcept {
        auto* const self = static_cast<Ring*>(work);
        self->early = self->conductor->now() < self->deadline;
        self->rung->push_back(self->deadline);
      };
      conductor_->after(milliseconds(delay), timer);
      delay = (delay * 3) % 7;  // 6 4 5 1 3 2
    }
    while (rung.size() < timers.size()) co_await Delay{*conductor_, milliseconds(1)};
  });
  EXPECT_EQ(rung.size(), timers.size());
  EXPECT_TRUE(std::is_sorted(rung.begin(), rung.end()));
  for (const Ring& timer : timers) EXPECT_FALSE(timer.early);
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

// Waits until its turn has come.
Task<> failing_child(Conductor& conductor, const int& turn, int mine, std::string text) {
  while (turn < mine) co_await Yield{conductor};
  throw std::runtime_error(text);
}
Task<> patient_child(Conductor& conductor, const int& turn, int mine, int& finished) {
  while (turn < mine) co_await Yield{conductor};
  ++finished;
}
Task<> careful_child(Conductor& conductor, TaskGroup& group, int& stopped_at, const int& turn) {
  while (!group.cancelled()) co_await Yield{conductor};
  stopped_at = turn;
}

TEST_P(ConductorConformance, InATaskGroupTheFirstErrorWinsAndTheSiblingsDrain) {
  int finished = 0;
  int stopped_at = 0;
  int turn = 0;
  try {
    call(*conductor_, nullptr, [&]() -> Task<> {
      TaskGroup group;
      group.spawn(failing_child(*conductor_, turn, 2, "second"));
      group.spawn(failing_child(*conductor_, turn, 1, "first"));
      group.spawn(patient_child(*conductor_, turn, 3, finished));
      group.spawn(careful_child(*conductor_, group, stopped_at, turn));
      EXPECT_FALSE(group.cancelled());
      turn = 1;
      while (group.running() > 2) co_await Yield{*conductor_};
      EXPECT_TRUE(group.cancelled());
      turn = 2;
      while (group.running() > 1) co_await Yield{*conductor_};
      EXPECT_EQ(finished, 0);
      turn = 3;
      co_await group.join();
    });
    FAIL() << "no error came through";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(finished, 1);
  EXPECT_EQ(stopped_at, 1);
}

TEST_P(ConductorConformance, ATaskGroupWhoseChildrenFinishedAtOnceIsJoinedAtOnce) {
  call(*conductor_, nullptr, [&]() -> Task<> {
    TaskGroup group;
    group.spawn([]() -> Task<> { co_return; }());
    group.spawn([]() -> Task<> {
      throw std::logic_error("at once");
      co_return;
    }());
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

INSTANTIATE_TEST_SUITE_P(Backends, ConductorConformance,
                         ::testing::Values(ConductorCase{"asio", &make_conductor_asio, true},
                                           ConductorCase{"simulated", &simulated, false}),
                         [](const auto& info) { return std::string(info.param.name); });
}  // namespace
}  // namespace headrace::async::testing
