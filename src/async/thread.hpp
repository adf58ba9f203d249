// SPDX-License-Identifier: Apache-2.0
// thread.hpp: how every thread of the library is started: named, and out of the way of the host's
// signals.
#pragma once
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace headrace::async {
// Starts `body` on a thread called `name` (at most 15 bytes). It blocks all signals but the ones
// that a fault raises in the thread itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS):
// blocked, they would end the process past the host's crash handler. Throws headrace::Error
// kUnsupported when the machine gives no more threads.
std::thread start_thread(const std::string& name, std::function<void()> body);

// Keeps the calling thread on these CPUs, if the kernel agrees: a hint.
void bind_this_thread(const std::vector<int>& cpus) noexcept;
}  // namespace headrace::async
