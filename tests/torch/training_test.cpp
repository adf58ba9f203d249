// SPDX-License-Identifier: Apache-2.0
// A small GPT trained through the adapter: where its bytes live changes no bit, and the values are
// those of torch::optim::AdamW on f32 masters.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "support/computing_host.hpp"
#include "torch/models.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::Content;
using headrace::OffloadDevice;
using headrace::ParameterId;
using headrace::Settings;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::Block;
using headrace_test::BlockImpl;
using headrace_test::GradientLog;
using headrace_test::make_block;
using headrace_test::SwapFolder;

constexpr std::int64_t kHidden = 32, kVocabulary = 64, kLength = 16, kBatch = 4;
constexpr int kLayers = 3, kSteps = 5;
constexpr float kLearningRate = 3e-3f;

int swap_files_in(const std::string& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    count += entry.path().extension() == ".swap" ? 1 : 0;
  }
  return count;
}

Settings settings_of(OffloadDevice state, OffloadDevice parameters, const std::string& folder) {
  Settings settings = headrace_test::all_on_nvme(folder);
  settings.offload_optimizer = state;
  settings.offload_parameters = parameters;
  if (state != OffloadDevice::kNvme && parameters != OffloadDevice::kNvme) settings.nvme_paths = {};
  return settings;
}

// Byte-level, tied embedding and head: embeddings and last norm are nobody's group.
struct OuterImpl : torch::nn::Module {
  OuterImpl()
      : token(register_module("wte", torch::nn::Embedding(kVocabulary, kHidden))),
        position(register_module("wpe", torch::nn::Embedding(kLength, kHidden))),
        norm(
            register_module("ln_f", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})))) {
    token->to(torch::kBFloat16);
    position->to(torch::kBFloat16);
  }
  torch::Tensor embed(const torch::Tensor& ids) {
    return token(ids) + position(torch::arange(ids.size(1)));
  }
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& target) {
    const auto logits =
        torch::linear(norm(x.to(torch::kFloat)).to(torch::kBFloat16), token->weight);
    return torch::cross_entropy_loss(logits.to(torch::kFloat).flatten(0, 1), target.flatten());
  }
  torch::nn::Embedding token, position;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Outer);

struct Gpt {
  explicit Gpt(Settings settings, headrace::EngineOptions options = {})
      : accumulation(settings.gradient_accumulation_steps),
        offload(std::move(settings), std::move(options)) {
    torch::manual_seed(3);
    outer = Outer();
    offload.no_decay();
    for (int i = 0; i < kLayers; ++i) {
      blocks.push_back(offload.add_group("h." + std::to_string(i), [this, i] {
        Block block = make_block(kHidden, true);
        gradients.watch("h." + std::to_string(i) + ".", *block);
        return block;
      }));
    }
    gradients.watch("", *outer);
    offload.add_rest(outer, "");
    offload.freeze();
  }
  double micro_batch(int number) {
    torch::manual_seed(100 + number);
    const auto ids = torch::randint(kVocabulary, {kBatch, kLength + 1});
    torch::Tensor x = outer->embed(ids.slice(1, 0, kLength));
    for (auto& block : blocks) x = offload(block, x);
    const torch::Tensor loss = outer->loss(x, ids.slice(1, 1));
    if (torch::GradMode::is_enabled()) loss.backward();
    return loss.item<double>();
  }
  void step(int number, float max_norm = 0) {
    for (std::uint32_t i = 0; i < accumulation; ++i) {
      losses.push_back(micro_batch(number * static_cast<int>(accumulation) + static_cast<int>(i)));
    }
    offload.step({.learning_rate = kLearningRate,
                  .gradient_scale = 1.0f / static_cast<float>(accumulation),
                  .max_norm = max_norm});
  }
  torch::Tensor content(const std::string& name, Content what) {
    auto& engine = offload.engine();
    const ParameterId id = engine.parameter(name);
    torch::Tensor values = torch::empty(engine.spec(id).shape);
    engine.store(id, what, [&](std::uint64_t first, std::span<const std::byte> bytes) {
      std::memcpy(values.data_ptr<float>() + first, bytes.data(), bytes.size());
    });
    return values;
  }

  std::uint32_t accumulation;
  Outer outer{nullptr};
  GradientLog gradients;
  Offload offload;
  std::vector<Group<BlockImpl>> blocks;
  std::vector<double> losses;
};

struct Outcome {
  std::vector<double> losses;
  std::string parameters, state;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};
void PrintTo(const Outcome& outcome, std::ostream* out) {
  *out << outcome.parameters << " " << outcome.state << " loss " << outcome.losses.back();
}

Outcome train(Settings settings, headrace::EngineOptions options = {}) {
  Gpt gpt(std::move(settings), std::move(options));
  for (int i = 0; i < kSteps; ++i) gpt.step(i, /*max_norm=*/0.5f);
  Outcome outcome;
  outcome.losses = gpt.losses;
  outcome.parameters = gpt.offload.engine().hash_parameters();
  outcome.state = gpt.offload.engine().hash_optimizer_state();
  gpt.offload.close();
  return outcome;
}

class Training : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Accumulation, Training, testing::Values(1u, 3u));

