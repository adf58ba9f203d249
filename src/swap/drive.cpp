// SPDX-License-Identifier: Apache-2.0
// The drive's thread. It cuts transfers into blocks, keeps the queue full in order of priority, and
// follows every block until all its bytes have moved or an errno has ended it.
//
// A transfer that has begun is Active; its blocks run in any order. What ends early lowers `whole`,
// the point up to which the transfer's bytes have moved without a gap.
#include "swap/drive.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <future>
#include <mutex>
#include <thread>

#include "async/thread.hpp"
#include "base/check.hpp"
#include "base/error_text.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "swap/buffered_window.hpp"
#include "swap/never_freed.hpp"

namespace headrace::swap {
namespace {
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::size_t kPriorities = 3;
constexpr std::uint64_t kSector = 512;   // a short transfer that ends on one can be continued there
constexpr std::uint32_t kAttempts = 32;  // in a row without a byte moved: a quarter of a second
constexpr std::uint32_t kSameEnd =
    3;  // reads that stopped at the same odd byte: the file ends there
constexpr std::size_t kReapBatch = 32;

nanoseconds backoff(std::uint32_t attempts) {
  return std::min<nanoseconds>(microseconds(50) * (1u << std::min(attempts, 10u)),
                               milliseconds(10));
}

nanoseconds to_duration(double seconds) {
  return std::chrono::duration_cast<nanoseconds>(
      std::chrono::duration<double>(std::min(seconds, 1e9)));
}

std::string format_seconds(nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", std::chrono::duration<double>(duration).count());
  return text;
}

struct TransferList {
  Transfer* first = nullptr;
  Transfer* last = nullptr;

  void push(Transfer& transfer) noexcept {
    transfer.next_transfer = nullptr;
    (last == nullptr ? first : last->next_transfer) = &transfer;
    last = &transfer;
  }
  void pop() noexcept {
    first = first->next_transfer;
    if (first == nullptr) last = nullptr;
  }
};

struct Active {
  Transfer* transfer = nullptr;
  std::uint64_t issued = 0;  // bytes from the start that have been cut into blocks
  std::uint64_t whole = 0;   // no gap before this byte
  std::uint32_t blocks = 0;  // under way
  bool stopped = false;      // a block ended early: no more are issued, none continued
  Active* next = nullptr;
};

enum class BlockState : std::uint8_t { kFree, kWaiting, kInQueue, kAbandoned };

struct Block : IoRequest {
  Active* active = nullptr;
  std::uint64_t end = 0;      // of the block, in the transfer
  std::uint64_t at = 0;       // where the attempt starts; sector-aligned
  std::uint64_t reached = 0;  // moved without a gap up to here
  std::uint32_t attempts = 0;
  Clock::time_point since, not_before;
  bool warned = false;
  BlockState state = BlockState::kFree;
  Block* next_block = nullptr;
};

// Wall time during which at least one request of a kind was in flight.
class BusyTime {
 public:
  void begin() {
    if (running_++ > 0) return;
    const std::lock_guard lock(mutex_);
    since_ = Clock::now();
    busy_ = true;
  }
  void end() {
    if (--running_ > 0) return;
    const std::lock_guard lock(mutex_);
    total_ += Clock::now() - since_;
    busy_ = false;
  }
  double seconds() const {
    const std::lock_guard lock(mutex_);
    const nanoseconds open = busy_ ? nanoseconds(Clock::now() - since_) : nanoseconds::zero();
    return std::chrono::duration<double>(total_ + open).count();
  }

 private:
  std::uint32_t running_ = 0;  // the drive's thread only
  mutable std::mutex mutex_;
  Clock::time_point since_;
  nanoseconds total_{0};
  bool busy_ = false;
};

struct LaneCounters {
  std::atomic<std::uint64_t> bytes{0}, requests{0};
  BusyTime busy;
};

// What a request in the kernel's hands points to: freed together, or, when one never came back, not
// at all.
struct Lane {
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
  bool stalled() const noexcept override { return stalled_.load(); }

 private:
  void set_up();
  void run() noexcept;
  void tear_down() noexcept;

  void take_incoming() noexcept;
  void begin_blocks() noexcept;
  void resubmit_waiting() noexcept;
  void flush() noexcept;
  void handle(Block& block) noexcept;
  void check_ages() noexcept;
  nanoseconds patience() const noexcept;
  bool idle() const noexcept;

  Active* head(std::size_t priority) noexcept;
  void cut_block(Active& active) noexcept;
  void submit(Block& block) noexcept;
  void moved(Block& block, std::uint64_t bytes) noexcept;
  void failed(Block& block, int error) noexcept;
  void retry(Block& block, int error) noexcept;
  void end_block(Block& block, int error) noexcept;
  void end_early(Active& active, std::uint64_t position, int error) noexcept;
  void complete_if_done(Active& active) noexcept;
  void give_up(Block& block, nanoseconds age) noexcept;
  void fail_all_waiting() noexcept;
  std::string describe(const Block& block, nanoseconds age) const;

