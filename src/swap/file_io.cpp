// SPDX-License-Identifier: Apache-2.0
// file_io.cpp: transfers of files that the drive's loop does not own, each in one part or two: what
// goes around the page cache, and the rest.
#include "headrace/file_io.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <utility>

#include "async/work.hpp"
#include "base/error_text.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "swap/drive.hpp"
#include "swap/never_freed.hpp"
#include "swap/refusal.hpp"

namespace headrace {
namespace {
using base::UniqueFd;
using swap::IoKind;

bool aligned(std::uint64_t number) { return number % base::kIoAlignment == 0; }

// The one change that helps a program with its own file.
std::string advice(int error) {
  switch (error) {
    case ENOENT:
      return "write the file first, or correct the path";
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return "name a file";
    case EACCES:
    case EPERM:
    case EROFS:
      return "name a file that this process may open so";
    case EBADF:
      return "pass a descriptor that is open for this";
    case EFAULT:
      return "pass memory that the process has, and may write to if it is read into";
    case EINVAL:
      return "without O_DIRECT in this file system, let it go through the page cache";
    case ENOSPC:
    case EDQUOT:
      return "free some space there";
    case EMFILE:
      return "wait for some transfers, which hold one or two each, or raise the limit on open "
             "files (ulimit -n)";
    case EFBIG:
    case ENFILE:
    case ENOMEM:
    case EAGAIN:
    case EBUSY:
      return swap::what_helps(error);
    default:
      return "look at the drive (dmesg, smartctl)";
  }
}

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::kInvalidArgument, text); }

Error open_error(const std::string& path, IoKind kind) {
  const int error = errno;
  return Error(Code::kIo,
               path + " cannot be opened to " + swap::text_of(kind) + ": " +
                   base::errno_text(error) + "; nothing was transferred: " + advice(error),
               error);
}

void check_path(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos)
    refuse("a path that is empty or contains NUL names no file; nothing was transferred.");
}

// What cannot seek has no offsets: a pipe takes bytes in any order.
void refuse_pipe(bool is_one, const std::string& name) {
  if (!is_one) return;
  throw Error(Code::kInvalidArgument,
              name +
                  " cannot seek (a pipe, a FIFO or a socket); nothing was transferred. Use "
                  "read() and write() there.",
              ESPIPE);
}

// Before it is opened: to open a FIFO waits for its other end.
void refuse_pipe_at(const std::string& path) {
  struct stat found {};
  refuse_pipe(
      ::stat(path.c_str(), &found) == 0 && (S_ISFIFO(found.st_mode) || S_ISSOCK(found.st_mode)),
      path);
}

UniqueFd open_file(const std::string& path, IoKind kind, int flags) {
  const int access = kind == IoKind::kRead ? O_RDONLY : O_WRONLY | O_CREAT;
  return UniqueFd(TEMP_FAILURE_RETRY(::open(path.c_str(), access | O_CLOEXEC | flags, 0644)));
}

const std::string& name_of(const std::string& path) { return path; }
std::string name_of(int fd) { return "descriptor " + std::to_string(fd); }

// The loop has one kind of pointer for both directions.
std::span<std::byte> writable(std::span<const std::byte> from) {
  return {const_cast<std::byte*>(from.data()), from.size()};
}

// One transfer of a caller's, from begin to wait().
struct Request {
  // A stretch of it, in one file descriptor.
  struct Part : swap::Transfer {
    Request* request = nullptr;
  };
  void* core = nullptr;
  std::uint64_t tag = 0;
  IoKind kind = IoKind::kRead;
  std::string name;  // path, or "descriptor 7"
  std::uint64_t offset_bytes = 0, size_bytes = 0;
  UniqueFd direct, cached;
  Part parts[2];
  std::uint32_t part = 0, part_count = 0;
};

// Nothing here needs a thread of its own: the drive's runs what follows a transfer.
struct OnTheDrivesThread final : async::Executor {
  void post(async::Work& work) noexcept override { work.run(&work); }
};

std::string text_of(const Request& request) {
  return std::string(swap::text_of(request.kind)) + " of " + std::to_string(request.size_bytes) +
         " bytes at " + std::to_string(request.offset_bytes) + " of " + request.name;
}

