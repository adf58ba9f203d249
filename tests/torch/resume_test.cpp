// SPDX-License-Identifier: Apache-2.0
// A run stored parameter by parameter through the engine, loaded into a new Offload made by the
// same factories, goes on as if it had not been interrupted: wherever either keeps its bytes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::Content;
using headrace::Engine;
using headrace::ParameterId;
using headrace::Settings;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::BlockImpl;
using headrace_test::make_block;
using headrace_test::SwapFolder;

constexpr std::int64_t kWidth = 16;
constexpr Content kContents[] = {Content::kMaster, Content::kExpAvg, Content::kExpAvgSq};

struct Trainer {
  explicit Trainer(Settings settings) : offload(std::move(settings)) {
    torch::manual_seed(12);
    offload.no_decay();
    for (int i = 0; i < 2; ++i) {
      blocks.push_back(offload.add_group("h." + std::to_string(i),
                                         [] { return make_block(kWidth, /*bf16=*/true); }));
    }
    scale = torch::ones({kWidth}).requires_grad_();
    offload.add_rest({{"scale", scale}});
    offload.freeze();
  }
  void step(int number) {
    torch::manual_seed(100 + number);
    torch::Tensor x = torch::randn({2, 6, kWidth}).to(torch::kBFloat16);
    // Every other step leaves a block alone, so that step counts differ.
    for (std::size_t i = 0; i < (number % 2 == 0 ? 2u : 1u); ++i) x = offload(blocks[i], x);
    (x.to(torch::kFloat) * scale).square().sum().backward();
    offload.step({.learning_rate = 3e-3f, .max_norm = 1});
  }
  std::pair<std::string, std::string> hashes() {
    return {offload.engine().hash_parameters(), offload.engine().hash_optimizer_state()};
  }
  Offload offload;
  std::vector<Group<BlockImpl>> blocks;
  torch::Tensor scale;
};

// What a checkpoint of the trainer's own holds.
struct Saved {
  std::map<std::string, std::vector<std::vector<std::byte>>> values;  // f32, by full name
  std::map<std::string, std::uint64_t> steps;
};

Saved save(Engine& engine) {
  Saved saved;
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    const ParameterId id{i};
    for (const Content content : kContents) {
      auto& bytes = saved.values[engine.full_name(id)].emplace_back();
      engine.store(id, content, [&](std::uint64_t, std::span<const std::byte> stretch) {
        bytes.insert(bytes.end(), stretch.begin(), stretch.end());
      });
    }
    saved.steps[engine.full_name(id)] = engine.step_count(id);
  }
  return saved;
}

void load(Engine& engine, const Saved& saved) {
  for (const auto& [name, contents] : saved.values) {
    const ParameterId id = engine.parameter(name);
    for (std::size_t i = 0; i < contents.size(); ++i) {
      engine.load(id, kContents[i], [&](std::uint64_t first, std::span<std::byte> stretch) {
        std::memcpy(stretch.data(), contents[i].data() + first * sizeof(float), stretch.size());
      });
    }
    engine.set_step_count(id, saved.steps.at(name));
  }
}

TEST(Resume, OfAStoredRunGoesOnBitForBitWhereverItsBytesLive) {
  const SwapFolder folder;
  Trainer uninterrupted((Settings()));
  for (int i = 0; i < 6; ++i) uninterrupted.step(i);
  for (const bool stored_from_nvme : {false, true}) {
    const auto settings = [&](bool nvme) {
      return nvme ? headrace_test::all_on_nvme(folder.path()) : Settings();
    };
    Saved saved;
    {
      Trainer first(settings(stored_from_nvme));
      for (int i = 0; i < 3; ++i) first.step(i);
      saved = save(first.offload.engine());
    }
    EXPECT_NE(saved.steps.at("h.0.qkv.weight"), saved.steps.at("h.1.qkv.weight"));
    Trainer second(settings(!stored_from_nvme));
    load(second.offload.engine(), saved);
    for (int i = 3; i < 6; ++i) second.step(i);
    EXPECT_EQ(second.hashes(), uninterrupted.hashes()) << "stored from nvme: " << stored_from_nvme;
  }
}
}  // namespace
