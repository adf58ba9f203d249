// SPDX-License-Identifier: Apache-2.0
// products.hpp: linear layers and attention of 16-bit tensors, whose products are computed in that
// dtype, or in f32 where LibTorch is far faster so.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace train_gpt {
// x times weight transposed, of 16-bit tensors, with products and sums in f32. Between forward and
// backward it keeps what at::linear keeps: `x` and `weight` as they are, so that a weight can be
// offloaded meanwhile.
struct LinearInF32 : torch::autograd::Function<LinearInF32> {
  using Tensors = torch::autograd::variable_list;

  // x [..., in], weight [out, in]; [..., out].
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return at::linear(x.to(at::kFloat), weight.to(at::kFloat)).to(x.scalar_type());
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const Tensors saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor out = gradients[0].to(at::kFloat);
    const at::Tensor rows = out.flatten(0, -2);
    const at::Tensor of_x = at::matmul(out, weight.to(at::kFloat)).to(x.scalar_type());
    const at::Tensor of_weight =
        at::mm(rows.t(), x.flatten(0, -2).to(at::kFloat)).to(weight.scalar_type());
    return {of_x, of_weight};
  }
};

// `bias` may be undefined.
inline at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         bool in_f32) {
  if (!in_f32) return at::linear(x, weight, bias);
  const at::Tensor product = LinearInF32::apply(x, weight);
  return bias.defined() ? product + bias : product;
}

// Causal, [batch, heads, sequence, width].
inline at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            bool in_f32) {
  if (!in_f32) return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
  return at::scaled_dot_product_attention(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), {},
                                          0.0, true)
      .to(q.scalar_type());
}
}  // namespace train_gpt
