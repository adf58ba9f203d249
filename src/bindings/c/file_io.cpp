// SPDX-License-Identifier: Apache-2.0
// file_io.cpp: headrace/c.h, files of the program's own.
#include "headrace/file_io.hpp"

#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bindings/c/calls.hpp"
#include "bindings/c/handles.hpp"
#include "headrace/c.h"

namespace headrace::bindings {
static_assert(HEADRACE_IO_URING == static_cast<int>(IoQueueKind::kUring));
static_assert(HEADRACE_IO_THREADS == static_cast<int>(IoQueueKind::kThreads));

namespace {
struct IoOfC {
  FileIo io;
  pid_t owner = getpid();
  explicit IoOfC(const FileIoOptions& options) : io(options) {}
};
constinit HandleTable<IoOfC, 256> ios(4, "io", "destroy");

IoQueueKind queue_of(headrace_io_queue queue) {
  if (queue == HEADRACE_IO_AUTO || queue == HEADRACE_IO_URING || queue == HEADRACE_IO_THREADS)
    return static_cast<IoQueueKind>(queue);
  refuse("options.queue is " + std::to_string(queue) +
         "; 0 is the best one, 1 is io_uring, 3 is threads");
}

FileIoOptions options_of(const headrace_io_options* given) {
  const headrace_io_options options = taken_or_defaults(given, headrace_io_options_init, "options");
  return {.block_bytes = options.block_bytes,
          .queue_depth = options.queue_depth,
          .submit_batch = options.submit_batch,
          .queue = queue_of(options.queue),
          .direct = options.require_direct != 0 ? DirectIo::kRequire : DirectIo::kAuto,
          .deadline_seconds = options.deadline_seconds};
}

headrace_io_done done_of(const FileIoDone& from) {
  headrace_io_done done{};
  done.tag = from.tag;
  done.done_bytes = from.done_bytes;
  if (!from.error) return done;
  headrace_error error;
  headrace_error_init(&error, done.message, sizeof done.message);
  done.code = fail(&error, from.error->code(), from.error->sys_errno(), from.error->what());
  done.sys_errno = error.sys_errno;
  return done;
}

std::chrono::nanoseconds timeout_of(double seconds) {
  constexpr double kMost = std::chrono::duration<double>(FileIo::kForever).count();
  if (!(seconds >= 0) || seconds > kMost) return FileIo::kForever;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

void wait(FileIo& io, std::size_t least, double timeout_seconds, headrace_io_done* done,
          std::size_t capacity, std::size_t* out_count) {
  require(out_count, "out_count");
  if (least > capacity) {
    refuse("least is " + std::to_string(least) + ", and capacity only " + std::to_string(capacity) +
           ": give room for as many as the call waits for");
  }
  std::vector<headrace_io_done*> places;
  for_each_struct(done, capacity, "done", "headrace_io_done_init()", [&](headrace_io_done* one) {
    check_struct_size(one->struct_size, sizeof *one, "done");
    places.push_back(one);
  });
  const auto ended = io.wait(least, timeout_of(timeout_seconds), capacity);
  for (std::size_t i = 0; i < ended.size(); ++i) give(places[i], done_of(ended[i]), "done");
  *out_count = ended.size();
}

std::string stats_text(const FileIoStats& stats) {
  return nlohmann::json{{"schema_version", 1},
                        {"read_bytes", stats.read_bytes},
                        {"written_bytes", stats.written_bytes},
                        {"cached_bytes", stats.cached_bytes},
                        {"queue", stats.queue},
                        {"queue_reason", stats.queue_reason}}
      .dump();
}
}  // namespace
}  // namespace headrace::bindings

using namespace headrace::bindings;

headrace_code headrace_io_create(const headrace_io_options* options, headrace_io** out_io,
                                 headrace_error* error) {
  return guarded(error, [&] {
    require(out_io, "out_io");
    *out_io = static_cast<headrace_io*>(ios.add(std::make_unique<IoOfC>(options_of(options))));
  });
}
headrace_code headrace_io_destroy(headrace_io* io, headrace_error* error) {
  return guarded(error, [&] {
    if (io != nullptr)
      ios.remove(io,
                 [](IoOfC& of) { refuse_in_child(of.owner, "io", "the io and its threads are"); });
  });
}
headrace_code headrace_io_read(headrace_io* io, const char* path, uint64_t offset_bytes, void* into,
                               uint64_t size_bytes, uint64_t tag, headrace_error* error) {
  return guarded(error, [&] {
    ios.use(io)->io.read(path_in(path, "path"), offset_bytes,
                         bytes_in(into, size_bytes, "the buffer"), tag);
  });
}
headrace_code headrace_io_write(headrace_io* io, const char* path, uint64_t offset_bytes,
                                const void* from, uint64_t size_bytes, uint64_t tag,
                                headrace_error* error) {
  return guarded(error, [&] {
    ios.use(io)->io.write(path_in(path, "path"), offset_bytes,
                          bytes_in(from, size_bytes, "the buffer"), tag);
  });
}
headrace_code headrace_io_read_fd(headrace_io* io, int32_t fd, uint64_t offset_bytes, void* into,
                                  uint64_t size_bytes, uint64_t tag, headrace_error* error) {
  return guarded(error, [&] {
    ios.use(io)->io.read(fd, offset_bytes, bytes_in(into, size_bytes, "the buffer"), tag);
  });
}
headrace_code headrace_io_write_fd(headrace_io* io, int32_t fd, uint64_t offset_bytes,
                                   const void* from, uint64_t size_bytes, uint64_t tag,
                                   headrace_error* error) {
  return guarded(error, [&] {
    ios.use(io)->io.write(fd, offset_bytes, bytes_in(from, size_bytes, "the buffer"), tag);
  });
}
headrace_code headrace_io_wait(headrace_io* io, size_t least, double timeout_seconds,
                               headrace_io_done* done, size_t capacity, size_t* out_count,
                               headrace_error* error) {
  return guarded(error,
                 [&] { wait(ios.use(io)->io, least, timeout_seconds, done, capacity, out_count); });
}
headrace_code headrace_io_pending(headrace_io* io, uint64_t* out_count, headrace_error* error) {
  return guarded(error, [&] { required(out_count, "out_count") = ios.use(io)->io.pending(); });
}
headrace_code headrace_io_stats_json(headrace_io* io, char* buffer, size_t capacity,
                                     size_t* out_needed, headrace_error* error) {
  return guarded(
      error, [&] { give_text(stats_text(ios.use(io)->io.stats()), buffer, capacity, out_needed); });
}