  LaneCounters& counters_of(const Block& block) noexcept {
    return block.kind == IoKind::kRead ? reads_ : writes_;
  }

  async::Conductor& conductor_;
  DriveOptions options_;
  LogSink log_;
  nanoseconds warn_, deadline_, check_every_;
  Clock::time_point last_look_ = Clock::now();
  std::string queue_name_, queue_reason_;
  std::atomic<Transfer*> incoming_{nullptr};  // last come first
  std::atomic<bool> stalled_{false};
  std::atomic<std::uint64_t> retries_{0};
  LaneCounters reads_, writes_;
  std::mutex stop_mutex_;  // the queue is not torn down while the destructor wakes it
  std::atomic<bool> stopping_{false};
  IoQueue* queue_ = nullptr;

  // The thread's own.
  std::unique_ptr<Lane> lane_;
  BufferedWindow window_{-1};
  std::array<TransferList, kPriorities> lists_;
  std::array<Active*, kPriorities>
      begun_{};  // of the list's head, if some of its blocks are not issued yet
  std::vector<Active> actives_;
  Active* free_actives_ = nullptr;
  std::uint32_t actives_in_use_ = 0;
  Block* free_blocks_ = nullptr;
  Block* waiting_ = nullptr;  // to be submitted again at their time
  std::uint32_t in_queue_ = 0, abandoned_ = 0;
  int flush_error_ = 0;
  Clock::time_point next_age_check_;
  std::thread thread_;
};

DriveThread::DriveThread(async::Conductor& conductor, DriveOptions options)
    : conductor_(conductor),
      options_(std::move(options)),
      log_(base::sink_or_stderr(options_.log)),
      warn_(to_duration(options_.warn_seconds)),
      deadline_(to_duration(options_.deadline_seconds)),
      check_every_(std::clamp<nanoseconds>(std::min(warn_, deadline_) / 4, milliseconds(1),
                                           milliseconds(500))) {
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
          lane_.reset();
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
  lane_ = std::make_unique<Lane>();
  lane_->fd = base::UniqueFd(::fcntl(options_.fd, F_DUPFD_CLOEXEC, 0));
  if (!lane_->fd) {
    const int error = errno;
    throw Error(
        Code::kIo,
        "the drive of " + options_.path + " cannot open its file: " + base::errno_text(error),
        error);
  }
  window_ = BufferedWindow(lane_->fd.get());
  const int fd = lane_->fd.get();
  const IoQueueOptions queue_options{.depth = std::max(1u, options_.queue_depth),
                                     .submit_batch = options_.submit_batch,
                                     .buffers = options_.buffers,
                                     .files = {&fd, 1}};
  ChosenIoQueue chosen = options_.make_queue ? options_.make_queue(queue_options)
                                             : choose_io_queue(IoQueueKind::kAuto, queue_options);
  lane_->queue = std::move(chosen.queue);
  queue_ = lane_->queue.get();
  queue_name_ = queue_->name();
  queue_reason_ = std::move(chosen.reason);
  lane_->blocks.resize(queue_->depth());
  for (Block& block : lane_->blocks) {
    block.next_block = std::exchange(free_blocks_, &block);
  }
  // Each has a block under way, but for the heads of the lists when a higher priority holds them
  // up.
  actives_.resize(queue_->depth() + kPriorities);
  for (Active& active : actives_) {
    active.next = std::exchange(free_actives_, &active);
  }
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
    if (abandoned_ == lane_->blocks.size()) fail_all_waiting();
    resubmit_waiting();
    begin_blocks();
    flush();
    if (stopping && idle()) break;
    const std::size_t count = queue_->reap(done, patience());
    for (std::size_t i = 0; i < count; ++i) handle(static_cast<Block&>(*done[i]));
    check_ages();
  }
  tear_down();
}

void DriveThread::tear_down() noexcept {
  const std::lock_guard lock(stop_mutex_);
  if (abandoned_ == 0) {
    lane_.reset();
    return;
  }
  log_(LogLevel::kWarning,
       "swap drive " + std::to_string(options_.index) + " (" + options_.path +
           "): " + std::to_string(abandoned_) +
           " requests never completed; their queue is left behind on purpose, because "
           "the kernel may still use it");
  never_free(std::move(lane_));
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
    lists_[static_cast<std::size_t>(transfer.priority)].push(transfer);
  }
}

bool DriveThread::idle() const noexcept {
  for (const TransferList& list : lists_) {
    if (list.first != nullptr) return false;
  }
  return actives_in_use_ == 0;
}

