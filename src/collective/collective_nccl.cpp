// SPDX-License-Identifier: Apache-2.0
#include "collective/collective_nccl.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>

#include "async/thread.hpp"
#include "headrace/error.hpp"

namespace headrace::collective {
namespace {
using std::chrono::milliseconds;
constexpr std::uint64_t kControlBytes = 8192;  // per rank: a post, and behind all of them:
constexpr std::uint64_t kPayloadBytes = kControlBytes - sizeof(Post);
static_assert(sizeof(QueuedCalls) <= kPayloadBytes);
// How long a stream may take to pass what was aborted on it.
constexpr std::chrono::seconds kDrain(5);

const NcclOptions& checked(const NcclOptions& options) {
  const auto refuse = [](const std::string& cause) {
    throw Error(Code::kInvalidArgument, "make_nccl_collective: " + cause);
  };
  if (options.rank >= options.world_size) {
    refuse("rank " + std::to_string(options.rank) + " of world_size " +
           std::to_string(options.world_size) +
           " does not exist: no collective was made; ranks count from 0");
  }
  if (options.device == nullptr)
    refuse("no device: no collective was made; pass the engine's as NcclOptions::device");
  if (options.deadline <= milliseconds(0))
    refuse(
        "a deadline of 0 would end every call: no collective was made; leave it out for ten "
        "minutes");
  return options;
}

NcclStream nccl_stream(Stream stream) { return reinterpret_cast<NcclStream>(stream.handle); }
}  // namespace

// ---- construction and end ----

CollectiveNccl::OwnStream::~OwnStream() {
  try {
    device_.synchronize(stream_);
  } catch (const std::exception&) {  // a device that is gone runs nothing any more
  }
  device_.destroy_stream(stream_);
}

CollectiveNccl::Scratch::Scratch(Device& device, std::uint64_t size_bytes)
    : device_(device),
      size_bytes_(size_bytes),
      data_(static_cast<std::byte*>(device_.allocate(size_bytes))) {
  if (data_ != nullptr) return;
  throw Error(
      Code::kOutOfBudget,
      "the device has no " + std::to_string(size_bytes) +
          " bytes left for what NCCL's ranks tell each other: no collective was made; leave "
          "room for nccl_scratch_bytes()");
}

// One blocking call, or farewell, at a time.
class CollectiveNccl::ControlUse {
 public:
  explicit ControlUse(CollectiveNccl& owner) : owner_(owner) {
    std::unique_lock lock(owner_.mutex_);
    owner_.throw_if_failed(lock);
    owner_.control_used_ = true;
  }
  ~ControlUse() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.control_used_ = false;
    owner_.changed_.notify_all();
  }
  ControlUse(const ControlUse&) = delete;
  ControlUse& operator=(const ControlUse&) = delete;

 private:
  CollectiveNccl& owner_;
};

CollectiveNccl::CollectiveNccl(const NcclOptions& options)
    : rank_(checked(options).rank),
      world_size_(options.world_size),
      deadline_(std::min<milliseconds>(options.deadline, std::chrono::hours(24 * 365))),
      grace_(std::min<milliseconds>(deadline_, std::chrono::seconds(5))),
      device_(options.device),
      posts_(world_size_),
      payload_(world_size_ * kPayloadBytes),
      library_(load_nccl(options.library)),
      control_memory_(*device_, nccl_scratch_bytes(world_size_)),
      control_stream_(*device_),
      watch_stream_(*device_),
      data_(library_),
      control_(library_) {
  connect(options);
  watch_thread_ = async::start_thread("headrace-nccl", [this] { watch(); });
}

void CollectiveNccl::connect(const NcclOptions& options) try {
  const Clock::time_point end = Clock::now() + deadline_;
  check_made(until_issued(data_, data_.start(world_size_, options.id, rank_), end));
  check_same_gpu();
  check_made(until_issued(data_, control_.split_from(data_, rank_), end));
  check_made(until_issued(control_, control_.state(), end));
  // NCCL connects at the first use, which this is, so that a later wait is for the rank itself.
  exchange({0, "make_nccl_collective"}, {}, {});
} catch (...) {
  data_.abort();  // first: it may be making the other one
  throw;
}