Error transfer_error(const Request& request, std::uint64_t done_bytes, int error) {
  const std::string moved = ": " + std::to_string(done_bytes) + " bytes were moved";
  if (error == 0) {
    return Error(Code::kIo,
                 text_of(request) + moved +
                     ", since the file ends there; what the rest of the buffer holds is undefined. "
                     "Write the file whole, or read less.",
                 EIO);
  }
  return Error(swap::code_of(error),
               text_of(request) + moved + ": " + base::errno_text(error) + "; " + advice(error),
               error);
}

swap::DriveOptions drive_options(const FileIoOptions& options, int fd) {
  swap::DriveOptions drive;
  drive.path = "files of the program";
  drive.fd = fd;
  drive.io_block_bytes = options.block_bytes;
  drive.queue_depth = options.queue_depth;
  drive.submit_batch = std::min(options.submit_batch, options.queue_depth);
  drive.register_buffers = RegisterBuffers::kOff;
  drive.warn_seconds = std::min(10.0, options.deadline_seconds / 2);
  drive.deadline_seconds = options.deadline_seconds;
  drive.make_queue = [kind = options.queue](const swap::IoQueueOptions& queue) {
    return swap::choose_io_queue(kind, queue);
  };
  return drive;
}

void check(const FileIoOptions& options) {
  const auto refuse = [](const std::string& text) {
    headrace::refuse("FileIo: " + text + "; nothing was started.");
  };
  if (options.block_bytes == 0 || !aligned(options.block_bytes) || options.block_bytes > base::kGiB)
    refuse("block_bytes is " + std::to_string(options.block_bytes) +
           ", not a multiple of 4096 up to 1 GiB");
  if (options.queue_depth == 0 || options.queue_depth > 1024)
    refuse("queue_depth is " + std::to_string(options.queue_depth) + ", not 1 to 1024");
  if (options.submit_batch == 0) refuse("submit_batch is 0, not 1 or more");
  if (options.queue != IoQueueKind::kAuto && options.queue != IoQueueKind::kUring &&
      options.queue != IoQueueKind::kThreads)
    refuse("queue is kAio, which serves one file, or unknown; take kAuto");
  if (!(options.deadline_seconds > 0)) refuse("deadline_seconds is not above 0");
}
}  // namespace

class FileIo::Core {
 public:
  explicit Core(const FileIoOptions& options)
      : options_(options),
        null_(::open("/dev/null", O_RDWR | O_CLOEXEC)),
        drive_(swap::make_drive_thread(ends_, drive_options(options, null_.get()))) {}
  ~Core() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return under_way_ == 0; });
  }

  // `file`: a path, or a descriptor of the program's.
  template <class File>
  void transfer(IoKind kind, const File& file, std::uint64_t offset_bytes,
                std::span<std::byte> data, std::uint64_t tag) {
    auto request = new_request(kind, name_of(file), offset_bytes, data.size(), tag);
    open(*request, file, data.data());
    begin(std::move(request), data.data());
  }
  std::vector<FileIoDone> wait(std::size_t least, std::chrono::nanoseconds timeout,
                               std::size_t most);
  std::size_t pending() const {
    require_owner();
    const std::lock_guard lock(mutex_);
    return under_way_ + done_.size();
  }
  FileIoStats stats() const;

  bool is_owner() const noexcept { return owner_ == ::getpid(); }

 private:
  std::unique_ptr<Request> new_request(IoKind kind, std::string name, std::uint64_t offset_bytes,
                                       std::uint64_t size_bytes, std::uint64_t tag);
  void open(Request& request, const std::string& path, const std::byte* data) const;
  void open(Request& request, int fd, const std::byte* data) const;
  void begin(std::unique_ptr<Request> request, std::byte* data);
  void require_owner() const;
  void require_aligned(const Request& request, const std::byte* data) const;
  static void run_done(async::Work* work) noexcept;
  void end(Request& request) noexcept;

  const FileIoOptions options_;
  const pid_t owner_ = ::getpid();
  const UniqueFd null_;  // the file of the drive's own
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t under_way_ = 0;
  std::vector<FileIoDone> done_;
  FileIoStats counts_;
  OnTheDrivesThread ends_;
  std::unique_ptr<swap::Drive> drive_;
};

