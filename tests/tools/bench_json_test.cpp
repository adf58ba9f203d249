// SPDX-License-Identifier: Apache-2.0
// bench_json_test: a measurement as JSON.
#include <gtest/gtest.h>

#include "bench/report_json.hpp"
#include "tools/bench_example.hpp"

namespace headrace::tools::bench_json_test {
namespace {
using bench_example::example;

Json through_text(const Measurement& measurement) {
  return Json::parse(dump(to_json(measurement)));
}

TEST(ReportJson, HasFiosNamesWhereTheThingIsTheSame) {
  const Json json = through_text(example());
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["program"], "headrace bench");
  const Json& both = json["jobs"][7];
  EXPECT_EQ(both["jobname"], "rw 4M x 4");
  EXPECT_EQ(both["job options"]["rw"], "rw");
  EXPECT_EQ(both["job options"]["bs"], "4M");
  EXPECT_EQ(both["job options"]["iodepth"], "4");
  EXPECT_EQ(json["jobs"][8]["job options"]["ioengine"], "io_uring");
  const Measurement m = example();
  for (const char* direction : {"read", "write"}) {
    const Json& half = both[direction];
    EXPECT_EQ(half["runtime"], 6000);
    EXPECT_EQ(half["total_ios"].get<std::uint64_t>() * (4 << 20), half["io_bytes"]);
    EXPECT_NEAR(half["bw_bytes"].get<double>(), half["io_bytes"].get<double>() / 6, 1);
    EXPECT_EQ(half["clat_ns"]["N"], half["total_ios"]);
    EXPECT_LE(half["clat_ns"]["percentile"]["50.000000"],
              half["clat_ns"]["percentile"]["99.900000"]);
    EXPECT_LE(half["clat_ns"]["percentile"]["99.990000"], half["clat_ns"]["max"]);
  }
  // Nothing was written: no latency, and no percentile that would be made up.
  EXPECT_EQ(json["jobs"][0]["write"]["total_ios"], 0);
  EXPECT_FALSE(json["jobs"][0]["write"]["clat_ns"].contains("percentile"));
  EXPECT_DOUBLE_EQ(both["bytes_per_second"]["median"], m.cells[7].rate().median);
  EXPECT_EQ(both["bytes_per_second"]["bounded"], true);
  EXPECT_EQ(json["jobs"][6]["bytes_per_second"]["bounded"], false);
  EXPECT_EQ(json["comparisons"][0]["theirs"], "rw 4M x 4, fio io_uring");
}

TEST(ReportJson, HoldsWhatAPageIsMadeOf) {
  Measurement m = example();
  m.cells[0].samples.clear();
  const Json json = to_json(m);
  EXPECT_EQ(json["recommended_jobs"], (Json{{"read", 5}, {"write", 6}, {"rw", 7}}));
  EXPECT_FALSE(json["jobs"][0].contains("latency_ns"));
  // Reads and writes together.
  const Json& both = json["jobs"][7];
  EXPECT_EQ(both["latency_ns"]["N"].get<int>(),
            both["read"]["clat_ns"]["N"].get<int>() + both["write"]["clat_ns"]["N"].get<int>());
  EXPECT_EQ(both["latency_ns"]["max"], m.cells[7].latency().max_ns());
  EXPECT_EQ(both["latency_ns"]["percentile"]["99.900000"], m.cells[7].latency().quantile_ns(0.999));
}

TEST(ReportJson, BytesThatAreNoUtf8DoNotStopIt) {
  Measurement m = example();
  m.drives[0].path = "/mnt/\xff<&\"'\x01";
  EXPECT_EQ(through_text(m)["drives"][0]["path"], "/mnt/\xef\xbf\xbd<&\"'\x01");
}
}  // namespace
}  // namespace headrace::tools::bench_json_test
