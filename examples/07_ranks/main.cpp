// SPDX-License-Identifier: Apache-2.0
// 07_ranks: several processes train one model. Each keeps a part of it, and all end with the bits
// that one process computes.
//
//   07_ranks [FOLDER]                                      one rank
//   torchrun --nproc-per-node 2 --no-python 07_ranks       two ranks, started by torchrun
//   for r in 0 1 2; do RANK=$r WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 07_ranks & done
//
// FOLDER is for swap files; without it, all that is offloaded lies in host memory.
#include <torch/torch.h>
#include <headrace/launch.hpp>
#include <headrace/torch/gloo.hpp>
#include <headrace/torch/offload.hpp>
#include <headrace/transport.hpp>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {
constexpr int kBlocks = 4, kSteps = 20;
constexpr std::uint32_t kMicroBatches = 12;  // of a step, all ranks together
constexpr std::int64_t kWidth = 192, kRows = 16;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
    to(torch::kBFloat16);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

// The same on every rank: a micro-batch is a function of its number alone.
at::Tensor inputs_of(std::uint64_t micro_batch) {
  auto generator = at::detail::createCPUGenerator(micro_batch);
  return at::randn({kRows, kWidth}, generator).to(at::kBFloat16);
}

headrace::Settings settings_of(const std::string& folder, std::uint32_t world_size) {
  headrace::Settings settings;
  settings.gradient_accumulation_steps = kMicroBatches / world_size;
  settings.offload_optimizer = settings.offload_parameters =
      folder.empty() ? headrace::OffloadDevice::kCpu : headrace::OffloadDevice::kNvme;
  if (!folder.empty()) settings.nvme_paths = {folder};
  settings.allow_memory_backed = true;  // a model this small may lie in a tmpfs
  return settings;
}

// [ranks]
// Joins the ranks that the launcher started, if it started any.
headrace::EngineOptions options_of(const headrace::Launch& launch) {
  headrace::EngineOptions options;
  if (launch.kind == headrace::Launch::Kind::kNone) return options;
  options.collective =
      headrace::make_collective({.transport = headrace::torch::make_gloo_transport(launch)});
  return options;
}

void train(const headrace::Launch& launch, const std::string& folder) {
  const std::uint32_t rank = launch.rank, world_size = launch.world_size;
  if (kMicroBatches % world_size != 0)
    throw std::runtime_error("12 micro-batches go into 1, 2, 3, 4, 6 or 12 ranks");
  torch::manual_seed(1);
  headrace::torch::Offload offload(settings_of(folder, world_size), options_of(launch));
  std::vector<headrace::torch::Group<BlockImpl>> blocks;
  for (int i = 0; i < kBlocks; ++i)
    blocks.push_back(offload.add_group("h." + std::to_string(i), [] { return Block(); }));
  offload.freeze();
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    // Rank r of W computes micro-batches r, W + r, 2 W + r, ...: their sum has the same bits for
    // every W.
    for (std::uint64_t at = rank; at < kMicroBatches; at += world_size) {
      const at::Tensor inputs = inputs_of(step * kMicroBatches + at);
      at::Tensor x = inputs;
      for (auto& block : blocks) x = offload(block, x);
      at::mse_loss(x, -inputs).backward();
    }
    offload.step({.learning_rate = 1e-3f, .gradient_scale = 1.0f / kMicroBatches});
  }
  // Collective: of the whole model, and equal on every rank.
  const std::string hash = offload.engine().hash_parameters();
  if (rank == 0) std::printf("parameters %s\n", hash.c_str());
  offload.close();
}
// [/ranks]
}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);  // the number of threads may change the bits of a product
  try {
    train(headrace::find_launch(headrace::LaunchChoice::kAuto), argc > 1 ? argv[1] : "");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "07_ranks: %s\n", error.what());
    return 1;
  }
}