// How long to wait for completions: until a retry is due, or the ages are to be looked at.
nanoseconds DriveThread::patience() const noexcept {
  nanoseconds wait = in_queue_ > abandoned_ ? check_every_ : std::chrono::hours(1);
  if (flush_error_ != 0) wait = std::min<nanoseconds>(wait, milliseconds(1));
  if (waiting_ != nullptr) {
    const Clock::time_point now = Clock::now();
    for (const Block* block = waiting_; block != nullptr; block = block->next_block) {
      wait = std::min<nanoseconds>(
          wait, std::max<nanoseconds>(block->not_before - now, microseconds(20)));
    }
  }
  return wait;
}

// The transfer to cut next at this priority, begun if it was not.
Active* DriveThread::head(std::size_t priority) noexcept {
  TransferList& list = lists_[priority];
  if (begun_[priority] != nullptr || list.first == nullptr) return begun_[priority];
  Active& active = *free_actives_;
  free_actives_ = active.next;
  ++actives_in_use_;
  active = {.transfer = list.first, .whole = list.first->size_bytes};
  begun_[priority] = &active;
  return &active;
}

void DriveThread::begin_blocks() noexcept {
  for (std::size_t priority = 0; priority < kPriorities;) {
    Active* const active = free_blocks_ == nullptr ? nullptr : head(priority);
    if (active == nullptr) {
      ++priority;
    } else {
      cut_block(*active);
    }
  }
}

void DriveThread::cut_block(Active& active) noexcept {
  const Transfer& transfer = *active.transfer;
  const std::uint64_t size = std::min(options_.io_block_bytes, transfer.size_bytes - active.issued);
  Block* const block = size > 0 ? free_blocks_ : nullptr;
  if (block != nullptr) {
    free_blocks_ = block->next_block;
    block->kind = transfer.kind;
    block->fd = lane_->fd.get();
    block->active = &active;
    block->at = block->reached = active.issued;
    block->end = active.issued + size;
    block->attempts = 0;
    active.issued += size;
    ++active.blocks;
  }
  if (active.issued == transfer.size_bytes) {
    const auto priority = static_cast<std::size_t>(transfer.priority);
    lists_[priority].pop();
    begun_[priority] = nullptr;
  }
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
  block.since = Clock::now();
  block.warned = false;
  if (!queue_->submit(block)) {
    block.state = BlockState::kWaiting;
    block.not_before = block.since + milliseconds(1);
    block.next_block = std::exchange(waiting_, &block);
    return;
  }
  block.state = BlockState::kInQueue;
  ++in_queue_;
  counters_of(block).requests.fetch_add(1, std::memory_order_relaxed);
  counters_of(block).busy.begin();
}

void DriveThread::resubmit_waiting() noexcept {
  if (waiting_ == nullptr) return;
  const Clock::time_point now = Clock::now();
  Block* rest = std::exchange(waiting_, nullptr);
  while (rest != nullptr) {
    Block& block = *rest;
    rest = block.next_block;
    if (block.active->stopped) {
      end_block(block, 0);
    } else if (block.not_before > now) {
      block.next_block = std::exchange(waiting_, &block);
    } else {
      submit(block);
    }
  }
}

void DriveThread::flush() noexcept { flush_error_ = queue_->flush(); }

void DriveThread::handle(Block& block) noexcept {
  --in_queue_;
  LaneCounters& counters = counters_of(block);
  if (block.result > 0) {
    counters.bytes.fetch_add(static_cast<std::uint64_t>(block.result), std::memory_order_relaxed);
  }
  if (block.state ==
      BlockState::kAbandoned) {  // late: its transfer has ended, only the block comes back
    --abandoned_;
    block.state = BlockState::kFree;
    block.next_block = std::exchange(free_blocks_, &block);
    return;
  }
  counters.busy.end();
  if (block.result < 0) {
    failed(block, static_cast<int>(-block.result));
  } else if (block.result > std::int64_t{block.size_bytes}) {
    end_block(block, EIO);  // more than was asked for is no answer to this request
  } else {
    moved(block, static_cast<std::uint64_t>(block.result));
  }
}

void DriveThread::moved(Block& block, std::uint64_t bytes) noexcept {
  const std::uint64_t position = block.at + bytes;
  if (bytes == 0) {
    if (block.kind == IoKind::kWrite) return retry(block, EIO);
    return end_block(block, 0);  // the end of the file
  }
  const bool progress = position > block.reached;
  if (progress) {
    block.reached = position;
    block.attempts = 0;
  } else if (block.kind == IoKind::kRead && position == block.reached &&
             block.attempts >= kSameEnd) {
    return end_block(block, 0);
  }
  if (position == block.end) return end_block(block, 0);
  // Only whole sectors can be continued with O_DIRECT; else the last page is moved again.
  block.at = position % kSector == 0 ? position : base::align_down(position, base::kIoAlignment);
  if (!progress) return retry(block, EIO);
  if (block.active->stopped) return end_block(block, 0);
  retries_.fetch_add(1, std::memory_order_relaxed);
  submit(block);
}

