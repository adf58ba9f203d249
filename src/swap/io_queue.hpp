// SPDX-License-Identifier: Apache-2.0
// io_queue.hpp: the seam for the kernel's ways to read, write and sync: io_uring, Linux AIO,
// threads.
//
// A queue moves requests and reports the kernel's results, byte for byte and errno for errno. It
// retries and judges nothing: the drive (drive.hpp) does, in the same way for all queues.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "headrace/error.hpp"
#include "headrace/settings.hpp"

namespace headrace::swap {
// The longest wait. A longer timeout counts as this, so that its end can be computed.
inline constexpr std::chrono::hours kLongestWait{24};

// kSync: the writes to the file that have completed reach the medium, as fdatasync() defines it. It
// has no data and no size; its result is 0 or -errno.
enum class IoKind : std::uint8_t { kRead, kWrite, kSync };
const char* text_of(IoKind kind) noexcept;  // "read", "write", "sync"

// One request. The caller owns it, and keeps it in place until it is reaped.
struct IoRequest {
  IoKind kind = IoKind::kRead;
  int fd = -1;
  std::byte* data = nullptr;
  std::uint32_t size_bytes = 0;  // <= 1 GiB
  std::uint64_t offset_bytes = 0;
  std::int64_t result = 0;    // bytes moved (sync: 0), or -errno; set when reaped
  IoRequest* next = nullptr;  // for its current holder: caller, queue, then caller again
};

// The resources that a queue has registered with the kernel once, so it need not pass them with
// every request.
struct Registered {
  bool buffers = false, files = false;
  // Why something that was given is not registered, the consequence, and a fix. Empty if everything
  // is, and for a queue that never registers anything.
  std::string refused = {};
};

// Threads: all calls except wake() come from the thread that created the queue.
class IoQueue {
 public:
  virtual ~IoQueue() = default;                   // nothing may be in flight
  virtual const char* name() const noexcept = 0;  // "uring", "aio", "threads"
  // Hands over at most depth() requests in flight; false: the queue is full, try again after a
  // reap. The queue may keep requests until flush().
  virtual bool submit(IoRequest& request) noexcept = 0;
  // Passes submitted requests to the kernel. Returns 0 or an errno (EAGAIN, EBUSY: call again; the
  // requests are kept).
  virtual int flush() noexcept = 0;
  // Puts completed requests into `done` and returns their number. If there are none, waits until
  // one completes, wake() is called, or `timeout` has passed (zero: does not wait).
  virtual std::size_t reap(std::span<IoRequest*> done,
                           std::chrono::nanoseconds timeout) noexcept = 0;
  virtual void wake() noexcept = 0;  // from any thread
  virtual std::uint32_t depth() const noexcept = 0;
  virtual std::uint32_t in_flight() const noexcept = 0;
  virtual Registered registered() const { return {}; }
};
// "registered buffers and files"; "" for neither.
std::string text_of(const Registered& registered);

struct IoQueueOptions {
  std::uint32_t depth = 16;
  std::uint32_t submit_batch = 2;  // uring, aio: requests per system call
  // Buffers that hold all requests, and files that they use. They are registered (uring) if the
  // limits allow it. IoQueue::registered() returns the result.
  std::span<const std::span<std::byte>> buffers = {};
  std::span<const int> files = {};
  RegisterBuffers register_buffers = RegisterBuffers::kAuto;  // kOff: neither buffers nor files
};

using IoQueueFactory = std::function<std::unique_ptr<IoQueue>(const IoQueueOptions&)>;

// Each throws headrace::Error with the errno of the call that the kernel refused (EPERM, ENOSYS,
// ENOMEM, ...) and its meaning; without an errno if this build lacks the queue's library.
std::unique_ptr<IoQueue> make_io_queue_uring(const IoQueueOptions& options);
std::unique_ptr<IoQueue> make_io_queue_aio(const IoQueueOptions& options);
bool built_with_liburing() noexcept;
bool built_with_libaio() noexcept;
// `depth` threads "headrace-pioN" with pread, pwrite and fdatasync.
std::unique_ptr<IoQueue> make_io_queue_threads(const IoQueueOptions& options);
// Those errors as kUnsupported, with the errno's meaning here (seccomp, sysctl, limits) and a fix.
Error uring_refused(const char* call, int sys_errno);
Error aio_refused(const char* call, int sys_errno);
// Registered::refused for `what` ("buffers", "files").
std::string not_registered(const char* what, int sys_errno);

struct ChosenIoQueue {
  std::unique_ptr<IoQueue> queue;
  std::string reason;  // why each earlier queue was rejected; empty if none was
};
// The makers of each kind. Tests replace them by makers that fail.
struct IoQueueFactories {
  IoQueueFactory uring = make_io_queue_uring;
  IoQueueFactory aio = make_io_queue_aio;
  IoQueueFactory threads = make_io_queue_threads;
};
// kAuto: the first of uring, aio (if all files are O_DIRECT) and threads that can be set up and
// moves one real block, with the reasons. A named kind works, or this throws. The caller applies
// HEADRACE_IO_QUEUE.
ChosenIoQueue choose_io_queue(IoQueueKind kind, const IoQueueOptions& options,
                              const IoQueueFactories& make = {});
using IoQueueMaker = std::function<ChosenIoQueue(const IoQueueOptions&)>;
}  // namespace headrace::swap
