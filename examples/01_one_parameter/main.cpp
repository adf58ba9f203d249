// SPDX-License-Identifier: Apache-2.0
// 01_one_parameter: one parameter through three steps, without a framework.
//
//   01_one_parameter         all in memory
//   01_one_parameter FOLDER  parameter and state in a swap file there: the same output, bit for bit
// [program]
#include <headrace/engine.hpp>

#include <cstdio>
#include <cstring>
#include <exception>
#include <span>

headrace::Settings settings_of(const char* folder) {
  headrace::Settings settings;  // the defaults keep all in memory
  if (folder == nullptr) return settings;
  settings.offload_parameters = settings.offload_optimizer = headrace::OffloadDevice::kNvme;
  settings.nvme_paths = {folder};
  settings.allow_memory_backed = true;  // four numbers may lie in a tmpfs
  return settings;
}

int main(int argc, char** argv) try {
  if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
    std::printf("usage: 01_one_parameter [FOLDER]\n");
    return std::strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  const headrace::Settings settings = settings_of(argc > 1 ? argv[1] : nullptr);
  // [engine]
  headrace::Engine engine(settings);
  const headrace::GroupId group =
      engine.add_group("linear", {{"weight", headrace::DType::kF32, {2, 2}}});
  const headrace::ParameterId weight = engine.parameter("linear.weight");
  engine.freeze();  // plans, and allocates exactly the plan; nothing can be added from here on

  const float initial[4] = {0.5f, -1, 2, 0.25f};
  engine.load(group, [&](headrace::ParameterId, std::span<std::byte> values) {
    std::memcpy(values.data(), initial, values.size());
  });
  for (int step = 1; step <= 3; ++step) {
    float gradient[4];
    {
      const headrace::Gathered gathered = engine.gather(group);  // in memory until the brace
      const auto* w = static_cast<const float*>(gathered.bytes(weight).data);
      std::printf("weight  %9.6f %9.6f %9.6f %9.6f\n", w[0], w[1], w[2], w[3]);
      for (int i = 0; i < 4; ++i) gradient[i] = 2 * w[i];  // of the sum of squares
    }
    engine.add_gradient(weight, gradient, headrace::DType::kF32);
    const headrace::StepResult result = engine.step({.learning_rate = 0.1f, .max_norm = 1});
    std::printf("step %d: gradient norm %.4f, scaled by %.4f\n", step, result.gradient_norm,
                result.clip_factor);
  }
  std::printf("parameters %s\n", engine.hash_parameters().c_str());
  std::printf("state      %s\n", engine.hash_optimizer_state().c_str());
  engine.close();  // threads, files and memory are gone when it returns
  // [/engine]
} catch (const std::exception& error) {
  std::fprintf(stderr, "01_one_parameter: %s\n", error.what());
  return 1;
}
// [/program]