void FileIo::Core::require_owner() const {
  if (is_owner()) return;
  throw Error(Code::kWrongState,
              "FileIo: called in a forked child; its threads are the parent's, and nothing was "
              "transferred. Make one of its own in the child.");
}

std::unique_ptr<Request> FileIo::Core::new_request(IoKind kind, std::string name,
                                                   std::uint64_t offset_bytes,
                                                   std::uint64_t size_bytes, std::uint64_t tag) {
  require_owner();
  auto request = std::make_unique<Request>();
  request->core = this;
  request->kind = kind;
  request->name = std::move(name);
  request->offset_bytes = offset_bytes;
  request->size_bytes = size_bytes;
  request->tag = tag;
  if (offset_bytes + size_bytes < offset_bytes || offset_bytes + size_bytes > INT64_MAX) {
    throw Error(Code::kInvalidArgument,
                text_of(*request) + ": no file is that long; nothing was transferred.");
  }
  if (kind == IoKind::kWrite)
    swap::check_file_size_limit(request->name, offset_bytes + size_bytes, "nothing was written");
  return request;
}

void FileIo::Core::require_aligned(const Request& request, const std::byte* data) const {
  if (aligned(reinterpret_cast<std::uintptr_t>(data)) && aligned(request.offset_bytes) &&
      aligned(request.size_bytes))
    return;
  throw Error(Code::kInvalidArgument,
              text_of(request) + ", to or from memory at " +
                  std::to_string(reinterpret_cast<std::uintptr_t>(data)) +
                  ": O_DIRECT takes multiples of 4096 alone; nothing was transferred. Align all "
                  "three, or let it go through the page cache.");
}

// Around the page cache, the part that can go there; through it, the rest.
void FileIo::Core::open(Request& request, const std::string& path, const std::byte* data) const {
  const bool required = options_.direct == DirectIo::kRequire;
  check_path(path);
  refuse_pipe_at(path);
  if (required) require_aligned(request, data);
  const bool can = aligned(reinterpret_cast<std::uintptr_t>(data)) &&
                   aligned(request.offset_bytes) &&
                   (request.size_bytes >= base::kIoAlignment || request.size_bytes == 0);
  if (can) request.direct = open_file(path, request.kind, O_DIRECT);
  if (required && !request.direct) throw open_error(path, request.kind);
  if (request.direct && aligned(request.size_bytes)) return;
  request.cached = open_file(path, request.kind, 0);
  if (!request.cached) throw open_error(path, request.kind);
}

void FileIo::Core::open(Request& request, int fd, const std::byte* data) const {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) throw open_error(request.name, request.kind);
  refuse_pipe(::lseek(fd, 0, SEEK_CUR) < 0 && errno == ESPIPE, request.name);
  if (request.kind == IoKind::kWrite && (flags & O_APPEND) != 0) {
    refuse(text_of(request) +
           ": with O_APPEND the kernel writes at the end, whatever the offset is; nothing was "
           "transferred. Open the file without it.");
  }
  const bool direct = (flags & O_DIRECT) != 0;
  if (!direct && options_.direct == DirectIo::kRequire) {
    refuse(text_of(request) +
           ": the descriptor has no O_DIRECT, and FileIoOptions::direct is kRequire; nothing was "
           "transferred. Open the file with it.");
  }
  if (direct) require_aligned(request, data);
  // Its own descriptor: the caller may close theirs too early.
  (direct ? request.direct : request.cached) = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!request.direct && !request.cached) throw open_error(request.name, request.kind);
}

void FileIo::Core::begin(std::unique_ptr<Request> request, std::byte* data) {
  const std::uint64_t around =
      request->direct ? base::align_down(request->size_bytes, base::kIoAlignment) : 0;
  const auto add = [&](int fd, std::uint64_t first, std::uint64_t bytes) {
    Request::Part& part = request->parts[request->part_count++];
    part.request = request.get();
    part.run = &run_done;
    part.kind = request->kind;
    part.data = data + first;
    part.offset_bytes = request->offset_bytes + first;
    part.size_bytes = bytes;
    part.fd = fd;
    part.what = "transfer of a file";
  };
  if (around > 0) add(request->direct.get(), 0, around);
  if (around < request->size_bytes || request->size_bytes == 0)
    add(request->cached ? request->cached.get() : request->direct.get(), around,
        request->size_bytes - around);
  {
    const std::lock_guard lock(mutex_);
    const std::size_t most = done_.size() + under_way_ + 1;  // end() must not fail
    if (done_.capacity() < most) done_.reserve(2 * most);
    ++under_way_;
  }
  drive_->start(request.release()->parts[0]);
}

