// SPDX-License-Identifier: Apache-2.0
// lora_test: adapters beside frozen weights of one module: what is frozen costs its weights alone,
// trains as if it stood in a group of its own, and may be trained later where that was declared.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <headrace/torch/offload.hpp>

#include "models.hpp"
#include "refusals.hpp"
#include "swap_folder.hpp"

namespace headrace_test::lora_test {
using headrace::Code;
using headrace::Settings;
using headrace::torch::Group;
using headrace::torch::Offload;
using torch::Tensor;

constexpr int kBlocks = 3, kSteps = 3;
constexpr std::int64_t kWidth = 128, kRank = 4;
constexpr std::uint64_t kAdapters = kBlocks * 2 * kWidth * kRank;

struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl() {
    base = register_parameter("base", torch::randn({kWidth, kWidth}) / 16, false);
    down = register_parameter("down", torch::randn({kRank, kWidth}) / 16);
    up = register_parameter("up", torch::randn({kWidth, kRank}) / 16);
    to(torch::kBFloat16);
  }
  Tensor forward(const Tensor& x) { return x + at::linear(x, base) + adapter(x); }
  Tensor adapter(const Tensor& x) const { return at::linear(at::linear(x, down), up); }
  Tensor base, down, up;
};
TORCH_MODULE(Adapted);

std::uint64_t planned(const headrace::Engine& engine, const std::string& what) {
  std::uint64_t bytes = 0;
  for (const auto& row : engine.plan().rows) bytes += row.what == what ? row.bytes : 0;
  return bytes;
}
Tensor input() { return torch::ones({2, kWidth}, torch::kBFloat16) / 8; }

struct Trained {
  std::vector<float> losses;
  std::vector<Tensor> weights;  // up and down of each block
  std::uint64_t written = 0;    // by kSteps steps
  double planned_per_step = 0;
};

// `apart`: adapters in a group of their own, and blocks declared to take no gradient.
Trained train(const Settings& settings, bool apart) {
  torch::manual_seed(5);
  Offload offload(settings);
  std::vector<Adapted> modules(kBlocks);
  std::vector<Group<AdaptedImpl>> groups;
  std::vector<std::pair<std::string, Tensor>> adapters;
  for (int b = 0; b < kBlocks && apart; ++b) {
    adapters.emplace_back(std::to_string(b) + ".down", modules[b]->down);
    adapters.emplace_back(std::to_string(b) + ".up", modules[b]->up);
  }
  offload.add_shared(adapters);
  for (int b = 0; b < kBlocks; ++b) {
    groups.push_back(offload.add_group("h." + std::to_string(b), modules[b]));
    if (apart) offload.expect_no_gradients(groups.back());
  }
  offload.freeze();
  Trained trained;
  const auto step = [&] {
    Tensor x = input();
    for (const auto& group : groups) x = offload(group, x);
    const Tensor loss = x.to(torch::kFloat).square().mean();
    loss.backward();
    trained.losses.push_back(loss.item<float>());
    EXPECT_EQ(offload.step({.learning_rate = 1e-2f}).parameters_updated, 2u * kBlocks);
  };
  step();
  offload.engine().finish_step();
  const std::uint64_t before = offload.engine().stats().nvme_written_bytes;
  for (int i = 0; i < kSteps; ++i) step();
  offload.engine().finish_step();
  trained.written = offload.engine().stats().nvme_written_bytes - before;
  trained.planned_per_step = offload.engine().plan().nvme_written_bytes_per_step;
  for (std::size_t b = 0; b < groups.size(); ++b) {
    const auto whole = offload.gathered(groups[b]);
    trained.weights.push_back(modules[b]->up.detach().clone());
    trained.weights.push_back(modules[b]->down.detach().clone());
  }
  return trained;
}

TEST(Lora, InOneModuleTrainsWhatAdaptersOfTheirOwnDoForTheBytesOfTheAdapters) {
  const SwapFolder folder;
  const Trained apart = train({}, true), memory = train({}, false);
  const Trained nvme = train(all_on_nvme(folder.path()), false);
  EXPECT_LT(apart.losses.back(), apart.losses.front());
  for (const Trained* together : {&memory, &nvme}) {
    EXPECT_EQ(together->losses, apart.losses);
    for (std::size_t i = 0; i < apart.weights.size(); ++i)
      EXPECT_TRUE(same_bits(together->weights[i], apart.weights[i])) << i;
  }
  EXPECT_EQ(static_cast<double>(nvme.written), kSteps * nvme.planned_per_step);
  // 12 bytes of each, of a block 2048 at least, and a header.
  EXPECT_LE(nvme.planned_per_step, 12.0 * 2048 * kBlocks + 4096.0 * kBlocks);
}

// The frozen weight of a block has no gradient that would say when it was read last. By run(), what
// goes into the block is not known, so the pass holds its group until it ends.
TEST(Lora, ABlockIsReleasedOnceTheGradientOfItsInputHasCome) {
  for (const bool by_run : {false, true}) {
    Offload offload((Settings()));
    std::vector<Adapted> modules(kBlocks);
    std::vector<Group<AdaptedImpl>> groups;
    for (int b = 0; b < kBlocks; ++b)
      groups.push_back(offload.add_group("h." + std::to_string(b), modules[b]));
    offload.freeze();
    Tensor x = input();
    std::vector<bool> held(kBlocks);
    for (int b = 0; b < kBlocks; ++b) {
      const Tensor in = x;
      x = by_run ? offload.run(groups[b], [&] { return modules[b]->forward(in); })
                 : offload(groups[b], in);
      if (!in.requires_grad()) continue;
      in.register_hook([&, b](const Tensor&) {
        try {
          (void)modules[b]->base.sum();
          held[b] = true;
        } catch (const std::exception&) {  // it is parked
        }
      });
    }
    x.to(torch::kFloat).square().mean().backward();
    EXPECT_EQ(held, (std::vector<bool>{false, by_run, by_run}));
    EXPECT_EQ(offload.step({.learning_rate = 1e-2f}).parameters_updated, 2u * kBlocks);
  }
}

