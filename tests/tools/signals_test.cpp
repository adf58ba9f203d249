// SPDX-License-Identifier: Apache-2.0
// signals_test: who is told of a signal. Each test in a process of its own, since the first signal
// is remembered for good.
#include "program/signals.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <cstdlib>

namespace headrace::tools::signals_test {
namespace {
void count(void* to) noexcept {
  ++*static_cast<int*>(to);
  errno = EIO;  // as a call in a handler may leave it
}

class Signals : public ::testing::Test {
 protected:
  Signals() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

[[noreturn]] void end(bool well) { std::_Exit(well ? 42 : 1); }

TEST_F(Signals, AllWhoAskedAreToldAndNobodyElse) {
  const auto child = [] {
    install_signal_handlers();
    int gone = 0, one = 0, other = 0, late = 0;
    { const TellOnSignal tell(count, &gone); }
    const TellOnSignal tell_one(count, &one), tell_other(count, &other);
    ::raise(SIGTERM);
    ::raise(SIGHUP);
    const TellOnSignal tell_late(count, &late);
    end(gone == 0 && one == 2 && other == 2 && late == 1 && signal_received() == SIGTERM);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(42), "");
}

TEST_F(Signals, ErrnoIsAsItWas) {
  const auto child = [] {
    install_signal_handlers();
    int told = 0;
    const TellOnSignal tell(count, &told);
    errno = EAGAIN;
    ::raise(SIGINT);
    end(told == 1 && errno == EAGAIN);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(42), "");
}

TEST_F(Signals, WhatAParentHadIgnoredStaysSoUnlessItIsNamed) {
  const auto child = [] {
    for (const int number : {SIGINT, SIGHUP}) ::signal(number, SIG_IGN);
    install_signal_handlers({SIGINT, SIGTERM});
    ::raise(SIGHUP);
    const bool ignored = signal_received() == 0;
    ::raise(SIGINT);
    end(ignored && signal_received() == SIGINT);
  };
  EXPECT_EXIT(child(), ::testing::ExitedWithCode(42), "");
}
}  // namespace
}  // namespace headrace::tools::signals_test
