// SPDX-License-Identifier: Apache-2.0
// other_asio.cpp FOLDER: a program with an Asio of its own, built with other macros than
// Headrace's, so that the classes of both have the same names and other members. Engines train
// inside its handlers.
#define BOOST_ASIO_DISABLE_THREADS 1
#define BOOST_ASIO_DISABLE_EPOLL 1
#include <headrace/engine.hpp>

#include <boost/asio.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {
float train(const headrace::Settings& settings) {
  headrace::Engine engine(settings);
  const auto group = engine.add_group("g", {{"w", headrace::DType::kF32, {1000}}});
  engine.freeze();
  engine.load(group, [](headrace::ParameterId, std::span<std::byte> values) {
    const std::vector<float> ones(values.size() / sizeof(float), 1.0f);
    std::memcpy(values.data(), ones.data(), values.size());
  });
  const std::vector<float> gradient(1000, 1.0f);
  const auto id = engine.parameter("g.w");
  for (int i = 0; i < 5; ++i) {
    engine.add_gradient(id, gradient.data(), headrace::DType::kF32);
    engine.step({.learning_rate = 0.1f});
  }
  float result = 0;
  engine.store(id, headrace::Content::kWeight, [&](std::uint64_t, std::span<const std::byte> v) {
    std::memcpy(&result, v.data(), sizeof result);
  });
  engine.close();
  return result;
}

int trained = 0, alike = 0;

void train_at(boost::asio::steady_timer& timer, const headrace::Settings& on_drive) {
  timer.expires_after(std::chrono::milliseconds(1));
  timer.async_wait([&](const boost::system::error_code& error) {
    if (error) return;
    alike += train(on_drive) == train({});
    if (++trained < 5) train_at(timer, on_drive);
  });
}
}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  const auto on_drive = headrace::Settings::from_json(
      R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": ")" + folder +
      R"("}}, "headrace": {"allow_memory_backed": true}})");
  boost::asio::io_context context;
  boost::asio::steady_timer timer(context);
  train_at(timer, on_drive);
  context.run();
  std::printf("trained %d times, %d alike\n", trained, alike);
  return trained == 5 && alike == 5 ? 0 : 1;
}
