// SPDX-License-Identifier: Apache-2.0
// A small GPT whose blocks are checkpointed, over some steps: losses, parameters and optimizer
// state are those of the same training without, bit for bit, wherever the bytes live, with frozen
// groups, tied weights, and evaluation and generation between the steps.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/refusals.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::Code;
using headrace::Settings;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::Block;
using headrace_test::BlockImpl;
using headrace_test::expect_error;
using headrace_test::GradientLog;
using headrace_test::SwapFolder;
using torch::Tensor;

constexpr std::int64_t kHidden = 16, kVocabulary = 32, kLength = 8, kBatch = 2;
constexpr int kLayers = 4, kSteps = 3;

struct Variant {
  bool blocks = false;  // are checkpointed
  bool head = false;    // and the head, which uses the embedding's weight
  bool bf16 = true;
  bool frozen = false;    // blocks 0 and 2; block 1 but for its norms
  bool evaluate = false;  // between the steps, and between forward and backward
  bool declared = false;  // several gradients of the shared weight
};

struct NormImpl : torch::nn::Module {
  NormImpl()
      : norm(register_module("norm",
                             torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})))) {}
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Norm);

// Embedding and head are one weight, which belongs to no block: always bound.
class Gpt {
 public:
  Gpt(const Settings& settings, Variant variant)
      : variant_(variant), accumulation_(settings.gradient_accumulation_steps), offload_(settings) {
    torch::manual_seed(3);
    const auto type = variant.bf16 ? torch::kBFloat16 : torch::kFloat;
    table_ = torch::randn({kVocabulary, kHidden}).to(type).requires_grad_();
    log_.watch("shared.wte", table_);
    const auto shared = offload_.add_shared({{"wte", table_}});
    if (variant.declared) offload_.expect_repeated_gradients(*shared);
    for (int i = 0; i < kLayers; ++i) {
      Block block = headrace_test::make_block(kHidden, variant.bf16);
      if (variant.frozen) freeze_some(block, i);
      const std::string name = "h." + std::to_string(i);
      log_.watch(name + ".", *block);
      blocks_.push_back(offload_.add_group(name, block));
    }
    norm_ = std::make_unique<Group<NormImpl>>(offload_.add_group("head", Norm()));
    offload_.freeze();
  }

  void step(int number) {
    for (std::uint32_t i = 0; i < accumulation_; ++i) {
      torch::manual_seed(100 + number * static_cast<int>(accumulation_) + static_cast<int>(i));
      const Tensor ids = torch::randint(kVocabulary, {kBatch, kLength + 1});
      const Tensor loss = torch::cross_entropy_loss(
          scores(ids.slice(1, 0, kLength)).to(torch::kFloat).flatten(0, 1),
          ids.slice(1, 1).flatten());
      if (variant_.evaluate) generate();
      losses.push_back(loss.item<double>());
      loss.backward();
    }
    offload_.step({.learning_rate = 0.01f,
                   .gradient_scale = 1.0f / static_cast<float>(accumulation_),
                   .max_norm = 0.5f});
    if (variant_.evaluate) generate();
  }
  std::size_t gradients_of(const std::string& name) const { return log_.of(name).size(); }
  Offload& offload() { return offload_; }

  std::vector<double> losses;

 private:
  static void freeze_some(Block& block, int number) {
    for (const auto& item : block->named_parameters()) {
      const bool is_norm = item.key().find("norm") != std::string::npos;
      const bool trained = number == 3 || (number == 1 && is_norm);
      item.value().set_requires_grad(trained);
    }
  }
  Tensor scores(const Tensor& ids) {
    Tensor x = torch::embedding(table_, ids);
    for (const auto& block : blocks_)
      x = variant_.blocks ? offload_.checkpoint(block, x) : offload_(block, x);
    const auto head = [module = norm_->module(), table = table_](const Tensor& x) {
      return torch::linear(module->norm(x.to(torch::kFloat)).to(x.scalar_type()), table);
    };
    return variant_.head ? offload_.checkpoint(*norm_, head, x)
                         : offload_.run(*norm_, [&] { return head(x); });
  }
  // One token after the other, each from all before it.
  void generate() {
    const torch::NoGradGuard no_grad;
    Tensor ids = torch::zeros({1, 1}, torch::kLong);
    while (ids.size(1) < 4)
      ids = torch::cat({ids, scores(ids).select(1, -1).argmax(-1, /*keepdim=*/true)}, 1);
  }

  Variant variant_;
  std::uint32_t accumulation_;
  GradientLog log_;
  Tensor table_;
  Offload offload_;
  std::vector<Group<BlockImpl>> blocks_;
  std::unique_ptr<Group<NormImpl>> norm_;
};

struct Outcome {
  std::vector<double> losses;
  std::string parameters, state;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};
void PrintTo(const Outcome& outcome, std::ostream* out) {
  *out << outcome.parameters << " " << outcome.state << " loss " << outcome.losses.back();
}

Outcome train(const Settings& settings, Variant variant) {
  Gpt gpt(settings, variant);
  for (int i = 0; i < kSteps; ++i) gpt.step(i);
  return {gpt.losses, gpt.offload().engine().hash_parameters(),
          gpt.offload().engine().hash_optimizer_state()};
}