TEST(Lora, PlansGradientsAndStateForWhatRequiresGradientsAtFreeze) {
  for (const int declared : {0, 1, 2}) {
    Offload offload((Settings()));
    Adapted module;
    module->base.set_requires_grad(true);
    const auto group = offload.add_group("h", module);
    module->base.set_requires_grad(false);  // after add_group(), as trainers do
    if (declared == 1) offload.expect_gradients(group);
    if (declared == 2) offload.expect_no_gradients(group);
    offload.freeze();
    const std::uint64_t elements =
        declared == 2 ? 0 : 2048 + (declared == 1 ? kWidth * kWidth - 1024 : 0);
    const std::uint64_t aligned = (elements + 2047) / 2048 * 2048;
    EXPECT_EQ(planned(offload.engine(), "gradients"), 2 * aligned) << declared;
    EXPECT_EQ(planned(offload.engine(), "optimizer state"), 10 * aligned) << declared;
    EXPECT_EQ(offload.engine().spec(offload.engine().parameter("h.up")).frozen, declared == 2);
  }
}

TEST(Lora, UnfreezingIsRefusedByNameUnlessItWasDeclared) {
  for (const bool declared : {false, true}) {
    Offload offload((Settings()));
    Adapted module;
    const auto group = offload.add_group("h", module);
    if (declared) offload.expect_gradients(group);
    offload.freeze();
    module->base.set_requires_grad(true);
    const Tensor y = offload(group, input()).sum();
    if (declared) {
      y.backward();
      EXPECT_EQ(offload.step({}).parameters_updated, 3u);
      continue;
    }
    expect_error([&] { y.backward(); }, Code::kInvalidArgument,
                 {"'h.base'", "frozen at freeze()", "expect_gradients"});
    offload.discard_gradients();
    module->base.set_requires_grad(false);
    offload(group, input()).sum().backward();
    EXPECT_EQ(offload.step({}).parameters_updated, 2u);
    expect_error([&] { offload.expect_gradients(group); }, Code::kWrongState, {"'h'", "freeze()"});
  }
}

// Codes of a quantised weight, and their scale.
struct QuantisedImpl : torch::nn::Module {
  QuantisedImpl() {
    codes = register_parameter("codes", torch::randint(-100, 100, {kWidth, kWidth}, torch::kChar),
                               false);
    scale = register_parameter("scale", torch::rand({kWidth, 1}) / 500, false);
    bias = register_parameter("bias", torch::zeros({kWidth}));
  }
  Tensor forward(const Tensor& x) {
    return x + at::linear(x, codes.to(torch::kFloat) * scale, bias);
  }
  Tensor codes, scale, bias;
};
TORCH_MODULE(Quantised);

TEST(Lora, OverBytesHasTheBitsOfMemory) {
  const SwapFolder folder;
  std::vector<float> losses[2];
  Tensor biases[2];
  for (const bool nvme : {false, true}) {
    torch::manual_seed(3);
    Offload offload(nvme ? all_on_nvme(folder.path()) : Settings());
    std::vector<Quantised> modules(kBlocks);
    std::vector<Group<QuantisedImpl>> groups;
    const Tensor codes = modules[1]->codes.clone();
    for (int b = 0; b < kBlocks; ++b)
      groups.push_back(offload.add_group("h." + std::to_string(b), modules[b]));
    offload.freeze();
    for (int step = 0; step < kSteps; ++step) {
      Tensor x = input().to(torch::kFloat);
      for (const auto& group : groups) x = offload(group, x);
      const Tensor loss = x.square().mean();
      loss.backward();
      losses[nvme].push_back(loss.item<float>());
      EXPECT_EQ(offload.step({.learning_rate = 1e-2f}).parameters_updated, 1u * kBlocks);
    }
    const auto whole = offload.gathered(groups[1]);
    EXPECT_TRUE(torch::equal(modules[1]->codes, codes));
    biases[nvme] = modules[1]->bias.detach().clone();
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(same_bits(biases[0], biases[1]));
}

TEST(Lora, AFactorysModuleIsFrozenAsItWasMade) {
  Offload offload((Settings()));
  const auto group = offload.add_group("h", [] { return Adapted(); });
  offload.freeze();
  EXPECT_EQ(planned(offload.engine(), "gradients"), 2u * 2048);
  offload(group, input()).sum().backward();
  EXPECT_EQ(offload.step({}).parameters_updated, 2u);

  Offload other((Settings()));
  other.add_group("h", [calls = 0]() mutable {
    Adapted module;
    module->up.set_requires_grad(calls++ > 0);
    return module;
  });
  expect_error([&] { other.freeze(); }, Code::kInvalidArgument, {"'h'", "requires_grad"});
}
}  // namespace headrace_test::lora_test
