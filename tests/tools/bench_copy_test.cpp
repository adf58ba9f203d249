// SPDX-License-Identifier: Apache-2.0
// bench_copy_test: `headrace bench copy`: what it measures, compares, judges and refuses, on a
// device that is none. How fast anything is, no test says.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench_copy/copy_report.hpp"
#include "bench_copy/mover.hpp"
#include "headrace/error.hpp"
#include "platform/fake_root.hpp"
#include "support/computing_host.hpp"
#include "support/temporary_directory.hpp"
#include "tools/ran.hpp"

namespace headrace::tools::bench_copy_test {
namespace {
using nlohmann::json;
using platform::test::FakeRoot;

constexpr std::uint64_t kKi = 1024, kMi = 1 << 20;

// A device that is late, counts what it holds, and damages what it is told to.
class WatchedDevice final : public Device {
 public:
  enum class Damage { kNone, kToDevice, kToHost, kSums, kPieces };

  explicit WatchedDevice(Damage damage = Damage::kNone) : damage_(damage) {}
  std::uint64_t held() const { return allocated_ + pinned_ + streams_; }
  std::uint64_t most_pinned() const { return most_pinned_; }

  const char* name() const noexcept override { return "watched"; }
  bool shares_host_memory() const noexcept override { return false; }
  void* allocate(std::size_t bytes) noexcept override {
    allocated_ += bytes;
    void* const data = device_->allocate(bytes);
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    if (first_ == 0) {
      first_ = begin;
      first_bytes_ = bytes;
    }
    return data;
  }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    allocated_ -= bytes;
    device_->deallocate(data, bytes);
  }
  void pin(void* data, std::size_t bytes) override {
    if (pinned_data_ == nullptr) pinned_data_ = data;
    pinned_ += bytes;
    most_pinned_ = std::max(most_pinned_, pinned_);
  }
  void unpin(void*, std::size_t bytes) noexcept override { pinned_ -= bytes; }
  Stream create_stream() override {
    ++streams_;
    return device_->create_stream();
  }
  void destroy_stream(Stream stream) noexcept override {
    --streams_;
    device_->destroy_stream(stream);
  }
  void copy(Stream stream, void* to, const void* from, std::size_t bytes) override {
    device_->copy(stream, to, from, bytes);
    // The first buffer of the device is the one that is copied to, and back to be compared.
    const bool up = in_first(to), down = !up && !in_first(from) && from != pinned_data_;
    if ((damage_ == Damage::kToDevice && up) || (damage_ == Damage::kToHost && down))
      device_->launch(stream, [=] { static_cast<unsigned char*>(to)[bytes - 1] ^= 1; });
  }
  void fill_zero(Stream stream, void* to, std::size_t bytes) override {
    device_->fill_zero(stream, to, bytes);
  }
  void accumulate(Stream stream, const Accumulation& work) override {
    device_->accumulate(stream, work);
    if (damage_ == Damage::kSums)
      device_->launch(stream, [=] { static_cast<unsigned char*>(work.sum)[3] ^= 1; });
    if (damage_ == Damage::kPieces)
      device_->launch(stream, [=] { work.pieces[0].sum_squares *= 1.001; });
  }
  void notify(Stream stream, void (*function)(void*) noexcept, void* context) override {
    device_->notify(stream, function, context);
  }
  Event record(Stream stream) override { return device_->record(stream); }
  void wait(Stream stream, Event event) override { device_->wait(stream, event); }
  void synchronize(Stream stream) override { device_->synchronize(stream); }

 private:
  bool in_first(const void* data) const {
    return reinterpret_cast<std::uintptr_t>(data) - first_ < first_bytes_;
  }

