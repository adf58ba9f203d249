// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/gang.hpp"

#include "platform/machine.hpp"
#include "program/progress.hpp"

namespace headrace::tools {
double Gang::run(std::uint32_t threads, std::uint64_t units,
                 const std::function<void(std::uint64_t)>& work) {
  std::unique_ptr<async::ThreadTeam>& pool = pools_[threads];
  if (!pool)
    pool = std::make_unique<async::ThreadTeam>(
        threads, async::ThreadTeam::Options{.nodes = platform::usable_cpus_by_node()});
  const auto call = [](void* context, std::uint64_t unit) noexcept {
    (*static_cast<const std::function<void(std::uint64_t)>*>(context))(unit);
  };
  const Stopwatch watch;
  pool->run(units, call, const_cast<std::function<void(std::uint64_t)>*>(&work));
  return watch.seconds();
}
}  // namespace headrace::tools
