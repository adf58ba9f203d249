// SPDX-License-Identifier: Apache-2.0
// program.hpp: how a benchmark starts, shows how far it is, and ends.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace headrace::bench {
enum ExitCode { kDone = 0, kFailed = 1, kRefused = 2, kLacking = 3, kMissed = 4 };

// On stderr: one line that is overwritten on a terminal, a line per round elsewhere.
void show_progress(std::uint32_t done, std::uint32_t rounds);

// Of one run of the program `name`, whose report goes to `json` ("": nowhere).
class Failing {
 public:
  Failing(std::string name, std::string json) : name_(std::move(name)), json_(std::move(json)) {}

  // Tells the error on stderr and in the report; returns `exit_code`.
  int fail(int exit_code, const char* code, const std::string& text) const;
  // What `run` returns; what it throws is told, as ended by a signal where one has come.
  int guard(const std::function<int()>& run) const;

 private:
  std::string name_, json_;
};
}  // namespace headrace::bench
