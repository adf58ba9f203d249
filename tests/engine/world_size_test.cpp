// SPDX-License-Identifier: Apache-2.0
// world_size_test: a step of M micro-batches ends in the same bits on any number of ranks. Rank r
// of W computes micro-batches r, W + r, 2W + r and so on.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <tuple>

#include "headrace/engine.hpp"
#include "kernels/number_formats.hpp"
#include "support/computing_host.hpp"
#include "support/mlp.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"

namespace headrace::world_size_test {
namespace {
constexpr std::uint32_t kGroups = 3, kSteps = 3, kMicroBatches = 12;
constexpr ParameterId kFrozen = {4};

struct Case {
  std::string name;
  bool nvme = false;
  UpdateMode update_mode = UpdateMode::kBarrier;
  bool absent = false;      // some parameters have no gradient in some micro-batches
  bool f32 = false;         // gradients of bf16 parameters, in f32
  bool one_group = false;   // whose bucket stays open from one micro-batch to the next
  bool recomputed = false;  // gathered once more in backward
};

Settings settings_of(const Case& of, std::uint32_t world, const std::string& folder) {
  Settings settings;
  settings.offload_optimizer = of.nvme ? OffloadDevice::kNvme : OffloadDevice::kCpu;
  settings.offload_parameters = settings.offload_optimizer;
  settings.nvme_paths = {folder};
  settings.allow_memory_backed = true;
  settings.update_mode = of.update_mode;
  settings.tile_elements = 65536;
  settings.gradient_accumulation_steps = kMicroBatches / world;
  return settings;
}

// Of any bits that are finite: what they sum to depends on the order.
std::vector<float> gradient_of(std::uint32_t step, std::uint32_t micro_batch, ParameterId id,
                               std::size_t elements) {
  std::mt19937 random(step * 100'003 + micro_batch * 1009 + id.index);
  std::vector<float> values(elements);
  for (float& value : values) {
    const auto bits = static_cast<std::uint32_t>(random());
    value = std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-31f,
                       static_cast<int>(bits % 12));
  }
  return values;
}

bool has_gradient(const Case& of, std::uint32_t step, std::uint32_t micro_batch, ParameterId id) {
  if (id == kFrozen) return false;
  if (!of.absent) return true;
  std::mt19937 random(step * 7919 + micro_batch * 31 + id.index);
  return random() % 3 != 0 && (id.index != 2 || step == 1);
}

// Masters and moments by parameter, each step's norm, and the hashes.
struct Outcome {
  std::map<std::tuple<std::uint32_t, int>, std::vector<std::uint32_t>> values;
  std::vector<std::tuple<double, std::uint64_t>> steps;
  std::array<std::string, 2> hashes;
  bool operator==(const Outcome&) const = default;
};

void collect(Engine& engine, Outcome& outcome) {
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    if (ParameterId{i} == kFrozen) continue;
    for (const Content content : {Content::kMaster, Content::kExpAvg, Content::kExpAvgSq}) {
      auto& words = outcome.values[{i, static_cast<int>(content)}];
      words.resize(engine.spec({i}).elements());
      engine.store({i}, content, [&](std::uint64_t first, std::span<const std::byte> stretch) {
        std::memcpy(words.data() + first, stretch.data(), stretch.size());
      });
    }
  }
}

class Trainer {
 public:
  Trainer(const Case& of, Engine& engine, std::shared_ptr<Device> device, std::uint32_t rank,
          std::uint32_t world)
      : case_(of), engine_(engine), device_(std::move(device)), rank_(rank), world_(world) {
    const std::uint32_t groups = of.one_group ? 1 : kGroups;
    for (std::uint32_t g = 0; g < groups; ++g) {
      engine.add_group("h." + std::to_string(g), {{"w", DType::kBf16, {300, 301}, {}},
                                                  {"b", DType::kF32, {77'777}, {}},
                                                  {"s", DType::kBf16, {700}, {}},
                                                  {"t", DType::kBf16, {66'000}, {}}});
    }
    if (engine.parameter_count() > kFrozen.index) engine.set_frozen(kFrozen, true);
    engine.freeze();
    for (std::uint32_t g = 0; g < groups; ++g) {
      engine.load({g}, [](ParameterId id, std::span<std::byte> out) {
        for (std::size_t b = 0; b < out.size(); ++b)
          out[b] = static_cast<std::byte>(b % 2 == 0 ? b * 31 + id.index : 0x3c);
      });
    }
  }

  Outcome train() {
    Outcome outcome;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      for (std::uint32_t at = rank_; at < kMicroBatches; at += world_) micro_batch(step, at);
      const StepResult result = engine_.step(
          {.learning_rate = 1e-2f, .gradient_scale = 1.0f / kMicroBatches, .max_norm = 1.0f});
      outcome.steps.emplace_back(result.gradient_norm, result.parameters_updated);
    }
    outcome.hashes = {engine_.hash_parameters(), engine_.hash_optimizer_state()};
    collect(engine_, outcome);
    return outcome;
  }

 private:
  void micro_batch(std::uint32_t step, std::uint32_t micro_batch) {
    for (std::uint32_t g = 0; g < engine_.group_count(); ++g) (void)engine_.gather({g});
    for (std::uint32_t g = engine_.group_count(); g-- > 0;) {
      if (case_.recomputed) (void)engine_.gather({g});
      for (const ParameterId id : engine_.parameters({g})) {
        if (has_gradient(case_, step, micro_batch, id)) add(step, micro_batch, id);
      }
    }
  }
  void add(std::uint32_t step, std::uint32_t micro_batch, ParameterId id) {
    const std::vector<float> values =
        gradient_of(step, micro_batch, id, engine_.spec(id).elements());
    const bool narrow = engine_.spec(id).dtype == DType::kBf16 && !case_.f32;
    std::vector<std::uint16_t> bf16;
    if (narrow) {
      for (const float value : values) bf16.push_back(kernels::f32_to_bf16(value));
    }
    engine_.add_gradient(id, narrow ? static_cast<const void*>(bf16.data()) : values.data(),
                         narrow ? DType::kBf16 : DType::kF32);
    device_->synchronize({});
  }
  const Case& case_;
  Engine& engine_;
  std::shared_ptr<Device> device_;
  std::uint32_t rank_, world_;
};

// Every rank stores its shard, zeros elsewhere: together they are one outcome.
Outcome train(const Case& of, std::uint32_t world, device::HostFlavour flavour) {
  const testing::TemporaryDirectory folder;
  std::vector<std::shared_ptr<Device>> devices;
  for (std::uint32_t r = 0; r < world; ++r) {
    devices.push_back(device::make_computing_host(
        {.flavour = flavour, .seed = r + 1, .late_microseconds_max = 20}));
  }
  const auto ranks = collective::make_collective_threads(devices, std::chrono::seconds(120));
  std::vector<Outcome> outcomes(world);
  std::vector<std::string> errors(world);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      try {
        EngineOptions options{.device = devices[r]};
        if (world > 1) options.collective = ranks[r];
        Engine engine(settings_of(of, world, folder.path()), options);
        outcomes[r] = Trainer(of, engine, devices[r], r, world).train();
        engine.close();
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (std::uint32_t r = 1; r < world; ++r) {
    EXPECT_EQ(outcomes[r].steps, outcomes[0].steps);
    EXPECT_EQ(outcomes[r].hashes, outcomes[0].hashes);
    for (auto& [key, words] : outcomes[0].values) {
      const auto& part = outcomes[r].values.at(key);
      for (std::size_t e = 0; e < words.size(); ++e) words[e] |= part[e];
    }
  }
  return outcomes[0];
}

class WorldSize : public ::testing::TestWithParam<Case> {};

TEST_P(WorldSize, ChangesNoBit) {
  const Outcome alone = train(GetParam(), 1, device::HostFlavour::kPrompt);
  for (const std::uint32_t world : {2u, 3u, 4u}) {
    SCOPED_TRACE(std::to_string(world) + " ranks");
    const Outcome together = train(GetParam(), world, device::HostFlavour::kLate);
    EXPECT_EQ(together.steps, alone.steps);
    EXPECT_EQ(together.hashes, alone.hashes);
    for (const auto& [key, words] : alone.values)
      EXPECT_TRUE(words == together.values.at(key)) << "parameter " << std::get<0>(key);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WorldSize,
    ::testing::Values(Case{.name = "InMemory"}, Case{.name = "OnNvme", .nvme = true},
                      Case{.name = "Deferred", .nvme = true, .update_mode = UpdateMode::kDefer},
                      Case{.name = "Absent", .absent = true},
                      Case{.name = "AbsentOnNvme", .nvme = true, .absent = true},
                      Case{.name = "GradientsInF32", .absent = true, .f32 = true},
                      Case{.name = "OneGroup", .absent = true, .one_group = true},
                      Case{.name = "Recomputed", .absent = true, .recomputed = true}),
    [](const auto& info) { return info.param.name; });
}  // namespace
}  // namespace headrace::world_size_test
