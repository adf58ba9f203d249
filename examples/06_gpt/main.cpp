// SPDX-License-Identifier: Apache-2.0
// 06_gpt: a whole GPT, trained with its parameters, gradients and optimizer state offloaded, and
// once more without Headrace's engine: the losses and the weights are the same, bit for bit.
//
//   06_gpt [--text FILE] [FOLDER]
//
//   FOLDER       for swap files; left out, all that is offloaded lies in host memory
//   --text FILE  to learn from; left out, sentences of a small grammar
//
// stdout has what is the same on every machine; losses, hash and a sample of what the model writes
// differ between kinds of CPU and go to stderr.
#include <torch/torch.h>
#include <headrace/cpu_optimizer.hpp>
#include <headrace/torch/offload.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
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
constexpr std::size_t kSampleBytes = 160;

// ---- the model, in plain LibTorch: nothing here knows of offloading ----

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    using torch::nn::LayerNormOptions;
    norm_1 = register_module("norm_1", torch::nn::LayerNorm(LayerNormOptions({kWidth})));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    norm_2 = register_module("norm_2", torch::nn::LayerNorm(LayerNormOptions({kWidth})));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
    to(torch::kBFloat16);
  }
  // Pre-norm: what is added to x is computed from a normalised x.
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor attended = x + out(attention(qkv(norm_1(x))));
    return attended + down(at::gelu(up(norm_2(attended))));
  }
  // [rows, context, 3 width] to [rows, context, width]: each byte looks at itself and those before.
  static at::Tensor attention(const at::Tensor& all) {
    const std::int64_t rows = all.size(0), context = all.size(1);
    const auto parts = all.view({rows, context, 3, kHeads, kWidth / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind();  // q, k and v: [rows, heads, context, width / heads]
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                            /*is_causal=*/true)
        .transpose(1, 2)
        .reshape({rows, context, kWidth});
  }
  torch::nn::LayerNorm norm_1{nullptr}, norm_2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  GptImpl() {
    const auto table = [](std::int64_t rows) {
      return (0.1 * torch::randn({rows, kWidth})).to(torch::kBFloat16);
    };
    tokens = register_parameter("tokens", table(kVocabulary));
    positions = register_parameter("positions", table(kContext));
    for (std::int64_t i = 0; i < kBlocks; ++i)
      blocks.push_back(register_module("h_" + std::to_string(i), Block()));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    norm->to(torch::kBFloat16);
  }
  // Scores of the next byte. `run(i, x)` runs block i; offloading changes nothing but how.
  template <class RunBlock>
  at::Tensor scores(const at::Tensor& bytes, const RunBlock& run) {
    at::Tensor x = at::embedding(tokens, bytes) + positions.slice(0, 0, bytes.size(1));
    for (std::size_t i = 0; i < blocks.size(); ++i) x = run(i, x);
    return at::linear(norm(x), tokens).to(at::kFloat);  // the head is tied to the embedding
  }
  std::vector<at::Tensor> rest() const { return {tokens, positions, norm->weight, norm->bias}; }

  at::Tensor tokens, positions;
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Gpt);

// ---- the text ----

std::string sentences() {
  constexpr std::array kWho{"the cat", "the old owl", "a fox", "my dog", "the hen"};
  constexpr std::array kDoes{"sees", "hears", "follows", "asks"};
  constexpr std::array kWhere{"at noon", "in the barn", "by the river", "at night"};
  std::mt19937 random(1);
  const auto one_of = [&](const auto& words) { return words[random() % words.size()]; };
  std::string text;
  while (text.size() < 20'000) {
    for (const char* word : {one_of(kWho), " ", one_of(kDoes), " ", one_of(kWho), " "})
      text += word;
    text += one_of(kWhere) + std::string(".\n");
  }
  return text;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad() || text.size() < 2 * kContext)
    throw std::runtime_error("'" + path + "' cannot be read, or has fewer than " +
                             std::to_string(2 * kContext) + " bytes");
  return text;
}

at::Tensor bytes_of(const char* text, std::size_t size) {
  return at::tensor(at::ArrayRef(reinterpret_cast<const std::uint8_t*>(text), size), at::kLong);
}

