// SPDX-License-Identifier: Apache-2.0
// report_file.hpp: where a program's report goes: a file, or "-", which is stdout.
#pragma once
#include <string>

namespace headrace::command_line {
// A regular or new file is replaced whole, a pipe or a device is written to. Nothing for an empty
// target. Throws Error kNotFound, kIo, kNoSpace, whose text names `option`.
void write_report(const std::string& target, const std::string& document,
                  const std::string& option = "--json");
// Throws kNotFound or kIo where write_report() could not be done, before there is anything to
// write.
void check_report_target(const std::string& target, const std::string& option = "--json");
}  // namespace headrace::command_line
