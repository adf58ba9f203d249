// SPDX-License-Identifier: Apache-2.0
// signals.hpp: Ctrl-C and SIGTERM end a program early, with everything removed as at its end.
#pragma once
#include <initializer_list>

namespace headrace::tools {
// Notes SIGINT, SIGTERM, SIGHUP and the first SIGQUIT, for the functions below. A signal that the
// parent had us ignore (nohup, a shell's background) stays ignored, but for `even_if_ignored`.
// Writes to a pipe without reader, or past the limit on file sizes, set errno and send no signal.
void install_signal_handlers(std::initializer_list<int> even_if_ignored = {});
// The first signal that came, 0 for none.
int signal_received() noexcept;
// Throws headrace::Error kInterrupted once a signal has come.
void check_signal();

// Between construction and destruction a signal calls `tell(context)`, in the handler and in any
// thread, so of what may be called there only; one that came earlier calls it here. At most four at
// a time.
class TellOnSignal {
 public:
  TellOnSignal(void (*tell)(void* context) noexcept, void* context) noexcept;
  ~TellOnSignal();
  TellOnSignal(const TellOnSignal&) = delete;
  TellOnSignal& operator=(const TellOnSignal&) = delete;
  void tell() const noexcept { tell_(context_); }

 private:
  void (*tell_)(void*) noexcept;
  void* context_;
};
}  // namespace headrace::tools
