// SPDX-License-Identifier: Apache-2.0
// signals.hpp: Ctrl-C and SIGTERM end a program early, with everything removed as at its end.
#pragma once

namespace headrace::tools {
// SIGINT, SIGTERM, SIGHUP and the first SIGQUIT are noted. Writing to a pipe without reader, or
// past the limit on file sizes, ends in errno and not in a signal.
void install_signal_handlers();
int signal_received() noexcept;
// Throws headrace::Error kInterrupted once a signal has come.
void check_signal();
// Called in the handler from now on, so of what may be called there only. One per process.
void on_signal(void (*call)() noexcept) noexcept;
}  // namespace headrace::tools
