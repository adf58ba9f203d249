// SPDX-License-Identifier: Apache-2.0
// progress.cpp: formats and prints progress.
#include "progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace train_gpt {
namespace {
constexpr std::size_t kMostBarColumns = 20;
constexpr std::uint64_t kPlainLines = 50;  // about as many, however long the run is

template <typename... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 160> text{};
  const int size = std::snprintf(text.data(), text.size(), format, values...);
  return {text.data(),
          static_cast<std::size_t>(std::clamp(size, 0, static_cast<int>(text.size()) - 1))};
}

std::uint32_t terminal_columns(std::FILE* out) {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}
}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<unsigned long long>(std::min(seconds + 0.5, 1e15));
  if (whole < 60) return print("%llus", whole);
  if (whole < 3600) return print("%llum%02llus", whole / 60, whole % 60);
  return print("%lluh%02llum", whole / 3600, whole / 60 % 60);
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 6> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  // What one digit rounds up to 1024 is the next unit's.
  while (bytes >= (unit == 0 ? 1024 : 1023.95) && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? print("%.0f B", bytes) : print("%.1f %s", bytes, kUnits[unit]);
}

namespace {
// The words that a narrow terminal has no room for are left out of the short line.
std::string line_of(const ProgressState& state, bool is_short) {
  std::string line = print(
      is_short ? "%llu/%llu  loss %.4f  %.0f tok/s" : "step %llu/%llu  loss %.4f  %.0f tokens/s",
      static_cast<unsigned long long>(state.step), static_cast<unsigned long long>(state.steps),
      state.loss, state.tokens_per_second);
  if (state.read_gb_per_second > 0 || state.write_gb_per_second > 0) {
    line += print(is_short ? "  r %.2f w %.2f GB/s" : "  read %.2f write %.2f GB/s",
                  state.read_gb_per_second, state.write_gb_per_second);
  }
  if (state.step < state.steps) line += "  " + format_duration(state.seconds_left) + " left";
  return line;
}
}  // namespace

std::string format_progress_line(const ProgressState& state) { return line_of(state, false); }

std::string format_progress_bar(const ProgressState& state, std::uint32_t columns, bool colour) {
  const std::string line = line_of(state, true);
  constexpr std::size_t kFrame = 3;  // "[", "] "
  if (columns < line.size() + kFrame + 4) return line.substr(0, columns);
  const std::size_t width = std::min<std::size_t>(kMostBarColumns, columns - line.size() - kFrame);
  const double done =
      state.steps == 0 ? 1.0 : static_cast<double>(state.step) / static_cast<double>(state.steps);
  const auto filled =
      static_cast<std::size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(width));
  std::string bar(filled, '=');
  bar.append(width - filled, ' ');
  if (colour) bar = "\x1b[32m" + bar + "\x1b[0m";
  return "[" + bar + "] " + line;
}

Progress::Progress(std::FILE* out, bool shown) : out_(out), shown_(shown) {
  const char* kind = std::getenv("TERM");
  terminal_ = ::isatty(::fileno(out)) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
  const char* no_colour = std::getenv("NO_COLOR");
  colour_ = terminal_ && (no_colour == nullptr || *no_colour == '\0');
}

Progress::~Progress() { clear(); }

void Progress::erase_bar() {
  if (bar_drawn_) std::fputs("\r\x1b[K", out_);
  bar_drawn_ = false;
}

void Progress::stage(std::string_view what) {
  if (!shown_) return;
  const std::scoped_lock lock(mutex_);
  erase_bar();
  std::fprintf(out_, "%.*s%s", static_cast<int>(what.size()), what.data(), terminal_ ? "" : "\n");
  std::fflush(out_);
  bar_drawn_ = terminal_;
}

void Progress::step(const ProgressState& state) {
  if (!shown_) return;
  const std::scoped_lock lock(mutex_);
  if (terminal_) {
    erase_bar();
    std::fputs(format_progress_bar(state, terminal_columns(out_) - 1, colour_).c_str(), out_);
    bar_drawn_ = true;
  } else {
    const std::uint64_t every = std::max<std::uint64_t>(1, state.steps / kPlainLines);
    if (state.step != 1 && state.step != state.steps && state.step % every != 0) return;
    std::fprintf(out_, "%s\n", format_progress_line(state).c_str());
  }
  std::fflush(out_);
}

void Progress::message(std::string_view line) {
  const std::scoped_lock lock(mutex_);
  erase_bar();
  std::fprintf(out_, "%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(out_);
}

void Progress::clear() {
  const std::scoped_lock lock(mutex_);
  erase_bar();
  std::fflush(out_);
}
}  // namespace train_gpt