void CollectiveNccl::check_same_gpu() {
  const int engine = device_->cuda_ordinal(), nccl = data_.cuda_ordinal();
  if (engine < 0 || nccl < 0 || engine == nccl) return;
  throw Error(Code::kInvalidArgument,
              "make_nccl_collective: NCCL is on cuda:" + std::to_string(nccl) +
                  ", the calling thread's GPU, and the device is on cuda:" +
                  std::to_string(engine) + ": no collective was made; call cudaSetDevice(" +
                  std::to_string(engine) + ") on this thread first");
}

void CollectiveNccl::check_made(NcclResult result) {
  if (result == kNcclSuccess) return;
  const std::string who = "rank " + std::to_string(rank_) + " of " + std::to_string(world_size_);
  if (result == kNcclInProgress) {
    throw Error(Code::kPeerLost,
                who + " waited " + std::to_string(deadline_.count()) +
                    " ms for the other ranks to make their NCCL collective: none was made; see "
                    "that each has this run's id and reaches the host that made it, or raise "
                    "NcclOptions::deadline");
  }
  throw Error(result == kNcclRemoteError ? Code::kPeerLost : Code::kUnsupported,
              "NCCL on " + who + ": " + library_.describe(result) +
                  ": no collective was made; NCCL_DEBUG=INFO in the environment makes it say more");
}

CollectiveNccl::~CollectiveNccl() {
  const Clock::time_point end = Clock::now() + grace_;
  leave();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    for_watch_.notify_all();
  }
  watch_thread_.join();
  control_.finish(end);
  data_.finish(end);
}

// Whoever waits for this rank in a round is told in it.
void CollectiveNccl::leave() noexcept try {
  const ControlUse use(*this);
  Post post;
  post.kind = Post::Kind::kLeft;
  post_round(post, Clock::now() + grace_);
} catch (const std::exception&) {  // it has failed: that has been said, or cannot be
}

// ---- calls that are queued ----

void CollectiveNccl::begin(const Call& call) {
  {
    std::unique_lock lock(mutex_);
    throw_if_failed(lock);
  }
  queued_calls_.add(call);
}

