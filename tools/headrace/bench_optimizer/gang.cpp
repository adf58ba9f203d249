// SPDX-License-Identifier: Apache-2.0
#include "bench_optimizer/gang.hpp"

#include "platform/machine.hpp"
#include "program/progress.hpp"

namespace headrace::tools {
double Gang::run(std::uint32_t threads, std::uint64_t chunks,
                 const std::function<void(std::uint64_t)>& work) {
  std::unique_ptr<async::ThreadTeam>& pool = pools_[threads];
  if (!pool)
    pool = std::make_unique<async::ThreadTeam>(
        threads, async::ThreadTeam::Options{.nodes = platform::usable_cpus_by_node()});
  const auto call = [](void* context, std::uint64_t chunk) noexcept {
    (*static_cast<const std::function<void(std::uint64_t)>*>(context))(chunk);
  };
  const Stopwatch watch;
  pool->run(chunks, call, const_cast<std::function<void(std::uint64_t)>*>(&work));
  return watch.seconds();
}
}  // namespace headrace::tools