// Windows of the text at random places, the same for every training: int64 [batch, context + 1].
at::Tensor windows(const std::string& text, std::mt19937& random) {
  std::vector<at::Tensor> rows;
  for (std::int64_t row = 0; row < kBatch; ++row)
    rows.push_back(bytes_of(text.data() + random() % (text.size() - kContext), kContext + 1));
  return at::stack(rows);
}

// ---- the training ----

// A straight warm-up, then straight down.
float learning_rate(int step) {
  const float up = float(step) / kWarmup, down = float(kSteps - step) / (kSteps - kWarmup);
  return 5e-3f * std::min(up, down);
}

template <class RunBlock>
at::Tensor loss_of(Gpt& gpt, const at::Tensor& batch, const RunBlock& run) {
  const at::Tensor scores = gpt->scores(batch.slice(1, 0, kContext), run);
  return at::cross_entropy_loss(scores.flatten(0, 1), batch.slice(1, 1).flatten());
}

// What is compared between two trainings.
struct Outcome {
  std::vector<double> losses;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, of all parameters in one order

  void add_loss(const char* training, double loss) {
    losses.push_back(loss);
    if (losses.size() % 25 == 0)
      std::fprintf(stderr, "%-9s step %3zu: loss %.4f\n", training, losses.size(), loss);
  }
  void add_parameters(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) {
      const auto* bytes = static_cast<const unsigned char*>(parameter.const_data_ptr());
      for (std::size_t i = 0; i < parameter.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
    }
  }
};

// Goes on from the beginning of `text`, byte by byte.
template <class RunBlock>
void print_sample(Gpt& gpt, const std::string& text, const RunBlock& run) {
  const at::NoGradGuard no_grad;
  std::string written = text.substr(0, kContext);
  while (written.size() < kContext + kSampleBytes) {
    const at::Tensor seen = bytes_of(&written[written.size() - kContext], kContext).unsqueeze(0);
    const at::Tensor scores = gpt->scores(seen, run)[0][kContext - 1];
    const at::Tensor next = at::multinomial(at::softmax(2.0 * scores, 0), 1);
    written += static_cast<char>(next.item<std::int64_t>());
  }
  std::fprintf(stderr, "---\n%s\n---\n", &written[kContext]);
}

Outcome train_offloaded(const headrace::Settings& settings, const std::string& text) {
  torch::manual_seed(1);
  Gpt gpt;
  headrace::torch::Offload offload(settings);
  offload.no_decay();  // of norms and biases
  std::vector<headrace::torch::Group<BlockImpl>> blocks;
  for (std::size_t i = 0; i < gpt->blocks.size(); ++i)
    blocks.push_back(offload.add_group("h." + std::to_string(i), gpt->blocks[i]));
  const auto rest = offload.add_rest(gpt);  // tables and last norm, which no block has
  offload.freeze();                         // from here on the engine keeps the parameters

  const auto run = [&](std::size_t i, const at::Tensor& x) { return offload(blocks[i], x); };
  Outcome outcome;
  std::mt19937 random(2);
  for (int step = 1; step <= kSteps; ++step) {
    const at::Tensor loss = loss_of(gpt, windows(text, random), run);
    loss.backward();  // gradients go to the engine as they come
    offload.step({.learning_rate = learning_rate(step)});
    outcome.add_loss("offloaded", loss.item<double>());
  }
  print_sample(gpt, text, run);
  for (auto& block : blocks) {  // outside of forward and backward a scope brings weights back
    const auto read = offload.gathered(block);
    outcome.add_parameters(block.module()->parameters());
  }
  {
    const auto read = offload.gathered(*rest);
    outcome.add_parameters(gpt->rest());
  }
  offload.close();
  return outcome;
}