NcclResult CollectiveNccl::until_issued(NcclCommunicator& communicator, NcclResult result,
                                        Clock::time_point end) {
  for (int asked = 0; result == kNcclInProgress && Clock::now() < end; ++asked) {
    if (asked < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    result = communicator.state();
  }
  return result;
}

// One after the other, on whichever streams they are: ranks meet in the same order.
template <class Calls>
void CollectiveNccl::issue(const Call& call, Stream stream, const Calls& calls) {
  if (last_end_.id != 0 && stream.handle != last_stream_.handle) device_->wait(stream, last_end_);
  const NcclResult result = until_issued(data_, data_.issue(calls), Clock::now() + deadline_);
  if (result == kNcclSuccess) return;
  if (is_error(result)) {
    break_off("NCCL at " + describe(call) + ": " + library_.describe(result) +
              ": no rank can go on; close every rank's engine and start again");
  } else {
    break_off(missing_text("another rank", call, static_cast<std::uint64_t>(deadline_.count())));
  }
  std::unique_lock lock(mutex_);
  throw_if_failed(lock);
}

void CollectiveNccl::keep_watch(const Call& call, Stream stream) {
  last_stream_ = stream;
  last_end_ = device_->record(stream);
  device_->wait(watch_stream_, last_end_);
  {
    const std::lock_guard lock(mutex_);
    queued_.push_back({call, Clock::now()});
  }
  const auto ended = [](void* context) noexcept {
    auto& self = *static_cast<CollectiveNccl*>(context);
    const std::lock_guard lock(self.mutex_);
    self.queued_.pop_front();
    if (!self.queued_.empty()) self.queued_.front().since = Clock::now();
    self.changed_.notify_all();
  };
  device_->notify(watch_stream_, ended, this);
}

void CollectiveNccl::all_gather(CollectiveTag tag, Stream stream, DeviceSpan whole) {
  check_divides(tag, whole.size_bytes, world_size_);
  const Call call = make_call(CallKind::kAllGather, tag, whole.size_bytes);
  begin(call);
  const std::uint64_t piece = whole.size_bytes / world_size_;
  if (piece == 0) return;
  issue(call, stream, [&](NcclCommHandle comm) {
    return library_.all_gather(static_cast<std::byte*>(whole.data) + rank_ * piece, whole.data,
                               piece, kNcclInt8, comm, nccl_stream(stream));
  });
  keep_watch(call, stream);
}

void CollectiveNccl::all_to_all(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                                void* take) {
  std::uint64_t whole = 0;
  for (const DeviceSpan& piece : give) whole += piece.size_bytes;
  const Call call = make_call(CallKind::kAllToAll, tag, whole);
  begin(call);
  if (whole == 0 || world_size_ == 1) return;
  const std::uint64_t own = give[rank_].size_bytes;
  issue(call, stream, [&](NcclCommHandle comm) {
    NcclResult worst = kNcclSuccess;
    auto* to = static_cast<std::byte*>(take);
    for (std::uint32_t other = 0; other < world_size_ && !is_error(worst); ++other) {
      if (other == rank_) continue;
      const int peer = static_cast<int>(other);
      if (give[other].size_bytes > 0) {
        worst = library_.send(give[other].data, give[other].size_bytes, kNcclInt8, peer, comm,
                              nccl_stream(stream));
      }
      if (is_error(worst) || own == 0) continue;
      worst = library_.recv(to, own, kNcclInt8, peer, comm, nccl_stream(stream));
      to += own;
    }
    return worst;
  });
  keep_watch(call, stream);
}

// ---- calls that block ----

void CollectiveNccl::exchange(CollectiveTag tag, std::span<const std::byte> mine,
                              std::span<std::byte> all) {
  meet(make_call(CallKind::kExchange, tag, mine.size()), mine,
       [&](std::uint64_t at, std::uint64_t size, Pieces pieces) {
         for (std::uint32_t of = 0; of < world_size_; ++of)
           std::memcpy(&all[of * mine.size() + at], pieces.first + of * pieces.stride, size);
       });
}

template <class Take>
void CollectiveNccl::meet(const Call& call, std::span<const std::byte> mine, const Take& take) {
  {
    const ControlUse use(*this);
    Post post;
    post.call = call;
    post.queued = queued_calls_.count;
    post.queued_hash = queued_calls_.hash;
    if (!mine.empty() && mine.size() <= post.body.size())
      std::memcpy(post.body.data(), mine.data(), mine.size());
    std::string why = compare(post);
    if (why.empty() && !mine.empty()) why = receive(post, mine, take);
    // This rank's own failure, if it is at that, says more than that another is late.
    if (!why.empty()) settle(why, first_failed(posts_) != nullptr);
  }
  std::unique_lock lock(mutex_);
  throw_if_failed(lock);
}

// Why the call ends here, or "".
std::string CollectiveNccl::compare(Post& mine) {
  const Met met = post_round(mine, Clock::now() + deadline_);
  if (met != Met::kAll) return not_met(met, mine);
  if (const auto why = refusal_of(posts_, rank_)) return *why;
  if (queued_the_same(posts_)) return "";
  std::vector<QueuedCalls> queued(world_size_);
  const Met again = hold_round(&queued_calls_, control_memory_.data() + world_size_ * sizeof(Post),
                               reinterpret_cast<std::byte*>(queued.data()), sizeof(QueuedCalls),
                               Clock::now() + deadline_);
  return again == Met::kAll ? queued_difference(posts_, queued) : not_met(again, mine);
}

// Small messages have come with the posts. A chunk is sent before it is taken, so that what is
// taken may be written over what was sent.
template <class Take>
std::string CollectiveNccl::receive(const Post& post, std::span<const std::byte> mine,
                                    const Take& take) {
  if (mine.size() <= post.body.size()) {
    const auto* const posts = reinterpret_cast<const std::byte*>(posts_.data());
    take(0, mine.size(), Pieces{posts + offsetof(Post, body), sizeof(Post)});
    return "";
  }
  for (std::uint64_t at = 0; at < mine.size(); at += kPayloadBytes) {
    const std::uint64_t size = std::min(kPayloadBytes, mine.size() - at);
    const Met met =
        hold_round(mine.data() + at, control_memory_.data() + world_size_ * sizeof(Post),
                   payload_.data(), size, Clock::now() + deadline_);
    if (met != Met::kAll) return not_met(met, post);
    take(at, size, Pieces{payload_.data(), size});
  }
  return "";
}

// What is left of a round that not all came to; "" where the failure is known already.
std::string CollectiveNccl::not_met(Met met, const Post& mine) {
  if (met == Met::kBroken) {
    if (round_result_ == kNcclSuccess) return "";
    return "NCCL at " + describe(mine.call) + ": " + library_.describe(round_result_) +
           ": no rank can go on; close every rank's engine and start again";
  }
  if (first_failed(posts_) != nullptr) return refusal_of(posts_, rank_).value_or("");
  const std::string missing = missing_ranks(posts_, mine.number);
  return missing_text(missing.empty() ? "another rank" : missing, mine.call,
                      static_cast<std::uint64_t>(deadline_.count()));
}

// Late ones leave what they posted last, by its number.
CollectiveNccl::Met CollectiveNccl::post_round(Post& mine, Clock::time_point end) {
  mine.number = ++rounds_;
  return hold_round(&mine, control_memory_.data(), reinterpret_cast<std::byte*>(posts_.data()),
                    sizeof(Post), end);
}

// Every rank's `size_bytes` at `mine`, one behind the other in `received`. Where it did not end in
// time the control communicator is given up, which ends it, and what had come is there.
CollectiveNccl::Met CollectiveNccl::hold_round(const void* mine, std::byte* slots,
                                               std::byte* received, std::uint64_t size_bytes,
                                               Clock::time_point end) {
  round_result_ = kNcclSuccess;
  {
    const std::lock_guard lock(mutex_);
    round_done_ = false;
  }
  std::byte* const own = slots + rank_ * size_bytes;
  device_->copy(control_stream_, own, mine, size_bytes);
  NcclResult result = kNcclSuccess;
  if (world_size_ > 1) {
    result = control_.issue([&](NcclCommHandle comm) {
      NcclResult worst = kNcclSuccess;
      for (std::uint32_t other = 0; other < world_size_ && !is_error(worst); ++other) {
        if (other == rank_) continue;
        const int peer = static_cast<int>(other);
        worst = library_.send(own, size_bytes, kNcclInt8, peer, comm, nccl_stream(control_stream_));
        if (is_error(worst)) break;
        worst = library_.recv(slots + other * size_bytes, size_bytes, kNcclInt8, peer, comm,
                              nccl_stream(control_stream_));
      }
      return worst;
    });
    result = until_issued(control_, result, end);
  }
  Met met = is_error(result) ? Met::kBroken : result == kNcclInProgress ? Met::kLate : Met::kAll;
  if (is_error(result) && result != kNcclEnded) round_result_ = result;
  const auto done = [](void* context) noexcept {
    auto& self = *static_cast<CollectiveNccl*>(context);
    const std::lock_guard lock(self.mutex_);
    self.round_done_ = true;
    self.changed_.notify_all();
  };
  device_->notify(control_stream_, done, this);
  if (met == Met::kAll) met = wait_for_round(end);
  if (met != Met::kAll) {
    control_.abort();
    if (wait_for_round(Clock::now() + kDrain) != Met::kAll) return met;
  }
  device_->copy(control_stream_, received, slots, world_size_ * size_bytes);
  device_->synchronize(control_stream_);
  return met;
}

CollectiveNccl::Met CollectiveNccl::wait_for_round(Clock::time_point end) {
  std::unique_lock lock(mutex_);
  const bool was_good = life_ != Life::kFailed;
  changed_.wait_until(lock, end,
                      [&] { return round_done_ || (was_good && life_ == Life::kFailed); });
  if (round_done_) return Met::kAll;
  return life_ == Life::kFailed ? Met::kBroken : Met::kLate;
}

// ---- failure ----

// Waits where this rank is telling the others: ranks that fail together agree on the first.
void CollectiveNccl::throw_if_failed(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] { return life_ != Life::kFailing; });
  if (life_ == Life::kFailed) throw Error(Code::kPeerLost, why_);
}