  const std::shared_ptr<device::ComputingDevice> device_ = device::make_computing_host(
      {.flavour = device::HostFlavour::kLate, .seed = 7, .late_microseconds_max = 20});
  const Damage damage_;
  std::uintptr_t first_ = 0, first_bytes_ = 0;
  const void* pinned_data_ = nullptr;  // what is sent begins there
  std::uint64_t allocated_ = 0, pinned_ = 0, most_pinned_ = 0, streams_ = 0;
};

CopyContestOptions small(bool gradients = true) {
  return {.sizes = {64 * kKi, 256 * kKi},
          .gradients = gradients,
          .rounds = 3,
          .sample_seconds = 0.001,
          .region_bytes = kMi,
          .gradient_bytes = 256 * kKi + 2 * 512};  // and a piece that is shorter
}
void no_progress(const std::string&, double) {}

// ---- what is measured ----

TEST(CopyTransfers, AreEveryWayMemoryAndSizeAndGradientsLast) {
  const auto all = transfers_of({1, 2, 3}, true, 8);
  ASSERT_EQ(all.size(), 3u * 2 * 3 + 2);
  EXPECT_EQ(all.front(), (Transfer{.way = Way::kToDevice, .bytes = 1}));
  EXPECT_EQ(text_of(all[17]), "both at once, pageable, 3 B");
  EXPECT_EQ(all.back(), (Transfer{.kind = Transfers::kAdded, .way = Way::kToHost, .bytes = 8}));
  EXPECT_EQ(all[17].moved(2), 2 * 2 * 3) << "bytes of both ways";
}

TEST(CopyPattern, SeesAnotherByteAnotherPlaceAndAnotherMeasurement) {
  std::vector<std::byte> bytes(4096);
  const SentPattern pattern{.seed = 5};
  fill(bytes, pattern);
  EXPECT_FALSE(first_difference(bytes, pattern));
  EXPECT_EQ(first_difference(bytes, SentPattern{.seed = 6}), 0u);
  bytes[4001] ^= std::byte{1};
  EXPECT_EQ(first_difference(bytes, pattern), 4000u);
  EXPECT_TRUE(first_difference(std::span(bytes).subspan(8), pattern)) << "moved by a word";
}

TEST(CopyPattern, OfGradientsHasSumsThatAreExact) {
  const SentPattern pattern{.seed = 9, .gradients = true};
  std::vector<std::byte> bytes(4096);
  fill(bytes, pattern);
  std::vector<float> sums(2048);
  double squares = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    std::memcpy(&sums[i], &wide, 4);
    EXPECT_GE(std::abs(sums[i]), 1.0f);
    EXPECT_LT(std::abs(sums[i]), 2.0f);
    sums[i] *= 65536;
    if (i >= 100) squares += static_cast<double>(sums[i]) * sums[i];
  }
  EXPECT_FALSE(first_wrong_sum(sums, pattern, 0, 65536));
  EXPECT_TRUE(first_wrong_sum(sums, pattern, 0, 65535));
  EXPECT_FALSE(first_wrong_sum(std::span(sums).subspan(100), pattern, 100, 65536));
  EXPECT_DOUBLE_EQ(sum_squares(pattern, 100, 1948, 65536), squares);
}

TEST(CopyContest, MeasuresEveryRowInEveryRoundAndHoldsNothingAfterwards) {
  WatchedDevice device;
  std::vector<double> shares;
  const CopyContest contest = measure_copies(
      device, small(), [&](const std::string&, double share) { shares.push_back(share); });
  EXPECT_EQ(contest.mismatches, 0u) << contest.first_mismatch;
  EXPECT_EQ(contest.rounds, 3u);
  ASSERT_EQ(contest.rows.size(), 3u * 2 * 2 + 2);
  for (const CopyRow& row : contest.rows) {
    EXPECT_EQ(row.seconds.size(), 3u) << text_of(row.of);
    EXPECT_GE(row.count, 1u) << text_of(row.of);
    EXPECT_GT(contest.share(row).median, 0) << text_of(row.of);
  }
  EXPECT_GT(contest.verified_bytes, 14u * 4 * 64 * kKi);
  EXPECT_TRUE(std::ranges::is_sorted(shares));
  EXPECT_LT(shares.back(), 1);
  EXPECT_EQ(device.held(), 0u);
  EXPECT_EQ(device.most_pinned(), 2 * kMi) << "as announced";
  EXPECT_EQ(CopyBuffers::needed(device, kMi).pinned_bytes, 2 * kMi);
}

TEST(CopyContest, MovesAsManyBytesAsWereAskedFor) {
  WatchedDevice device;
  CopyContestOptions options = small(false);
  options.sample_bytes = 300 * kKi;
  const CopyContest contest = measure_copies(device, options, no_progress);
  EXPECT_EQ(contest.rows[0].count, 5u);
  EXPECT_EQ(contest.rows[1].count, 2u);
  EXPECT_EQ(contest.mismatches, 0u) << contest.first_mismatch;
}