void DriveThread::failed(Block& block, int error) noexcept {
  if (error == EAGAIN || error == EINTR || error == EBUSY) return retry(block, error);
  if (error == EINVAL && block.at % base::kIoAlignment != 0) {
    // This drive wants larger steps than a sector: move the last page again.
    block.at = base::align_down(block.at, base::kIoAlignment);
    return retry(block, error);
  }
  end_block(block, error);
}

void DriveThread::retry(Block& block, int error) noexcept {
  if (block.active->stopped) return end_block(block, 0);
  if (++block.attempts > kAttempts) return end_block(block, error);
  retries_.fetch_add(1, std::memory_order_relaxed);
  block.state = BlockState::kWaiting;
  block.not_before = Clock::now() + backoff(block.attempts);
  block.next_block = std::exchange(waiting_, &block);
}

void DriveThread::end_block(Block& block, int error) noexcept {
  Active& active = *block.active;
  if (block.reached < block.end || error != 0) end_early(active, block.reached, error);
  block.active = nullptr;
  block.state = BlockState::kFree;
  block.next_block = std::exchange(free_blocks_, &block);
  --active.blocks;
  complete_if_done(active);
}

void DriveThread::end_early(Active& active, std::uint64_t position, int error) noexcept {
  Transfer& transfer = *active.transfer;
  active.whole = std::min(active.whole, position);
  if (transfer.error == 0) transfer.error = error;
  active.stopped = true;
  const auto priority = static_cast<std::size_t>(transfer.priority);
  if (begun_[priority] == &active) {
    lists_[priority].pop();
    begun_[priority] = nullptr;
  }
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
  active.next = std::exchange(free_actives_, &active);
  --actives_in_use_;
  conductor_.post(transfer);
}

void DriveThread::check_ages() noexcept {
  const Clock::time_point now = Clock::now();
  const Clock::time_point last = std::exchange(last_look_, now);
  if (in_queue_ == abandoned_) return;
  // This thread looks several times per check_every_ while anything is in flight. Where it did not,
  // the process was stopped (SIGSTOP, a frozen container): the drive is not to blame for that time.
  if (now - last > 4 * check_every_) {
    for (Block& block : lane_->blocks) {
      if (block.state == BlockState::kInQueue && block.since < last) block.since += now - last;
    }
  }
  if (now < next_age_check_) return;
  next_age_check_ = now + check_every_;
  for (Block& block : lane_->blocks) {
    if (block.state != BlockState::kInQueue) continue;
    const nanoseconds age = now - block.since;
    if (age >= deadline_) {
      give_up(block, age);
    } else if (age >= warn_ && !block.warned) {
      block.warned = true;
      log_(LogLevel::kWarning,
           describe(block, age) + "; it will be given up after " + format_seconds(deadline_) +
               "; if the drive is only slow, raise headrace.io_deadline_seconds");
    }
  }
}

void DriveThread::give_up(Block& block, nanoseconds age) noexcept {
  log_(LogLevel::kError,
       describe(block, age) +
           "; it is given up, and its memory stays reserved because the kernel may still "
           "use it; look at the drive (dmesg, smartctl)");
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
  for (std::size_t priority = 0; priority < kPriorities; ++priority) {
    while (Active* const active = head(priority)) {
      end_early(*active, active->issued, ETIMEDOUT);
      complete_if_done(*active);
    }
  }
}

std::string DriveThread::describe(const Block& block, nanoseconds age) const {
  const char* const kind = block.kind == IoKind::kRead ? "read" : "write";
  std::string text = "swap drive " + std::to_string(options_.index) + ": a " + kind + " of " +
                     std::to_string(block.size_bytes) + " bytes at offset " +
                     std::to_string(block.offset_bytes) + " of " + options_.path;
  if (const char* const what = block.active->transfer->what; what != nullptr && *what != '\0') {
    text += std::string(" for ") + what;
  }
  text += " has not completed for " + format_seconds(age) + " (" + std::to_string(in_queue_) +
          " requests in flight, queue " + queue_name_;
  if (flush_error_ != 0) text += ", the kernel takes no more: " + base::errno_text(flush_error_);
  return text + ")";
}
}  // namespace

std::unique_ptr<Drive> make_drive_thread(async::Conductor& conductor, DriveOptions options) {
  return std::make_unique<DriveThread>(conductor, std::move(options));
}
}  // namespace headrace::swap
