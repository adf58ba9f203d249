// SPDX-License-Identifier: Apache-2.0
// report_file.hpp: where a program's report goes: a file, or "-", which is stdout.
//
// Nothing of a user's is ever lost to a report. A target is a new file, an empty one, one that
// holds a report of Headrace's, /dev/null, or "-". A file comes whole or not at all: it is written
// under another name in the same folder and renamed. No other device, no pipe, no socket is opened,
// and no symbolic link followed.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::command_line {
// Whether a file that begins so may be replaced. Called for files that are not empty.
using MayReplace = bool (*)(std::string_view begin);
// A report of one of our programs: JSON that begins with its schema_version and program.
bool is_own_report(std::string_view begin);
// For a target whose content the caller has checked.
bool is_checked_before(std::string_view begin);

// Throws Error, whose text names `option`, where write_report() could not be done, before there is
// anything to write: kNotFound, kNoSpace, kInvalidArgument. Nothing for an empty target.
void check_report_target(const std::string& target, const std::string& option = "--json",
                         MayReplace may_replace = is_own_report);
// Throws Error kInvalidArgument where two of them, {"--json", "a.json"}, name one file, or stdout.
void check_targets_differ(const std::vector<std::pair<std::string, std::string>>& named);

// Throws what check_report_target() does, and kIo where writing fails; the file is then as it was.
// A reader of stdout that went away is no failure.
void write_report(const std::string& target, const std::string& document,
                  const std::string& option = "--json", MayReplace may_replace = is_own_report);
}  // namespace headrace::command_line
