// SPDX-License-Identifier: Apache-2.0
// The kernel's ways of reading and writing, each tried.
#include <fmt/core.h>

#include "doctor/rows.hpp"
#include "headrace/error.hpp"
#include "machine/process_limits.hpp"
#include "swap/io_queue.hpp"

namespace headrace::tools {
namespace {
constexpr std::uint32_t kTrialDepth = 16;  // what a run asks for

// A queue that was asked for by its kind has to move a block; so that threads have to as well, they
// are made where a ring would be.
const swap::IoQueueFactories kThreadsForUring{.uring = swap::make_io_queue_threads};

void try_queue(IoQueueKind kind) {
  if (kind == IoQueueKind::kThreads) {
    swap::choose_io_queue(IoQueueKind::kUring, {.depth = kTrialDepth}, kThreadsForUring);
  } else {
    swap::choose_io_queue(kind, {.depth = kTrialDepth});
  }
}

Row tried_row(const char* name, const char* finding, IoQueueKind kind) {
  Row row{.name = name, .value = "works"};
  row.values["works"] = true;
  row.findings = {{finding, 1}};
  try {
    try_queue(kind);
  } catch (const Error& error) {
    tell_error(row, error.what());
    row.mark = kind == IoQueueKind::kThreads ? Mark::kGap : Mark::kNote;
    row.value = error.sys_errno() != 0
                    ? fmt::format("refused ({})", ::strerrorname_np(error.sys_errno()))
                    : "does not work";
    row.values["works"] = false;
    row.values["errno"] = error.sys_errno();
    row.findings[0].amount = 0;
  }
  return row;
}

// A queue that this build lacks is no matter of the machine: only another build mends it.
void tell_built(Row& row, bool built, const char* fix) {
  row.values["built"] = built;
  if (built) return;
  row.value = "not in this build";
  row.fix = fix;
}

Row uring_row() {
  Row row = tried_row("io_uring", "io_uring", IoQueueKind::kUring);
  tell_built(row, swap::built_with_liburing(), "build with liburing (Debian: liburing-dev)");
  if (row.mark == Mark::kNote)
    row.consequence = "Linux AIO or threads do the I/O, with more CPU time for the same bandwidth";
  return row;
}

Row aio_row() {
  Row row = tried_row("Linux AIO", "libaio", IoQueueKind::kAio);
  tell_built(row, swap::built_with_libaio(), "build with libaio (Debian: libaio-dev)");
  if (row.mark == Mark::kNote)
    row.consequence = "where io_uring is refused too, threads do the I/O, with more CPU time";
  return row;
}

Row threads_row() {
  Row row = tried_row("threads", "threads", IoQueueKind::kThreads);
  if (row.mark == Mark::kGap) row.consequence = "runs that offload to a drive cannot start";
  return row;
}

Row disabled_row(const ProcessLimits& limits) {
  Row row{.name = "io_uring_disabled", .value = "no such sysctl (kernels before 6.6)"};
  if (!limits.io_uring_disabled) {
    if (!limits.aio_max) row = {.name = row.name, .value = "", .mark = Mark::kUnknown};
    return row;
  }
  const std::uint64_t level = *limits.io_uring_disabled;
  row.value = level == 0   ? "0: any process may use io_uring"
              : level == 1 ? "1: root and a group may use io_uring"
                           : "2: no process may use io_uring";
  row.values["kernel.io_uring_disabled"] = level;
  return row;
}

Row aio_limit_row(const ProcessLimits& limits) {
  constexpr std::uint64_t kNeeded = 1024;  // several drives' worth of requests
  if (!limits.aio_max) return {.name = "aio-max-nr", .value = "", .mark = Mark::kUnknown};
  const std::uint64_t taken = limits.aio_taken.value_or(0);
  Row row{.name = "aio-max-nr", .value = fmt::format("{} of {} taken", taken, *limits.aio_max)};
  row.values = {{"fs.aio-max-nr", *limits.aio_max}, {"fs.aio-nr", taken}};
  if (taken + kNeeded <= *limits.aio_max) return row;
  row.mark = Mark::kNote;
  row.consequence = "Linux AIO will be refused; io_uring and threads are not touched by it";
  row.fix = "sudo sysctl fs.aio-max-nr=1048576";
  return row;
}
}  // namespace

Section queue_section(const std::string& root) {
  const ProcessLimits limits = process_limits(root);
  return {
      .title = "I/O queues, each tried with a block",
      .path = "",
      .rows = {uring_row(), aio_row(), threads_row(), disabled_row(limits), aio_limit_row(limits)}};
}
}  // namespace headrace::tools
