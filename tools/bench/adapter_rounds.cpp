// SPDX-License-Identifier: Apache-2.0
#include "adapter_rounds.hpp"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <chrono>
#include <headrace/torch/offload.hpp>
#include <memory>
#include <utility>

#include "measure/rounds.hpp"
#include "model.hpp"
#include "program/machine.hpp"
#include "program/signals.hpp"
#include "watched.hpp"

namespace headrace::tools {
namespace {
using train_gpt::Block;
using train_gpt::BlockImpl;
using train_gpt::Embed;
using train_gpt::EmbedImpl;
using train_gpt::GptShape;
using train_gpt::Head;
using train_gpt::HeadImpl;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The modules of both arms, with the same values.
struct Parts {
  explicit Parts(const GptShape& shape) : embed(shape), head(shape) {
    const train_gpt::Initialiser initialise(shape, 1, nullptr);
    initialise(*embed, "embed");
    for (std::uint32_t i = 0; i < shape.layers; ++i)
      initialise(*blocks.emplace_back(shape), "h." + std::to_string(i));
    initialise(*head, "head");
  }
  Embed embed;
  std::vector<Block> blocks;
  Head head;
};

class Arm {
 public:
  virtual ~Arm() = default;
  virtual at::Tensor scores(const at::Tensor& inputs) = 0;
  virtual void drop_gradients() = 0;
};

// Gradients stay on the parameters until they are dropped.
class PlainArm final : public Arm {
 public:
  explicit PlainArm(const GptShape& shape) : parts_(shape) {}
  at::Tensor scores(const at::Tensor& inputs) override {
    at::Tensor x = parts_.embed->forward(inputs);
    for (Block& block : parts_.blocks) x = block->forward(x);
    return parts_.head->forward(x);
  }
  void drop_gradients() override {
    parts_.embed->zero_grad(/*set_to_none=*/true);
    for (Block& block : parts_.blocks) block->zero_grad(/*set_to_none=*/true);
    parts_.head->zero_grad(/*set_to_none=*/true);
  }

 private:
  Parts parts_;
};

// Gradients are handed to the engine during backward, which takes their squares and forgets them.
class AdapterArm final : public Arm {
 public:
  AdapterArm(const GptShape& shape, Parts parts)
      : embed_(offload_.add_group("embed", std::move(parts.embed))) {
    for (std::uint32_t i = 0; i < shape.layers; ++i)
      blocks_.push_back(offload_.add_group("h." + std::to_string(i), parts.blocks[i]));
    head_.push_back(offload_.add_group("head", std::move(parts.head)));
    offload_.freeze();
  }
  at::Tensor scores(const at::Tensor& inputs) override {
    at::Tensor x = offload_(embed_, inputs);
    for (const auto& block : blocks_) x = offload_(block, x);
    return offload_(head_.front(), x);
  }
  void drop_gradients() override { offload_.discard_gradients(); }
  Engine& engine() { return offload_.engine(); }
  void close() { offload_.close(); }

 private:
  torch::Offload offload_{Settings{}};  // everything on the device, which is the CPU
  torch::Group<EmbedImpl> embed_;
  std::vector<torch::Group<BlockImpl>> blocks_;
  std::vector<torch::Group<HeadImpl>> head_;
};

class Bench {
 public:
  explicit Bench(const AdapterOptions& options)
      : shape_{.layers = options.layers,
               .hidden = options.hidden,
               .heads = options.hidden / 64,
               .sequence = options.sequence},
        plain_(shape_),
        adapter_(shape_, Parts(shape_)),
        watched_(adapter_.engine()) {
    auto generator = at::detail::createCPUGenerator(7);
    inputs_ = at::randint(0, train_gpt::kVocabulary, {options.batch, options.sequence}, generator,
                          at::kLong);
    targets_ = at::randint(0, train_gpt::kVocabulary, {options.batch, options.sequence}, generator,
                           at::kLong);
    round(true);  // warms up
    before_ = adapter_.engine().stats();
  }

  AdapterRound round(bool plain_first) {
    AdapterRound round;
    for (const bool plain : {plain_first, !plain_first, !plain_first, plain_first}) {
      check_signal();
      (plain ? round.plain : round.adapter) += pass(plain ? static_cast<Arm&>(plain_) : adapter_);
    }
    return round;
  }

  void finish(AdapterMeasurement& result) {
    const Stats after = adapter_.engine().stats();
    result.gathers = after.gathers - before_.gathers;
    if (after.gathers_in_place - before_.gathers_in_place != result.gathers) {
      throw Error(Code::kWrongState,
                  "of " + std::to_string(result.gathers) +
                      " gathers some were not in place, so bytes were moved, which is not to be "
                      "measured here. Leave the machine more memory.");
    }
    result.parameters = adapter_.engine().plan().parameters;
    result.loss = loss_;
    adapter_.close();
  }

 private:
  PassCost pass(Arm& arm) {
    const double cpu = cpu_seconds(), began = now();
    at::Tensor loss = train_gpt::loss_of(arm.scores(inputs_), targets_);
    const double forward = now();
    loss.backward();
    const double backward = now();
    arm.drop_gradients();
    const double ended = now();
    compare(loss.item<double>());
    loss.reset();
    return {.wall_seconds = ended - began,
            .cpu_seconds = cpu_seconds() - cpu,
            .forward_seconds = forward - began,
            .backward_seconds = backward - forward,
            .dropping_seconds = ended - backward};
  }
  // Nothing is updated, so every pass of either has one loss.
  void compare(double loss) {
    if (loss_ == 0) loss_ = loss;
    if (loss == loss_) return;
    throw Error(Code::kWrongState, "a pass ended in the loss " + std::to_string(loss) +
                                       ", others in " + std::to_string(loss_) +
                                       ": they did not compute the same, so their times are not "
                                       "comparable. Report this as a fault.");
  }

  GptShape shape_;
  PlainArm plain_;
  AdapterArm adapter_;
  Watched watched_;
  at::Tensor inputs_, targets_;
  double loss_ = 0;
  Stats before_;
};
}  // namespace

PassCost& PassCost::operator+=(const PassCost& other) {
  wall_seconds += other.wall_seconds;
  cpu_seconds += other.cpu_seconds;
  forward_seconds += other.forward_seconds;
  backward_seconds += other.backward_seconds;
  dropping_seconds += other.dropping_seconds;
  return *this;
}

AdapterMeasurement measure_adapter(const AdapterOptions& options, const AdapterProgress& progress) {
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  const double began = now();
  Bench bench(options);
  AdapterMeasurement result;
  result.warm_up_seconds = now() - began;
  result.torch_version = TORCH_VERSION;
  result.torch_threads = at::get_num_threads();
  result.rounds = alternating_rounds(options.rounds, progress,
                                     [&](bool backwards) { return bench.round(!backwards); });
  bench.finish(result);
  return result;
}
}  // namespace headrace::tools
