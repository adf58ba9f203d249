// SPDX-License-Identifier: Apache-2.0
#include "support/mlp.hpp"

#include <cmath>
#include <cstring>

#include "kernels/number_formats.hpp"

namespace headrace::testing {
float noise(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed * 0x9e3779b97f4a7c15ull + index + 0x632be59bd9b4e019ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return static_cast<float>(static_cast<double>(z >> 11) * 0x1.0p-52 - 1.0);
}

namespace {
float widened(DType dtype, std::uint16_t value) {
  return dtype == DType::kF16 ? kernels::f16_to_f32(value) : kernels::bf16_to_f32(value);
}
std::uint16_t rounded(DType dtype, float value) {
  return dtype == DType::kF16 ? kernels::f32_to_f16(value) : kernels::f32_to_bf16(value);
}
std::vector<float> widened(DType dtype, const std::uint16_t* values, std::size_t count) {
  std::vector<float> wide(count);
  for (std::size_t i = 0; i < count; ++i) wide[i] = widened(dtype, values[i]);
  return wide;
}

Hyperparameters without_decay(Hyperparameters values) {
  values.weight_decay = 0;
  return values;
}
}  // namespace

Mlp::Mlp(Engine& engine, device::ComputingDevice& device, const MlpOptions& options)
    : engine_(engine), device_(device), options_(options) {
  const HyperparameterSetId no_decay =
      engine.add_hyperparameters(without_decay(options.hyperparameters));
  engine.set_default_hyperparameters(options.hyperparameters);
  const std::int64_t width = options.width;
  const std::size_t values = static_cast<std::size_t>(options.batch) * options.width;
  for (std::uint32_t i = 0; i < options.layers; ++i) {
    Layer layer;
    layer.group = engine.add_group("layer." + std::to_string(i),
                                   {{"weight", options.dtype, {width, width}, {}},
                                    {"bias", DType::kF32, {width}, no_decay},
                                    {"sometimes", options.dtype, {width}, no_decay}});
    const auto ids = engine.parameters(layer.group);
    layer.weight = ids[0];
    layer.bias = ids[1];
    layer.sometimes = ids[2];
    layer.input.resize(values);
    layer.output.resize(values);
    layer.output_gradient.resize(values);
    const auto on_device = [&](std::size_t bytes) {
      return std::make_unique<device::DeviceBytes>(device, bytes);
    };
    layer.weight_gradient = on_device(2 * options.width * options.width);
    layer.sometimes_gradient = on_device(2 * options.width);
    layer.bias_gradient = on_device(4 * options.width);
    layers_.push_back(std::move(layer));
  }
  x_.resize(values);
  target_.resize(values);
  engine.freeze();
  stream_ = device.create_stream();
  if (const auto resumed = engine.resumed()) {
    steps_ = resumed->step;
    return;
  }
  for (const Layer& layer : layers_) {
    engine.load(layer.group, [&](ParameterId id, std::span<std::byte> out) {
      const bool narrow = engine.spec(id).dtype != DType::kF32;
      const std::size_t count = out.size() / (narrow ? 2 : 4);
      for (std::size_t e = 0; e < count; ++e) {
        const float value = noise(100 + id.index, e) * (narrow ? 0.1f : 0.01f);
        if (narrow) {
          const std::uint16_t bits = rounded(options_.dtype, value);
          std::memcpy(out.data() + 2 * e, &bits, 2);
        } else {
          std::memcpy(out.data() + 4 * e, &value, 4);
        }
      }
    });
  }
}

void Mlp::fill_batch(std::uint64_t micro_batch) {
  device_.launch(stream_, [this, micro_batch] {
    for (std::size_t i = 0; i < x_.size(); ++i) {
      x_[i] = noise(options_.data_seed, micro_batch * x_.size() + i);
      target_[i] = std::sin(3.0f * x_[i]) * 0.5f;
    }
  });
}

// output = tanh(W input + bias) + sometimes * input; the last term on even steps only.
void Mlp::forward(Layer& layer, const std::vector<float>& input) {
  const Gathered lease = engine_.gather(layer.group, stream_);
  const auto* weight = static_cast<const std::uint16_t*>(lease.bytes(layer.weight).data);
  const auto* bias = static_cast<const float*>(lease.bytes(layer.bias).data);
  const auto* sometimes = static_cast<const std::uint16_t*>(lease.bytes(layer.sometimes).data);
  const bool used = steps_ % 2 == 0;
  device_.launch(stream_, [this, &layer, &input, weight, bias, sometimes, used] {
    layer.input = input;
    const std::size_t width = options_.width;
    const std::vector<float> w = widened(options_.dtype, weight, width * width);
    const std::vector<float> extra = widened(options_.dtype, sometimes, width);
    for (std::size_t b = 0; b < options_.batch; ++b) {
      for (std::size_t o = 0; o < width; ++o) {
        float sum = bias[o];
        for (std::size_t i = 0; i < width; ++i) sum += w[o * width + i] * input[b * width + i];
        float out = std::tanh(sum);
        if (used) out += extra[o] * input[b * width + o];
        layer.output[b * width + o] = out;
      }
    }
  });
}

void Mlp::backward(std::size_t index) {
  Layer& layer = layers_[index];
  const bool used = steps_ % 2 == 0;
  {
    const Gathered lease = engine_.gather(layer.group, stream_);
    const auto* weight = static_cast<const std::uint16_t*>(lease.bytes(layer.weight).data);
    const auto* sometimes = static_cast<const std::uint16_t*>(lease.bytes(layer.sometimes).data);
    std::vector<float>* below = index > 0 ? &layers_[index - 1].output_gradient : nullptr;
    device_.launch(stream_, [this, &layer, below, weight, sometimes, used] {
      const std::size_t width = options_.width;
      const std::vector<float> w = widened(options_.dtype, weight, width * width);
      const std::vector<float> scale = widened(options_.dtype, sometimes, width);
      std::vector<float> weight_gradient(width * width), pre(layer.output.size());
      std::vector<float> sometimes_gradient(width), bias_gradient(width);
      if (below != nullptr) below->assign(layer.output.size(), 0);
      for (std::size_t b = 0; b < options_.batch; ++b) {
        for (std::size_t o = 0; o < width; ++o) {
          const float extra = used ? scale[o] * layer.input[b * width + o] : 0.0f;
          const float t = layer.output[b * width + o] - extra;
          const float g = layer.output_gradient[b * width + o];
          const float pre_gradient = g * (1.0f - t * t);
          sometimes_gradient[o] += g * layer.input[b * width + o];
          bias_gradient[o] += pre_gradient;
          for (std::size_t i = 0; i < width; ++i) {
            weight_gradient[o * width + i] += pre_gradient * layer.input[b * width + i];
            if (below != nullptr) (*below)[b * width + i] += pre_gradient * w[o * width + i];
          }
          if (below != nullptr && used) (*below)[b * width + o] += g * scale[o];
        }
      }
      auto* const narrow = static_cast<std::uint16_t*>(layer.weight_gradient->data());
      for (std::size_t i = 0; i < weight_gradient.size(); ++i)
        narrow[i] = rounded(options_.dtype, weight_gradient[i]);
      auto* const narrow_sometimes = static_cast<std::uint16_t*>(layer.sometimes_gradient->data());
      for (std::size_t i = 0; i < width; ++i)
        narrow_sometimes[i] = rounded(options_.dtype, sometimes_gradient[i]);
      std::memcpy(layer.bias_gradient->data(), bias_gradient.data(), 4 * width);
    });
  }
  engine_.add_gradient(layer.weight, layer.weight_gradient->data(), options_.dtype, stream_);
  engine_.add_gradient(layer.bias, layer.bias_gradient->data(), DType::kF32, stream_);
  if (used)
    engine_.add_gradient(layer.sometimes, layer.sometimes_gradient->data(), options_.dtype,
                         stream_);
}

void Mlp::compute_gradients() {
  for (std::uint32_t m = 0; m < options_.accumulation; ++m) {
    fill_batch(m);  // the same data every step: the loss falls
    const std::vector<float>* input = &x_;
    for (Layer& layer : layers_) {
      forward(layer, *input);
      input = &layer.output;
    }
    device_.launch(stream_, [this] {
      Layer& last = layers_.back();
      loss_ = 0;
      for (std::size_t i = 0; i < target_.size(); ++i) {
        const float difference = last.output[i] - target_[i];
        last.output_gradient[i] = 2.0f * difference / static_cast<float>(target_.size());
        loss_ += static_cast<double>(difference) * difference;
      }
    });
    for (std::size_t i = layers_.size(); i > 0; --i) backward(i - 1);
  }
  device_.synchronize(stream_);
}

StepResult Mlp::step() {
  const StepResult result =
      engine_.step({.learning_rate = 1e-2f,
                    .gradient_scale = 1.0f / static_cast<float>(options_.accumulation),
                    .max_norm = options_.max_norm});
  ++steps_;
  return result;
}

StepResult Mlp::train_step() {
  compute_gradients();
  return step();
}
}  // namespace headrace::testing