TEST_P(Training, IsTheSameBitForBitWhereverItsBytesLive) {
  const SwapFolder folder;
  const auto run = [&](OffloadDevice state, OffloadDevice parameters,
                       std::shared_ptr<headrace::Device> device = nullptr) {
    Settings settings = settings_of(state, parameters, folder.path());
    settings.gradient_accumulation_steps = GetParam();
    return train(settings, {.device = std::move(device)});
  };
  const Outcome memory = run(OffloadDevice::kCpu, OffloadDevice::kNone);
  EXPECT_FALSE(memory.parameters.empty());
  EXPECT_TRUE(std::isfinite(memory.losses.back()));
  EXPECT_EQ(run(OffloadDevice::kNvme, OffloadDevice::kNone), memory);
  EXPECT_EQ(run(OffloadDevice::kNvme, OffloadDevice::kNvme), memory);
  EXPECT_EQ(run(OffloadDevice::kNone, OffloadDevice::kNone), memory);
  const auto late = headrace::device::make_computing_host({headrace::device::HostFlavour::kLate});
  EXPECT_EQ(run(OffloadDevice::kNvme, OffloadDevice::kNvme, late), memory) << "on a late device";
  EXPECT_EQ(swap_files_in(folder.path()), 0) << "close() takes its files with it";
}

TEST(Training, AnEvaluationBetweenStepsChangesNothing) {
  const SwapFolder folder;
  const Settings settings = settings_of(OffloadDevice::kNvme, OffloadDevice::kNvme, folder.path());
  Gpt plain(settings), evaluated(settings);
  for (int i = 0; i < 3; ++i) {
    plain.step(i);
    evaluated.step(i);
    torch::NoGradGuard no_grad;
    evaluated.micro_batch(1000);
  }
  EXPECT_EQ(plain.offload.engine().hash_parameters(), evaluated.offload.engine().hash_parameters());
  EXPECT_EQ(plain.offload.engine().hash_optimizer_state(),
            evaluated.offload.engine().hash_optimizer_state());
}

// The distance to torch::optim::AdamW, given the same gradients, betas, eps and rates.
//
// With u = 2^-24: both evaluate one formula in f32, with scalars rounded from double once. In a
// step t <= 5 either makes
// - at most 4 roundings of each new moment (factors, products, sum), inherited over t steps: 20 u
//   of S_m = (1-beta1) sum beta1^i |g|, and 20 u of v, which its root halves; 10 more in bias
//   corrections, root, eps, quotient and step size. In all 40 u of lr S_m / (bias1 sqrt(v/bias2)).
//   That quotient is a beta1-weighted mean of |g| over the root of a beta2-weighted mean of g^2, by
//   Cauchy-Schwarz at most the root of the largest ratio of the weights: for t <= 5
//   (0.1 / 0.40951) / (0.001 * 0.999^4 / 0.00499) < 1.23, so at most 1.11.
// - 3 roundings of w: decay, its factor, sum.
// Two such ways differ by at most twice that per step, and steps add up (decay shrinks what is
// inherited).
torch::Tensor adamw_bound(const torch::Tensor& largest_weight) {
  constexpr double kU = 0x1p-24;
  return kSteps *
         (2 * 3 * kU * largest_weight.to(torch::kDouble) + 2 * 40 * kU * 1.11 * kLearningRate);
}

TEST(Training, IsAdamWOnF32MastersWithinTheBoundOfTheirRoundings) {
  const SwapFolder folder;
  Gpt gpt(settings_of(OffloadDevice::kNvme, OffloadDevice::kNvme, folder.path()));
  auto& engine = gpt.offload.engine();
  std::vector<std::string> names;
  std::vector<torch::Tensor> masters, first, largest, decayed, others;
  for (std::uint32_t i = 0; i < engine.parameter_count(); ++i) {
    names.push_back(engine.full_name({i}));
    masters.push_back(gpt.content(names.back(), Content::kMaster).requires_grad_());
    first.push_back(masters.back().detach().clone());
    largest.push_back(first.back().abs());
    (masters.back().dim() < 2 ? others : decayed).push_back(masters.back());
  }
  const auto options = [](double decay) {
    return torch::optim::AdamWOptions(kLearningRate)
        .betas({0.9f, 0.999f})
        .eps(1e-8f)
        .weight_decay(decay);
  };
  torch::optim::AdamW with_decay(decayed, options(0.01f)), without_decay(others, options(0));
  for (int step = 0; step < kSteps; ++step) {
    gpt.step(step);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto& gradients = gpt.gradients.of(names[i]);
      ASSERT_EQ(gradients.size(), static_cast<std::size_t>(step + 1)) << names[i];
      masters[i].mutable_grad() = gradients.back().to(torch::kFloat);
    }
    with_decay.step();
    without_decay.step();
    for (std::size_t i = 0; i < names.size(); ++i)
      largest[i] = largest[i].maximum(masters[i].detach().abs());
  }
  double worst = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto difference = (gpt.content(names[i], Content::kMaster).to(torch::kDouble) -
                             masters[i].detach().to(torch::kDouble))
                                .abs();
    const auto share = (difference / adamw_bound(largest[i])).max().item<double>();
    EXPECT_LE(share, 1) << names[i];
    worst = std::max(worst, share);
    EXPECT_FALSE(torch::equal(masters[i].detach(), first[i])) << names[i] << " did not move at all";
  }
  RecordProperty("largest_share_of_the_bound", std::to_string(worst));
}
}  // namespace
