// SPDX-License-Identifier: Apache-2.0
// offloaded.cpp: the GPT with its parameters, gradients and optimizer state kept by Headrace.
#include <headrace/torch/cuda.hpp>
#include <headrace/torch/offload.hpp>

#include <algorithm>

#include "gpu.hpp"
#include "program/signals.hpp"
#include "progress.hpp"
#include "torch_training.hpp"

namespace train_gpt {
namespace {
using headrace::torch::Group;
using headrace::torch::Offload;

// Of one step of a model of a few hundred groups.
constexpr std::uint64_t kTraceEvents = 65536;

headrace::EngineOptions engine_options(const TrainingSetup& setup) {
  const Options& of_run = setup.options;
  headrace::EngineOptions options;
  const at::Device device = device_of(of_run);
  if (!device.is_cpu()) options.device = headrace::torch::make_cuda_device(device);
  options.trace_events = of_run.trace.empty() ? 0 : kTraceEvents;
  options.collective = setup.world.collective();
  options.log = [&progress = setup.progress, &world = setup.world, &settings = setup.settings](
                    headrace::LogLevel level, std::string_view text) {
    // Rank 0 logs what applies to all ranks.
    const bool of_all = level == headrace::LogLevel::kInfo ||
                        std::ranges::find(settings.warnings, text) != settings.warnings.end();
    if (of_all && !world.speaks()) return;
    const char* name = level == headrace::LogLevel::kInfo      ? "info"
                       : level == headrace::LogLevel::kWarning ? "warning"
                                                               : "error";
    if (headrace::log_wanted(level))
      progress.message("headrace: " + world.prefix() + std::string(name) + ": " +
                       std::string(text));
  };
  return options;
}

class Offloaded : public TorchTraining {
 public:
  explicit Offloaded(const TrainingSetup& setup)
      : TorchTraining(device_of(setup.options)),
        shape_(setup.options.shape),
        decayed_(setup.recipe.decayed),
        kept_(setup.recipe.kept),
        checkpointing_(setup.options.checkpointing),
        initialise_(shape_, setup.options.seed, nullptr),
        initial_(setup.initial),
        world_(setup.world),
        offload_(setup.settings, engine_options(setup), device()),
        embed_(add_hyperparameters_and_embed()),
        blocks_(add_blocks()),
        head_(add<Head>("head")) {
    const headrace::tools::TellOnSignal tell(
        [](void* to) noexcept { static_cast<Offloaded*>(to)->interrupt(); }, this);
    const std::string& checkpoint = setup.options.load_folder;
    if (checkpoint.empty()) {
      offload_.freeze();
    } else {
      loaded_ = offload_.freeze_from(checkpoint);
    }
    world_.exchange_through([this](std::span<const std::byte> mine, std::span<std::byte> all) {
      engine().exchange(mine, all);
    });
  }
  // The graph goes before the engine that its nodes reach into.
  ~Offloaded() override {
    world_.exchange_through(nullptr);
    drop_loss();
  }

  headrace::StepResult update(const headrace::StepOptions& options) override {
    return offload_.step(options);
  }
  void set_betas(float beta1, float beta2) override {
    take_betas(beta1, beta2, {&decayed_, &kept_});
    engine().set_hyperparameters({}, decayed_);
    engine().set_hyperparameters(kept_set_, kept_);
  }
  void finish_update() override { offload_.engine().finish_step(); }
  std::optional<headrace::Resumed> resumed() const override { return engine().resumed(); }
  std::optional<std::vector<std::byte>> loaded() const override { return loaded_; }
  void save_checkpoint(const std::string& folder, std::span<const std::byte> state) override {
    offload_.save_checkpoint(folder, state, {.latest = true});
  }
  SaveUnderWay save_in_background(const std::string& folder,
                                  std::span<const std::byte> state) override {
    const auto save = offload_.save_checkpoint_in_background(folder, state, {.latest = true});
    return {[save] { return save.done(); }, [save] { save.wait(); }};
  }
  void keep(std::span<const std::byte> state) override { engine().set_trainer_state(state); }

  headrace::Stats stats() const override { return engine().stats(); }
  headrace::Trace take_trace() override { return engine().take_trace(); }
  std::string group_name(std::uint32_t group) const override {
    return engine().group_name({group});
  }
  const headrace::PlanReport* plan() const override { return &engine().plan(); }
  std::string hash_parameters() override { return engine().hash_parameters(); }
  std::string hash_optimizer_state() override { return engine().hash_optimizer_state(); }
  void store(const std::string& full_name,
             const std::function<void(std::uint64_t, std::span<const std::byte>)>& sink) override {
    const headrace::ParameterId id = engine().parameter(full_name);
    const std::uint64_t bytes = size_bytes(engine().spec(id).dtype);
    engine().store(id, headrace::Content::kWeight,
                   [&](std::uint64_t first, std::span<const std::byte> values) {
                     sink(first * bytes, values);
                   });
  }
  void interrupt() noexcept override { offload_.interrupt(); }
  void close() override {
    drop_loss();
    offload_.close();
  }

 private:
  headrace::Engine& engine() const { return offload_.engine(); }

  at::Tensor scores(const at::Tensor& inputs) override {
    at::Tensor x = ends_on_signal(offload_(embed_, inputs));
    for (const auto& block : blocks_)
      x = ends_on_signal(checkpointing_ ? offload_.checkpoint(block, x) : offload_(block, x));
    return offload_(head_, x);
  }

  // The factory runs once for its shapes, whose values nobody sees, and once more in freeze().
  template <class M>
  Group<typename M::ContainedType> add(const std::string& name) {
    const auto group = offload_.add_group(name, [this, name, runs = 0]() mutable {
      M module(shape_);
      if (runs++ > 0 && initial_ == nullptr) initialise_(*module, name);
      return module;
    });
    if (initial_ == nullptr) return group;
    offload_.take_values_from(group, [this, name](const std::string& parameter, std::uint64_t first,
                                                  std::span<std::byte> values) {
      headrace::tools::check_signal();
      initial_->read(name + "." + parameter, first * size_bytes(shape_.dtype), values);
    });
    return group;
  }
  Group<EmbedImpl> add_hyperparameters_and_embed() {
    offload_.engine().set_default_hyperparameters(decayed_);
    kept_set_ = offload_.no_decay(
        [](const std::string&, const at::Tensor& parameter) { return !is_decayed(parameter); },
        kept_);
    return add<Embed>("embed");
  }
  std::vector<Group<BlockImpl>> add_blocks() {
    std::vector<Group<BlockImpl>> blocks;
    for (std::uint32_t i = 0; i < shape_.layers; ++i)
      blocks.push_back(add<Block>("h." + std::to_string(i)));
    return blocks;
  }

  GptShape shape_;
  headrace::Hyperparameters decayed_, kept_;
  headrace::HyperparameterSetId kept_set_;
  bool checkpointing_;
  Initialiser initialise_;
  const InitialWeights* initial_;  // null: random values
  World& world_;
  mutable Offload offload_;
  Group<EmbedImpl> embed_;
  std::vector<Group<BlockImpl>> blocks_;
  Group<HeadImpl> head_;
  std::optional<std::vector<std::byte>> loaded_;
};
}  // namespace

std::unique_ptr<Training> make_offloaded(const TrainingSetup& setup) {
  return std::make_unique<Offloaded>(setup);
}
}  // namespace train_gpt
