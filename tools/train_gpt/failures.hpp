// SPDX-License-Identifier: Apache-2.0
// failures.hpp: error texts of this program, and the exit code for each kind of failure.
#pragma once
#include <cstdint>
#include <exception>
#include <string>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "program/exit_codes.hpp"

namespace train_gpt {
using headrace::base::errno_text;
using enum headrace::tools::ExitCode;

// A device that --device names is not on this machine.
class MissingDevice : public headrace::Error {
 public:
  explicit MissingDevice(const std::string& text)
      : headrace::Error(headrace::Code::kUnsupported, text) {}
};

// Why --device names none. `missing` is CudaFacts', whose consequence is another program's: here no
// CPU takes the GPU's place.
std::string no_device_text(const std::string& device, std::string missing);

// Throws headrace::Error. `text`: cause, consequence, fix.
[[noreturn]] void fail(headrace::Code code, const std::string& text, int sys_errno = 0);

// The exit code: 2 for a refusal before the first step (usage, settings, plan, path), 3 for a
// MissingDevice, 1 for everything else.
//   running  the first step has begun
int exit_code_for(const headrace::Error& error, bool running);

// Without the stack that torch appends.
std::string first_line(const std::exception& error);

// The same for any exception, with the words to print: {1, "kIo", "text"}.
//   signal   the signal that asked us to end, 0 for none: 128 + n, whatever it broke
//   torch    where LibTorch threw it: its version, and what was being done; else empty
struct InTorch {
  std::string version = {};  // "2.11.0"
  std::string doing = {};    // "the forward pass of step 3"
};
struct Failure {
  int exit_code = kFailed;
  std::string code;
  std::string text;
};
Failure describe(const std::exception& error, bool running, int signal, const InTorch& torch = {});

// The outcome of a run that ended early: "3 of 100 steps done, nothing was saved, ...", and the
// remedy.
struct Outcome {
  std::uint64_t steps_done = 0;
  std::uint64_t steps = 0;
  bool asked_to_save = false;
  std::string saved = {};       // path, empty: nothing was
  bool had_swap = false;        // files on NVMe, which are scratch
  bool plain = false;           // --plain, which has no --save
  std::string store = {};       // its name; empty: none, or no step was made
  std::string checkpoint = {};  // the last one, empty: none
};
std::string outcome_text(const Outcome& outcome);
}  // namespace train_gpt
