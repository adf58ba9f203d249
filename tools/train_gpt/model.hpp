// SPDX-License-Identifier: Apache-2.0
// model.hpp: a byte-level GPT in LibTorch: pre-norm blocks, causal attention, GELU, learned
// positions, untied head. All weights of one dtype. Nothing here knows of offloading.
#pragma once
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "batches.hpp"
#include "gpt_shape.hpp"
#include "products.hpp"
#include "program/signals.hpp"
#include "safetensors.hpp"

namespace train_gpt {
inline at::ScalarType scalar_type_of(const GptShape& shape) {
  switch (shape.dtype) {
    case headrace::DType::kF32:
      return at::kFloat;
    case headrace::DType::kF16:
      return at::kHalf;
    case headrace::DType::kBf16:
    case headrace::DType::kU8:  // no recipe asks for it
      break;
  }
  return at::kBFloat16;
}

// weight [out, in], bias [out] unless left out.
struct LinearImpl : torch::nn::Module {
  LinearImpl(std::int64_t in, std::int64_t out, const GptShape& shape, bool with_bias = true)
      : weight(register_parameter("weight", at::empty({out, in}, scalar_type_of(shape)))),
        in_f32(shape.products_in_f32) {
    if (with_bias) bias = register_parameter("bias", at::empty({out}, scalar_type_of(shape)));
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x, weight, bias, in_f32); }
  at::Tensor weight, bias;
  bool in_f32;
};
TORCH_MODULE(Linear);

struct NormImpl : torch::nn::Module {
  NormImpl(std::int64_t size, at::ScalarType type)
      : weight(register_parameter("weight", at::empty({size}, type))),
        bias(register_parameter("bias", at::empty({size}, type))) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::layer_norm(x, weight.sizes(), weight, bias);
  }
  at::Tensor weight, bias;
};
TORCH_MODULE(Norm);

struct TableImpl : torch::nn::Module {
  TableImpl(std::int64_t rows, std::int64_t size, at::ScalarType type)
      : weight(register_parameter("weight", at::empty({rows, size}, type))) {}
  at::Tensor weight;
};
TORCH_MODULE(Table);

// Bytes [batch, sequence] to [batch, sequence, hidden].
struct EmbedImpl : torch::nn::Module {
  explicit EmbedImpl(const GptShape& shape)
      : tokens(register_module("tokens", Table(kVocabulary, shape.hidden, scalar_type_of(shape)))),
        positions(register_module("positions",
                                  Table(shape.sequence, shape.hidden, scalar_type_of(shape)))) {}
  at::Tensor forward(const at::Tensor& bytes) {
    // In f32, so that the gradients of frequent bytes are summed in f32.
    const at::Tensor rows = at::embedding(tokens->weight.to(at::kFloat), bytes);
    return (rows + positions->weight.slice(0, 0, bytes.size(1)))
        .to(positions->weight.scalar_type());
  }
  Table tokens, positions;
};
TORCH_MODULE(Embed);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const GptShape& shape)
      : heads(shape.heads),
        in_f32(shape.products_in_f32),
        norm_1(register_module("norm_1", Norm(shape.hidden, scalar_type_of(shape)))),
        qkv(register_module("qkv", Linear(shape.hidden, 3 * std::int64_t{shape.hidden}, shape))),
        projection(register_module("projection", Linear(shape.hidden, shape.hidden, shape))),
        norm_2(register_module("norm_2", Norm(shape.hidden, scalar_type_of(shape)))),
        up(register_module("up", Linear(shape.hidden, 4 * std::int64_t{shape.hidden}, shape))),
        down(register_module("down", Linear(4 * std::int64_t{shape.hidden}, shape.hidden, shape))) {
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor attended = x + projection->forward(attend(qkv->forward(norm_1->forward(x))));
    return attended + down->forward(at::gelu(up->forward(norm_2->forward(attended))));
  }

  std::int64_t heads;
  bool in_f32;
  Norm norm_1;
  Linear qkv, projection;
  Norm norm_2;
  Linear up, down;

 private:
  // [batch, sequence, 3 hidden] to [batch, sequence, hidden].
  at::Tensor attend(const at::Tensor& all) const {
    const std::int64_t batch = all.size(0), sequence = all.size(1), hidden = all.size(2) / 3;
    const auto parts =
        all.view({batch, sequence, 3, heads, hidden / heads}).permute({2, 0, 3, 1, 4}).unbind();
    const at::Tensor mixed = attention(parts[0], parts[1], parts[2], in_f32);
    return mixed.transpose(1, 2).reshape({batch, sequence, hidden});
  }
};
TORCH_MODULE(Block);

