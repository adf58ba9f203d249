// SPDX-License-Identifier: Apache-2.0
// models.hpp: small models for the adapter's tests, and what watches their gradients.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace headrace_test {
namespace nn = torch::nn;

struct MlpImpl : nn::Module {
  MlpImpl(std::int64_t in, std::int64_t hidden, std::int64_t out)
      : first(register_module("first", nn::Linear(in, hidden))),
        second(register_module("second", nn::Linear(hidden, out))) {}
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::gelu(first(x))); }
  nn::Linear first, second;
};
TORCH_MODULE(Mlp);

// Pre-LN, causal attention, GELU. The norms stay f32 when to_bf16() is called: two sections in one
// group.
struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t hidden, std::int64_t heads = 2)
      : heads(heads),
        norm_1(register_module("norm_1", nn::LayerNorm(nn::LayerNormOptions({hidden})))),
        qkv(register_module("qkv", nn::Linear(hidden, 3 * hidden))),
        projection(register_module("projection", nn::Linear(hidden, hidden))),
        norm_2(register_module("norm_2", nn::LayerNorm(nn::LayerNormOptions({hidden})))),
        mlp(register_module("mlp", Mlp(hidden, 4 * hidden, hidden))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto type = qkv->weight.scalar_type();
    const auto batch = x.size(0), length = x.size(1), hidden = x.size(2);
    const auto parts = qkv(norm_1(x.to(torch::kFloat)).to(type)).chunk(3, -1);
    const auto split = [&](const torch::Tensor& t) {
      return t.reshape({batch, length, heads, hidden / heads}).transpose(1, 2);
    };
    const auto mixed =
        at::scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]), {}, 0.0,
                                         /*is_causal=*/true);
    const auto y = x + projection(mixed.transpose(1, 2).reshape({batch, length, hidden}));
    return y + mlp(norm_2(y.to(torch::kFloat)).to(type));
  }
  void to_bf16() {
    to(torch::kBFloat16);
    norm_1->to(torch::kFloat);
    norm_2->to(torch::kFloat);
  }
  std::int64_t heads;
  nn::LayerNorm norm_1;
  nn::Linear qkv, projection;
  nn::LayerNorm norm_2;
  Mlp mlp;
};
TORCH_MODULE(Block);

inline Block make_block(std::int64_t hidden, bool bf16) {
  Block block(hidden);
  if (bf16) block->to_bf16();
  return block;
}

// Keeps a copy of every gradient of a module, by "<prefix><name>": also where somebody takes them
// away afterwards.
class GradientLog {
 public:
  void watch(const std::string& prefix, const nn::Module& module) {
    for (const auto& item : module.named_parameters()) watch(prefix + item.key(), item.value());
  }
  void watch(const std::string& name, const torch::Tensor& parameter) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(log_, name));
  }
  const std::vector<torch::Tensor>& of(const std::string& name) const { return (*log_)[name]; }
  const std::map<std::string, std::vector<torch::Tensor>>& all() const { return *log_; }

 private:
  using Log = std::map<std::string, std::vector<torch::Tensor>>;
  struct Hook final : torch::autograd::PostAccumulateGradHook {
    Hook(std::shared_ptr<Log> log, std::string name) : log(std::move(log)), name(std::move(name)) {}
    void operator()(const torch::Tensor& parameter) override {
      (*log)[name].push_back(parameter.grad().clone());
    }
    std::shared_ptr<Log> log;
    std::string name;
  };
  std::shared_ptr<Log> log_ = std::make_shared<Log>();
};

inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && torch::equal(a, b);
}
}  // namespace headrace_test
