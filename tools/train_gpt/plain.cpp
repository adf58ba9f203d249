// SPDX-License-Identifier: Apache-2.0
// plain.cpp: the same GPT trained by LibTorch alone: weights and gradients of the recipe's dtype,
// f32 master weights, torch's AdamW.
#include <ATen/Parallel.h>
#include <malloc.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/version.h>

#include "bf16_support.hpp"
#include "checkpointed_block.hpp"
#include "failures.hpp"
#include "gpu.hpp"
#include "torch_training.hpp"

namespace train_gpt {
namespace {
struct GptImpl : torch::nn::Module {
  explicit GptImpl(const GptShape& shape, bool checkpointing = false)
      : embed(register_module("embed", Embed(shape))), checkpointing(checkpointing) {
    // A module's name may hold no dot: "h.0" is registered as "h_0".
    for (std::uint32_t i = 0; i < shape.layers; ++i) {
      blocks.push_back(register_module("h_" + std::to_string(i), Block(shape)));
    }
    head = register_module("head", Head(shape));
  }
  at::Tensor forward(const at::Tensor& bytes) {
    at::Tensor x = ends_on_signal(embed->forward(bytes));
    for (Block& block : blocks)
      x = ends_on_signal(checkpointing ? CheckpointedBlock::apply(x, block) : block->forward(x));
    return head->forward(x);
  }
  Embed embed;
  std::vector<Block> blocks;
  Head head{nullptr};
  bool checkpointing;
};
TORCH_MODULE(Gpt);

// Of an f32 tensor too, which to() would hand on as it is.
at::Tensor f32_copy(const at::Tensor& tensor) {
  return tensor.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

class Plain : public TorchTraining {
 public:
  explicit Plain(const TrainingSetup& setup)
      : TorchTraining(device_of(setup.options)),
        decayed_(setup.recipe.decayed),
        kept_(setup.recipe.kept),
        skips_(setup.settings.non_finite == headrace::NonFinite::kSkip),
        gpt_(setup.options.shape, setup.options.checkpointing) {
    const Initialiser initialise(setup.options.shape, setup.options.seed, setup.initial);
    initialise(*gpt_->embed, "embed");
    for (std::size_t i = 0; i < gpt_->blocks.size(); ++i)
      initialise(*gpt_->blocks[i], "h." + std::to_string(i));
    initialise(*gpt_->head, "head");
    gpt_->to(device());
    // Gradients are there from the start, as they are in every step but the first of any training,
    // so that the peak of forward and backward less weights and gradients is the activations' own.
    for (at::Tensor& parameter : gpt_->parameters()) {
      parameter.mutable_grad() = at::empty_like(parameter).fill_(0);
    }
  }

  headrace::StepResult update(const headrace::StepOptions& options) override;
  void set_betas(float beta1, float beta2) override {
    take_betas(beta1, beta2, {&decayed_, &kept_});
    if (!optimizer_) return;
    for (auto& group : optimizer_->param_groups())
      static_cast<torch::optim::AdamWOptions&>(group.options()).betas({beta1, beta2});
  }
  void store(const std::string&,
             const std::function<void(std::uint64_t, std::span<const std::byte>)>&) override {
    fail(headrace::Code::kUnsupported,
         "--plain saves nothing; there are no weights to read. Leave out --plain.");
  }

 private:
  at::Tensor scores(const at::Tensor& inputs) override { return gpt_->forward(inputs); }
  void make_optimizer();

  headrace::Hyperparameters decayed_, kept_;
  bool skips_;  // a step whose gradients are not finite
  Gpt gpt_;
  std::vector<at::Tensor>
      masters_;  // f32, in order of gpt_->parameters(); made by the first update
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  std::uint64_t steps_ = 0;
};

void Plain::make_optimizer() {
  std::vector<at::Tensor> decayed, kept;
  for (const at::Tensor& parameter : gpt_->parameters()) {
    masters_.push_back(f32_copy(parameter.detach()));
    (is_decayed(parameter) ? decayed : kept).push_back(masters_.back());
  }
  const auto options = [](const headrace::Hyperparameters& h) {
    return std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions()
                                                            .betas({h.beta1, h.beta2})
                                                            .eps(h.eps)
                                                            .weight_decay(h.weight_decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, options(decayed_));
  groups.emplace_back(kept, options(kept_));
  optimizer_ = std::make_unique<torch::optim::AdamW>(groups);
}

headrace::StepResult Plain::update(const headrace::StepOptions& options) {
  const at::NoGradGuard no_grad;
  if (!optimizer_) make_optimizer();
  std::vector<at::Tensor> parameters = gpt_->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    masters_[i].mutable_grad() = f32_copy(parameters[i].grad()).mul_(options.gradient_scale);
    parameters[i].mutable_grad().zero_();
  }
  headrace::StepResult result{.step = ++steps_, .parameters_updated = parameters.size()};
  at::Tensor squares = at::zeros({}, masters_.front().options().dtype(at::kDouble));
  for (const at::Tensor& master : masters_) squares += master.grad().square().sum(at::kDouble);
  result.gradient_norm = std::sqrt(squares.item<double>());
  if (skips_ && !std::isfinite(result.gradient_norm)) {
    result.step = --steps_;
    result.skipped = true;
    for (at::Tensor& master : masters_) master.mutable_grad().reset();
    return result;
  }
  if (options.max_norm > 0)
    result.clip_factor = std::min(1.0, options.max_norm / (result.gradient_norm + 1e-6));
  for (at::Tensor& master : masters_) master.mutable_grad().mul_(result.clip_factor);
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(options.learning_rate);
  optimizer_->step();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].copy_(masters_[i]);
    masters_[i].mutable_grad().reset();
  }
  return result;
}

void choose_products(const Options& options, at::Device device, TorchFacts& facts) {
  if (options.shape.dtype == headrace::DType::kF32) {
    facts.products_reason = "the weights are f32";
  } else if (options.products != Products::kAuto) {
    facts.products_in_f32 = options.products == Products::kF32;
    facts.products_reason = "as --products says";
    if (options.products == Products::kBf16 && device.is_cpu() &&
        !bf16_support_here(at::get_cpu_capability()).works) {
      fail(headrace::Code::kInvalidArgument,
           "--products bf16: LibTorch's attention fails in bf16 on this CPU where "
           "ATEN_CPU_CAPABILITY keeps it from AVX-512 and its products use amx_bf16; the run was "
           "not started. Unset ATEN_CPU_CAPABILITY, set ONEDNN_MAX_CPU_ISA=AVX512_CORE too, or "
           "leave out --products.");
    }
  } else if (!device.is_cpu()) {
    facts.products_reason = "the GPU multiplies them";
  } else if (options.shape.dtype == headrace::DType::kF16) {
    facts.products_in_f32 = true;
    facts.products_reason = "on CPUs LibTorch is many times slower in fp16";
  } else {
    Bf16Support support = bf16_support_here(at::get_cpu_capability());
    facts.products_in_f32 = !support.fast;
    facts.products_reason = std::move(support.reason);
  }
}
}  // namespace

