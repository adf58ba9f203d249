// SPDX-License-Identifier: Apache-2.0
// headrace: the command-line program; a folder per subcommand.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "bench/bench.hpp"
#include "checkpoint/checkpoint.hpp"
#include "doctor/doctor.hpp"
#include "estimate/estimate.hpp"
#include "headrace/version.hpp"
#include "inspect/inspect.hpp"
#include "plan/plan.hpp"
#include "program/exit_codes.hpp"
#include "program/output.hpp"
#include "program/run_program.hpp"
#include "settings/settings.hpp"
#include "sim/sim.hpp"
#include "store/store.hpp"
#include "tune/tune.hpp"

namespace headrace::tools {
namespace {
struct Subcommand {
  std::string_view name, arguments, help;
  // argv[0] is its name. Returns the exit code.
  int (*run)(int argc, const char* const* argv);
};
constexpr std::array kSubcommands{
    Subcommand{"doctor", "[PATH...]", "what this machine has for offloading, tried", doctor},
    Subcommand{"bench", "[PATH...]", "what a drive can do for offloading; beside fio, if asked",
               bench},
    Subcommand{"tune", "[PATH...]", "the engine's I/O settings for a drive, with an interval",
               tune},
    Subcommand{"estimate", "MODEL",
               "memory that training a model takes, beside DeepSpeed's estimates", estimate},
    Subcommand{"plan", "MODEL",
               "whether a model fits a machine, what a step takes, what would help", plan},
    Subcommand{"sim", "MODEL",
               "a training in worlds of many GPUs, and ZeRO-Infinity's published points", sim},
    Subcommand{"settings", "ACTION", "a settings file checked, shown, explained; a schema",
               settings},
    Subcommand{"store", "ACTION", "stores of durable runs listed, verified, copied, removed",
               store},
    Subcommand{"checkpoint", "ACTION",
               "checkpoints shown, verified, converted from and to DeepSpeed", checkpoint},
    Subcommand{"inspect", "PATH", "what swap files hold, verified; read-only", inspect},
};

std::string help() {
  std::string text = "headrace SUBCOMMAND [options]\n\nSubcommands:\n";
  for (const Subcommand& subcommand : kSubcommands)
    text +=
        fmt::format("  {:<10} {:<10} {}\n", subcommand.name, subcommand.arguments, subcommand.help);
  return text + "\n  --version, --help; headrace SUBCOMMAND --help\n";
}

int run(int argc, const char* const* argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  const auto found = std::ranges::find(kSubcommands, word, &Subcommand::name);
  if (found != kSubcommands.end()) return found->run(argc - 1, argv + 1);
  if (word == "--help" || word == "-h") {
    print("{}", help());
    return kDone;
  }
  if (word == "--version") {
    print("headrace {}\n", version());
    return kDone;
  }
  const std::string cause =
      word.empty() ? "a subcommand is missing" : fmt::format("'{}' is no subcommand", word);
  tell("headrace: {}; nothing was done. Give one of those below.\n\n{}", cause, help());
  return kRefused;
}
}  // namespace
}  // namespace headrace::tools

int main(int argc, char** argv) {
  return headrace::tools::run_program("headrace", argc, argv, headrace::tools::run);
}
