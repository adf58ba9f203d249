// SPDX-License-Identifier: Apache-2.0
// io_queue.hpp: the seam to the kernel's ways of reading and writing: io_uring, Linux AIO, threads.
//
// A queue moves requests and reports what the kernel said, byte for byte and errno for errno. It
// retries nothing and judges nothing: that is the drive's (drive.hpp), above all queues alike.
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
// A wait that is asked to be longer ends here, so that its end can be reckoned with.
inline constexpr std::chrono::hours kLongestWait{24};

enum class IoKind : std::uint8_t { kRead, kWrite };

// One request, owned by the caller, in place until it was reaped.
struct IoRequest {
  IoKind kind = IoKind::kRead;
  int fd = -1;
  std::byte* data = nullptr;
  std::uint32_t size_bytes = 0;  // <= 1 GiB
  std::uint64_t offset_bytes = 0;
  std::int64_t result = 0;    // bytes moved, or -errno; set when reaped
  IoRequest* next = nullptr;  // for whoever holds it: caller, queue, caller again
};

// What a queue has handed to the kernel once, instead of with every request.
struct Registered {
  bool buffers = false, files = false;
  // Why something that was given is not, the consequence, and what would help. Empty if all is, and
  // for a queue that never registers anything.
  std::string refused = {};
};

// Threads: all calls but wake() from one thread, the one that made the queue.
class IoQueue {
 public:
  virtual ~IoQueue() = default;                   // nothing may be in flight
  virtual const char* name() const noexcept = 0;  // "uring", "aio", "threads"
  // Hands over up to depth() requests in flight; false: full, try again after a reap. Buffers may
  // wait for flush().
  virtual bool submit(IoRequest& request) noexcept = 0;
  // Tells the kernel about what was submitted. Returns 0 or an errno (EAGAIN, EBUSY: call again;
  // the requests are kept).
  virtual int flush() noexcept = 0;
  // Puts completed requests into `done` and returns how many. With none completed waits until one
  // is, wake() was called, or `timeout` has passed (zero: do not wait).
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
  // Buffers that all requests lie in, and files they use: registered (uring) where the limits
  // allow, else not. IoQueue::registered() says what was.
  std::span<const std::span<std::byte>> buffers = {};
  std::span<const int> files = {};
  RegisterBuffers register_buffers = RegisterBuffers::kAuto;  // kOff: neither buffers nor files
};

using IoQueueFactory = std::function<std::unique_ptr<IoQueue>(const IoQueueOptions&)>;

// Each throws headrace::Error with the errno of the call that was refused (EPERM, ENOSYS, ENOMEM,
// ...) and its meaning; without errno where this build has not the library that the queue takes.
std::unique_ptr<IoQueue> make_io_queue_uring(const IoQueueOptions& options);
std::unique_ptr<IoQueue> make_io_queue_aio(const IoQueueOptions& options);
bool built_with_liburing() noexcept;
bool built_with_libaio() noexcept;
// `depth` threads "headrace-pioN" with pread/pwrite.
std::unique_ptr<IoQueue> make_io_queue_threads(const IoQueueOptions& options);
// Those errors, kUnsupported: what the errno means here (seccomp, sysctl, limits) and what would
// help.
Error uring_refused(const char* call, int sys_errno);
Error aio_refused(const char* call, int sys_errno);
// Registered::refused for `what` ("buffers", "files").
std::string not_registered(const char* what, int sys_errno);

struct ChosenIoQueue {
  std::unique_ptr<IoQueue> queue;
  std::string reason;  // why each one before it was passed over; empty if none was
};
// How each kind is made: others for tests that refuse it.
struct IoQueueFactories {
  IoQueueFactory uring = make_io_queue_uring;
  IoQueueFactory aio = make_io_queue_aio;
  IoQueueFactory threads = make_io_queue_threads;
};
// kAuto: the first of uring, aio (if all files are O_DIRECT) and threads that can be set up and
// moves one real block, with the reasons. A named kind or throws. HEADRACE_IO_QUEUE in the
// environment is the caller's to apply.
ChosenIoQueue choose_io_queue(IoQueueKind kind, const IoQueueOptions& options,
                              const IoQueueFactories& make = {});
using IoQueueMaker = std::function<ChosenIoQueue(const IoQueueOptions&)>;
}  // namespace headrace::swap
