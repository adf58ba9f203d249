// SPDX-License-Identifier: Apache-2.0
// nccl_two_ranks_on_gpu_test.cpp: two and three processes on one GPU, over NVIDIA's NCCL, with
// torch's Gloo for what they tell each other. NCCL takes each for a host of its own (NCCL_HOSTID),
// so that they talk over sockets, and refuses none.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>

#include "collective/nccl_library.hpp"
#include "collective/rank_cases.hpp"
#include "headrace/cuda.hpp"
#include "headrace/error.hpp"
#include "headrace/launch.hpp"
#include "headrace/nccl.hpp"
#include "headrace/torch/gloo.hpp"
#include "support/child_processes.hpp"

namespace headrace::collective {
namespace {
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr seconds kDeadline(20);   // of a rank's call
constexpr seconds kWatchdog(120);  // of a process
constexpr const char* kInExchange = "lost in an exchange";
constexpr const char* kInGather = "lost in a gather";

// ---- a rank, in a process of its own ----

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

// The last rank is killed where it says that it waits; the others have to be told, and why.
void loses_a_rank(Rank& rank, std::uint32_t r, std::uint32_t world, bool in_gather) {
  gathers_every_piece(rank, r, world);  // connected
  meet(*rank.collective, {1, "before"});
  if (r + 1 == world) {
    say("waits");
    for (;;) ::pause();
  }
  const device::DeviceBytes whole(*rank.device, 1024 * world);
  const Clock::time_point began = Clock::now();
  say("waits");
  const std::string text = peer_lost_text([&] {
    if (!in_gather) return meet(*rank.collective, {2, "step 4"});
    rank.collective->all_gather({2, "gather h.3"}, {},
                                equal_pieces(whole.data(), 1024 * world, world));
  });
  const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - began);
  say("after " + std::to_string(took.count()) + " ms: " + text);
  must(took < kDeadline, "it took until the deadline");
  must_say(text, "rank " + std::to_string(world - 1) + " ended without a word");
}

void run_case(const std::string& name, Rank& rank, std::uint32_t r, std::uint32_t world) {
  if (name == kInExchange || name == kInGather)
    return loses_a_rank(rank, r, world, name == kInGather);
  for (const auto& [known, body] : kRankCases) {
    if (name == known) return body(rank, r, world);
  }
  throw std::runtime_error("no case is named '" + name + "'");
}

// --rank FOLDER CASE
int rank_main(char** words) try {
  const Launch launch = find_launch();
  Rank rank;
  rank.device = make_cuda_device();
  const auto transport = make_nccl_transport(
      {.id = id_by_file(launch.rank, std::filesystem::path(words[0]) / "id", ""),
       .messages = torch::make_gloo_transport(launch, {.join_within = kWatchdog}),
       .device = rank.device,
       .deadline = kWatchdog});
  rank.collective =
      make_collective({.transport = transport, .device = rank.device, .deadline = kDeadline});
  say("connected");
  run_case(words[1], rank, launch.rank, launch.world_size);
  rank.collective.reset();
  say("done");
  return 0;
} catch (const std::exception& error) {
  say(std::string("failed: ") + error.what());
  return 1;
}

// ---- the test, which starts itself ----

class TwoRanksOnOneGpu : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  void start(const std::string& name) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    for (std::uint32_t r = 0; r < GetParam(); ++r) {
      ranks_.start(
          {self, "--rank", ranks_.folder().string(), name},
          {"RANK=" + std::to_string(r), "WORLD_SIZE=" + std::to_string(GetParam()),
           "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port_), "GLOO_SOCKET_IFNAME=lo",
           "OMP_NUM_THREADS=1", "NCCL_HOSTID=headrace-test-rank-" + std::to_string(r),
           "NCCL_NET=Socket", "NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_SOCKET_IFNAME=lo",
           "NCCL_DEBUG=WARN"});
    }
  }
  void expect_all_done() {
    const auto ends = ranks_.wait(kWatchdog);
    for (const auto& end : ends)
      ASSERT_TRUE(end.exit_code == 0 && !end.killed) << testing::describe(ends);
  }
  void lose_the_last(const std::string& name) {
    start(name);
    for (std::uint32_t r = 0; r < GetParam(); ++r)
      ASSERT_TRUE(ranks_.wait_for(r, "waits", kWatchdog)) << testing::describe(ranks_.wait({}));
    std::this_thread::sleep_for(milliseconds(200));  // they are in their calls
    const std::uint32_t last = GetParam() - 1;
    ranks_.signal(last, SIGKILL);
    const auto ends = ranks_.wait(kWatchdog);
    const std::string said = testing::describe(ends);
    std::printf("%s", said.c_str());
    for (std::uint32_t r = 0; r < last; ++r)
      EXPECT_TRUE(ends[r].exit_code == 0 && !ends[r].killed) << "rank " << r << ", of:\n" << said;
    EXPECT_EQ(ends[last].exit_code, -SIGKILL);
  }
  const std::uint16_t port_ = testing::free_port();
  testing::ChildProcesses ranks_;
};

TEST_P(TwoRanksOnOneGpu, GatherEveryPiece) {
  start("gathers");
  expect_all_done();
}
TEST_P(TwoRanksOnOneGpu, GiveEachTheirPieces) {
  start("pieces");
  expect_all_done();
}
TEST_P(TwoRanksOnOneGpu, ExchangeMoreThanAPostHolds) {
  start("messages");
  expect_all_done();
}
TEST_P(TwoRanksOnOneGpu, AreToldOfAnAbort) {
  start("abort");
  expect_all_done();
}
TEST_P(TwoRanksOnOneGpu, AreToldWhoLeft) {
  start("leave");
  expect_all_done();
}
TEST_P(TwoRanksOnOneGpu, AreToldOfARankThatIsKilledWhileTheyWaitForIt) {
  lose_the_last(kInExchange);
}
TEST_P(TwoRanksOnOneGpu, AreToldOfARankThatIsKilledWhileTheirGatherWaitsForIt) {
  lose_the_last(kInGather);
}
INSTANTIATE_TEST_SUITE_P(Nccl, TwoRanksOnOneGpu, ::testing::Values(2u, 3u),
                         [](const auto& info) { return "Of" + std::to_string(info.param); });

// Why there can be no test here.
std::string missing() {
  if (const CudaFacts facts = cuda_facts(); !facts.missing.empty()) return facts.missing;
  try {
    (void)load_nccl({});
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

int test_main() {
  if (const std::string why = missing(); !why.empty()) {
    std::printf("skipped: %s\n", why.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
}  // namespace
}  // namespace headrace::collective

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--rank")
    return headrace::collective::rank_main(argv + 2);
  testing::InitGoogleTest(&argc, argv);
  return headrace::collective::test_main();
}
