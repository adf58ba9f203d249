// SPDX-License-Identifier: Apache-2.0
#include "program/subcommand.hpp"

#include "command_line/command_line.hpp"
#include "headrace/error.hpp"
#include "program/failing.hpp"
#include "program/output.hpp"

namespace headrace::tools {
command_line::Fault page_of_json() {
  return {"--report: pages are made from the JSON document, by a program of their own",
          "Give --json FILE, then run `python3 scripts/report page FILE` in Headrace's folder"};
}

int refuse_if_in_use(const std::function<int()>& act) {
  try {
    return act();
  } catch (const Error& error) {
    if (error.code() != Code::kWrongState) throw;
    throw Error(Code::kInvalidArgument, error.what());
  }
}

int run_subcommand(const Subcommand& subcommand, int argc, const char* const* argv) {
  const char* const program = subcommand.program;
  const auto refuse = [&](const std::string& json, const command_line::Fault& fault) {
    return Failing(program, json)
        .fail(kRefused, "kUsage", command_line::text_of(fault, subcommand.nothing_done));
  };
  try {
    command_line::parse(subcommand.app, argc, argv);
    subcommand.check();
  } catch (const CLI::CallForHelp&) {
    print("{}", subcommand.app.help());
    return kDone;
  } catch (const CLI::CallForVersion& version) {
    print("{}\n", version.what());
    return kDone;
  } catch (const command_line::Fault& fault) {
    return refuse(command_line::value_of("--json", argc, argv), fault);
  } catch (const Error& error) {
    return Failing(program, "").fail(kRefused, code_name(error.code()), error.what());
  }
  const auto run = [&] {
    try {
      return subcommand.run();
    } catch (const command_line::Fault& fault) {
      return refuse(subcommand.json, fault);
    }
  };
  return Failing(program, subcommand.json, subcommand.less).guard(run, subcommand.lost);
}
}  // namespace headrace::tools
