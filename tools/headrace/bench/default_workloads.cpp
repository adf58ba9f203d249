// SPDX-License-Identifier: Apache-2.0
#include "bench/default_workloads.hpp"

#include <algorithm>

#include "base/units.hpp"

namespace headrace::tools {
namespace {
constexpr std::uint64_t kMostInFlight = 128 * base::kMiB;

struct Shape {
  std::uint64_t block_bytes;
  std::uint32_t depth;
};

class Set {
 public:
  explicit Set(const Axes& axes) : axes_(axes) {}

  void add(Pattern pattern, Shape shape) {
    if (shape.block_bytes * shape.depth * axes_.jobs > kMostInFlight) return;
    put({.pattern = pattern, .block_bytes = shape.block_bytes, .depth = shape.depth});
  }
  // With each queue and batch asked for, and unregistered if asked for.
  void put(Workload workload) {
    workload.jobs = axes_.jobs;
    const Settings defaults;
    for (const IoQueueKind queue : or_else(axes_.queues, axes_.queue)) {
      workload.queue = queue;
      for (const std::uint32_t batch : or_else(axes_.batches, defaults.submit_batch)) {
        workload.submit_batch = batch;
        push(workload);
      }
    }
  }
  std::vector<Workload> all() { return std::move(workloads_); }

 private:
  template <class T>
  static std::vector<T> or_else(const std::vector<T>& given, T otherwise) {
    return given.empty() ? std::vector<T>{otherwise} : given;
  }
  void push(const Workload& workload) {
    workloads_.push_back(workload);
    if (!axes_.also_unregistered) return;
    workloads_.push_back(workload);
    workloads_.back().register_buffers = false;
  }

  const Axes& axes_;
  std::vector<Workload> workloads_;
};

std::vector<Workload> combinations(const Axes& axes) {
  const std::vector<Pattern> usual{Pattern::kRead, Pattern::kWrite, Pattern::kMixed};
  const Settings defaults;
  const auto or_else = [](const auto& given, auto otherwise) {
    return given.empty() ? decltype(otherwise)(std::move(otherwise)) : given;
  };
  Set set(axes);
  for (const Pattern pattern : or_else(axes.patterns, usual)) {
    for (const auto block : or_else(axes.blocks, std::vector{defaults.io_block_bytes})) {
      for (const auto depth : or_else(axes.depths, std::vector{defaults.queue_depth})) {
        set.put({.pattern = pattern, .block_bytes = block, .depth = depth});
      }
    }
  }
  return set.all();
}
}  // namespace

std::vector<Workload> workloads_of(const Axes& axes, bool quick) {
  const bool given = !axes.patterns.empty() || !axes.blocks.empty() || !axes.depths.empty() ||
                     !axes.queues.empty() || !axes.batches.empty();
  if (given) return combinations(axes);
  const std::uint64_t k = base::kKiB, m = base::kMiB;
  Set set(axes);
  if (quick) {
    set.add(Pattern::kRead, {m, 16});
    for (const Pattern pattern : {Pattern::kRead, Pattern::kWrite, Pattern::kMixed})
      set.add(pattern, {4 * m, 4});
    return set.all();
  }
  for (const std::uint64_t block : {256 * k, m, 4 * m, 16 * m}) {
    for (const std::uint32_t depth : {1u, 4u, 16u, 32u}) set.add(Pattern::kRead, {block, depth});
  }
  for (const Pattern pattern : {Pattern::kWrite, Pattern::kMixed}) {
    for (const Shape shape : {Shape{m, 16}, Shape{4 * m, 4}, Shape{16 * m, 2}})
      set.add(pattern, shape);
  }
  set.add(Pattern::kRandRead, {m, 16});
  set.add(Pattern::kRandWrite, {m, 16});
  return set.all();
}
}  // namespace headrace::tools
