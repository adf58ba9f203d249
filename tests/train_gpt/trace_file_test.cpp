// SPDX-License-Identifier: Apache-2.0
// trace_file_test: events as JSON that viewers open.
#include "trace_file.hpp"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "scratch_folder.hpp"

namespace train_gpt {
namespace {
using headrace::Trace;
using headrace::TraceEvent;
using headrace::TraceLane;
using json = nlohmann::json;
using std::chrono::microseconds;

class TraceFileTest : public ::testing::Test {
 protected:
  TraceEvent event(TraceLane lane, int begin, int end, std::uint32_t group = 0) const {
    return {
        lane, "read", group, 7, 3, 1000, start_ + microseconds(begin), start_ + microseconds(end)};
  }
  static std::string group_name(std::uint32_t group) { return "h." + std::to_string(group); }
  json written() const { return json::parse(ScratchFolder::read(path_)); }

  const TraceFile::Time start_ = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  ScratchFolder folder_;
  std::string path_ = folder_ / "trace.json";
};

TEST_F(TraceFileTest, PutsWhatOverlapsOnALaneOnRowsOfItsOwn) {
  {
    TraceFile file(path_);
    // In the order in which they ended.
    file.add({{event(TraceLane::kNvmeRead, 10, 20), event(TraceLane::kNvmeRead, 0, 30),
               event(TraceLane::kNvmeRead, 20, 40, 1), event(TraceLane::kUpdate, 0, 50)},
              0},
             group_name);
    file.add_compute("forward", 3, start_, start_ + microseconds(60));
    EXPECT_EQ(file.fault(), "");
  }
  const json all = written();
  std::map<int, std::string> rows;
  std::map<std::string, double> free_from;
  int events = 0;
  for (const json& one : all) {
    if (one["name"] == "thread_name") rows[one["tid"]] = one["args"]["name"];
    if (one["ph"] != "X") continue;
    ++events;
    const std::string row = rows.at(one["tid"]);
    EXPECT_GE(one["ts"].get<double>() + 0.001, free_from[row]) << one;
    free_from[row] = one["ts"].get<double>() + one["dur"].get<double>();
  }
  EXPECT_EQ(events, 5);
  EXPECT_EQ(free_from.size(), 4u);  // NVMe read, NVMe read 2, update, compute
  EXPECT_TRUE(free_from.contains("NVMe read 2"));
}

TEST_F(TraceFileTest, NamesGroupTileStepBytesAndSpeed) {
  {
    TraceFile file(path_);
    file.add({{event(TraceLane::kNvmeWrite, 0, 10, 4)}, 0}, group_name);
  }
  const json one = written().back();
  EXPECT_EQ(one["name"], "read h.4");
  EXPECT_EQ(one["cat"], "NVMe write");
  EXPECT_NEAR(one["dur"].get<double>(), 10, 1e-6);
  EXPECT_EQ(one["args"]["step"], 3);
  EXPECT_EQ(one["args"]["tile"], 7);
  EXPECT_EQ(one["args"]["bytes"], 1000);
  EXPECT_NEAR(one["args"]["GB/s"].get<double>(), 0.1, 1e-6);
}

TEST_F(TraceFileTest, IsKnownAsOursFromItsFirstByteOn) {
  TraceFile file(path_);
  const std::string begin = ScratchFolder::read(path_);
  EXPECT_TRUE(is_own_trace(begin)) << begin;
  EXPECT_FALSE(is_own_trace("[{\"name\":\"mine\"}]"));
  EXPECT_FALSE(is_own_trace(""));
}

TEST_F(TraceFileTest, TellsOfLostEventsAndOfAFullDisk) {
  TraceFile lossy(path_);
  lossy.add({{}, 5}, group_name);
  EXPECT_NE(lossy.fault().find("lacks 5 events"), std::string::npos) << lossy.fault();
  TraceFile full("/dev/full");
  EXPECT_NE(full.fault().find("/dev/full"), std::string::npos);
  EXPECT_NE(full.fault().find("ends before the run did"), std::string::npos) << full.fault();
}
}  // namespace
}  // namespace train_gpt
