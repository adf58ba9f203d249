// SPDX-License-Identifier: Apache-2.0
// headrace: the command-line program; a file per subcommand.
#include <fmt/core.h>

#include <string>
#include <string_view>

#include "command_line/command_line.hpp"
#include "exit_codes.hpp"
#include "headrace/version.hpp"
#include "inspect.hpp"

namespace {
constexpr std::string_view kHelp = R"(headrace SUBCOMMAND [options]

Subcommands:
  inspect PATH  what swap files hold, verified; read-only

  --version, --help; headrace SUBCOMMAND --help
)";
}  // namespace

int main(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  if (word == "inspect") return headrace::tools::inspect(argc - 1, argv + 1);
  if (word == "--help" || word == "-h") {
    fmt::print("{}", kHelp);
    return headrace::tools::kDone;
  }
  if (word == "--version") {
    fmt::print("headrace {}\n", headrace::version());
    return headrace::tools::kDone;
  }
  const std::string cause =
      word.empty() ? "a subcommand is missing" : fmt::format("'{}' is no subcommand", word);
  fmt::print(stderr, "headrace: {}; nothing was done. Give one of those below.\n\n{}", cause,
             kHelp);
  return headrace::tools::kRefused;
}
