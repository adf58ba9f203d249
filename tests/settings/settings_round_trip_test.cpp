// SPDX-License-Identifier: Apache-2.0
// from_json(to_json()) is the identity, on settings drawn at random.
#include <gtest/gtest.h>

#include <random>

#include "headrace/settings.hpp"

namespace headrace {
namespace {
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }
  double real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  bool coin() { return between(0, 1) == 1; }
  std::string path(std::size_t number) {
    static constexpr std::string_view kLetters[] = {"a",  "$",  "{", "}",  "~",  " ",
                                                    "\"", "\\", "ö", "\n", "//", "."};
    std::string text = "/" + std::to_string(number) + "/";
    for (std::uint64_t i = between(0, 8); i > 0; --i)
      text += kLetters[between(0, std::size(kLetters) - 1)];
    return text + "x";
  }

  Settings settings() {
    Settings s;
    s.offload_optimizer = static_cast<OffloadDevice>(between(0, 2));
    s.offload_parameters = static_cast<OffloadDevice>(between(0, 2));
    const bool nvme =
        s.offload_optimizer == OffloadDevice::kNvme || s.offload_parameters == OffloadDevice::kNvme;
    for (std::size_t i = between(nvme ? 1 : 0, 3); i > 0; --i) s.nvme_paths.push_back(path(i));
    if (coin())
      for (std::size_t i = s.nvme_paths.size(); i > 0; --i) s.drive_shares.push_back(real(0.1, 9));
    s.gradient_clipping = coin() ? 0 : real(0, 10);
    s.gradient_accumulation_steps = static_cast<std::uint32_t>(between(1, 2147483647));
    s.host_budget_auto = coin();
    s.host_budget_bytes = s.host_budget_auto ? 0 : between(0, (1ull << 63) - 1);
    s.master = static_cast<MasterLayout>(between(0, 1));
    s.optimizer = static_cast<OptimizerRule>(between(0, 5));
    s.moments = static_cast<MomentCodec>(between(0, 2));
    s.non_finite = static_cast<NonFinite>(between(0, 1));
    s.rounding_seed = between(0, 9007199254740991);
    s.tile_elements = 65536 * between(1, 64);
    s.update_slots = static_cast<std::uint32_t>(between(1, 1024));
    s.prefetch_groups = static_cast<std::uint32_t>(between(0, 16));
    s.update_threads = static_cast<std::uint32_t>(between(0, 1024));
    s.io_block_bytes = 4096 * between(1, 16384);
    s.queue_depth = static_cast<std::uint32_t>(between(1, 4096));
    s.submit_batch = static_cast<std::uint32_t>(between(1, 256));
    s.io_queue = static_cast<IoQueueKind>(between(0, 3));
    s.direct = static_cast<DirectIo>(between(0, 1));
    s.allow_memory_backed = coin();
    s.register_buffers = static_cast<RegisterBuffers>(between(0, 1));
    s.checksums = static_cast<Checksums>(between(0, 1));
    s.update_mode = static_cast<UpdateMode>(between(0, 2));
    s.io_warn_seconds = real(0.001, 100);
    s.io_deadline_seconds = real(0.001, 86400);
    if (coin()) {
      for (std::string Tuned::*text :
           {&Tuned::drive_model, &Tuned::file_system, &Tuned::kernel, &Tuned::date, &Tuned::queue,
            &Tuned::pattern, &Tuned::headrace_version})
        s.tuned.*text = coin() ? path(1) : "";
      s.tuned.gb_per_second = real(0.1, 100);
      s.tuned.gb_per_second_low = real(0.1, 100);
      s.tuned.gb_per_second_high = real(0.1, 100);
    }
    return s;
  }

 private:
  std::mt19937_64 random_;
};

void expect_equal(const Settings& a, const Settings& b) {
  EXPECT_EQ(a.offload_optimizer, b.offload_optimizer);
  EXPECT_EQ(a.offload_parameters, b.offload_parameters);
  EXPECT_EQ(a.nvme_paths, b.nvme_paths);
  EXPECT_EQ(a.drive_shares, b.drive_shares);
  EXPECT_EQ(a.gradient_clipping, b.gradient_clipping);
  EXPECT_EQ(a.gradient_accumulation_steps, b.gradient_accumulation_steps);
  EXPECT_EQ(a.host_budget_bytes, b.host_budget_bytes);
  EXPECT_EQ(a.host_budget_auto, b.host_budget_auto);
  EXPECT_EQ(a.optimizer, b.optimizer);
  EXPECT_EQ(a.moments, b.moments);
  EXPECT_EQ(a.non_finite, b.non_finite);
  EXPECT_EQ(a.rounding_seed, b.rounding_seed);
  EXPECT_EQ(a.master, b.master);
  EXPECT_EQ(a.tile_elements, b.tile_elements);
  EXPECT_EQ(a.update_slots, b.update_slots);
  EXPECT_EQ(a.prefetch_groups, b.prefetch_groups);
  EXPECT_EQ(a.update_threads, b.update_threads);
  EXPECT_EQ(a.io_block_bytes, b.io_block_bytes);
  EXPECT_EQ(a.queue_depth, b.queue_depth);
  EXPECT_EQ(a.submit_batch, b.submit_batch);
  EXPECT_EQ(a.io_queue, b.io_queue);
  EXPECT_EQ(a.direct, b.direct);
  EXPECT_EQ(a.allow_memory_backed, b.allow_memory_backed);
  EXPECT_EQ(a.register_buffers, b.register_buffers);
  EXPECT_EQ(a.checksums, b.checksums);
  EXPECT_EQ(a.io_warn_seconds, b.io_warn_seconds);
  EXPECT_EQ(a.io_deadline_seconds, b.io_deadline_seconds);
  EXPECT_EQ(a.tuned.drive_model, b.tuned.drive_model);
  EXPECT_EQ(a.tuned.file_system, b.tuned.file_system);
  EXPECT_EQ(a.tuned.kernel, b.tuned.kernel);
  EXPECT_EQ(a.tuned.date, b.tuned.date);
  EXPECT_EQ(a.tuned.queue, b.tuned.queue);
  EXPECT_EQ(a.tuned.pattern, b.tuned.pattern);
  EXPECT_EQ(a.tuned.headrace_version, b.tuned.headrace_version);
  EXPECT_EQ(a.tuned.gb_per_second, b.tuned.gb_per_second);
  EXPECT_EQ(a.tuned.gb_per_second_low, b.tuned.gb_per_second_low);
  EXPECT_EQ(a.tuned.gb_per_second_high, b.tuned.gb_per_second_high);
}

TEST(SettingsRoundTrip, KeepsEveryFieldOfRandomSettings) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Draw draw(seed);
  for (int i = 0; i < 300; ++i) {
    const Settings settings = draw.settings();
    expect_equal(Settings::from_json(settings.to_json()), settings);
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << "\n" << settings.to_json();
  }
}
}  // namespace
}  // namespace headrace
