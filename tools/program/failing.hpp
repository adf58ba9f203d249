// SPDX-License-Identifier: Apache-2.0
// failing.hpp: the end of a run that fails: an error on stderr and in the report, and files
// removed.
#pragma once
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "program/exit_codes.hpp"

namespace headrace::tools {
using Json = nlohmann::ordered_json;

// The start of every report: schema_version, program, version.
Json document(const std::string& program);
// Indented, ends in a line feed; bytes that are no UTF-8 are replaced.
std::string dump(const Json& json);

// The options of a program that take less memory and fewer threads, if it has any.
struct AskLess {
  std::string memory = {};   // "fewer --jobs, a smaller --bs or --iodepth"
  std::string threads = {};  // "fewer --jobs"
};
// Of an exception that is no Error: memory or threads that were refused, with the limit behind it.
std::string unexpected_text(const std::exception& error, const std::string& lost,
                            const AskLess& less = {});

// Of one run of `program` ("headrace inspect"), whose report goes to `json` ("": nowhere).
class Failing {
 public:
  Failing(std::string program, std::string json, AskLess less = {})
      : program_(std::move(program)), json_(std::move(json)), less_(std::move(less)) {}

  // Tells the error on stderr and in the report; returns `exit_code`.
  int fail(int exit_code, const char* code, const std::string& text) const;
  // Returns what `run` returns. Reports what it throws: as ended by a signal if one has come, as
  // refused if the code is that of something asked for, else as failed.
  //   lost  of a signal, "the rounds so far are lost, its files are gone"
  int guard(const std::function<int()>& run, const std::string& lost) const;

 private:
  std::string program_, json_;
  AskLess less_;
};
}  // namespace headrace::tools
