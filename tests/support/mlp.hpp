// SPDX-License-Identifier: Apache-2.0
// mlp.hpp: a small network trained through the engine without a framework: 16-bit weights, f32
// biases, two decay sets, one parameter that has no gradient on every second step. All arithmetic
// runs on the device's stream, so a missing wait anywhere shows on the late device.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/computing_device.hpp"
#include "device/device_bytes.hpp"
#include "headrace/engine.hpp"

namespace headrace::testing {
struct MlpOptions {
  std::uint32_t layers = 3;
  std::uint32_t width = 300;  // 90,000 elements a weight: tiles and blocks are not whole
  std::uint32_t batch = 3;
  std::uint32_t accumulation = 1;
  float max_norm = 0;
  DType dtype = DType::kBf16;                                // of the weights, or kF16
  std::uint64_t data_seed = 1;                               // ranks differ in it
  Hyperparameters hyperparameters = {.weight_decay = 0.1f};  // of all but the biases, undecayed
};

class Mlp {
 public:
  // Registers, freezes and loads, or goes on where the engine has resumed.
  Mlp(Engine& engine, device::ComputingDevice& device, const MlpOptions& options);
  // One optimizer step of `accumulation` micro-batches; returns the engine's result.
  StepResult train_step();
  double last_loss() const noexcept { return loss_; }
  std::uint64_t steps() const noexcept { return steps_; }
  // Forward and backward of all micro-batches without the step: for tests of what may come between.
  void compute_gradients();
  StepResult step();

 private:
  struct Layer {
    GroupId group;
    ParameterId weight, bias, sometimes;
    std::vector<float> input, output, output_gradient;  // [batch, width]
    // Device memory: of `dtype`, and f32 for the bias.
    std::unique_ptr<device::DeviceBytes> weight_gradient, sometimes_gradient, bias_gradient;
  };
  void forward(Layer& layer, const std::vector<float>& input);
  void backward(std::size_t index);
  void fill_batch(std::uint64_t micro_batch);

  Engine& engine_;
  device::ComputingDevice& device_;
  const MlpOptions options_;
  Stream stream_;
  std::vector<Layer> layers_;
  std::vector<float> x_, target_;
  std::uint64_t steps_ = 0;
  double loss_ = 0;
};

// Uniform in [-1, 1), a function of its arguments alone.
float noise(std::uint64_t seed, std::uint64_t index);
}  // namespace headrace::testing
