// SPDX-License-Identifier: Apache-2.0
// fault.hpp: what is wrong with a file of torch.save(). The program adds the consequence.
#pragma once
#include <stdexcept>
#include <string>
#include <utility>

#include "headrace/error.hpp"

namespace headrace::tools::pickle {
class Fault : public std::runtime_error {
 public:
  // `help` is a sentence; empty: the program knows what helps against a damaged file.
  explicit Fault(const std::string& cause, Code code = Code::kCorrupt, std::string help = {},
                 int sys_errno = 0)
      : std::runtime_error(cause), code_(code), help_(std::move(help)), sys_errno_(sys_errno) {}
  Code code() const noexcept { return code_; }
  const std::string& help() const noexcept { return help_; }
  int sys_errno() const noexcept { return sys_errno_; }
  // The same, with where it was found before the cause.
  Fault in(const std::string& where) const {
    return Fault(where + ": " + what(), code_, help_, sys_errno_);
  }

 private:
  Code code_;
  std::string help_;
  int sys_errno_;
};
}  // namespace headrace::tools::pickle
