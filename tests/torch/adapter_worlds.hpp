// SPDX-License-Identifier: Apache-2.0
// A small model that a rank trains through the adapter, in the ways in which worlds of them differ:
// losses, parameters and optimizer state are those of one rank that accumulates, bit for bit.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/swap_folder.hpp"

namespace headrace_test::adapter_worlds {
using headrace::Collective;
using headrace::torch::Group;
using headrace::torch::Offload;
using torch::Tensor;

// A block is large enough that each of three ranks owns a part of it.
inline constexpr std::int64_t kHidden = 96, kInner = 8 * kHidden;
inline constexpr std::int64_t kVocabulary = 40, kLength = 6, kBatch = 2;
inline constexpr int kLayers = 3, kSteps = 3;

struct Variant {
  const char* name;
  bool tied = false;          // the head is the embedding's weight
  bool frozen = false;        // block 1, and half of block 0
  bool checkpointed = false;  // the blocks
  bool absent = false;        // a block's second half is not used in some micro-batches
  bool second_pass = false;   // a backward pass of its own for another part of the model
  bool evaluated = false;     // between the steps
  bool on_nvme = false;
  bool bf16 = false;  // sums of a few such gradients are exact in f32, in any order
  int micro_batches = 6;
};

// Who calls, and of how many.
struct Place {
  std::shared_ptr<Collective> collective;  // null: one rank
  int rank() const { return collective ? static_cast<int>(collective->rank()) : 0; }
  int world() const { return collective ? static_cast<int>(collective->world_size()) : 1; }
};

inline headrace::Settings settings_of(const Variant& variant, int world,
                                      const std::string& folder) {
  headrace::Settings settings;
  if (variant.on_nvme) settings = headrace_test::all_on_nvme(folder);
  settings.gradient_accumulation_steps =
      static_cast<std::uint32_t>((variant.micro_batches + world - 1) / world);
  return settings;
}

class Model {
 public:
  Model(const Variant& variant, const Place& place, const std::string& folder)
      : variant_(variant),
        place_(place),
        offload_(settings_of(variant, place.world(), folder),
                 {.collective = place.collective, .log = [](auto, auto) {}}) {
    add_groups();
    offload_.freeze();
  }

  void step(int number) {
    for (int first = 0; first < variant_.micro_batches; first += place_.world()) {
      const int at = first + place_.rank();
      if (at < variant_.micro_batches) {
        micro_batch(number * variant_.micro_batches + at);
      } else {
        sit_out();
      }
    }
    offload_.step({.learning_rate = 0.01f,
                   .gradient_scale = 1.0f / static_cast<float>(variant_.micro_batches),
                   .max_norm = 0.5f});
    if (!variant_.evaluated) return;
    const torch::NoGradGuard no_grad;
    losses[-1 - number] = loss_of(999).item<double>();
  }
  Offload& offload() { return offload_; }

  std::map<int, double> losses;  // by micro-batch; negative: of evaluations
  int fails_at = -1;             // a micro-batch: its forward throws

