// SPDX-License-Identifier: Apache-2.0
// joining_test: which module joins the ranks of a launch, and what is said where none can.
#include "ranks/joining.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "support/expect_code.hpp"
#include "tools/expect_part.hpp"

namespace headrace::tools::joining_test {
namespace {
using Variables = std::map<std::string, std::string>;
using Kinds = std::vector<std::string>;
const Variables kPmi = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}};
const Variables kSlurm = {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}};
const Variables kTorch = {
    {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}};

Launch launch_of(const Variables& set) {
  return find_launch([&](const char* name) {
    const auto at = set.find(name);
    return at == set.end() ? nullptr : at->second.c_str();
  });
}
Kinds kinds_of(Variables set, const Variables& more = {}) {
  set.insert(more.begin(), more.end());
  Kinds kinds;
  for (const RankModuleFile* const file : modules_of(launch_of(set))) kinds.push_back(file->kind);
  return kinds;
}
std::string refusal_of(const Variables& set) {
  const Error error = testing::error_of([&] { static_cast<void>(join_ranks(launch_of(set), {})); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  return error.what();
}

TEST(ModulesOfALaunch, AreThoseOfTheMpiThatItsVariablesAreOf) {
  EXPECT_EQ(kinds_of(kOpenMpi), Kinds{"openmpi"});
  EXPECT_EQ(kinds_of(kTorch), Kinds{"gloo"});
  // Open MPI served PMI too, up to 4.
  EXPECT_EQ(kinds_of(kPmi), (Kinds{"mpich", "openmpi"}));
  EXPECT_EQ(kinds_of({{"PMIX_RANK", "0"}}), (Kinds{"openmpi", "mpich"}));
}

// By srun's --mpi; a Cray's MPI is of MPICH's kind, and has PMI's variables.
TEST(ModulesOfALaunch, UnderSrunAreOfTheInterfaceThatItServes) {
  EXPECT_EQ(kinds_of(kSlurm, {{"PMIX_RANK", "0"}}), (Kinds{"openmpi", "mpich"}));
  EXPECT_EQ(kinds_of(kSlurm, kPmi), (Kinds{"mpich", "openmpi"}));
  EXPECT_EQ(kinds_of(kSlurm), (Kinds{"openmpi", "mpich"}));
  EXPECT_EQ(kinds_of(kSlurm, kTorch), Kinds{"gloo"});
}

// Beside this program there are none.
TEST(ModulesOfALaunch, AreNamedInTheOrderTriedWhereNoneLoads) {
  for (const RankModuleFile& file : kRankModuleFiles)
    ASSERT_FALSE(std::filesystem::exists(path_of(file))) << path_of(file);
  const std::string pmi = refusal_of(kPmi);
  expect_part(pmi, "PMI started this rank, and no module for MPICH or Open MPI can be loaded: ");
  expect_part(pmi, "headrace_mpich.so: cannot open shared object file");
  expect_part(pmi, "; the run was not started. Install that MPI (Debian: apt install mpich");
  EXPECT_LT(pmi.find("headrace_mpich.so"), pmi.find("headrace_openmpi.so"));
  const std::string open_mpi = refusal_of(kOpenMpi);
  expect_part(open_mpi, "no module for Open MPI can be loaded: ");
  expect_part(open_mpi,
              "apt install openmpi-bin libopenmpi-dev) and build again, or start the "
              "ranks by torchrun");
  EXPECT_EQ(open_mpi.find("mpich"), std::string::npos) << open_mpi;
  expect_part(refusal_of(kTorch), "Build with LibTorch");
  expect_part(refusal_of(kTorch), "or start the ranks by mpirun");
}
}  // namespace
}  // namespace headrace::tools::joining_test
