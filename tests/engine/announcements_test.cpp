// SPDX-License-Identifier: Apache-2.0
// announcements_test: what an engine says of itself when it is frozen, and what a refused plan
// advises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "engine/tuned_elsewhere.hpp"
#include "headrace/engine.hpp"
#include "platform/block_devices.hpp"
#include "platform/machine.hpp"
#include "support/computing_host.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
using Lines = std::vector<std::string>;

Settings on_nvme(const std::string& directory) {
  Settings settings;
  settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kNvme;
  settings.nvme_paths = {directory};
  settings.update_threads = 2;
  return settings;
}

// What freeze() logs, "0plan: ..." with the level's number in front, for two groups of 2 Mi
// elements.
Lines said_by_freeze(const Settings& settings) {
  Lines lines;
  Engine engine(settings, {.log = [&](LogLevel level, std::string_view text) {
                  lines.push_back(std::to_string(static_cast<int>(level)) + std::string(text));
                }});
  for (const char* name : {"a", "b"})
    engine.add_group(name, {{"w", DType::kBf16, {2048, 1024}, {}}});
  engine.freeze();
  engine.close();
  return lines;
}

bool has(const Lines& lines, const std::string& start, const std::string& part) {
  return std::ranges::any_of(lines, [&](const std::string& line) {
    return line.starts_with(start) && line.find(part) != std::string::npos;
  });
}

TEST(EngineAnnouncements, NameThePlanTheThreadsAndTheQueueAtInfo) {
  const testing::TemporaryDirectory directory;
  Settings settings = on_nvme(directory.string());
  settings.io_queue = IoQueueKind::kThreads;
  const Lines lines = said_by_freeze(settings);
  EXPECT_TRUE(has(lines, "0plan: 4194304 parameters; host ", ", nvme "));
  EXPECT_TRUE(has(lines, "0I/O queue threads, ", ", on " + directory.string()));
  if (std::getenv("HEADRACE_NUM_THREADS") == nullptr) {
    EXPECT_TRUE(has(lines, "02 update threads (headrace.update_threads), ", "instruction set "));
  }
}

TEST(EngineAnnouncements, WarnOnceWhereAStepHadNoGradient) {
  Lines lines;
  Engine engine(Settings{}, {.log = [&](LogLevel level, std::string_view text) {
                  lines.push_back(std::to_string(static_cast<int>(level)) + std::string(text));
                }});
  const GroupId group = engine.add_group("g", {{"w", DType::kF32, {4}, {}}});
  engine.freeze();
  engine.load(group,
              [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{0}); });
  const float gradient[4] = {};
  engine.add_gradient({0}, gradient, DType::kF32);
  engine.step({});
  EXPECT_FALSE(has(lines, "1", "no gradient"));
  for (int step = 0; step < 2; ++step) EXPECT_EQ(engine.step({}).parameters_updated, 0u);
  EXPECT_EQ(std::ranges::count_if(
                lines, [](const std::string& line) { return line.starts_with("1step 2: no"); }),
            1);
  EXPECT_FALSE(has(lines, "1step 3", ""));
}

TEST(EngineAnnouncements, WarnOnceWhereOffloadingTakesMoreMemoryThanItSaves) {
  const testing::TemporaryDirectory directory;
  const Lines wasteful = said_by_freeze(on_nvme(directory.string()));
  EXPECT_EQ(std::ranges::count_if(wasteful,
                                  [](const std::string& line) {
                                    return line.starts_with(
                                        "1offloading takes more host memory than it saves: ");
                                  }),
            1);
  Settings lean = on_nvme(directory.string());
  lean.tile_elements = 65536;
  EXPECT_FALSE(has(said_by_freeze(lean), "1", "offloading takes"));
}

TEST(EngineAnnouncements, WarnOnceWhereTheSettingsWereTunedOnAnotherDriveOrKernel) {
  const testing::TemporaryDirectory directory;
  Settings settings = on_nvme(directory.string());
  const auto warnings = [&] {
    const Lines lines = said_by_freeze(settings);
    return std::ranges::count_if(lines, [](const std::string& line) {
      return line.starts_with("1headrace.tuned: the settings were tuned on ");
    });
  };
  EXPECT_EQ(warnings(), 0) << "not tuned";
  settings.tuned.kernel = platform::kernel_release();
  settings.tuned.drive_model = platform::models_text(settings.nvme_paths);
  EXPECT_EQ(warnings(), 0) << "tuned here";
  settings.tuned.kernel = "2.4.31";
  EXPECT_EQ(warnings(), 1);
  settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kCpu;
  EXPECT_EQ(warnings(), 0) << "no drive is used";
}