enum class Place { kMemory, kStateOnNvme, kNvme, kNvmeOneBuffer };

class CheckpointedTraining : public testing::TestWithParam<std::tuple<Place, std::uint32_t>> {
 protected:
  Settings settings() const {
    const auto [place, accumulation] = GetParam();
    Settings settings;
    if (place != Place::kMemory) settings = headrace_test::all_on_nvme(folder_.path());
    if (place == Place::kStateOnNvme) settings.offload_parameters = headrace::OffloadDevice::kCpu;
    if (place == Place::kNvmeOneBuffer) settings.prefetch_groups = 0;
    settings.gradient_accumulation_steps = accumulation;
    return settings;
  }
  std::uint32_t accumulation() const { return std::get<1>(GetParam()); }
  // `variant` here against `other` in memory.
  void expect_equal(Variant variant, Variant other) const {
    Settings memory;
    memory.gradient_accumulation_steps = accumulation();
    const Outcome expected = train(memory, other);
    EXPECT_TRUE(std::isfinite(expected.losses.back()));
    EXPECT_EQ(train(settings(), variant), expected);
  }
  // Against the same without checkpointing and without evaluation.
  void expect_the_plain_bits(Variant variant) const {
    Variant plain = variant;
    plain.blocks = plain.head = plain.evaluate = plain.declared = false;
    expect_equal(variant, plain);
  }

 private:
  SwapFolder folder_;
};
std::string case_name(const testing::TestParamInfo<std::tuple<Place, std::uint32_t>>& info) {
  const char* const places[] = {"Memory", "StateOnNvme", "Nvme", "NvmeOneBuffer"};
  return std::string(places[static_cast<int>(std::get<0>(info.param))]) + "By" +
         std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Places, CheckpointedTraining,
                         testing::Combine(testing::Values(Place::kMemory, Place::kStateOnNvme,
                                                          Place::kNvme, Place::kNvmeOneBuffer),
                                          testing::Values(1u, 3u)),
                         case_name);

// Embedding and head meet in one pass of autograd's, outside of the blocks: one gradient.
TEST_P(CheckpointedTraining, WithATiedWeightOutsideOfItsBlocksIsTheSame) {
  expect_the_plain_bits({.blocks = true});
  expect_the_plain_bits({.blocks = true, .bf16 = false});
}

TEST_P(CheckpointedTraining, WithFrozenGroupsAndFrozenParametersIsTheSame) {
  expect_the_plain_bits({.blocks = true, .frozen = true});
}

TEST_P(CheckpointedTraining, WithGenerationBetweenStepsAndBeforeBackwardIsTheSame) {
  expect_the_plain_bits({.blocks = true, .evaluate = true});
  expect_the_plain_bits({.blocks = true, .frozen = true, .evaluate = true});
}

// A second pass of autograd's runs in the head's checkpoint, so the tied weight has a gradient from
// there and one from the embedding, which are summed in f32 one after the other. Of two that sum is
// torch's own; of several micro-batches torch adds up pairs first.
TEST_P(CheckpointedTraining, WithATiedWeightInACheckpointSumsItsTwoGradientsInF32) {
  const Variant variant{.blocks = true, .head = true, .bf16 = false, .declared = true};
  expect_equal(variant, variant);
  if (accumulation() == 1) expect_the_plain_bits(variant);
  const Variant bf16{.blocks = true, .head = true, .declared = true};
  expect_equal(bf16, bf16);
}

TEST(CheckpointedTraining, OfATiedWeightInACheckpointIsRefusedByNameUnlessDeclared) {
  Gpt gpt({}, {.blocks = true, .head = true});
  expect_error([&] { gpt.step(0); }, Code::kWrongState,
               {"'shared.wte'", "expect_repeated_gradients"});
}

TEST(CheckpointedTraining, GivesEachTrainedParameterOneGradientAndFrozenOnesNone) {
  Gpt gpt({}, {.blocks = true, .frozen = true});
  gpt.step(0);
  EXPECT_EQ(gpt.gradients_of("shared.wte"), 1u);
  EXPECT_EQ(gpt.gradients_of("h.1.norm_1.weight"), 1u);
  EXPECT_EQ(gpt.gradients_of("h.3.qkv.weight"), 1u);
  EXPECT_EQ(gpt.gradients_of("h.1.qkv.weight"), 0u);
  for (const char* frozen : {"h.0.qkv.weight", "h.2.norm_1.weight"})
    EXPECT_EQ(gpt.gradients_of(frozen), 0u) << frozen;
}

// Backward acquires each group once, for the second run and what follows it.
TEST(CheckpointedTraining, ReadsNoMoreBytesThanPlainTraining) {
  const SwapFolder folder;
  Settings settings = headrace_test::all_on_nvme(folder.path());
  settings.prefetch_groups = 0;
  std::vector<std::uint64_t> read;
  for (const bool checkpointed : {false, true}) {
    Gpt gpt(settings, {.blocks = checkpointed});
    gpt.step(0);  // records
    const std::uint64_t before = gpt.offload().engine().stats().nvme_read_bytes;
    gpt.step(1);
    gpt.step(2);
    read.push_back(gpt.offload().engine().stats().nvme_read_bytes - before);
  }
  EXPECT_EQ(read[0], read[1]);
}
}  // namespace