TEST(CopyContest, SeesWhatDidNotArriveAsItWasSent) {
  using Damage = WatchedDevice::Damage;
  for (const auto& [damage, where] :
       {std::pair{Damage::kToDevice, "to the device"}, std::pair{Damage::kToHost, "to the host"},
        std::pair{Damage::kSums, "gradients"}, std::pair{Damage::kPieces, "sum of squares"}}) {
    WatchedDevice device(damage);
    const CopyContest contest = measure_copies(device, small(), no_progress);
    EXPECT_GT(contest.mismatches, 0u) << where;
    EXPECT_NE(contest.first_mismatch.find(where), std::string::npos) << contest.first_mismatch;
    EXPECT_NE(copies_text(contest, {}, {}).find("MISMATCH: "), std::string::npos);
    EXPECT_EQ(copies_json(contest, {})["verification"]["mismatches"], contest.mismatches);
  }
}

TEST(CopyContest, FreesWhatItHoldsWhereItIsInterrupted) {
  WatchedDevice device;
  std::uint32_t calls = 0;
  const auto interrupted = [&](const std::string&, double) {
    if (++calls == 20) throw Error(Code::kInterrupted, "ended by a signal");
  };
  EXPECT_THROW(measure_copies(device, small(), interrupted), Error);
  EXPECT_EQ(device.held(), 0u);
}

// ---- what follows ----

CopyRow row_of(Transfer of, std::vector<double> gb_per_second) {
  CopyRow row{.of = of, .count = 1};
  for (const double rate : gb_per_second) row.seconds.push_back(of.moved(1) / 1e9 / rate);
  return row;
}

CopyContest example() {
  CopyContest contest{.rounds = 3, .seconds = 1.5, .seed = 1, .verified_bytes = 12345678};
  const auto add = [&](Transfer of, std::vector<double> rates) {
    contest.rows.push_back(row_of(of, std::move(rates)));
  };
  for (const Way way : {Way::kToDevice, Way::kToHost, Way::kBoth}) {
    const double factor = way == Way::kBoth ? 2 : 1;
    add({.way = way, .bytes = 64 * kKi}, {10 * factor, 11 * factor, 12 * factor});
    add({.way = way, .bytes = 4 * kMi}, {40 * factor, 41 * factor, 42 * factor});
    add({.way = way, .bytes = 256 * kMi}, {48 * factor, 49 * factor, 50 * factor});
    add({.way = way, .memory = HostMemory::kPageable, .bytes = 256 * kMi}, {5, 60, 7});
  }
  add({.kind = Transfers::kWritten, .way = Way::kToHost, .bytes = 8 * kMi}, {45, 46, 47});
  return contest;
}

TEST(CopyReport, TakesTheLimitFromTheBestRoundOfTheLargestPinnedCopies) {
  const CopyContest contest = example();
  EXPECT_DOUBLE_EQ(contest.limit(Way::kToDevice), 50e9);
  EXPECT_DOUBLE_EQ(contest.limit(Way::kBoth), 100e9);
  EXPECT_DOUBLE_EQ(contest.share(contest.rows[1]).median, 41.0 / 50);
  EXPECT_DOUBLE_EQ(contest.share(contest.rows.back()).median, 46.0 / 50) << "of that to the host";
}

TEST(CopyReport, JudgesPinnedCopiesFromFourMebibytesOnAndGradients) {
  const CopyContest contest = example();
  EXPECT_TRUE(rows_below(contest, std::nullopt).empty());
  EXPECT_TRUE(rows_below(contest, 0.8).empty()) << "64 KiB and pageable memory are not judged";
  EXPECT_EQ(rows_below(contest, 0.9).size(), 3u);
  EXPECT_EQ(rows_below(contest, 0.95).size(), 4u) << "gradients too";
  CopyContest tiny;
  tiny.rows = {row_of({.bytes = 4096}, {1, 1, 2})};
  EXPECT_EQ(rows_below(tiny, 0.6).size(), 1u) << "the largest, where none is so large";
}