// False: it has failed already.
bool CollectiveNccl::settle(std::string_view why, bool even_failing) {
  {
    const std::lock_guard lock(mutex_);
    if (life_ == Life::kFailed || (life_ == Life::kFailing && !even_failing)) return false;
    life_ = Life::kFailed;
    why_ = why;
    changed_.notify_all();
  }
  data_.abort();  // ends what is queued
  return true;
}

void CollectiveNccl::break_off(std::string_view why) {
  if (settle(why, false)) control_.abort();
}

void CollectiveNccl::abort(std::string_view why) noexcept {
  const std::lock_guard lock(mutex_);
  if (life_ != Life::kGood) return;
  farewell_.kind = Post::Kind::kFailed;
  farewell_.failed_at_ns = Post::now_ns();
  farewell_.set_text(why);
  failing_since_ = Clock::now();
  life_ = Life::kFailing;
  for_watch_.notify_all();
}

void CollectiveNccl::watch() {
  const auto interval = std::clamp(deadline_ / 4, milliseconds(1), milliseconds(250));
  std::unique_lock lock(mutex_);
  while (!closing_) {
    for_watch_.wait_for(lock, interval, [&] { return closing_ || life_ == Life::kFailing; });
    if (life_ == Life::kFailing) {
      say_farewell(lock);
    } else if (life_ == Life::kGood) {
      look(lock);
    }
  }
}

