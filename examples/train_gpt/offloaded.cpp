// SPDX-License-Identifier: Apache-2.0
// offloaded.cpp: the GPT with its parameters, gradients and optimizer state kept by Headrace.
#include <headrace/torch/offload.hpp>

#include "model.hpp"
#include "progress.hpp"
#include "training.hpp"

namespace train_gpt {
namespace {
using headrace::torch::Group;
using headrace::torch::Offload;

headrace::EngineOptions engine_options(Progress& progress) {
  headrace::EngineOptions options;
  options.log = [&progress](headrace::LogLevel level, std::string_view text) {
    const char* name = level == headrace::LogLevel::kInfo      ? "info"
                       : level == headrace::LogLevel::kWarning ? "warning"
                                                               : "error";
    if (headrace::log_wanted(level))
      progress.message("headrace: " + std::string(name) + ": " + std::string(text));
  };
  return options;
}

class Offloaded : public Training {
 public:
  explicit Offloaded(const TrainingSetup& setup)
      : shape_(setup.options.shape),
        initialise_(shape_, setup.options.seed, setup.initial),
        offload_(setup.settings, engine_options(setup.progress)),
        embed_(add_hyperparameters_and_embed(setup.options)),
        blocks_(add_blocks()),
        head_(add<Head>("head")) {
    const TellOnSignal tell([](void* to) noexcept { static_cast<Offloaded*>(to)->interrupt(); },
                            this);
    offload_.freeze();
  }

  double forward(const Batch& batch) override {
    loss_ = loss(batch);
    return loss_.item<double>();
  }
  void backward() override { std::exchange(loss_, {}).backward(); }
  double evaluate(const Batch& batch) override {
    const at::NoGradGuard no_grad;
    return loss(batch).item<double>();
  }
  headrace::StepResult update(const headrace::StepOptions& options) override {
    return offload_.step(options);
  }

  headrace::Stats stats() const override { return engine().stats(); }
  const headrace::PlanReport* plan() const override { return &engine().plan(); }
  std::string hash_parameters() override { return engine().hash_parameters(); }
  std::string hash_optimizer_state() override { return engine().hash_optimizer_state(); }
  void store(const std::string& full_name,
             const std::function<void(std::span<const std::byte>)>& sink) override {
    engine().store(engine().parameter(full_name), headrace::Content::kWeight,
                   [&](std::uint64_t, std::span<const std::byte> values) { sink(values); });
  }
  void interrupt() noexcept override { engine().interrupt(); }
  void close() override {
    loss_ = at::Tensor();
    offload_.close();
  }

 private:
  headrace::Engine& engine() const { return offload_.engine(); }

  at::Tensor loss(const Batch& batch) {
    const Tokens tokens = tokens_of(batch);
    at::Tensor x = ends_on_signal(offload_(embed_, tokens.inputs));
    for (const auto& block : blocks_) x = ends_on_signal(offload_(block, x));
    return loss_of(offload_(head_, x), tokens.targets);
  }

  // The factory runs once for its shapes, whose values nobody sees, and once more in freeze().
  template <class M>
  Group<typename M::ContainedType> add(const std::string& name) {
    return offload_.add_group(name, [this, name, runs = 0]() mutable {
      M module(shape_);
      if (runs++ > 0) initialise_(*module, name);
      return module;
    });
  }
  Group<EmbedImpl> add_hyperparameters_and_embed(const Options& options) {
    const headrace::Hyperparameters decayed{
        .beta2 = 0.95f, .weight_decay = static_cast<float>(options.weight_decay)};
    headrace::Hyperparameters kept = decayed;
    kept.weight_decay = 0;
    offload_.engine().set_default_hyperparameters(decayed);
    offload_.no_decay(
        [](const std::string&, const at::Tensor& parameter) { return parameter.dim() < 2; }, kept);
    return add<Embed>("embed");
  }
  std::vector<Group<BlockImpl>> add_blocks() {
    std::vector<Group<BlockImpl>> blocks;
    for (std::uint32_t i = 0; i < shape_.layers; ++i)
      blocks.push_back(add<Block>("h." + std::to_string(i)));
    return blocks;
  }

  GptShape shape_;
  Initialiser initialise_;
  mutable Offload offload_;
  Group<EmbedImpl> embed_;
  std::vector<Group<BlockImpl>> blocks_;
  Group<HeadImpl> head_;
  at::Tensor loss_;  // with the graph that backward() runs
};
}  // namespace

std::unique_ptr<Training> make_offloaded(const TrainingSetup& setup) {
  return std::make_unique<Offloaded>(setup);
}
}  // namespace train_gpt
