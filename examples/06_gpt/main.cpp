// SPDX-License-Identifier: Apache-2.0
// 06_gpt: a complete GPT, trained twice: with its parameters, gradients and optimizer state
// offloaded, then without Headrace's engine. Losses and weights are the same, bit for bit.
//
//   06_gpt [--text FILE] [FOLDER]
//
//   --text FILE  the text to learn; by default, sentences of a small grammar
//   FOLDER       for swap files; by default, host memory holds all that is offloaded
//
// It prints the comparison to stdout. Losses, hashes and a sample of the model's text differ
// between kinds of CPU and go to stderr.
#include <torch/torch.h>
#include <headrace/cpu_optimizer.hpp>
#include <headrace/torch/offload.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {
constexpr std::int64_t kVocabulary = 256;  // bytes
constexpr std::int64_t kContext = 48, kWidth = 64, kHeads = 4, kBlocks = 3, kBatch = 16;
constexpr int kSteps = 200, kWarmup = 20;

// ---- the model, in plain LibTorch ----

namespace nn = torch::nn;
nn::LayerNorm layer_norm() { return nn::LayerNorm(nn::LayerNormOptions({kWidth})); }

struct BlockImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor attended = x + attention(norm_1(x));
    return attended + down(at::gelu(up(norm_2(attended))));
  }
  // Each byte attends to itself and to those before it. x, and the result: [rows, context, width].
  at::Tensor attention(const at::Tensor& x) {
    const at::Tensor parts = qkv(x).view({x.size(0), x.size(1), 3, kHeads, kWidth / kHeads});
    const auto q_k_v = parts.permute({2, 0, 3, 1, 4}).unbind();  // [rows, heads, context, ...] each
    const at::Tensor heads = at::scaled_dot_product_attention(
        q_k_v[0], q_k_v[1], q_k_v[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return out(heads.transpose(1, 2).reshape(x.sizes()));
  }
  nn::LayerNorm norm_1 = register_module("norm_1", layer_norm());
  nn::Linear qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
  nn::Linear out = register_module("out", nn::Linear(kWidth, kWidth));
  nn::LayerNorm norm_2 = register_module("norm_2", layer_norm());
  nn::Linear up = register_module("up", nn::Linear(kWidth, 4 * kWidth));
  nn::Linear down = register_module("down", nn::Linear(4 * kWidth, kWidth));
};
TORCH_MODULE(Block);

struct GptImpl : nn::Module {
  GptImpl() {
    for (std::int64_t i = 0; i < kBlocks; ++i)
      blocks.push_back(register_module("h_" + std::to_string(i), Block()));
    to(torch::kBFloat16);
  }
  // Scores of the byte that follows each of `bytes` [rows, context].
  at::Tensor scores(const at::Tensor& bytes) {
    at::Tensor x = at::embedding(tokens, bytes) + positions.slice(0, 0, bytes.size(1));
    for (std::size_t i = 0; i < blocks.size(); ++i) x = run(i, x);
    return at::linear(norm(x), tokens).to(at::kFloat);  // the head is tied to the embedding
  }
  at::Tensor loss(const at::Tensor& batch) {
    const at::Tensor all = scores(batch.slice(1, 0, kContext));
    return at::cross_entropy_loss(all.flatten(0, 1), batch.slice(1, 1).flatten());
  }

  at::Tensor tokens = register_parameter("tokens", 0.1 * torch::randn({kVocabulary, kWidth}));
  at::Tensor positions = register_parameter("positions", 0.1 * torch::randn({kContext, kWidth}));
  nn::LayerNorm norm = register_module("norm", layer_norm());
  std::vector<Block> blocks;
  // Runs block i on x. Offloading replaces this function, and nothing else of the model.
  std::function<at::Tensor(std::size_t i, const at::Tensor& x)> run =
      [this](std::size_t i, const at::Tensor& x) { return blocks[i]->forward(x); };
};
TORCH_MODULE(Gpt);

// ---- the text ----

std::string sentences() {
  constexpr std::array kWho{"the cat ", "the old owl ", "a fox ", "my dog ", "the hen "};
  constexpr std::array kDoes{"sees ", "hears ", "follows ", "asks "};
  constexpr std::array kWhere{"at noon.\n", "in the barn.\n", "by the river.\n", "at night.\n"};
  std::mt19937 random(1);
  const auto one_of = [&](const auto& words) { return words[random() % words.size()]; };
  std::string text;
  while (text.size() < 20'000) {
    for (const char* part : {one_of(kWho), one_of(kDoes), one_of(kWho), one_of(kWhere)})
      text += part;
  }
  return text;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad() || text.size() < 2 * kContext)
    throw std::runtime_error("'" + path + "' cannot be read, or is too short to learn from");
  return text;
}

