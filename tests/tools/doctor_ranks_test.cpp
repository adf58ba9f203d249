// SPDX-License-Identifier: Apache-2.0
// doctor_ranks_test: `headrace doctor --ranks`: what it says of a launch.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "doctor/rows.hpp"
#include "platform/fake_root.hpp"
#include "platform/machine.hpp"
#include "support/temporary_directory.hpp"
#include "tools/expect_part.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::doctor_ranks_test {
namespace {
using nlohmann::json;
using Variables = std::map<std::string, std::string>;
const Variables kTorch = {
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};

Section section_of(const Variables& set, const std::string& root = "") {
  return ranks_section(
      [&](const char* name) {
        const auto at = set.find(name);
        return at == set.end() ? nullptr : at->second.c_str();
      },
      root);
}
Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Row row_of(const Section& section, const std::string& name) {
  const auto found = std::ranges::find(section.rows, name, &Row::name);
  if (found == section.rows.end()) throw std::runtime_error("no row " + name);
  return *found;
}

TEST(DoctorRankRows, SayWhatALauncherSaid) {
  const Section none = section_of({});
  EXPECT_EQ(row_of(none, "launcher").value, "none: one process");
  EXPECT_EQ(row_of(none, "variables").value, "none of a launcher's is set");
  EXPECT_TRUE(
      std::ranges::none_of(none.rows, [](const Row& row) { return row.mark == Mark::kGap; }));
  const Section mpi = section_of(kOpenMpi);
  EXPECT_EQ(row_of(mpi, "launcher").value, "Open MPI: rank 1 of 4, on this machine rank 1 of 2");
  expect_part(row_of(mpi, "variables").value, "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4");
  EXPECT_EQ(row_of(mpi, "launcher").values["local_world_size"], 2);
}

TEST(DoctorRankRows, NameAContradiction) {
  Variables both = kTorch;
  both.insert(kOpenMpi.begin(), kOpenMpi.end());
  both["OMPI_COMM_WORLD_RANK"] = "2";
  const Row row = row_of(section_of(both), "launcher");
  EXPECT_EQ(row.mark, Mark::kGap);
  EXPECT_EQ(row.detail, "RANK and WORLD_SIZE say rank 1 of 4, but Open MPI says rank 2 of 4");
  EXPECT_EQ(row.consequence, "no ranks were started");
  expect_part(row.fix, "unset RANK and WORLD_SIZE");
}

// This test has no module beside it.
TEST(DoctorRankRows, HaveAGapWhereTheLaunchNeedsAModuleThatIsMissing) {
  for (const char* name : {"Open MPI", "MPICH", "torch's Gloo"})
    EXPECT_EQ(row_of(section_of({}), name).mark, Mark::kOk) << name;
  const Row row = row_of(section_of(kOpenMpi), "Open MPI");
  EXPECT_EQ(row.mark, Mark::kGap);
  EXPECT_EQ(row.value, "no headrace_openmpi.so");
  expect_part(row.fix, "apt install openmpi-bin libopenmpi-dev");
  EXPECT_EQ(row_of(section_of(kOpenMpi), "MPICH").mark, Mark::kOk);
  EXPECT_EQ(row_of(section_of(kTorch), "torch's Gloo").mark, Mark::kGap);
}

TEST(DoctorRankRows, NameTheInterfaceThatGlooUses) {
  const Row row = row_of(section_of(kTorch), "Gloo's network");
  EXPECT_EQ(row.mark, Mark::kOk);
  EXPECT_EQ(row.value, "lo at 127.0.0.1");
  expect_part(row.detail, "ranks of other machines do not reach it");
  EXPECT_EQ(row_of(section_of(with({}, "GLOO_SOCKET_IFNAME", "lo,eth7")), "Gloo's network").value,
            "lo at 127.0.0.1");
  const Row missing =
      row_of(section_of(with(kTorch, "GLOO_SOCKET_IFNAME", "none0")), "Gloo's network");
  EXPECT_EQ(missing.mark, Mark::kGap);
  expect_part(missing.detail, "'none0', which has no address");
  expect_part(missing.fix, "lo");
  const Row lost =
      row_of(section_of(with(kTorch, "MASTER_ADDR", std::string(70, 'x'))), "Gloo's network");
  EXPECT_EQ(lost.mark, Mark::kGap);
  expect_part(lost.detail, "no way leads to MASTER_ADDR");
}

TEST(DoctorRankRows, SayHowRanksOfAMachineShareItsCpus) {
  const platform::test::FakeRoot root;
  const auto cpus = platform::usable_cpus(1, root.path()).value;
  const auto of_machine = [&](std::uint64_t threads, std::uint64_t ranks) {
    std::string text;
    for (std::uint64_t i = 0; i < threads; ++i)
      text += "processor\t: " + std::to_string(i) + "\n\n";
    root.write("/proc/cpuinfo", text);
    Variables set = with(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(ranks));
    set["OMPI_COMM_WORLD_SIZE"] = "100000";
    return row_of(section_of(set, root.path()), "CPUs of this rank");
  };
  expect_part(of_machine(cpus, 2).detail, "2 ranks of this machine share them");
  EXPECT_EQ(of_machine(cpus, cpus + 1).mark, Mark::kNote);
  expect_part(of_machine(cpus + 1, 2).detail, "ranks that are bound to the same share them");
  EXPECT_EQ(row_of(section_of({}, root.path()), "/dev/shm").mark, Mark::kUnknown);
}

// ---- the program ----

TEST(DoctorRanksProgram, ShowsWhichModulesLoad) {
  const testing::TemporaryDirectory folder;
  const std::string file = folder.string() + "/doctor.json";
  const Ran ran = run_headrace("doctor --ranks --json " + file + " " + folder.string());
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  expect_part(ran.out, "launcher            none: one process");
  expect_part(ran.out, "/dev/shm");
  const json sections = json::parse(std::ifstream(file))["sections"];
  EXPECT_EQ(sections.back()["title"], "Ranks");
#ifdef HEADRACE_WITH_GLOO
  expect_part(ran.out, "headrace_gloo.so, torch 2.");
#endif
  if (*HEADRACE_MPIRUN_OPENMPI != 0) expect_part(ran.out, "headrace_openmpi.so, MPI ");
  EXPECT_EQ(run_headrace("doctor " + folder.string()).out.find("\nRanks\n"), std::string::npos);
}

TEST(DoctorRanksProgram, RankZeroAloneSpeaks) {
  const testing::TemporaryDirectory folder;
  for (const bool first : {true, false}) {
    const Ran ran =
        ran_by_shell(std::string(first ? "PMI_RANK=0" : "PMI_RANK=1") +
                     " PMI_SIZE=2 " HEADRACE_PROGRAM " doctor --ranks " + folder.string());
    EXPECT_EQ(ran.exit_code, 0) << ran.out;
    EXPECT_EQ(ran.out.find("PMI: rank 0 of 2") != std::string::npos, first) << ran.out;
    EXPECT_EQ(ran.out.empty(), !first) << ran.out;
  }
}
}  // namespace
}  // namespace headrace::tools::doctor_ranks_test
