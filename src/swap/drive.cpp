// SPDX-License-Identifier: Apache-2.0
// The drive's thread. It cuts transfers into blocks, keeps the queue full in order of priority, and
// follows every block until all its bytes have moved or an errno has ended it. What an answer means
// is block.hpp's, which transfer is next transfer_schedule.hpp's, what takes too long
// stall_watch.hpp's.
#include "swap/drive.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <future>
#include <mutex>
#include <thread>

#include "async/thread.hpp"
#include "base/check.hpp"
#include "base/error_text.hpp"
#include "base/intrusive_list.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "swap/block.hpp"
#include "swap/buffered_window.hpp"
#include "swap/lane_counters.hpp"
#include "swap/never_freed.hpp"
#include "swap/refusal.hpp"
#include "swap/stall_watch.hpp"
#include "swap/transfer_schedule.hpp"

namespace headrace::swap {
namespace {
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::size_t kReapBatch = 32;

// What a request in the kernel's hands points to: freed together, or, when one never came back, not
// at all.
//
// The end of a lost transfer. A block makes no progress for the deadline: give_up() marks it
// abandoned and ends its transfer with ETIMEDOUT, so whoever waits goes on, with memory that the
// kernel may still write to. From here on stalled() is true, the engine has failed, and the arena
// is leaked instead of freed. The block stays out of use. If its completion comes after all,
// handle() gives the block back and touches no transfer, since another may have its place by then.
// When all blocks are abandoned nothing can move any more, and every waiting transfer ends with
// ETIMEDOUT. At the end of the thread an abandoned block keeps KernelSide alive for ever
// (never_free), with the file descriptor: a late write then lands in a file that is still ours.
struct KernelSide {
  base::UniqueFd fd;  // our own, so that a late request never meets a reused number
  std::vector<Block> blocks;
  std::unique_ptr<IoQueue> queue;
};

class DriveThread final : public Drive {
 public:
  DriveThread(async::Conductor& conductor, DriveOptions options);
  ~DriveThread() override;

  void start(Transfer& transfer) noexcept override;
  DriveCounters counters() const noexcept override;
  const char* queue_name() const noexcept override { return queue_name_.c_str(); }
  const std::string& queue_reason() const noexcept override { return queue_reason_; }
  Registered registered() const override {
    return {buffers_registered_.load(), registered_.files, registered_.refused};
  }
  bool stalled() const noexcept override { return stalled_.load(); }

 private:
  void set_up();
  void run() noexcept;
  void tear_down() noexcept;

  void take_incoming() noexcept;
  void begin_blocks() noexcept;
  void resubmit_waiting() noexcept;
  void handle(Block& block) noexcept;
  void look_at_registration(const Block& block) noexcept;
  void look_at_ages() noexcept;
  nanoseconds patience() const noexcept;

  void cut_block(Active& active) noexcept;
  void submit(Block& block) noexcept;
  void go_on(Block& block) noexcept;
  void repeat(Block& block, int error) noexcept;
  void end_block(Block& block, int error) noexcept;
  void end_early(Active& active, std::uint64_t position, int error) noexcept;
  void complete_if_done(Active& active) noexcept;
  void give_up(Block& block) noexcept;
  void fail_all_waiting() noexcept;
  std::string describe_stall(const Block& block, nanoseconds age) const;

  LaneCounters& counters_of(const Block& block) noexcept {
    return block.kind == IoKind::kRead ? reads_ : writes_;
  }

  async::Conductor& conductor_;
  DriveOptions options_;
  LogSink log_;
  std::string queue_name_, queue_reason_;
  Registered registered_;  // at the start
  std::atomic<bool> buffers_registered_{false};
  std::atomic<Transfer*> incoming_{nullptr};  // last come first
  std::atomic<bool> stalled_{false};
  std::atomic<std::uint64_t> retries_{0};
  LaneCounters reads_, writes_;
  std::mutex stop_mutex_;  // the queue is not torn down while the destructor wakes it
  std::atomic<bool> stopping_{false};
  IoQueue* queue_ = nullptr;