void CollectiveNccl::look(std::unique_lock<std::mutex>& lock) {
  std::string why;
  if (!queued_.empty() && Clock::now() - queued_.front().since > deadline_) {
    why = describe(queued_.front().call) + " did not end within " +
          std::to_string(deadline_.count()) +
          " ms of being queued: a rank did not come to it, or what was queued before it takes "
          "longer; no further call will be carried out; see which rank is late, or raise "
          "NcclOptions::deadline";
  }
  lock.unlock();
  for (NcclCommunicator* communicator : {&data_, &control_}) {
    const NcclResult state = why.empty() ? communicator->state() : kNcclSuccess;
    if (is_error(state) && state != kNcclEnded)
      why = "NCCL on rank " + std::to_string(rank_) + ": " + library_.describe(state) +
            ": no rank can go on; see why that rank ended, close every rank's engine and start "
            "again";
  }
  if (!why.empty()) break_off(why);
  lock.lock();
}

void CollectiveNccl::say_farewell(std::unique_lock<std::mutex>& lock) {
  const Clock::time_point end = failing_since_ + grace_;
  const std::string own_why = abort_text(rank_, farewell_.text());
  lock.unlock();
  data_.abort();
  lock.lock();
  // A call that this rank is waiting in comes first: the others come to it, and find the farewell
  // in the next.
  changed_.wait_until(lock, end, [&] { return !control_used_ || life_ == Life::kFailed; });
  if (life_ == Life::kFailed) return;
  std::string why = own_why;
  const bool can_say = !control_used_;
  control_used_ = true;
  lock.unlock();
  if (can_say) {
    try {
      post_round(farewell_, end);
      if (first_failed(posts_) != nullptr) why = refusal_of(posts_, rank_).value_or(own_why);
    } catch (const std::exception&) {  // the device is what failed: nothing can be said over it
    }
  }
  settle(why, true);
  if (!can_say) control_.abort();
  lock.lock();
  if (can_say) control_used_ = false;
  changed_.notify_all();
}
}  // namespace headrace::collective

namespace headrace {
NcclId nccl_unique_id(const std::string& library) {
  const collective::NcclLibrary nccl = collective::load_nccl(library);
  NcclId id = {};
  const collective::NcclResult result = nccl.get_unique_id(&id);
  if (result != collective::kNcclSuccess) {
    throw Error(Code::kUnsupported,
                "NCCL: " + nccl.describe(result) +
                    ": no id was made, so no rank can start; see that this host has a network "
                    "interface that NCCL may use (NCCL_SOCKET_IFNAME)");
  }
  return id;
}

std::shared_ptr<Collective> make_nccl_collective(const NcclOptions& options) {
  return std::make_shared<collective::CollectiveNccl>(options);
}

std::uint64_t nccl_scratch_bytes(std::uint32_t world_size) noexcept {
  return world_size * collective::kControlBytes;
}
}  // namespace headrace
