// SPDX-License-Identifier: Apache-2.0
// gang.hpp: the threads of a pass, and how long it took.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "async/thread_team.hpp"

namespace headrace::tools {
// One thread at a time calls run(); it is one of those that work.
class Gang {
 public:
  // Calls work(chunk) for each of `chunks`, each once, on `threads` threads. Returns how long that
  // took, seconds. `work` must not throw. Threads wait between passes; those of a count are started
  // with its first.
  double run(std::uint32_t threads, std::uint64_t chunks,
             const std::function<void(std::uint64_t)>& work);

 private:
  std::map<std::uint32_t, std::unique_ptr<async::ThreadTeam>> pools_;  // by their threads
};
}  // namespace headrace::tools
