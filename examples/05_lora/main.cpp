// SPDX-License-Identifier: Apache-2.0
// 05_lora: adapters of low rank beside frozen weights (Hu et al., LoRA, arXiv 2106.09685, section
// 4.1). What is frozen costs its weights; gradients, masters and moments are the adapters' alone.
//
//   05_lora FOLDER   weights and optimizer state in swap files there; prints what that costs
#include <torch/torch.h>
#include <headrace/torch/offload.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {
constexpr int kBlocks = 8, kSteps = 5;
constexpr std::int64_t kWidth = 512, kRank = 16;

// [module]
struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    base = register_parameter("base", 0.02 * torch::randn({kWidth, kWidth}),
                              /*requires_grad=*/false);
    down = register_parameter("down", 0.02 * torch::randn({kRank, kWidth}));
    up = register_parameter("up", torch::zeros({kWidth, kRank}));
    to(torch::kBFloat16);
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + at::gelu(at::linear(x, base) + at::linear(at::linear(x, down), up));
  }
  at::Tensor base, down, up;
};
TORCH_MODULE(Layer);
// [/module]

using Blocks = std::vector<headrace::torch::Group<LayerImpl>>;

headrace::Settings settings_of(const char* folder) {
  headrace::Settings settings;
  settings.offload_optimizer = settings.offload_parameters = headrace::OffloadDevice::kNvme;
  settings.nvme_paths = {folder};
  settings.allow_memory_backed = true;  // a model this small may lie in a tmpfs
  return settings;
}

std::uint64_t planned(const headrace::Engine& engine, const std::string& what) {
  std::uint64_t bytes = 0;
  for (const auto& row : engine.plan().rows) bytes += row.what == what ? row.bytes : 0;
  return bytes;
}

// An adapter's parameter moves 12 bytes each way: weight, residual and two moments.
void report(const headrace::Engine& engine, std::uint64_t written) {
  constexpr std::int64_t kTrained = kBlocks * 2 * kWidth * kRank;
  const double own = 12.0 * kTrained;
  std::printf("trained parameters        %lld of %lld\n", (long long)kTrained,
              (long long)(kTrained + kBlocks * kWidth * kWidth));
  std::printf("gradients                 %llu bytes\n",
              (unsigned long long)planned(engine, "gradients"));
  std::printf("optimizer state           %llu bytes\n",
              (unsigned long long)planned(engine, "optimizer state"));
  std::printf("written per step          %llu bytes, %.3f of the adapters' own\n",
              (unsigned long long)written, static_cast<double>(written) / own);
  std::printf("  planned                 %.0f bytes\n", engine.plan().nvme_written_bytes_per_step);
}

bool unchanged(headrace::torch::Offload& offload, const Blocks& blocks,
               const std::vector<at::Tensor>& before) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto read = offload.gathered(blocks[i]);
    if (!at::equal(blocks[i].module()->base, before[i])) return false;
  }
  return true;
}

void train(const headrace::Settings& settings) {
  torch::manual_seed(1);
  headrace::torch::Offload offload(settings);
  Blocks blocks;
  std::vector<at::Tensor> before;
  // [groups]
  for (int i = 0; i < kBlocks; ++i) {
    Layer layer;  // what requires no gradient at freeze() is frozen
    before.push_back(layer->base.clone());
    blocks.push_back(offload.add_group("h." + std::to_string(i), layer));
  }
  offload.freeze();
  // [/groups]
  const at::Tensor input = torch::randn({32, kWidth}, torch::kBFloat16);
  const at::Tensor target = torch::randn({32, kWidth});
  double first = 0, last = 0;
  std::uint64_t written = 0;  // before the second step
  for (int step = 0; step <= kSteps; ++step) {
    at::Tensor x = input;
    for (auto& block : blocks) x = offload(block, x);
    const at::Tensor loss = at::mse_loss(x.to(at::kFloat), target);
    loss.backward();
    offload.step({.learning_rate = 1e-3f});
    last = loss.item<double>();
    if (step > 0) continue;
    first = last;
    offload.engine().finish_step();
    written = offload.engine().stats().nvme_written_bytes;
  }
  offload.engine().finish_step();
  written = (offload.engine().stats().nvme_written_bytes - written) / kSteps;
  report(offload.engine(), written);
  std::printf("the loss went down        %s\n", last < first ? "yes" : "no");
  std::printf("frozen weights unchanged  %s\n", unchanged(offload, blocks, before) ? "yes" : "no");
  offload.close();
}
}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    std::printf("usage: 05_lora FOLDER\n");
    return argc == 2 && std::string(argv[1]) == "--help" ? 0 : 2;
  }
  try {
    train(settings_of(argv[1]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "05_lora: %s\n", error.what());
    return 1;
  }
}