at::Tensor bytes_of(const char* text, std::size_t size) {
  return at::tensor(at::ArrayRef(reinterpret_cast<const std::uint8_t*>(text), size), at::kLong);
}

// Windows at random places of the text: int64 [batch, context + 1].
at::Tensor windows(const std::string& text, std::mt19937& random) {
  std::vector<at::Tensor> rows;
  for (std::int64_t row = 0; row < kBatch; ++row)
    rows.push_back(bytes_of(text.data() + random() % (text.size() - kContext), kContext + 1));
  return at::stack(rows);
}

// Continues the beginning of the text by 160 bytes.
void print_sample(Gpt& gpt, const std::string& text) {
  const at::NoGradGuard no_grad;
  std::string written = text.substr(0, kContext);
  while (written.size() < kContext + 160) {
    const at::Tensor seen = bytes_of(&written[written.size() - kContext], kContext).unsqueeze(0);
    const at::Tensor scores = gpt->scores(seen)[0][kContext - 1];
    const at::Tensor next = at::multinomial(at::softmax(2.0 * scores, 0), 1);
    written += static_cast<char>(next.item<std::int64_t>());
  }
  std::fprintf(stderr, "---\n%s\n---\n", &written[kContext]);
}

// ---- the training ----

// The rate rises to 5e-3 during the warm-up, then falls to 0, both in straight lines.
float learning_rate(int step) {
  const float up = float(step) / kWarmup, down = float(kSteps - step) / (kSteps - kWarmup);
  return 5e-3f * std::min(up, down);
}

// Calls update(step) after each backward pass. Returns the losses.
template <class Update>
std::vector<double> train(const char* name, Gpt& gpt, const std::string& text, Update update) {
  std::vector<double> losses;
  std::mt19937 random(2);
  for (int step = 1; step <= kSteps; ++step) {
    const at::Tensor loss = gpt->loss(windows(text, random));
    loss.backward();
    update(step);
    losses.push_back(loss.item<double>());
    if (step % 25 == 0)
      std::fprintf(stderr, "%-9s step %3d: loss %.4f\n", name, step, losses.back());
  }
  return losses;
}

