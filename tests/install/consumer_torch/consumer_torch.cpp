// SPDX-License-Identifier: Apache-2.0
// consumer_torch.cpp FOLDER: a torch::nn::Sequential of two blocks, trained through an installed
// Headrace: in memory, and with everything in a swap file in FOLDER.
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdio>
#include <exception>
#include <headrace/torch/offload.hpp>
#include <headrace/version.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {
namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  BlockImpl(std::int64_t in, std::int64_t out)
      : up(register_module("up", nn::Linear(in, 64))),
        down(register_module("down", nn::Linear(64, out))) {}
  at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(x))); }
  nn::Linear up, down;
};
TORCH_MODULE(Block);

struct Trained {
  double first_loss = 0, last_loss = 0;
  std::string hash;
};

Trained train(const headrace::Settings& settings) {
  torch::manual_seed(1);
  nn::Sequential model(Block(8, 64), Block(64, 1));
  headrace::torch::Offload offload(settings);
  std::vector<headrace::torch::Group<BlockImpl>> blocks;
  for (std::size_t i = 0; i < model->size(); ++i) {
    blocks.push_back(offload.add_group("block." + std::to_string(i), model->ptr<BlockImpl>(i)));
  }
  offload.freeze();
  const at::Tensor input = torch::randn({64, 8}), target = input.sin().sum(1, true);
  Trained trained;
  for (int step = 1; step <= 50; ++step) {
    at::Tensor x = input;
    for (auto& block : blocks) x = offload(block, x);
    const at::Tensor loss = at::mse_loss(x, target);
    loss.backward();
    offload.step({.learning_rate = 1e-2f, .max_norm = 1});
    (step == 1 ? trained.first_loss : trained.last_loss) = loss.item<double>();
  }
  trained.hash = offload.engine().hash_parameters() + offload.engine().hash_optimizer_state();
  offload.close();
  return trained;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: consumer_torch FOLDER");
    headrace::Settings offloaded;
    offloaded.offload_optimizer = offloaded.offload_parameters = headrace::OffloadDevice::kNvme;
    offloaded.nvme_paths = {argv[1]};
    offloaded.tile_elements = 65536;
    offloaded.allow_memory_backed = true;
    const Trained memory = train({}), nvme = train(offloaded);
    std::printf("headrace %s: the loss went from %.3f to %.3f, %s\n", headrace::version(),
                memory.first_loss, memory.last_loss,
                memory.hash == nvme.hash ? "the same bits on NVMe" : "OTHER BITS on NVMe");
    const bool learnt = memory.last_loss < 0.1 * memory.first_loss;
    return learnt && memory.hash == nvme.hash ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "consumer_torch: %s\n", error.what());
    return 1;
  }
}