void FileIo::Core::run_done(async::Work* work) noexcept {
  auto& part = *static_cast<Request::Part*>(work);
  Request& request = *part.request;
  const auto core = static_cast<Core*>(request.core);
  const bool whole = part.error == 0 && part.done_bytes == part.size_bytes;
  if (whole && ++request.part < request.part_count)
    return core->drive_->start(request.parts[request.part]);
  core->end(request);
}

void FileIo::Core::end(Request& request) noexcept {
  std::unique_ptr<Request> owned(&request);
  FileIoDone done{.tag = request.tag, .done_bytes = 0, .error = {}};
  int error = 0;
  std::uint64_t cached = 0;
  for (const Request::Part& part : std::span(request.parts, request.part_count)) {
    done.done_bytes += part.done_bytes;
    if (request.cached && part.fd == request.cached.get()) cached += part.done_bytes;
    if (part.error != 0) error = part.error;
  }
  if (error != 0 || done.done_bytes < request.size_bytes)
    done.error = transfer_error(request, done.done_bytes, error);
  const bool is_read = request.kind == IoKind::kRead;
  // Given up, and not ended: the kernel may still take it, with the number of its descriptor.
  if (error == ETIMEDOUT) swap::never_free(std::shared_ptr<Request>(std::move(owned)));
  const std::lock_guard lock(mutex_);
  (is_read ? counts_.read_bytes : counts_.written_bytes) += done.done_bytes;
  counts_.cached_bytes += cached;
  done_.push_back(std::move(done));
  --under_way_;
  changed_.notify_all();
}

std::vector<FileIoDone> FileIo::Core::wait(std::size_t least, std::chrono::nanoseconds timeout,
                                           std::size_t most) {
  require_owner();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::clamp<std::chrono::nanoseconds>(timeout, {}, kForever),
                    [&] { return done_.size() >= least || under_way_ == 0; });
  const auto end = done_.begin() + static_cast<std::ptrdiff_t>(std::min(most, done_.size()));
  std::vector<FileIoDone> taken(std::make_move_iterator(done_.begin()),
                                std::make_move_iterator(end));
  done_.erase(done_.begin(), end);
  return taken;
}

FileIoStats FileIo::Core::stats() const {
  require_owner();
  const std::lock_guard lock(mutex_);
  FileIoStats stats = counts_;
  stats.queue = drive_->queue_name();
  stats.queue_reason = drive_->queue_reason();
  return stats;
}

FileIo::FileIo(const FileIoOptions& options) {
  check(options);
  core_ = std::make_unique<Core>(options);
}
// In a forked child, threads and the state of locks are the parent's.
FileIo::~FileIo() {
  if (!core_->is_owner()) (void)core_.release();
}

void FileIo::read(const std::string& path, std::uint64_t offset_bytes, std::span<std::byte> into,
                  std::uint64_t tag) {
  core_->transfer(IoKind::kRead, path, offset_bytes, into, tag);
}
void FileIo::write(const std::string& path, std::uint64_t offset_bytes,
                   std::span<const std::byte> from, std::uint64_t tag) {
  core_->transfer(IoKind::kWrite, path, offset_bytes, writable(from), tag);
}
void FileIo::read(int fd, std::uint64_t offset_bytes, std::span<std::byte> into,
                  std::uint64_t tag) {
  core_->transfer(IoKind::kRead, fd, offset_bytes, into, tag);
}
void FileIo::write(int fd, std::uint64_t offset_bytes, std::span<const std::byte> from,
                   std::uint64_t tag) {
  core_->transfer(IoKind::kWrite, fd, offset_bytes, writable(from), tag);
}
std::vector<FileIoDone> FileIo::wait(std::size_t least, std::chrono::nanoseconds timeout,
                                     std::size_t most) {
  return core_->wait(least, timeout, most);
}
std::size_t FileIo::pending() const { return core_->pending(); }
FileIoStats FileIo::stats() const { return core_->stats(); }
}  // namespace headrace
