// SPDX-License-Identifier: Apache-2.0
// How fast drives are said to be, with drives whose speed is known, under a virtual clock.
#include "swap/drive_measure.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "base/units.hpp"
#include "headrace/error.hpp"
#include "scratch.hpp"
#include "support/conductor_simulated.hpp"
#include "support/drive_at_speed.hpp"

namespace headrace::swap::test {
namespace {
using headrace::testing::DriveAtSpeed;
using headrace::testing::DriveSpeedGiven;

class MeasureDrives : public ::testing::Test {
 protected:
  std::vector<DriveSpeed> measure(std::vector<DriveSpeedGiven> speeds,
                                  std::vector<std::uint64_t> file_bytes = {}) {
    DriveOnPathOptions options;
    options.make_drive = [&speeds](async::Conductor& conductor, DriveOptions drive) {
      return std::make_unique<DriveAtSpeed>(conductor, speeds[drive.index]);
    };
    file_bytes.resize(speeds.size(), kMeasuredFileBytes / 4);
    Settings settings;
    settings.allow_memory_backed = true;
    const std::vector<PathProbe> paths(speeds.size(), probe_path(scratch_.path(), settings));
    return measure_drives(*conductor_, options, paths, file_bytes, memory_.span(),
                          [this] { ++passes_; });
  }
  double seconds() const { return std::chrono::duration<double>(conductor_->now()).count(); }

  ScratchDirectory scratch_;
  std::unique_ptr<async::Conductor> conductor_ = async::make_conductor_simulated({.seed = 3});
  Pages memory_{8 << 20};
  int passes_ = 0;  // begun
};

void expect_speed(const DriveSpeed& speed, double read, double write) {
  EXPECT_NEAR(speed.read_bytes_per_second, read, 0.01 * read);
  EXPECT_NEAR(speed.write_bytes_per_second, write, 0.01 * write);
  EXPECT_EQ(speed.failure, "");
}

TEST_F(MeasureDrives, SaysTheSpeedOfEachInBothDirections) {
  const auto speeds = measure({{4e8, 3e8}, {8e8, 1e9}, {6e9, 5e9}});
  ASSERT_EQ(speeds.size(), 3u);
  expect_speed(speeds[0], 4e8, 3e8);
  expect_speed(speeds[1], 8e8, 1e9);
  expect_speed(speeds[2], 6e9, 5e9);
  EXPECT_EQ(passes_, kMeasuredPasses);
}

TEST_F(MeasureDrives, SeesWhatDrivesShare) {
  async::Nanoseconds link{0};
  const auto speeds = measure({{2e9, 2e9, &link}, {2e9, 2e9, &link}, {2e9, 2e9}});
  // Half of the link each; nearly, as which of the two was last hangs on the order of the queue.
  for (const std::size_t d : {0u, 1u}) {
    EXPECT_NEAR(speeds[d].read_bytes_per_second, 1e9, 5e7);
    EXPECT_NEAR(speeds[d].write_bytes_per_second, 1e9, 5e7);
  }
  expect_speed(speeds[2], 2e9, 2e9);
}

TEST_F(MeasureDrives, IsThroughInLessThanASecond) {
  measure({{1e7, 1e7}, {5e9, 5e9}});
  // Three passes, and in each what the slow one had in flight: 4 MiB at 10 MB/s.
  EXPECT_LT(seconds(), 3 * (0.25 + 0.42) + 0.001);
}

TEST_F(MeasureDrives, NamesTheTransferOfADriveThatFailsAndMeasuresTheOthers) {
  for (const bool reads : {true, false}) {
    DriveSpeedGiven failing;
    (reads ? failing.read_error : failing.write_error) = EIO;
    const auto speeds = measure({{1e9, 5e8}, failing});
    expect_speed(speeds[0], 1e9, 5e8);
    EXPECT_EQ(speeds[1].read_bytes_per_second, 0);
    EXPECT_EQ(speeds[1].sys_errno, EIO);
    const std::string& text = speeds[1].failure;
    EXPECT_EQ(text.find(reads ? "read 1048576 bytes of " : "write 1048576 bytes of "), 0u) << text;
    EXPECT_NE(text.find("rank0.1.measure at 0: got 0, EIO"), std::string::npos) << text;
  }
}

TEST_F(MeasureDrives, LeavesOutADriveWithoutAFile) {
  const auto speeds = measure({{1e9, 1e9}, {1e9, 1e9}}, {8 << 20, 0});
  expect_speed(speeds[0], 1e9, 1e9);
  EXPECT_EQ(speeds[1].read_bytes_per_second, 0);
  EXPECT_EQ(speeds[1].failure, "");
}

TEST_F(MeasureDrives, EndsInAnErrorWhereATransferNeverCompletes) {
  DriveSpeedGiven stalling;
  stalling.write_error = ETIMEDOUT;
  stalling.stalls = true;
  try {
    measure({{1e9, 1e9}, stalling});
    FAIL() << "the kernel may still use the memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIoStalled);
    EXPECT_NE(std::string(error.what()).find("ETIMEDOUT"), std::string::npos) << error.what();
  }
}

TEST_F(MeasureDrives, LeavesNoFileAndZerosInMemory) {
  measure({{1e9, 1e9}, {2e9, 2e9}});
  EXPECT_TRUE(std::ranges::all_of(memory_.span(), [](std::byte b) { return b == std::byte{0}; }));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch_.path()))
    EXPECT_TRUE(entry.is_directory()) << entry.path();
}

TEST_F(MeasureDrives, MeasuresRealDrivesThroughTheQueueThatServesThem) {
  DriveOnPathOptions options;
  options.make_drive = &make_drive_thread;
  options.log = [](LogLevel, std::string_view) {};
  Settings settings;
  settings.allow_memory_backed = true;
  const std::vector<PathProbe> paths(2, probe_path(scratch_.path(), settings));
  const auto conductor = async::make_conductor_asio();
  const auto speeds =
      measure_drives(*conductor, options, paths, {4 << 20, 4 << 20}, memory_.span(), [] {});
  for (const DriveSpeed& speed : speeds) {
    EXPECT_EQ(speed.failure, "");
    EXPECT_GT(speed.read_bytes_per_second, 0);
    EXPECT_GT(speed.write_bytes_per_second, 0);
  }
}
}  // namespace
}  // namespace headrace::swap::test
