// SPDX-License-Identifier: Apache-2.0
// gpu_tools_test.cpp: the subcommands on a GPU, this machine's or a simulated one.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench_copy/bench_copy.hpp"
#include "device/cuda_under_test.hpp"
#include "doctor/rows.hpp"
#include "plan/plan.hpp"
#include "support/temporary_directory.hpp"
#include "tools/called.hpp"

namespace headrace::tools::gpu_tools_test {
namespace {
using nlohmann::json;

class GpuTools : public ::testing::Test {
 protected:
  GpuTools() { (void)device::make_cuda_under_test(1); }

  std::string file(const char* name) const { return folder_.string() + "/" + name; }
  json planned(std::vector<std::string> words) const {
    words.insert(words.begin(), {"headrace plan", "gpt2", "--seq", "64"});
    words.insert(words.end(), {"--json", file("plan.json")});
    const Called called = call(plan, words);
    EXPECT_TRUE(called.exit_code == 0 || called.exit_code == 2) << called.out << called.err;
    return json::parse(std::ifstream(file("plan.json")));
  }

  const testing::TemporaryDirectory folder_;
};

TEST_F(GpuTools, DoctorFindsItUsableAndPlanTakesItsMemory) {
  const Section section = gpu_section();
  const auto row = std::ranges::find(section.rows, "usable GPUs", &Row::name);
  ASSERT_NE(row, section.rows.end());
  EXPECT_EQ(row->mark, Mark::kOk) << row->detail;
  const std::uint64_t bytes = row->values["gpus"][0]["memory_bytes"];
  EXPECT_GT(bytes, 0u);
  const json machine = planned({"--gpus", "1"})["machine"];
  EXPECT_EQ(machine["gpus"], 1);
  EXPECT_EQ(machine["gpu_memory_bytes"], bytes);
  EXPECT_EQ(planned({})["machine"]["gpus"], 0) << "not unless it is asked for";
}

TEST_F(GpuTools, PlanTakesWhatBenchCopyWrote) {
  const Called copied = call(bench_copy, {"headrace bench copy", "--sizes", "64k,256k", "--rounds",
                                          "1", "--bytes", "256k", "--json", file("copy.json")});
  ASSERT_EQ(copied.exit_code, 0) << copied.out << copied.err;
  const json copy = json::parse(std::ifstream(file("copy.json")));
  const json machine = planned({"--copy-json", file("copy.json")})["machine"];
  EXPECT_EQ(machine["gpus"], 1);
  EXPECT_EQ(machine["gpu_memory_bytes"], copy["gpu"]["memory_bytes"]);
  // One round: its rate is the limit.
  EXPECT_DOUBLE_EQ(machine["rates_of_one_node"]["link"]["value"],
                   copy["limit_bytes_per_second"]["both"].get<double>() / 2);
}
}  // namespace
}  // namespace headrace::tools::gpu_tools_test
