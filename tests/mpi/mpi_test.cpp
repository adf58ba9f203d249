// SPDX-License-Identifier: Apache-2.0
// Worlds of processes under mpirun: mpi_world.cpp holds what each rank does.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/child_processes.hpp"
#include "support/world_training.hpp"

namespace headrace::testing {
namespace {
constexpr bool kOpenMpi = std::string_view(HEADRACE_MPI_KIND) == "openmpi";

// Ranks outnumber cores here, and MPI's own waits (at its start and end) spin.
ChildEnd end_of(std::uint32_t world_size, const std::string& name) {
  std::vector<std::string> words = {HEADRACE_MPI_LAUNCHER};
  if (kOpenMpi) {
    // As in containers, where ranks cannot read each other's memory: chunks take many steps.
    if (name == "memory") {
      for (const char* option : {"--mca", "btl_vader_single_copy_mechanism", "none"})
        words.emplace_back(option);
    }
    for (const char* option : {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                               "--mca", "mpi_yield_when_idle", "1"})
      words.emplace_back(option);
  }
  for (const std::string& word :
       {std::string("-n"), std::to_string(world_size), std::string(HEADRACE_MPI_WORLD), name})
    words.push_back(word);
  ChildProcesses processes;
  processes.start(words, {"HEADRACE_WORLD_FOLDER=" + processes.folder().string()});
  return processes.wait(std::chrono::seconds(name == "trains" ? 600 : 60)).at(0);
}

void expect_passed(std::uint32_t world_size, const std::string& name) {
  const ChildEnd end = end_of(world_size, name);
  EXPECT_EQ(end.exit_code, 0) << describe({end});
  EXPECT_NE(end.said.find(name + ": passed"), std::string::npos) << describe({end});
}

class TransportMpiWorlds : public ::testing::TestWithParam<std::uint32_t> {};
TEST_P(TransportMpiWorlds, AsEveryTransport) { expect_passed(GetParam(), "conformance"); }
INSTANTIATE_TEST_SUITE_P(Sizes, TransportMpiWorlds, ::testing::Values(1u, 2u, 3u, 4u));

class WorldSizeOverMpi : public ::testing::TestWithParam<std::uint32_t> {};
TEST_P(WorldSizeOverMpi, ChangesNoBit) {
  const ChildEnd end = end_of(GetParam(), "trains");
  EXPECT_EQ(end.exit_code, 0) << describe({end});
  EXPECT_EQ(missing_lines(end.said, GetParam()), "") << describe({end});
}
INSTANTIATE_TEST_SUITE_P(Sizes, WorldSizeOverMpi, ::testing::Values(1u, 2u, 3u, 4u));

TEST(EngineOverMpi, IsOneOfTwoInHalvesOfTheWorld) { expect_passed(4, "halves"); }

TEST(TransportMpi, PassesLargePieces) { expect_passed(3, "large"); }
TEST(TransportMpi, GivesToARankThatGivesNothing) { expect_passed(2, "gives"); }
TEST(TransportMpi, AbortsThoughARankNeverComes) { expect_passed(3, "never"); }
TEST(TransportMpi, AbortsThoughARankStandsStill) { expect_passed(2, "stopped"); }
TEST(TransportMpi, AbortsThoughARankStandsStillThatMadeRoom) { expect_passed(2, "room"); }
TEST(TransportMpi, AbortsAfterItStoodStill) { expect_passed(2, "resumed"); }
TEST(TransportMpi, LetsMemoryGoWhenItAborts) { expect_passed(2, "memory"); }
TEST(TransportMpi, CarriesACallOutOnTheThreadThatWaits) { expect_passed(3, "drives"); }
TEST(TransportMpi, NamesTheRankOfAFailedTransfer) { expect_passed(1, "names"); }
TEST(TransportMpi, TakesLittleOfACoreWhenIdle) { expect_passed(2, "idle"); }
TEST(TransportMpi, RefusesFunneledByName) { expect_passed(1, "funneled"); }
TEST(TransportMpi, ServesSerializedToAProgramThatCallsNoMpi) { expect_passed(2, "serialized"); }

TEST(TransportMpi, ARankThatExitsEndsTheJobWithItsCode) {
  const ChildEnd end = end_of(2, "exit");
  EXPECT_EQ(end.exit_code, 9) << describe({end});
  EXPECT_FALSE(end.killed);
}

TEST(TransportMpi, AChunkOfARankThatStandsStillEndsTheProcessByName) {
  const ChildEnd end = end_of(3, "stuck");
  EXPECT_NE(end.exit_code, 0) << describe({end});
  EXPECT_FALSE(end.killed) << describe({end});
  EXPECT_NE(end.said.find("rank 0, which has stood still for 500 ms"), std::string::npos)
      << describe({end});
}

TEST(MpiSession, FinalisesAfterACleanEnd) {
  const ChildEnd end = end_of(2, "serves");
  EXPECT_EQ(end.exit_code, 0) << describe({end});
  EXPECT_NE(end.said.find("MPI: finalised\n"), std::string::npos) << describe({end});
}

TEST(MpiSession, LeavesMpiAsItIsAfterACallThatFailed) {
  const ChildEnd end = end_of(2, "fails");
  EXPECT_FALSE(end.killed) << describe({end});
  EXPECT_NE(end.said.find("MPI: left as it is\n"), std::string::npos) << describe({end});
  EXPECT_EQ(end.said.find("MPI: finalised\n"), std::string::npos) << describe({end});
}
}  // namespace
}  // namespace headrace::testing
