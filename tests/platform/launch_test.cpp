// SPDX-License-Identifier: Apache-2.0
#include "headrace/launch.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "support/expect_code.hpp"

namespace headrace {
namespace {
using Variables = std::map<std::string, std::string>;
using Kind = Launch::Kind;

Launch find(const Variables& set, LaunchChoice choice = LaunchChoice::kAuto) {
  return find_launch(
      [&](const char* name) {
        const auto at = set.find(name);
        return at == set.end() ? nullptr : at->second.c_str();
      },
      choice);
}

Variables operator+(Variables left, const Variables& right) {
  left.insert(right.begin(), right.end());
  return left;
}

const Variables kByHand = {
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
const Variables kTorchrun = kByHand + Variables{{"LOCAL_RANK", "1"},
                                                {"LOCAL_WORLD_SIZE", "2"},
                                                {"TORCHELASTIC_RUN_ID", "job7"},
                                                {"TORCHELASTIC_RESTART_COUNT", "3"},
                                                {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kPmi = {{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}};
const Variables kPmix = {{"PMIX_RANK", "5"}};
const Variables kAllocation = {{"SLURM_NTASKS", "16"}, {"SLURM_JOB_ID", "9"}};
const Variables kStep = kAllocation + Variables{{"SLURM_PROCID", "3"},
                                                {"SLURM_STEP_ID", "0"},
                                                {"SLURM_LOCALID", "1"},
                                                {"SLURM_STEP_NUM_TASKS", "6"}};

struct Found {
  const char* what;
  Variables set;
  Kind kind;
  const char* launcher;
  std::uint32_t rank, world_size;
};

TEST(FindLaunch, TakesTheLauncherThatStartedTheProcess) {
  const std::vector<Found> table = {
      {"nothing", {}, Kind::kNone, "", 0, 1},
      {"by hand", kByHand, Kind::kTorch, "RANK", 1, 4},
      {"torchrun", kTorchrun, Kind::kTorch, "torchrun", 1, 4},
      {"mpirun", kOpenMpi, Kind::kMpi, "Open MPI", 2, 8},
      {"mpiexec", kPmi, Kind::kMpi, "PMI", 0, 3},
      {"srun --mpi=pmix", kPmix + kStep, Kind::kMpi, "PMIx", 5, 0},
      {"srun --mpi=pmix that serves PMIx itself",
       kPmix + kStep + Variables{{"PMIX_NAMESPACE", "slurm.pmix.7.0"}}, Kind::kMpi, "PMIx", 5, 6},
      {"srun", kStep, Kind::kMpi, "Slurm", 3, 6},
      {"srun of one task",
       kAllocation +
           Variables{{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}},
       Kind::kNone, "", 0, 1},
      {"an allocation's shell", kAllocation, Kind::kNone, "", 0, 1},
      {"a batch script", kAllocation + Variables{{"SLURM_PROCID", "0"}}, Kind::kNone, "", 0, 1},
      {"srun, which counts its tasks in the older way",
       kAllocation + Variables{{"SLURM_PROCID", "15"}, {"SLURM_STEP_ID", "2"}}, Kind::kMpi, "Slurm",
       15, 16},
      {"srun torchrun", kTorchrun + kStep + kPmix, Kind::kTorch, "torchrun", 1, 4},
      {"mpirun torchrun", kTorchrun + kOpenMpi, Kind::kTorch, "torchrun", 1, 4},
      {"by hand within srun", kByHand + kStep, Kind::kTorch, "RANK", 1, 4},
      {"mpirun of a script that sets RANK",
       kByHand + Variables{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
       Kind::kTorch, "RANK", 1, 4},
      {"mpirun within srun", kOpenMpi + kStep + kPmi, Kind::kMpi, "Open MPI", 2, 8},
      {"mpirun where scripts look for a master",
       kOpenMpi + Variables{{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "1"}}, Kind::kMpi, "Open MPI",
       2, 8},
      {"empty variables", {{"RANK", ""}, {"PMI_RANK", ""}}, Kind::kNone, "", 0, 1},
  };
  for (const Found& wanted : table) {
    SCOPED_TRACE(wanted.what);
    const Launch found = find(wanted.set);
    EXPECT_EQ(found.kind, wanted.kind);
    EXPECT_EQ(found.launcher, wanted.launcher);
    EXPECT_EQ(found.rank, wanted.rank);
    EXPECT_EQ(found.world_size, wanted.world_size);
  }
}

TEST(FindLaunch, ReadsWhatTorchrunSays) {
  const Launch found = find(kTorchrun);
  EXPECT_EQ(found.local_rank, 1u);
  EXPECT_EQ(found.local_world_size, 2u);
  EXPECT_EQ(found.master_address, "node0");
  EXPECT_EQ(found.master_port, 29500);
  EXPECT_TRUE(found.agent_serves_store);
  EXPECT_EQ(found.attempt, "job7/3");
}

TEST(FindLaunch, KnowsTheRanksOfAMachineWhereTheLauncherCountsThem) {
  EXPECT_EQ(find(kOpenMpi).local_rank, 0u);
  EXPECT_EQ(find(kOpenMpi).local_world_size, 2u);
  EXPECT_EQ(find(kStep).local_rank, 1u);
  EXPECT_FALSE(find(kStep).local_world_size);
  EXPECT_FALSE(find(kPmi).local_rank);
  EXPECT_FALSE(find(kByHand).local_rank);
  EXPECT_FALSE(find(kByHand).agent_serves_store);
}

TEST(FindLaunch, ServesTheChoice) {
  const Variables both = kByHand + kOpenMpi;
  EXPECT_EQ(find(both, LaunchChoice::kTorch).launcher, "RANK");
  EXPECT_EQ(find(both, LaunchChoice::kMpi).launcher, "Open MPI");
  EXPECT_EQ(find(kStep, LaunchChoice::kMpi).launcher, "Slurm");
  EXPECT_EQ(find(both, LaunchChoice::kNone).kind, Kind::kNone);
  // Of what is not chosen, nothing is read.
  EXPECT_EQ(find({{"RANK", "x"}}, LaunchChoice::kNone).kind, Kind::kNone);
  EXPECT_EQ(find(kPmi + Variables{{"RANK", "x"}}, LaunchChoice::kMpi).launcher, "PMI");
}

struct Refused {
  Variables set;
  const char* text;
  LaunchChoice choice = LaunchChoice::kAuto;
};

TEST(FindLaunch, RefusesByName) {
  const Variables torch = kByHand;
  const auto with = [](Variables set, const char* name, const char* value) {
    set[name] = value;
    return set;
  };
  const std::vector<Refused> table = {
      {kByHand + kOpenMpi,
       "RANK and WORLD_SIZE say rank 1 of 4, but Open MPI says rank 2 of 8; no ranks were started; "
       "unset RANK and WORLD_SIZE, or choose torch or mpi by name"},
      {kByHand + kPmix, "but PMIx says rank 5;"},
      {kByHand + kPmi, "but PMI says rank 0 of 3;"},
      {{{"RANK", "0"}}, "RANK is set, but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT;"},
      {{{"RANK", "0"}}, "set all of them for each rank, or unset RANK"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}},
       "RANK, WORLD_SIZE are set, but not MASTER_ADDR, MASTER_PORT;"},
      {{{"MASTER_ADDR", "x"}}, "MASTER_ADDR is set, but not RANK, WORLD_SIZE, MASTER_PORT;"},
      {{{"PMI_RANK", "0"}}, "PMI_RANK is set, but not PMI_SIZE;"},
      {{{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_SIZE is set, but not"},
      {with(torch, "RANK", "4"), "RANK is '4', not a number from 0 to 3;"},
      {with(torch, "RANK", "-1"), "RANK is '-1'"},
      {with(torch, "RANK", "1 "), "RANK is '1 '"},
      {with(torch, "WORLD_SIZE", "0"), "WORLD_SIZE is '0', not a number from 1 to"},
      {with(torch, "WORLD_SIZE", "99999999999"), "WORLD_SIZE is '99999999999'"},
      {with(torch, "MASTER_PORT", "65536"), "MASTER_PORT is '65536', not a number from 1 to 65535"},
      {with(torch, "MASTER_PORT", "http"), "MASTER_PORT is 'http'"},
      {with(torch, "LOCAL_WORLD_SIZE", "5"), "LOCAL_WORLD_SIZE is '5', not a number from 1 to 4"},
      {with(kTorchrun, "LOCAL_RANK", "2"), "LOCAL_RANK is '2', not a number from 0 to 1"},
      {with(kPmix, "PMIX_RANK", "x"), "PMIX_RANK is 'x'"},
      {with(kStep, "SLURM_PROCID", "6"), "SLURM_PROCID is '6', not a number from 0 to 5"},
      {{}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set;", LaunchChoice::kTorch},
      {kByHand, "no variable of a launcher of MPI programs is set;", LaunchChoice::kMpi},
  };
  for (const Refused& refused : table)
    EXPECT_CODE(Code::kInvalidArgument, (void)find(refused.set, refused.choice), refused.text);
}

TEST(OwnAddress, IsTheOneThatLeadsToTheMaster) {
  Launch launch;
  launch.master_port = 29500;
  launch.master_address = "127.0.0.1";
  EXPECT_EQ(own_address(launch), "127.0.0.1");
  launch.master_address = std::string(70, 'x');  // longer than a name may be
  EXPECT_EQ(own_address(launch), "");
}
}  // namespace
}  // namespace headrace