// The same without an engine: parameters and gradients are torch's, the optimizer's state lies in
// vectors of this program. headrace::CpuOptimizer has the engine's arithmetic, with f32 masters and
// moments beside bf16 weights, where torch's AdamW would keep its moments in bf16.
struct Plain {
  Plain(const headrace::CpuOptimizer& optimizer, const at::Tensor& parameter) : tensor(parameter) {
    const auto bytes = optimizer.state_bytes(headrace::DType::kBf16, {}, elements());
    master.resize(bytes.master);
    for (std::size_t k = 0; k < 2; ++k) moment[k].resize(bytes.moment[k]);
  }
  std::uint64_t elements() const { return static_cast<std::uint64_t>(tensor.numel()); }
  headrace::ParameterState state() {
    return {.elements = elements(),
            .weight = {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()},
            .master = master,
            .moment = {moment[0], moment[1]}};
  }
  headrace::ParameterUpdate update(int step) {
    const at::Tensor& grad = tensor.grad();
    headrace::ParameterUpdate update = {.state = state()};
    update.gradient = {static_cast<const std::byte*>(grad.const_data_ptr()), grad.nbytes()};
    update.t = static_cast<std::uint64_t>(step);
    if (tensor.dim() < 2) update.hyperparameters.weight_decay = 0;
    return update;
  }
  at::Tensor tensor;
  std::vector<std::byte> master;
  std::array<std::vector<std::byte>, 2> moment;
};

Outcome train_plainly(const std::string& text) {
  torch::manual_seed(1);
  Gpt gpt;
  headrace::CpuOptimizer optimizer;
  std::vector<Plain> parameters;
  for (const at::Tensor& parameter : gpt->parameters())
    parameters.emplace_back(optimizer, parameter);
  std::vector<headrace::ParameterState> states;
  for (Plain& parameter : parameters) states.push_back(parameter.state());
  optimizer.initialize(states);

  const auto run = [&](std::size_t i, const at::Tensor& x) { return gpt->blocks[i]->forward(x); };
  Outcome outcome;
  std::mt19937 random(2);
  for (int step = 1; step <= kSteps; ++step) {
    const at::Tensor loss = loss_of(gpt, windows(text, random), run);
    loss.backward();
    std::vector<headrace::ParameterUpdate> updates;
    for (Plain& parameter : parameters) updates.push_back(parameter.update(step));
    optimizer.step(updates, {.learning_rate = learning_rate(step)});
    gpt->zero_grad();
    outcome.add_loss("plain", loss.item<double>());
  }
  for (const Block& block : gpt->blocks) outcome.add_parameters(block->parameters());
  outcome.add_parameters(gpt->rest());
  return outcome;
}

headrace::Settings settings_of(const std::string& folder) {
  headrace::Settings settings;
  const bool drive = !folder.empty();
  settings.offload_optimizer = settings.offload_parameters =
      drive ? headrace::OffloadDevice::kNvme : headrace::OffloadDevice::kCpu;
  if (drive) settings.nvme_paths = {folder};
  settings.allow_memory_backed = true;  // a model this small may lie in a tmpfs
  return settings;
}

// Returns the exit code.
int compare(const Outcome& offloaded, const Outcome& plain) {
  const auto yes_or_no = [](bool value) { return value ? "yes" : "no"; };
  const bool same_losses = offloaded.losses == plain.losses;
  const bool same_hash = offloaded.hash == plain.hash;
  std::fprintf(stderr, "hash of the parameters: %016llx offloaded, %016llx plain\n",
               (unsigned long long)offloaded.hash, (unsigned long long)plain.hash);
  std::printf("the loss went down                           %s\n",
              yes_or_no(offloaded.losses.back() < offloaded.losses.front()));
  std::printf("without offload: the same %d losses         %s\n", kSteps, yes_or_no(same_losses));
  std::printf("without offload: the same hash of the model  %s\n", yes_or_no(same_hash));
  return same_losses && same_hash ? 0 : 1;
}
}  // namespace

int main(int argc, char** argv) {
  std::string folder, text_file;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--text" && i + 1 < argc) {
      text_file = argv[++i];
    } else if (word.starts_with('-') || !folder.empty()) {
      std::printf("usage: 06_gpt [--text FILE] [FOLDER]\n");
      return word == "--help" ? 0 : 2;
    } else {
      folder = word;
    }
  }
  at::set_num_threads(1);  // of a model this small more of them would wait for each other
  try {
    const std::string text = text_file.empty() ? sentences() : read_text(text_file);
    const Outcome offloaded = train_offloaded(settings_of(folder), text);
    return compare(offloaded, train_plainly(text));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "06_gpt: %s\n", error.what());
    return 1;
  }
}