std::span<std::byte> bytes_in(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

std::uint64_t hash_of(const std::vector<at::Tensor>& parameters) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const at::Tensor& parameter : parameters) {
    for (const std::byte byte : bytes_in(parameter))
      hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

struct Outcome {
  std::vector<double> losses;
  std::uint64_t hash;  // of the trained parameters
};

Outcome train_offloaded(const std::string& folder, const std::string& text) {
  const bool drive = !folder.empty();
  headrace::Settings settings;
  settings.offload_optimizer = settings.offload_parameters =
      drive ? headrace::OffloadDevice::kNvme : headrace::OffloadDevice::kCpu;
  if (drive) settings.nvme_paths = {folder};
  settings.allow_memory_backed = true;  // a model this small may lie in a tmpfs

  torch::manual_seed(1);
  Gpt gpt;
  headrace::torch::Offload offload(settings);
  offload.no_decay();  // of norms and biases
  std::vector<headrace::torch::Group<BlockImpl>> blocks;
  for (std::size_t i = 0; i < gpt->blocks.size(); ++i)
    blocks.push_back(offload.add_group("h." + std::to_string(i), gpt->blocks[i]));
  offload.add_rest(gpt);  // the tables and the last norm, which are in no block
  offload.freeze();       // from here on the engine keeps the parameters

  gpt->run = [&](std::size_t i, const at::Tensor& x) { return offload(blocks[i], x); };
  const auto losses = train("offloaded", gpt, text, [&](int step) {
    offload.step({.learning_rate = learning_rate(step)});  // the engine has the gradients already
  });
  print_sample(gpt, text);
  offload.restore();  // ends offloading; offload.gathered(block) would show one block at a time
  return {losses, hash_of(gpt->parameters())};
}

// Here torch keeps the parameters and gradients, and this program the optimizer state.
// headrace::CpuOptimizer has the engine's arithmetic: a bf16 weight and a 16-bit residual make up
// an f32 master, and moments are f32. (torch's AdamW would keep bf16 moments.)
Outcome train_plainly(const std::string& text) {
  torch::manual_seed(1);
  Gpt gpt;
  headrace::CpuOptimizer optimizer;
  const std::vector<at::Tensor> weights = gpt->parameters();
  std::vector<at::Tensor> memory;  // of the state
  std::vector<headrace::ParameterUpdate> updates(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    headrace::ParameterState& state = updates[i].state;
    state.elements = static_cast<std::uint64_t>(weights[i].numel());
    const auto like_weight = [&](at::ScalarType type) {
      return bytes_in(memory.emplace_back(at::empty(weights[i].sizes(), type)));
    };
    state.weight = bytes_in(weights[i]);
    state.master = like_weight(at::kShort);
    for (std::span<std::byte>& moment : state.moment) moment = like_weight(at::kFloat);
    if (weights[i].dim() < 2) updates[i].hyperparameters.weight_decay = 0;
    optimizer.initialize({&state, 1});
  }
  const auto losses = train("plain", gpt, text, [&](int step) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      updates[i].gradient = bytes_in(weights[i].grad());
      ++updates[i].t;
    }
    optimizer.step(updates, {.learning_rate = learning_rate(step)});
    gpt->zero_grad();
  });
  return {losses, hash_of(weights)};
}

int compare(const Outcome& offloaded, const Outcome& plain) {
  const bool same_losses = offloaded.losses == plain.losses;
  const bool same_hash = offloaded.hash == plain.hash;
  const auto text_of = [](bool holds) { return holds ? "yes" : "no"; };
  std::fprintf(stderr, "hash of the parameters: %016llx offloaded, %016llx plain\n",
               (unsigned long long)offloaded.hash, (unsigned long long)plain.hash);
  std::printf("the loss went down                           %s\n",
              text_of(offloaded.losses.back() < offloaded.losses.front()));
  std::printf("without offload: the same %d losses         %s\n", kSteps, text_of(same_losses));
  std::printf("without offload: the same hash of the model  %s\n", text_of(same_hash));
  return same_losses && same_hash ? 0 : 1;  // the exit code
}
}  // namespace

int main(int argc, char** argv) try {
  std::vector<std::string> words(argv + 1, argv + argc);
  std::string text = sentences();
  if (words.size() > 1 && words[0] == "--text") {
    text = read_text(words[1]);
    words.erase(words.begin(), words.begin() + 2);
  }
  if (words.size() > 1 || (!words.empty() && words[0].starts_with('-'))) {
    std::printf("usage: 06_gpt [--text FILE] [FOLDER]\n");
    return words[0] == "--help" ? 0 : 2;
  }
  at::set_num_threads(1);  // a model this small would wait longer for more threads than compute
  const Outcome offloaded = train_offloaded(words.empty() ? "" : words[0], text);
  return compare(offloaded, train_plainly(text));
} catch (const std::exception& error) {
  std::fprintf(stderr, "06_gpt: %s\n", error.what());
  return 1;
}
