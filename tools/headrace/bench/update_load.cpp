// SPDX-License-Identifier: Apache-2.0
#include "bench/update_load.hpp"

#include <ctime>

#include "headrace/optimizer.hpp"
#include "optimizer_cpu/update.hpp"

namespace headrace::tools {
namespace {
constexpr std::uint64_t kElements = 4 << 20;  // 14 bytes of state and gradient each

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}
}  // namespace

struct UpdateLoad::Worker {
  std::vector<std::uint16_t> weight, residual, gradient;
  std::vector<float> exp_avg, exp_avg_sq;
  std::atomic<double> cpu_seconds{0};
  std::atomic<bool> idle{true};
  std::thread thread;
};

UpdateLoad::UpdateLoad(std::uint32_t threads) {
  for (std::uint32_t i = 0; i < threads; ++i) {
    auto worker = std::make_unique<Worker>();
    for (auto* half : {&worker->weight, &worker->residual, &worker->gradient})
      half->assign(kElements, 0x3c00);
    for (auto* whole : {&worker->exp_avg, &worker->exp_avg_sq}) whole->assign(kElements, 1e-3f);
    worker->thread = std::thread([this, &worker = *worker] { serve(worker); });
    workers_.push_back(std::move(worker));
  }
}

UpdateLoad::~UpdateLoad() {
  ending_ = true;
  working_ = true;
  working_.notify_all();
  for (const auto& worker : workers_) worker->thread.join();
}

void UpdateLoad::start() {
  working_ = true;
  working_.notify_all();
}

void UpdateLoad::stop() {
  working_ = false;
  for (const auto& worker : workers_) worker->idle.wait(false);
}

double UpdateLoad::cpu_seconds() const {
  double sum = 0;
  for (const auto& worker : workers_) sum += worker->cpu_seconds;
  return sum;
}

void UpdateLoad::serve(Worker& worker) {
  const auto update = kernels::kernels_of(kernels::choose_instruction_set()).update;
  const optimizer_cpu::UpdateStep step =
      optimizer_cpu::make_update_step(OptimizerRule::kAdamW, {}, 1e-6, 1, 1.0);
  constexpr std::uint64_t kPiece = 1 << 18;  // between looks at the clock
  while (true) {
    working_.wait(false);
    if (ending_) return;
    worker.idle = false;
    for (std::uint64_t at = 0; working_ && !ending_; at = (at + kPiece) % kElements) {
      update({.elements = kPiece,
              .weight = worker.weight.data() + at,
              .master = worker.residual.data() + at,
              .moment = {worker.exp_avg.data() + at, worker.exp_avg_sq.data() + at},
              .gradient = worker.gradient.data() + at},
             step);
      worker.cpu_seconds = thread_cpu_seconds();
    }
    worker.idle = true;
    worker.idle.notify_all();
  }
}
}  // namespace headrace::tools
