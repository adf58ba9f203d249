// SPDX-License-Identifier: Apache-2.0
#include "swap/stall_watch.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error_text.hpp"

namespace headrace::swap {
namespace {
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

nanoseconds to_duration(double seconds) {
  return std::chrono::duration_cast<nanoseconds>(
      std::chrono::duration<double>(std::min(seconds, 1e9)));
}

std::string format_seconds(nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", std::chrono::duration<double>(duration).count());
  return text;
}
}  // namespace

StallWatch::StallWatch(double warn_seconds, double deadline_seconds, DriveClock::time_point now)
    : warn_(to_duration(warn_seconds)),
      deadline_(to_duration(deadline_seconds)),
      interval_(std::clamp<nanoseconds>(std::min(warn_, deadline_) / 4, milliseconds(1),
                                        milliseconds(500))),
      last_look_(now) {}

bool StallWatch::due(DriveClock::time_point now, std::span<Block> blocks, bool in_flight) noexcept {
  const DriveClock::time_point last = std::exchange(last_look_, now);
  if (!in_flight) return false;
  // The drive looks several times per interval while anything is in flight. Where it did not, the
  // process was stopped (SIGSTOP, a frozen container): the device is not to blame for that time.
  if (now - last > 4 * interval_) {
    for (Block& block : blocks) {
      if (block.state == BlockState::kInQueue && block.since < now)
        block.since += now - std::max(block.since, last);
    }
  }
  if (now < next_check_) return false;
  next_check_ = now + interval_;
  return true;
}

std::string StallWatch::slow_text(const std::string& request) const {
  return request + "; it will be given up after " + format_seconds(deadline_) +
         "; if the drive is only slow, raise headrace.io_deadline_seconds";
}

std::string StallWatch::lost_text(const std::string& request) {
  return request +
         "; it is given up, and its memory stays reserved because the kernel may still use it; "
         "look at the drive (dmesg, smartctl)";
}

std::string describe(const Block& block, nanoseconds age, const QueueState& state) {
  std::string text =
      "swap drive " + std::to_string(state.drive) + ": a " + text_of(block.kind) + " of ";
  if (block.kind != IoKind::kSync) {
    text += std::to_string(block.size_bytes) + " bytes at offset " +
            std::to_string(block.offset_bytes) + " of ";
  }
  text += state.path;
  if (const char* const what = block.active->transfer->what; what != nullptr && *what != '\0') {
    text += std::string(" for ") + what;
  }
  text += " has not completed for " + format_seconds(age) + " (" + std::to_string(state.in_queue) +
          " requests in flight, queue " + state.queue;
  if (state.flush_error != 0) {
    text += ", the kernel takes no more: " + base::errno_text(state.flush_error);
  }
  return text + ")";
}
}  // namespace headrace::swap