 private:
  void add_groups() {
    static std::mutex generator;  // torch's, of all threads
    const std::lock_guard lock(generator);
    torch::manual_seed(3);
    const auto weight = [&](std::int64_t rows) {
      return torch::randn({rows, kHidden}).to(type()).requires_grad_();
    };
    table_ = weight(kVocabulary);
    head_ = variant_.tied ? table_ : weight(kVocabulary);
    std::vector<std::pair<std::string, Tensor>> shared = {{"wte", table_}};
    if (!variant_.tied) shared.emplace_back("head", head_);
    offload_.add_shared(std::move(shared));
    for (int i = 0; i < kLayers; ++i) {
      Mlp block = make_mlp();
      for (const Tensor& parameter : block->parameters())
        parameter.set_requires_grad(!variant_.frozen || i != 1);
      if (variant_.frozen && i == 0) block->first->weight.set_requires_grad(false);
      blocks_.push_back(offload_.add_group("h." + std::to_string(i), block));
    }
    if (variant_.second_pass) beside_ = offload_.add_group("beside", make_mlp());
  }
  torch::Dtype type() const { return variant_.bf16 ? torch::kBFloat16 : torch::kFloat; }
  Mlp make_mlp() const {
    Mlp made(kHidden, kInner, kHidden);
    made->to(type());
    return made;
  }
  // Of a micro-batch, without torch's generator, which all threads share.
  static Tensor ids_of(int number) {
    const Tensor at = torch::arange(kBatch * (kLength + 1));
    return at.mul(at)
        .add(at * (7 * number + 3))
        .add(number)
        .remainder(kVocabulary)
        .view({kBatch, kLength + 1});
  }
  Tensor through_blocks(Tensor x, int number) {
    for (const auto& block : blocks_) {
      const bool whole = !variant_.absent || (number + static_cast<int>(block.id().index)) % 3 != 0;
      const bool fails = number == fails_at;
      const auto body = [module = block.module(), whole, fails](const Tensor& x) {
        if (fails) throw std::runtime_error("the forward of rank 1 failed");
        const Tensor half = torch::gelu(module->first(x));
        return x + (whole ? module->second(half) : half.slice(-1, 0, kHidden));
      };
      x = variant_.checkpointed ? offload_.checkpoint(block, body, x)
                                : offload_.run(block, [&] { return body(x); });
    }
    return x;
  }
  Tensor loss_of(int number, Tensor* last = nullptr) {
    const Tensor ids = ids_of(number);
    const Tensor x = through_blocks(torch::embedding(table_, ids.slice(1, 0, kLength)), number);
    if (last != nullptr) *last = x;
    return torch::cross_entropy_loss(torch::linear(x, head_).to(torch::kFloat).flatten(0, 1),
                                     ids.slice(1, 1).flatten());
  }
  void micro_batch(int number) {
    Tensor x, beside;
    const Tensor loss = loss_of(number, &x);
    if (beside_) beside = offload_(*beside_, x.detach()).to(torch::kFloat).square().mean();
    loss.backward();
    if (beside_) beside.backward();
    losses[number] = loss.item<double>();
  }
  // As docs/ranks.md says: the gathers of a micro-batch, and no gradient.
  void sit_out() {
    const auto gather = [&](headrace::GroupId group) { (void)offload_.engine().gather(group); };
    for (const auto& block : blocks_) gather(block.id());
    if (beside_) gather(beside_->id());
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) gather(block->id());
    if (beside_) gather(beside_->id());
  }

  const Variant variant_;
  const Place place_;
  Tensor table_, head_;
  Offload offload_;
  std::vector<Group<MlpImpl>> blocks_;
  std::optional<Group<MlpImpl>> beside_;
};

struct Outcome {
  std::string parameters, state;
  std::map<int, double> losses;
};

inline Outcome train(const Variant& variant, const Place& place, const std::string& folder) {
  Model model(variant, place, folder);
  for (int step = 0; step < kSteps; ++step) model.step(step);
  Outcome outcome{model.offload().engine().hash_parameters(),
                  model.offload().engine().hash_optimizer_state(), model.losses};
  model.offload().close();
  return outcome;
}

inline const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      Variant{.name = "Plain"},
      Variant{.name = "Bf16", .bf16 = true},
      Variant{.name = "Tied", .tied = true},
      Variant{.name = "Frozen", .frozen = true},
      Variant{.name = "Checkpointed", .checkpointed = true},
      Variant{.name = "Absent", .absent = true},
      Variant{.name = "SeveralPasses", .second_pass = true},
      Variant{.name = "Evaluated", .evaluated = true},
      Variant{.name = "Ragged", .second_pass = true, .micro_batches = 5},
      Variant{.name = "RaggedCheckpointed", .checkpointed = true, .micro_batches = 4},
      Variant{.name = "All",
              .tied = true,
              .frozen = true,
              .checkpointed = true,
              .absent = true,
              .second_pass = true,
              .evaluated = true,
              .on_nvme = true,
              .micro_batches = 5}};
  return all;
}
}  // namespace headrace_test::adapter_worlds