// [batch, sequence, hidden] to scores [batch, sequence, 256].
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const GptShape& shape)
      : norm(register_module("norm", Norm(shape.hidden, scalar_type_of(shape)))),
        out(register_module("out", Linear(shape.hidden, kVocabulary, shape, false))) {}
  at::Tensor forward(const at::Tensor& x) { return out->forward(norm->forward(x)); }
  Norm norm;
  Linear out;
};
TORCH_MODULE(Head);

// Mean over all bytes, in f32 whatever the scores are in.
inline at::Tensor loss_of(const at::Tensor& scores, const at::Tensor& targets) {
  return at::cross_entropy_loss(scores.flatten(0, 1).to(at::kFloat), targets.flatten());
}

struct Tokens {
  at::Tensor inputs, targets;  // int64 [rows, sequence]
};
inline Tokens tokens_of(const Batch& batch, at::Device device) {
  const std::int64_t rows = batch.rows, window = std::int64_t{batch.sequence} + 1;
  const at::Tensor bytes =
      at::from_blob(const_cast<std::uint8_t*>(batch.windows.data()), {rows, window}, at::kByte)
          .to(device)
          .to(at::kLong);
  return {bytes.slice(1, 0, window - 1).contiguous(), bytes.slice(1, 1, window).contiguous()};
}

// Gives each parameter its first value: from the file, or by a rule that depends on seed and name
// only, so that it is the same however the model is built.
class Initialiser {
 public:
  Initialiser(const GptShape& shape, std::uint64_t seed, const InitialWeights* file)
      : layers_(shape.layers), seed_(seed), file_(file) {}

  void operator()(torch::nn::Module& module, const std::string& group) const {
    const at::NoGradGuard no_grad;
    for (const auto& item : module.named_parameters()) {
      headrace::tools::check_signal();
      at::Tensor values = item.value();
      const std::string name = group + "." + item.key();
      if (file_ != nullptr) {
        file_->read(name, 0, {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
      } else if (values.dim() < 2) {
        const bool is_scale =
            item.key().find("norm") != std::string::npos && item.key().ends_with("weight");
        values.fill_(is_scale ? 1.0 : 0.0);
      } else {
        values.normal_(0.0, deviation_of(name), at::detail::createCPUGenerator(seed_of(name)));
      }
    }
  }

 private:
  double deviation_of(const std::string& name) const {
    // Near the size of normalised values: the norms behind small embeddings magnify their
    // gradients.
    if (name.starts_with("embed.")) return 0.5;
    // Weights that add to the residual stream shrink with the number of additions.
    const bool is_added = name.ends_with("projection.weight") || name.ends_with("down.weight");
    return is_added ? 0.02 / std::sqrt(2.0 * layers_) : 0.02;
  }
  std::uint64_t seed_of(const std::string& name) const {
    std::uint64_t sum = seed_;
    for (const char c : name)
      sum = random_below(sum, static_cast<unsigned char>(c), ~std::uint64_t{0});
    return sum;
  }

  double layers_;
  std::uint64_t seed_;
  const InitialWeights* file_;
};

// A signal ends a long forward pass after the block in hand, and a long backward pass too.
inline at::Tensor ends_on_signal(at::Tensor x) {
  using headrace::tools::check_signal;
  check_signal();
  if (x.requires_grad()) x.register_hook([](const at::Tensor&) { check_signal(); });
  return x;
}
}  // namespace train_gpt