TEST(EngineAnnouncements, RefuseUpdatesOnADeviceThatHasNone) {
  for (const bool cpu : {true, false}) {
    Settings settings;
    settings.update_on = UpdateOn::kDevice;
    const auto device = device::make_computing_host(
        {.flavour = cpu ? device::HostFlavour::kPrompt : device::HostFlavour::kLate});
    Engine engine(settings, {.device = device});
    engine.add_group("g", {{"w", DType::kBf16, {1000}, {}}});
    try {
      engine.freeze();
      FAIL() << "this device does not update";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUnsupported);
      const std::string text = error.what();
      EXPECT_NE(text.find("headrace.update_on"), std::string::npos) << text;
      EXPECT_NE(text.find("Set it to \"cpu\""), std::string::npos) << text;
    }
  }
}

TEST(TunedElsewhere, NamesBothSidesOfWhatDiffersAndNothingElse) {
  const Tuned tuned{.drive_model = "KIOXIA CM7", .kernel = "6.1.0-18-amd64"};
  EXPECT_EQ(engine::tuned_elsewhere(tuned, "KIOXIA CM7", "6.1.0-21-amd64"), "");
  EXPECT_EQ(engine::tuned_elsewhere(tuned, "", ""), "") << "not known";
  EXPECT_EQ(engine::tuned_elsewhere({}, "KIOXIA CM7", "6.1.0"), "");
  EXPECT_EQ(engine::tuned_elsewhere(tuned, "Micron 7450", "6.1.0"),
            "headrace.tuned: the settings were tuned on KIOXIA CM7, and this is Micron 7450; they "
            "may not be the best here. Run headrace tune again on this run's paths.");
  EXPECT_EQ(engine::tuned_elsewhere(tuned, "Micron 7450", "6.12.1"),
            "headrace.tuned: the settings were tuned on KIOXIA CM7, kernel 6.1.0-18-amd64, and "
            "this is Micron 7450, kernel 6.12.1; they may not be the best here. Run headrace tune "
            "again on this run's paths.");
  const std::string odd =
      engine::tuned_elsewhere({.drive_model = "a\nb" + std::string(4000, 'x')}, "c", "");
  EXPECT_EQ(odd.find('\n'), std::string::npos);
  EXPECT_LT(odd.size(), 400u);
}

TEST(EngineAnnouncements, AdviseATileSizeThatReallyFits) {
  const testing::TemporaryDirectory directory;
  Settings settings = on_nvme(directory.string());
  settings.tile_elements = 2097152;
  settings.host_budget_bytes = 24u << 20;
  std::string refusal;
  try {
    said_by_freeze(settings);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kOutOfBudget);
    refusal = error.what();
  }
  const std::string advice = "Set headrace.tile_elements to ";
  const std::size_t at = refusal.find(advice);
  ASSERT_NE(at, std::string::npos) << refusal;
  settings.tile_elements = std::stoull(refusal.substr(at + advice.size()));
  EXPECT_LT(settings.tile_elements, 2097152u);
  EXPECT_NO_THROW(said_by_freeze(settings));
}

TEST(EngineAnnouncements, WarnOnceWhereClippingIsSetAndNotPassedOn) {
  for (const float max_norm : {0.0f, 1.0f}) {
    Lines lines;
    Settings settings;
    settings.gradient_clipping = 1;
    Engine engine(settings, {.log = [&](LogLevel level, std::string_view text) {
                    lines.push_back(std::to_string(static_cast<int>(level)) + std::string(text));
                  }});
    const GroupId group = engine.add_group("g", {{"w", DType::kF32, {4}, {}}});
    engine.freeze();
    engine.load(
        group, [](ParameterId, std::span<std::byte> out) { std::ranges::fill(out, std::byte{0}); });
    for (int step = 0; step < 2; ++step) engine.step({.max_norm = max_norm});
    EXPECT_EQ(std::ranges::count_if(
                  lines, [](const auto& line) { return line.starts_with("1gradient_clipping"); }),
              max_norm > 0 ? 0 : 1);
  }
}
}  // namespace
}  // namespace headrace
