// SPDX-License-Identifier: Apache-2.0
// The kernel's ways of reading and writing, each tried.
#include <fmt/core.h>

#include "doctor/rows.hpp"
#include "headrace/error.hpp"
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

// A queue that this build lacks is no matter of the machine: only another build brings it.
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

}  // namespace

Section queue_section() {
  return {.title = "I/O queues, each tried with a block",
          .path = "",
          .rows = {uring_row(), aio_row(), threads_row()}};
}
}  // namespace headrace::tools