TEST(CopyReport, SaysWhatShareOfThePcieLinkThatIs) {
  const GpuLink link{"PCIe 5.0 x16", 63e9};
  const std::string text = copies_text(example(), link, 0.9);
  for (const char* words :
       {"to the device", "pageable", "256 MiB", "[10.0, 12.0]", "over bf16",
        "50.0 GB/s, 0.79 of the 63.0 GB/s of PCIe 5.0 x16", "of the 126.0 GB/s of PCIe 5.0 x16",
        "MISSED  share=0.9: found 0.820 (to the device, pinned, 4 MiB)", "all as sent",
        "3 rounds in 1.50 s"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_NE(copies_text(example(), std::nullopt, 0.5).find("is not known here"), std::string::npos);
}

TEST(CopyReport, HasItsRowsAsJson) {
  const json report = json::parse(copies_json(example(), 0.9).dump());
  EXPECT_EQ(report["rows"].size(), 13u);
  EXPECT_EQ(report["rows"][1]["way"], "to_device");
  EXPECT_EQ(report["rows"][1]["memory"], "pinned");
  EXPECT_DOUBLE_EQ(report["rows"][1]["bytes_per_second"]["most"], 42e9);
  EXPECT_EQ(report["rows"][12]["kind"], "gradients written");
  EXPECT_DOUBLE_EQ(report["limit_bytes_per_second"]["both"], 100e9);
  EXPECT_EQ(report["required"]["met"], false);
  EXPECT_EQ(report["verification"]["mismatches"], 0);
}

TEST(GpuLink, IsWhatDeviceAndSlotDoUnderLoad) {
  const FakeRoot root;
  const std::string slot = "/sys/devices/pci0000:00/0000:00:01.0", device = slot + "/0000:1b:00.0";
  root.link("/sys/bus/pci/devices/0000:1b:00.0", device);
  for (const auto& [file, text] : {std::pair{"/vendor", "0x10de\n"},
                                   {"/class", "0x030200\n"},
                                   {"/current_link_speed", "2.5 GT/s PCIe\n"},
                                   {"/max_link_speed", "64.0 GT/s PCIe\n"},
                                   {"/current_link_width", "16\n"},
                                   {"/max_link_width", "16\n"}})
    root.write(device + file, text);
  root.write(slot + "/max_link_speed", "32.0 GT/s PCIe\n");
  root.write(slot + "/max_link_width", "16\n");
  const GpuFacts facts = gpu_facts(root.path());
  const auto link = gpu_link("0000:1B:00.0", facts);
  ASSERT_TRUE(link);
  EXPECT_EQ(link->name, "PCIe 5.0 x16");
  EXPECT_NEAR(link->bytes_per_second, 63.0e9, 0.1e9);
  EXPECT_FALSE(gpu_link("0000:1c:00.0", facts));
}

// ---- the program ----

TEST(BenchCopyProgram, EndsWithThreeAndSaysWhatIsMissingWhereThereIsNoGpu) {
  const CudaFacts facts = cuda_facts();
  if (facts.missing.empty()) GTEST_SKIP() << "there is a GPU";
  const testing::TemporaryDirectory folder;
  const std::string file = folder.string() + "/report.json";
  const Ran ran = run_headrace("bench copy --json " + file);
  EXPECT_EQ(ran.exit_code, 3) << ran.out;
  EXPECT_EQ(ran.out, "headrace bench copy: nothing was measured: " + facts.missing + "\n");
  EXPECT_EQ(std::ranges::count(ran.out, '\n'), 1);
  const json report = json::parse(std::ifstream(file));
  EXPECT_EQ(report["schema_version"], 1);
  EXPECT_EQ(report["program"], "headrace bench copy");
  EXPECT_EQ(report["error"]["exit_code"], 3);
  EXPECT_EQ(report["error"]["code"], "kUnsupported");
  EXPECT_NE(report["error"]["message"].get<std::string>().find(facts.missing), std::string::npos);
}

TEST(BenchCopyProgram, RefusesWhatItCannotMeasure) {
  for (const auto& [words, expected] : std::vector<std::pair<std::string, std::string>>{
           {"--sizes 1", "Give a multiple of 4 KiB from 4 KiB to 4 GiB"},
           {"--sizes 1M,,4M", "has an empty item"},
           {"--rounds 0", "--rounds 0"},
           {"--seconds 0", "--seconds 0 is out of range; nothing was measured"},
           {"--seconds 1 --bytes 1G", "--seconds and --bytes both say"},
           {"--bytes 1", "--bytes 1 is out of range"},
           {"--gpu -1", "--gpu"},
           {"--require-share x", "--require-share"},
           {"--json /nothing/here.json", "/nothing/here.json"},
           {"--gradient", "Did you mean --gradients?"}})
    expect_refused(run_headrace("bench copy " + words), words, expected);
}

TEST(BenchCopyProgram, HelpSaysWhatItTakes) {
  const Ran ran = run_headrace("bench copy --help");
  EXPECT_EQ(ran.exit_code, 0);
  for (const char* option : {"--gpu", "--sizes", "--rounds", "--seconds", "--bytes", "--gradients",
                             "--json", "--require-share", "3 there is no such"})
    EXPECT_NE(ran.out.find(option), std::string::npos) << option;
  EXPECT_NE(run_headrace("bench --help").out.find("headrace bench copy"), std::string::npos);
}
}  // namespace
}  // namespace headrace::tools::bench_copy_test