  // The thread's own.
  std::unique_ptr<KernelSide> kernel_side_;
  BufferedWindow window_{-1};
  TransferSchedule schedule_;
  StallWatch watch_;
  base::IntrusiveStack<&Block::next_block> free_blocks_;
  base::IntrusiveStack<&Block::next_block> waiting_;  // to be submitted again at their time
  std::uint32_t in_queue_ = 0, abandoned_ = 0;
  int flush_error_ = 0;
  std::thread thread_;
};

DriveThread::DriveThread(async::Conductor& conductor, DriveOptions options)
    : conductor_(conductor),
      options_(std::move(options)),
      log_(base::sink_or_stderr(options_.log)),
      watch_(options_.warn_seconds, options_.deadline_seconds, DriveClock::now()) {
  HEADRACE_CHECK(options_.io_block_bytes > 0 && options_.io_block_bytes % base::kIoAlignment == 0 &&
                     options_.io_block_bytes <= base::kGiB,
                 "an I/O block is made of whole pages and at most 1 GiB");
  // Shared: the thread is still inside set_value() when get() returns.
  const auto ready = std::make_shared<std::promise<void>>();
  thread_ =
      async::start_thread("headrace-io" + std::to_string(options_.index % 1000), [this, ready] {
        try {
          set_up();
        } catch (...) {
          kernel_side_.reset();
          ready->set_exception(std::current_exception());
          return;
        }
        ready->set_value();
        run();
      });
  try {
    ready->get_future().get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

DriveThread::~DriveThread() {
  {
    const std::lock_guard lock(stop_mutex_);
    stopping_.store(true);
    queue_->wake();
  }
  thread_.join();
}

void DriveThread::set_up() {
  kernel_side_ = std::make_unique<KernelSide>();
  kernel_side_->fd = base::UniqueFd(::fcntl(options_.fd, F_DUPFD_CLOEXEC, 0));
  if (!kernel_side_->fd) {
    const int error = errno;
    throw Error(code_of(error),
                "the drive of " + options_.path + " cannot open its file: " +
                    base::errno_text(error) + "; it cannot start; " + what_helps(error),
                error);
  }
  window_ = BufferedWindow(kernel_side_->fd.get());
  const int fd = kernel_side_->fd.get();
  const IoQueueOptions queue_options{.depth = std::max(1u, options_.queue_depth),
                                     .submit_batch = options_.submit_batch,
                                     .buffers = options_.buffers,
                                     .files = {&fd, 1},
                                     .register_buffers = options_.register_buffers};
  ChosenIoQueue chosen = options_.make_queue ? options_.make_queue(queue_options)
                                             : choose_io_queue(IoQueueKind::kAuto, queue_options);
  kernel_side_->queue = std::move(chosen.queue);
  queue_ = kernel_side_->queue.get();
  queue_name_ = queue_->name();
  queue_reason_ = std::move(chosen.reason);
  registered_ = queue_->registered();
  buffers_registered_.store(registered_.buffers);
  kernel_side_->blocks.resize(queue_->depth());
  for (Block& block : kernel_side_->blocks) free_blocks_.push(block);
  schedule_.set_up(queue_->depth());
}

void DriveThread::start(Transfer& transfer) noexcept {
  HEADRACE_CHECK(transfer.offset_bytes % base::kIoAlignment == 0 &&
                     transfer.size_bytes % base::kIoAlignment == 0 &&
                     reinterpret_cast<std::uintptr_t>(transfer.data) % base::kIoAlignment == 0,
                 "a transfer's memory, offset and size are made of whole pages");
  transfer.done_bytes = 0;
  transfer.error = 0;
  Transfer* before = incoming_.load(std::memory_order_relaxed);
  do {
    transfer.next_transfer = before;
  } while (!incoming_.compare_exchange_weak(before, &transfer, std::memory_order_release,
                                            std::memory_order_relaxed));
  if (before == nullptr) queue_->wake();  // else whoever pushed the first one did
}

DriveCounters DriveThread::counters() const noexcept {
  return {.read_bytes = reads_.bytes.load(),
          .written_bytes = writes_.bytes.load(),
          .reads = reads_.requests.load(),
          .writes = writes_.requests.load(),
          .retries = retries_.load(),
          .read_busy_seconds = reads_.busy.seconds(),
          .write_busy_seconds = writes_.busy.seconds()};
}

void DriveThread::run() noexcept {
  std::array<IoRequest*, kReapBatch> done;
  while (true) {
    const bool stopping = stopping_.load();  // before the list is read: nothing is started after it
    take_incoming();
    if (abandoned_ == kernel_side_->blocks.size()) fail_all_waiting();
    resubmit_waiting();
    begin_blocks();
    flush_error_ = queue_->flush();
    if (stopping && schedule_.idle()) break;
    const std::size_t count = queue_->reap(done, patience());
    for (std::size_t i = 0; i < count; ++i) handle(static_cast<Block&>(*done[i]));
    look_at_ages();
  }
  tear_down();
}

void DriveThread::tear_down() noexcept {
  const std::lock_guard lock(stop_mutex_);
  if (abandoned_ == 0) {
    kernel_side_.reset();
    return;
  }
  log_(LogLevel::kWarning,
       "swap drive " + std::to_string(options_.index) + " (" + options_.path +
           "): " + std::to_string(abandoned_) +
           " requests never completed; their queue is left behind on purpose, because "
           "the kernel may still use it");
  never_free(std::move(kernel_side_));
}

void DriveThread::take_incoming() noexcept {
  Transfer* reversed = nullptr;
  for (Transfer* transfer = incoming_.exchange(nullptr, std::memory_order_acquire);
       transfer != nullptr;) {
    Transfer* const next = transfer->next_transfer;
    transfer->next_transfer = reversed;
    reversed = transfer;
    transfer = next;
  }
  while (reversed != nullptr) {
    Transfer& transfer = *reversed;
    reversed = transfer.next_transfer;
    schedule_.add(transfer);
  }
}

// How long to wait for completions: until a retry is due, or the ages are to be looked at.
nanoseconds DriveThread::patience() const noexcept {
  nanoseconds wait = in_queue_ > abandoned_ ? watch_.interval() : std::chrono::hours(1);
  if (flush_error_ != 0) wait = std::min<nanoseconds>(wait, milliseconds(1));
  if (!waiting_.empty()) {
    const DriveClock::time_point now = DriveClock::now();
    for (const Block* block = waiting_.front(); block != nullptr; block = block->next_block) {
      wait = std::min<nanoseconds>(
          wait, std::max<nanoseconds>(block->not_before - now, microseconds(20)));
    }
  }
  return wait;
}

void DriveThread::begin_blocks() noexcept {
  while (!free_blocks_.empty()) {
    Active* const active = schedule_.next();
    if (active == nullptr) return;
    cut_block(*active);
  }
}

void DriveThread::cut_block(Active& active) noexcept {
  const Transfer& transfer = *active.transfer;
  const std::uint64_t size = std::min(options_.io_block_bytes, transfer.size_bytes - active.issued);
  Block* const block = size > 0 ? free_blocks_.pop() : nullptr;
  if (block != nullptr) {
    block->kind = transfer.kind;
    block->fd = kernel_side_->fd.get();
    block->active = &active;
    block->at = block->reached = active.issued;
    block->end = active.issued + size;
    block->attempts = 0;
    active.issued += size;
    ++active.blocks;
  }
  if (active.issued == transfer.size_bytes) schedule_.withdraw(active);
  if (block != nullptr) {
    submit(*block);
  } else {
    complete_if_done(active);  // a transfer of no bytes
  }
}

void DriveThread::submit(Block& block) noexcept {
  const Transfer& transfer = *block.active->transfer;
  block.data = transfer.data + block.at;
  block.offset_bytes = transfer.offset_bytes + block.at;
  block.size_bytes = static_cast<std::uint32_t>(block.end - block.at);
  block.since = DriveClock::now();
  block.warned = false;
  if (!queue_->submit(block)) {
    block.state = BlockState::kWaiting;
    block.not_before = block.since + milliseconds(1);
    waiting_.push(block);
    return;
  }
  block.state = BlockState::kInQueue;
  ++in_queue_;
  counters_of(block).requests.fetch_add(1, std::memory_order_relaxed);
  counters_of(block).busy.begin();
}

void DriveThread::resubmit_waiting() noexcept {
  if (waiting_.empty()) return;
  const DriveClock::time_point now = DriveClock::now();
  auto rest = waiting_.take_all();
  while (Block* const block = rest.pop()) {
    if (block->active->stopped) {
      end_block(*block, 0);
    } else if (block->not_before > now) {
      waiting_.push(*block);
    } else {
      submit(*block);
    }
  }
}

void DriveThread::handle(Block& block) noexcept {
  // Nothing can be saved: the block, or the memory, may be another transfer's by now.
  HEADRACE_CHECK(block.state == BlockState::kInQueue || block.state == BlockState::kAbandoned,
                 "a request was completed twice");
  --in_queue_;
  LaneCounters& counters = counters_of(block);
  if (block.result > 0) {
    counters.bytes.fetch_add(static_cast<std::uint64_t>(block.result), std::memory_order_relaxed);
  }
  // Late: its transfer has ended, only the block comes back.
  if (block.state == BlockState::kAbandoned) {
    --abandoned_;
    block.state = BlockState::kFree;
    free_blocks_.push(block);
    return;
  }
  counters.busy.end();
  if (block.result < 0) look_at_registration(block);
  const Verdict verdict = judge(block);
  switch (verdict.next) {
    case Verdict::Next::kEnd:
      return end_block(block, verdict.error);
    case Verdict::Next::kContinue:
      return go_on(block);
    case Verdict::Next::kRepeat:
      return repeat(block, verdict.error);
  }
}

// The queue goes without registered memory once a request on it has failed.
void DriveThread::look_at_registration(const Block& block) noexcept {
  if (!buffers_registered_.load() || queue_->registered().buffers) return;
  buffers_registered_.store(false);
  log_(LogLevel::kInfo, "swap drive " + std::to_string(options_.index) + " (" + options_.path +
                            "): a request on registered memory failed: " +
                            base::errno_text(static_cast<int>(-block.result)) +
                            ": from now on every request names its own, at a little more CPU");
}

void DriveThread::go_on(Block& block) noexcept {
  if (block.active->stopped) return end_block(block, 0);
  retries_.fetch_add(1, std::memory_order_relaxed);
  submit(block);
}

void DriveThread::repeat(Block& block, int error) noexcept {
  if (block.active->stopped) return end_block(block, 0);
  if (!schedule_repeat(block, DriveClock::now())) return end_block(block, error);
  retries_.fetch_add(1, std::memory_order_relaxed);
  block.state = BlockState::kWaiting;
  waiting_.push(block);
}

void DriveThread::end_block(Block& block, int error) noexcept {
  Active& active = *block.active;
  if (block.reached < block.end || error != 0) end_early(active, block.reached, error);
  block.active = nullptr;
  block.state = BlockState::kFree;
  free_blocks_.push(block);
  --active.blocks;
  complete_if_done(active);
}

void DriveThread::end_early(Active& active, std::uint64_t position, int error) noexcept {
  Transfer& transfer = *active.transfer;
  active.whole = std::min(active.whole, position);
  if (transfer.error == 0) transfer.error = error;
  active.stopped = true;
  schedule_.withdraw(active);
}

void DriveThread::complete_if_done(Active& active) noexcept {
  Transfer& transfer = *active.transfer;
  if (active.blocks > 0 || (!active.stopped && active.issued < transfer.size_bytes)) return;
  transfer.done_bytes = std::min(active.whole, active.issued);
  if (transfer.kind == IoKind::kRead) {
    window_.read(transfer.offset_bytes, transfer.done_bytes);
  } else if (const int error = window_.wrote(transfer.offset_bytes, transfer.done_bytes);
             error != 0) {
    if (transfer.error == 0) transfer.error = error;
  }
  schedule_.release(active);
  conductor_.post(transfer);
}

void DriveThread::look_at_ages() noexcept {
  watch_.look(
      DriveClock::now(), kernel_side_->blocks, in_queue_ > abandoned_,
      [this](const Block& block, nanoseconds age) {
        log_(LogLevel::kWarning, watch_.slow_text(describe_stall(block, age)));
      },
      [this](Block& block, nanoseconds age) {
        log_(LogLevel::kError, StallWatch::lost_text(describe_stall(block, age)));
        give_up(block);
      });
}

void DriveThread::give_up(Block& block) noexcept {
  stalled_.store(true);
  counters_of(block).busy.end();
  Active& active = *block.active;
  block.state = BlockState::kAbandoned;
  block.active = nullptr;
  ++abandoned_;
  end_early(active, block.reached, ETIMEDOUT);
  --active.blocks;
  complete_if_done(active);
}

// No block is left to move anything with.
void DriveThread::fail_all_waiting() noexcept {
  while (Active* const active = schedule_.next()) {
    end_early(*active, active->issued, ETIMEDOUT);
    complete_if_done(*active);
  }
}

std::string DriveThread::describe_stall(const Block& block, nanoseconds age) const {
  return describe(block, age,
                  {.drive = options_.index,
                   .path = options_.path,
                   .queue = queue_name_,
                   .in_queue = in_queue_,
                   .flush_error = flush_error_});
}
}  // namespace

std::unique_ptr<Drive> make_drive_thread(async::Conductor& conductor, DriveOptions options) {
  return std::make_unique<DriveThread>(conductor, std::move(options));
}
}  // namespace headrace::swap
