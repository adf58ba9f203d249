// SPDX-License-Identifier: Apache-2.0
// failures.cpp: exit codes and error texts.
#include "failures.hpp"

#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>

namespace train_gpt {
namespace {
// A path that cannot be used as given, or a limit of the shell's: not a drive that failed.
bool is_refusal_errno(int number) {
  switch (number) {
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOSPC:
    case EDQUOT:
    case EINVAL:
    case EMFILE:
    case EFBIG:
      return true;
    default:
      return false;
  }
}

// Torch reports a lack of memory by the words of its error only.
bool is_lack_of_memory(const std::exception& error) {
  const std::string_view text = error.what();
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         text.find("can't allocate memory") != std::string_view::npos ||
         text.find("not enough memory") != std::string_view::npos ||
         text.find("out of memory") != std::string_view::npos;  // of a GPU
}
}  // namespace

std::string no_device_text(const std::string& device, std::string missing) {
  constexpr std::string_view kOnCpu = "the device is the CPU";
  const std::size_t at = missing.find(kOnCpu);
  if (at != std::string::npos) missing.replace(at, kOnCpu.size(), "the run was not started");
  return "--device " + device + ": " + missing;
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

void fail(headrace::Code code, const std::string& text, int sys_errno) {
  throw headrace::Error(code, text, sys_errno);
}

int exit_code_for(const headrace::Error& error, bool running) {
  if (dynamic_cast<const MissingDevice*>(&error) != nullptr) return kLacking;
  const bool refused = headrace::is_refusal(error.code()) ||
                       (error.code() == headrace::Code::kIo && is_refusal_errno(error.sys_errno()));
  return !running && refused ? kRefused : kFailed;
}

Failure describe(const std::exception& error, bool running, int signal, const InTorch& torch) {
  const auto* ours = dynamic_cast<const headrace::Error*>(&error);
  if (signal != 0) {
    const char* name = ::sigabbrev_np(signal);
    const bool said = ours != nullptr && ours->code() == headrace::Code::kInterrupted;
    return {128 + signal, headrace::code_name(headrace::Code::kInterrupted),
            "ended by SIG" + std::string(name != nullptr ? name : "?") +
                (said ? std::string() : ": " + first_line(error))};
  }
  if (ours != nullptr)
    return {exit_code_for(*ours, running), headrace::code_name(ours->code()), ours->what()};
  if (is_lack_of_memory(error)) {
    const bool says = dynamic_cast<const std::bad_alloc*>(&error) == nullptr;
    return {kFailed, "kOutOfMemory",
            "the system gives no more memory" + (says ? " (" + first_line(error) + ")" : "") +
                "; the run ended. Make --batch, --seq or headrace.host_budget_bytes smaller, or "
                "raise the limit (ulimit -v, the cgroup's memory.max)."};
  }
  if (!torch.version.empty()) {
    return {kFailed, "kTorch",
            "LibTorch " + torch.version + " failed in " + torch.doing + ": " + first_line(error) +
                "; the run ended. Run it with --plain: if it fails there too, report this line to "
                "PyTorch, else to Headrace."};
  }
  return {kFailed, "kUnexpected", first_line(error)};
}

std::string outcome_text(const Outcome& outcome) {
  std::string text = std::to_string(outcome.steps_done) + " of " + std::to_string(outcome.steps) +
                     (outcome.steps == 1 ? " step" : " steps") + " done, ";
  if (outcome.saved.empty() && !outcome.store.empty())
    return text + "the store '" + outcome.store +
           "' has the last one that was committed. Give the same command to continue.";
  if (outcome.saved.empty() && !outcome.checkpoint.empty())
    return text + "saved: '" + outcome.checkpoint + "'. Give --load " + outcome.checkpoint +
           " in addition to continue.";
  text += outcome.saved.empty() ? "nothing was saved" : "saved: '" + outcome.saved + "'";
  if (outcome.had_swap) text += ", the swap files are gone";
  if (!outcome.saved.empty()) return text + ".";
  if (outcome.steps_done == 0) return text + ".";  // fewer of them would not have gone better
  if (outcome.plain) return text + ". --plain saves nothing; leave it out to be able to.";
  return text + (outcome.asked_to_save
                     ? ". --save alone writes at the end: give --save-every N too, and "
                       "--load after an interruption."
                     : ". Nothing is saved without --save: give it with --save-every N, "
                       "or give --store NAME.");
}
}  // namespace train_gpt
