// SPDX-License-Identifier: Apache-2.0
#include "program/run_program.hpp"

#include "command_line/words.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
int run_program(const char* name, int argc, const char* const* argv,
                int (*run)(int argc, const char* const* argv)) noexcept {
  hold_standard_descriptors();
  install_signal_handlers();
  int exit_code = kFailed;
  try {
    exit_code = run(argc, argv);
  } catch (const command_line::Fault& fault) {
    tell("{}: {}\n", name, command_line::text_of(fault, "nothing was done"));
    exit_code = kRefused;
  } catch (const std::exception& error) {
    tell("{}: {}\n", name, unexpected_text(error, "nothing was done"));
  }
  return finish_output(name, exit_code);
}
}  // namespace headrace::tools
