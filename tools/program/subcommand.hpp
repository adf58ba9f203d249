// SPDX-License-Identifier: Apache-2.0
// subcommand.hpp: from the words of a subcommand to its exit code.
#pragma once
#include <functional>
#include <string>

#include "command_line/words.hpp"
#include "program/failing.hpp"

namespace CLI {
class App;
}

namespace headrace::tools {
struct Subcommand {
  const char* program = "";       // "headrace inspect"
  const char* nothing_done = "";  // "nothing was checked": what follows from a fault of usage
  CLI::App& app;                  // with its options
  const std::string& json;        // where the report goes, once it is parsed
  std::function<void()> check;    // what was parsed; throws command_line::Fault and Error
  std::function<int()> run;       // throws command_line::Fault where it refuses
  const char* lost = "nothing was reported";  // what follows from a failure of the run
  AskLess less = {};
};
// Of --report, which bench and plan had: what took its place.
command_line::Fault page_of_json();

// Returns act()'s result. What another process is using (kWrongState) is a refusal: nothing was
// begun.
int refuse_if_in_use(const std::function<int()>& act);

// Parses, checks and runs. Prints refusals on stderr, and faults of usage in the report too. Other
// errors of the run go through Failing::guard().
int run_subcommand(const Subcommand& subcommand, int argc, const char* const* argv);
}  // namespace headrace::tools