TorchFacts warm_up_torch(const Options& options) {
  TorchFacts facts;
  facts.device = open_device(options);
  const at::Device device = device_of(options);
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  choose_products(options, device, facts);
  const GptShape tiny{.layers = 1,
                      .hidden = 64,
                      .heads = 2,
                      .sequence = 32,
                      .dtype = options.shape.dtype,
                      .products_in_f32 = facts.products_in_f32};
  Gpt model(tiny);
  Initialiser(tiny, 1, nullptr)(*model, "warm_up");
  model->to(device);
  const std::vector<std::uint8_t> text(4 * 33, 'x');
  const Tokens tokens = tokens_of({text, 4, 32}, device);
  loss_of(model->forward(tokens.inputs), tokens.targets).backward();
  ::malloc_trim(0);
  facts.threads = static_cast<std::uint32_t>(at::get_num_threads());
  return facts;
}

std::string torch_that_threw(const std::exception& error) {
  return dynamic_cast<const c10::Error*>(&error) == nullptr ? "" : TORCH_VERSION;
}

std::uint64_t device_peak(const Options& options) { return device_peak_bytes(device_of(options)); }

std::unique_ptr<Training> make_plain(const TrainingSetup& setup) {
  return std::make_unique<Plain>(setup);
}
}  // namespace train_gpt
