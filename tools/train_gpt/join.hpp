// SPDX-License-Identifier: Apache-2.0
// join.hpp: how this program comes to its other ranks.
#pragma once
#include <memory>

#include "headrace/launch.hpp"
#include "headrace/transport.hpp"

namespace train_gpt {
// Over torch's Gloo, or over the MPI that started this process: a module beside the program, so
// that it needs no MPI where none is used. Blocks until all ranks are there.
// Throws headrace::Error: kUnsupported where there is no such module.
std::shared_ptr<headrace::Transport> join_ranks(const headrace::Launch& launch,
                                                const headrace::CollectiveOptions& ranks);
// Ends MPI, if it was begun: after a failure the launcher ends the ranks that still wait.
void leave_launch(int exit_code) noexcept;
}  // namespace train_gpt
