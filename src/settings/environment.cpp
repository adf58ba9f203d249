// SPDX-License-Identifier: Apache-2.0
#include "settings/environment.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string>

#include "headrace/error.hpp"
#include "settings/locate.hpp"

namespace headrace::settings {
namespace {
// "" if it is not set.
std::string_view variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string_view() : std::string_view(text);
}

[[noreturn]] void refuse(const char* name, std::string_view text, const char* wanted) {
  throw Error(Code::kSettings, std::string(name) + "='" + one_line(text) + "': it must be " +
                                   wanted + "; set it so, or unset it");
}
}  // namespace

std::uint32_t update_threads(const Settings& settings) {
  const std::string_view text = variable("HEADRACE_NUM_THREADS");
  if (text.empty()) return settings.update_threads;
  std::uint32_t threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || threads == 0 || threads > 1024)
    refuse("HEADRACE_NUM_THREADS", text, "a number from 1 to 1024");
  return threads;
}

IoQueueKind io_queue_kind(const Settings& settings) {
  const std::string_view text = variable("HEADRACE_IO_QUEUE");
  if (text.empty()) return settings.io_queue;
  constexpr std::array<std::string_view, 4> kWords = {"auto", "uring", "aio", "threads"};
  const auto found = std::find(kWords.begin(), kWords.end(), text);
  if (found == kWords.end()) refuse("HEADRACE_IO_QUEUE", text, "auto, uring, aio or threads");
  return static_cast<IoQueueKind>(found - kWords.begin());
}
}  // namespace headrace::settings
