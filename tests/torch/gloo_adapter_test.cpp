// SPDX-License-Identifier: Apache-2.0
// Processes train the models of adapter_worlds.hpp over torch's Gloo. The ranks are this program
// again.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/launch.hpp"
#include "headrace/torch/gloo.hpp"
#include "support/child_processes.hpp"
#include "torch/adapter_worlds.hpp"

namespace headrace_test::adapter_worlds {
namespace {
constexpr std::chrono::seconds kWatchdog(120);  // of a world
constexpr int kSecondOfStepTwo = 6 + 1;         // a micro-batch of rank 1 in worlds of 2 and 3

std::set<std::string> lines_of(const Outcome& outcome) {
  std::set<std::string> lines = {"parameters " + outcome.parameters, "state " + outcome.state};
  for (const auto& [micro_batch, loss] : outcome.losses) {
    std::array<char, 64> line{};
    std::snprintf(line.data(), line.size(), "loss %d %a", micro_batch, loss);
    lines.insert(line.data());
  }
  return lines;
}

// ---- a rank, in a process of its own ----

void train_and_fail(const Place& place, bool says_why) {
  try {
    Model model({.name = "fails", .checkpointed = says_why}, place, "");
    if (place.rank() == 1) model.fails_at = kSecondOfStepTwo;
    for (int step = 0; step < kSteps; ++step) model.step(step);
  } catch (const std::runtime_error& error) {
    if (says_why && place.rank() == 1) place.collective->abort(error.what());
    throw;
  }
}

void run_rank(const std::string& name, const std::string& folder) {
  const Place place{headrace::make_collective(
      {.transport = headrace::torch::make_gloo_transport(headrace::find_launch(), {})})};
  if (name == "aborts" || name == "leaves") return train_and_fail(place, name == "aborts");
  for (const Variant& variant : variants()) {
    if (name != variant.name) continue;
    for (const std::string& line : lines_of(train(variant, place, folder)))
      std::printf("%s\n", line.c_str());
    return;
  }
  throw std::invalid_argument("no variant " + name);
}

int rank_main(const std::string& name, const std::string& folder) try {
  run_rank(name, folder);
  return 0;
} catch (const std::exception& error) {
  std::printf("ended: %s\n", error.what());
  return 1;
}

// ---- the test, which starts itself ----

std::vector<headrace::testing::ChildEnd> world_of(std::uint32_t world, const std::string& name) {
  headrace::testing::ChildProcesses ranks;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string port = std::to_string(headrace::testing::free_port());
  for (std::uint32_t r = 0; r < world; ++r) {
    ranks.start({self, "--rank", name, ranks.folder().string()},
                {"RANK=" + std::to_string(r), "WORLD_SIZE=" + std::to_string(world),
                 "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port, "GLOO_SOCKET_IFNAME=lo",
                 "OMP_NUM_THREADS=1"});
  }
  return ranks.wait(kWatchdog);
}

class AdapterProcesses : public ::testing::TestWithParam<Variant> {};

TEST_P(AdapterProcesses, EndInTheBitsOfOneRank) {
  const SwapFolder folder;
  const std::set<std::string> alone = lines_of(train(GetParam(), {}, folder.path()));
  for (const std::uint32_t world : {2u, 3u}) {
    const auto ends = world_of(world, GetParam().name);
    std::set<std::string> said;
    for (const auto& end : ends) {
      EXPECT_EQ(end.exit_code, 0) << headrace::testing::describe(ends);
      std::istringstream lines(end.said);
      for (std::string line; std::getline(lines, line);) said.insert(line);
    }
    EXPECT_EQ(said, alone) << world << " ranks";
  }
}
INSTANTIATE_TEST_SUITE_P(Gloo, AdapterProcesses, ::testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.name; });

class AdapterProcessesThatFail : public ::testing::TestWithParam<const char*> {};

TEST_P(AdapterProcessesThatFail, EndOnEveryRankWithRankAndCause) {
  const std::string name = GetParam();
  for (const std::uint32_t world : {2u, 3u}) {
    const auto ends = world_of(world, name);
    for (std::uint32_t r = 0; r < world; ++r) {
      const std::string cause = r == 1             ? "ended: the forward of rank 1 failed"
                                : name == "aborts" ? "rank 1 gave up: the forward of rank 1 failed"
                                                   : "rank 1 has left";
      EXPECT_EQ(ends.at(r).exit_code, 1) << headrace::testing::describe(ends);
      EXPECT_NE(ends.at(r).said.find(cause), std::string::npos)
          << headrace::testing::describe(ends);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Gloo, AdapterProcessesThatFail, ::testing::Values("aborts", "leaves"),
                         [](const auto& info) { return std::string(info.param); });
}  // namespace
}  // namespace headrace_test::adapter_worlds

int main(int count, char** arguments) {
  if (count == 4 && std::string_view(arguments[1]) == "--rank")
    return headrace_test::adapter_worlds::rank_main(arguments[2], arguments[3]);
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
