// SPDX-License-Identifier: Apache-2.0
// headrace/file_io.hpp: reads and writes buffers in files of the program's own, many at a time,
// with the queues of the NVMe tier: io_uring, or threads where the kernel refuses it.
//
//   headrace::FileIo io;
//   io.write("/mnt/nvme/a", 0, bytes, /*tag=*/1);
//   io.read("/mnt/nvme/b", 4096, other, /*tag=*/2);
//   for (const headrace::FileIoDone& done : io.wait(2)) { ... done.tag, done.error ... }
//
// A transfer is whole, or its FileIoDone says what is missing: a file that is too short, a full
// disk, an error of the drive. Short transfers are continued, and EAGAIN and EINTR are repeated.
//
// Transfers go around the page cache (O_DIRECT) where memory and offset are multiples of 4,096
// bytes; the last size % 4096 bytes go through it. Others go through it as a whole, and so does
// everything in a file system without O_DIRECT: the bytes are the same, the speed is less.
//
// Memory:  belongs to the caller, who leaves it alone until its transfer is done. After kIoStalled,
//          the kernel may still write to it: never free it then.
// Order:   transfers run in any order. A read of bytes whose write is not done yet may see either.
// Safety:  a write that is done survives the process. For a power failure, call fdatasync().
// Files:   a transfer holds one or two descriptors until it is done. To close one drops the POSIX
//          locks (F_SETLK) that the process has on that file. Pipes are refused.
// Threads: any thread, several at once. A thread of the object's own does the work, and queue_depth
//          more without io_uring; they block signals, and end with it. A forked child has no such
//          threads: calls there throw kWrongState.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/settings.hpp"

namespace headrace {
struct FileIoOptions {
  std::uint64_t block_bytes = 1 << 20;  // of a request to the kernel: a multiple of 4,096, <= 1 GiB
  std::uint32_t queue_depth = 32;       // requests in flight: 1 to 1024
  std::uint32_t submit_batch = 2;       // requests per system call, at most queue_depth
  // kAuto: io_uring if the kernel allows it. kAio is refused: it serves one file.
  IoQueueKind queue = IoQueueKind::kAuto;
  // kRequire: what cannot go around the page cache is refused instead.
  DirectIo direct = DirectIo::kAuto;
  double deadline_seconds = 60;  // without progress; then the transfer ends with kIoStalled
};

// The end of a transfer.
struct FileIoDone {
  std::uint64_t tag = 0;
  std::uint64_t done_bytes = 0;  // from the start, without a gap
  std::optional<Error> error;    // none: the transfer is whole
};

struct FileIoStats {
  std::uint64_t read_bytes = 0, written_bytes = 0;  // of transfers that are done
  std::uint64_t cached_bytes = 0;                   // of these, through the page cache
  std::string queue, queue_reason;                  // "uring" or "threads", and why no other
};

class FileIo {
 public:
  // Throws kInvalidArgument for options out of range, kUnsupported if the queue that was named
  // cannot be had.
  explicit FileIo(const FileIoOptions& options = {});
  ~FileIo();  // waits for all transfers
  FileIo(const FileIo&) = delete;
  FileIo& operator=(const FileIo&) = delete;

  // Begins a transfer, and returns at once. A write creates the file, and makes it longer, never
  // shorter. `tag` may be any number. Throws, without beginning it, if the file cannot be opened
  // (kIo with the errno), or if `direct` is kRequire and memory, offset or size are not aligned.
  void read(const std::string& path, std::uint64_t offset_bytes, std::span<std::byte> into,
            std::uint64_t tag);
  void write(const std::string& path, std::uint64_t offset_bytes, std::span<const std::byte> from,
             std::uint64_t tag);
  // The same for a file that the program has open, and may close afterwards. It goes around the
  // page cache if the descriptor has O_DIRECT; then memory, offset and size have to be aligned. A
  // write to one with O_APPEND is refused.
  void read(int fd, std::uint64_t offset_bytes, std::span<std::byte> into, std::uint64_t tag);
  void write(int fd, std::uint64_t offset_bytes, std::span<const std::byte> from,
             std::uint64_t tag);

  // Transfers that are done and were not returned yet, in the order of their ends and at most
  // `most`, once there are `least` of them, none is under way any more, or `timeout` has passed.
  static constexpr std::chrono::nanoseconds kForever = std::chrono::hours(24 * 365);
  std::vector<FileIoDone> wait(std::size_t least, std::chrono::nanoseconds timeout = kForever,
                               std::size_t most = SIZE_MAX);
  // Begun, and not yet returned by wait().
  std::size_t pending() const;
  FileIoStats stats() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};
}  // namespace headrace
