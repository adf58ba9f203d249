// SPDX-License-Identifier: Apache-2.0
// bench_copy_cuda_test.cpp: `headrace bench copy` on a GPU, this machine's or a simulated one.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench_copy/bench_copy.hpp"
#include "device/cuda_under_test.hpp"
#include "support/temporary_directory.hpp"
#include "tools/called.hpp"

namespace headrace::tools::bench_copy_cuda_test {
namespace {
using nlohmann::json;

TEST(BenchCopyOnGpu, MeasuresAndComparesEveryRow) {
  (void)device::make_cuda_under_test(1);
  const testing::TemporaryDirectory folder;
  const std::string file = folder.string() + "/report.json";
  const Called called =
      call(bench_copy, {"headrace bench copy", "--sizes", "64k,256k", "--rounds", "2", "--seconds",
                        "0.002", "--gradients", "--json", file});
  ASSERT_EQ(called.exit_code, 0) << called.out << called.err;
  for (const char* words : {"gpu\n", "copy engine", "pageable", "256 KiB", "added to f32",
                            "the link's limit", "all as sent", "2 rounds in"})
    EXPECT_NE(called.out.find(words), std::string::npos) << words << "\n" << called.out;
  EXPECT_NE(called.err.find("This takes about"), std::string::npos) << called.err;
  EXPECT_NE(called.err.find("of it pinned) and 152"), std::string::npos)
      << "two buffers of 64 MiB, and 24 MiB that gradients leave through\n"
      << called.err;
  const json report = json::parse(std::ifstream(file));
  EXPECT_EQ(report["exit_code"], 0);
  EXPECT_EQ(report["gpu"]["ordinal"], 0);
  EXPECT_GT(report["gpu"]["memory_bytes"], 0);
  EXPECT_EQ(report["rows"].size(), 3u * 2 * 2 + 2);
  EXPECT_EQ(report["verification"]["mismatches"], 0);
  EXPECT_GT(report["limit_bytes_per_second"]["to_host"], 0);
}

TEST(BenchCopyOnGpu, EndsWithFourWhereAShareIsMissedAndStdoutIsTheDocumentAlone) {
  (void)device::make_cuda_under_test(2);
  const Called called =
      call(bench_copy, {"headrace bench copy", "--sizes", "64k", "--rounds", "1", "--bytes", "128k",
                        "--require-share", "10", "--json", "-"});
  EXPECT_EQ(called.exit_code, 4) << called.out << called.err;
  EXPECT_NE(called.err.find("MISSED  share=10: found 1.000 (to the device, pinned, 64 KiB)"),
            std::string::npos)
      << called.err;
  const json report = json::parse(called.out);
  EXPECT_EQ(report["exit_code"], 4);
  EXPECT_EQ(report["required"]["met"], false);
}

TEST(BenchCopyOnGpu, EndsWithThreeWhereThereIsNoGpuOfThatOrdinal) {
  (void)device::make_cuda_under_test(3);
  const Called called = call(bench_copy, {"headrace bench copy", "--gpu", "1000"});
  EXPECT_EQ(called.exit_code, 3) << called.out << called.err;
  EXPECT_NE(called.err.find("nothing was measured: "), std::string::npos) << called.err;
}
}  // namespace
}  // namespace headrace::tools::bench_copy_cuda_test
