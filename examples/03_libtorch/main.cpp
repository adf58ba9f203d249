// SPDX-License-Identifier: Apache-2.0
// 03_libtorch: LibTorch modules whose parameters, gradients and optimizer state Headrace keeps.
//
//   03_libtorch                          all in memory
//   03_libtorch FILE.json [a.b=value]... placed as the settings file says
#include <torch/torch.h>
#include <headrace/torch/offload.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {
// [module]
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({256})));
    up = register_module("up", torch::nn::Linear(256, 1024));
    down = register_module("down", torch::nn::Linear(1024, 256));
    to(torch::kBFloat16);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);
// [/module]

// [training]
void train(const headrace::Settings& settings, const at::Tensor& input, const at::Tensor& target) {
  headrace::torch::Offload offload(settings);
  offload.no_decay();  // of norms and biases
  std::vector<headrace::torch::Group<BlockImpl>> blocks;
  for (int i = 0; i < 4; ++i) {  // made one at a time in freeze(), so never all in memory
    blocks.push_back(offload.add_group("h." + std::to_string(i), [] { return Block(); }));
  }
  offload.freeze();
  const auto max_norm = static_cast<float>(settings.gradient_clipping);
  for (int step = 1; step <= 5; ++step) {
    at::Tensor x = input;
    for (auto& block : blocks) x = offload(block, x);  // instead of block->forward(x)
    const at::Tensor loss = at::mse_loss(x.to(at::kFloat), target);
    loss.backward();
    offload.step({.learning_rate = 1e-3f, .max_norm = max_norm});  // and no zero_grad()
    std::printf("step %d: loss %.4f\n", step, loss.item<double>());
  }
  offload.close();
}
// [/training]
}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') {
    std::printf("usage: 03_libtorch [FILE.json [a.b=value]...]\n");
    return std::string(argv[1]) == "--help" ? 0 : 2;
  }
  try {
    headrace::Settings settings;
    if (argc > 1) settings = headrace::Settings::from_file(argv[1], {argv + 2, argv + argc});
    torch::manual_seed(1);
    train(settings, torch::randn({32, 256}, torch::kBFloat16), torch::randn({32, 256}));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "03_libtorch: %s\n", error.what());
    return 1;
  }
}
