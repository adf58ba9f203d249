// SPDX-License-Identifier: Apache-2.0
// thread.hpp: starts every thread of the library, with a name and with the host's signals blocked.
#pragma once
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace headrace::async {
// Starts `body` on a thread called `name` (at most 15 bytes). The thread blocks all signals except
// those that its own faults raise (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS). If it blocked
// these, they would end the process without the host's crash handler. Throws headrace::Error
// kUnsupported if the machine provides no more threads.
std::thread start_thread(const std::string& name, std::function<void()> body);

// Binds the calling thread to these CPUs if the kernel permits it: a hint.
void bind_this_thread(const std::vector<int>& cpus) noexcept;
}  // namespace headrace::async
