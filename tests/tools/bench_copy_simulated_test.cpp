// SPDX-License-Identifier: Apache-2.0
// bench_copy_simulated_test.cpp: `headrace bench copy` on GPUs that cannot be used, or fail.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "bench_copy/bench_copy.hpp"
#include "device/cuda_overhead.hpp"
#include "device/simulated_cuda.hpp"
#include "program/signals.hpp"
#include "tools/called.hpp"

namespace headrace::tools::bench_copy_simulated_test {
namespace {
namespace simulated = device::simulated_cuda;

Called short_run() {
  return call(bench_copy,
              {"headrace bench copy", "--sizes", "64k", "--rounds", "1", "--bytes", "128k"});
}

void expect_all_given_back() {
  const simulated::Counters counters = simulated::counters();
  EXPECT_EQ(counters.allocated_bytes, 0u);
  EXPECT_EQ(counters.registered_bytes, 0u);
  EXPECT_EQ(counters.streams, 0u);
}

TEST(BenchCopySimulated, TakesWhatItAnnouncesAndGivesItBack) {
  simulated::plug_in();
  ASSERT_EQ(short_run().exit_code, 0);
  EXPECT_LE(simulated::counters().allocated_bytes_max, std::uint64_t{153} << 20);
  expect_all_given_back();
}

TEST(BenchCopySimulated, EndsWithThreeOnAGpuThatTheBuildHasNoKernelsFor) {
  simulated::plug_in({.compute_major = 5, .compute_minor = 0});
  const Called called = short_run();
  EXPECT_EQ(called.exit_code, 3) << called.err;
  EXPECT_NE(called.err.find("nothing was measured"), std::string::npos) << called.err;
}

TEST(BenchCopySimulated, SaysThatTheDriverShowsNoGpu) {
  simulated::plug_in({.missing = cudaErrorNoDevice});
  const Called called = short_run();
  EXPECT_EQ(called.exit_code, 3) << called.err;
  EXPECT_NE(called.err.find("shows no GPU"), std::string::npos) << called.err;
}

TEST(BenchCopySimulated, IsRefusedWhereTheGpuHasNoRoom) {
  simulated::plug_in({.memory_bytes = std::uint64_t{100} << 20});
  const Called called = short_run();
  EXPECT_EQ(called.exit_code, 2) << called.err;
  EXPECT_NE(called.err.find("give smaller --sizes"), std::string::npos) << called.err;
  expect_all_given_back();
}

TEST(BenchCopySimulated, IsRefusedWhereMemoryCannotBePinned) {
  simulated::plug_in();
  simulated::fail_call("cudaHostRegister", cudaErrorMemoryAllocation, device::cuda::kLandingSlots);
  EXPECT_EQ(short_run().exit_code, 2);
  expect_all_given_back();
}

TEST(BenchCopySimulated, FailsWhereTheGpuDoesMeanwhile) {
  simulated::plug_in();
  simulated::fail_call("cudaMemcpyAsync", cudaErrorIllegalAddress, 5);
  const Called called = short_run();
  EXPECT_EQ(called.exit_code, 1) << called.out << called.err;
  EXPECT_NE(called.err.find("does not recover in this process"), std::string::npos) << called.err;
}

// In a process of its own: a signal that has come stays noted.
TEST(BenchCopySimulated, GivesEverythingBackWhenASignalEndsIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto interrupted_run = [] {
    simulated::plug_in();
    install_signal_handlers();
    const std::jthread user([] {
      while (simulated::counters().registered_bytes < std::uint64_t{128} << 20)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      (void)::kill(::getpid(), SIGINT);
    });
    const char* const words[] = {"headrace bench copy", "--sizes", "64k", "--rounds", "10000"};
    const int exit_code = bench_copy(5, words);
    const simulated::Counters left = simulated::counters();
    const bool held = left.allocated_bytes + left.registered_bytes + left.streams > 0;
    ::_exit(held ? 99 : exit_code);
  };
  EXPECT_EXIT(interrupted_run(), testing::ExitedWithCode(128 + SIGINT), "ended by SIGINT");
}
}  // namespace
}  // namespace headrace::tools::bench_copy_simulated_test
