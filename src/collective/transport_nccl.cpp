// SPDX-License-Identifier: Apache-2.0
// transport_nccl.cpp: the transport between GPUs. What it promises is in headrace/nccl.hpp.
//
// One communicator and one stream serve both lanes that NCCL carries. They hold up no lane: a call
// is launched only when it can run through (launch_order.hpp). Two communicators would each spin on
// the GPU for the late, and ranks that launched their kernels in different orders could wait for
// each other for ever.
//
//   trainer's thread   all_gather(): the call waits in its lane; a notification goes behind what
//                      the trainer's stream has queued
//   the device         calls back: the stream has come there
//   headrace-nccl      learns the call's place among all lanes', launches it in its turn on the
//                      transport's stream, and queues a notification behind it
//   the device         calls back: the bytes have passed
//   headrace-nccl      calls done()
#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "async/thread.hpp"
#include "collective/launch_order.hpp"
#include "collective/nccl_communicator.hpp"
#include "collective/nccl_library.hpp"
#include "collective/nccl_memory.hpp"
#include "headrace/error.hpp"
#include "headrace/nccl.hpp"

namespace headrace::collective {
namespace {
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Piece = Transport::Piece;
// How often NCCL is asked for errors while something runs.
constexpr milliseconds kErrorCheck(100);
constexpr std::chrono::seconds kGrace(5);

const NcclOptions& checked(const NcclOptions& options) {
  const auto refuse = [](const char* cause) {
    throw Error(Code::kInvalidArgument,
                std::string("make_nccl_transport: ") + cause + "; no transport was made");
  };
  if (options.messages == nullptr)
    refuse("NcclOptions::messages is null: pass a transport in host memory, over MPI or Gloo");
  if (options.device == nullptr) refuse("no device: pass the engine's as NcclOptions::device");
  if (options.deadline <= milliseconds(0))
    refuse("a deadline of 0 would end every wait: leave it out for ten minutes");
  return options;
}

NcclLibrary library_for(const NcclOptions& options) {
  const NcclLibrary library = load_nccl(options.library);
  if (!options.register_memory || library.registers_memory()) return library;
  throw Error(
      Code::kUnsupported,
      "make_nccl_transport: NcclOptions::register_memory needs NCCL 2.19 or newer, and this "
      "one is older; no transport was made. Update it, or leave the option out.");
}

std::function<void(const std::string&)> warning_of(const NcclOptions& options) {
  const auto line = [rank = options.messages->rank(),
                     warn = options.warn](const std::string& cause) {
    const std::string text = "headrace: NCCL on rank " + std::to_string(rank) + ": " + cause +
                             ". No rank's memory stays registered, so NCCL copies through its own "
                             "buffers (NcclOptions::register_memory); no result changes";
    if (warn) return warn(text);
    std::fprintf(stderr, "%s\n", text.c_str());
  };
  return line;
}

// Given back when all that was launched on it has passed.
struct OwnStream {
  Device& device;
  const Stream stream = device.create_urgent_stream();
  ~OwnStream() { device.destroy_stream(stream); }
};

class TransportNccl final : public Transport {
 public:
  explicit TransportNccl(const NcclOptions& options);
  ~TransportNccl() override;

  std::string_view name() const noexcept override { return "nccl"; }
  std::uint32_t rank() const noexcept override { return messages_->rank(); }
  std::uint32_t world_size() const noexcept override { return messages_->world_size(); }
  bool reaches(const Device& device) const noexcept override {
    return &device == device_.get() ||
           (device.cuda_ordinal() >= 0 && device.cuda_ordinal() == device_->cuda_ordinal());
  }
  void all_to_all(Lane lane, Stream stream, std::span<const Piece> give,
                  std::span<const Piece> take, Done done) override;
  void all_gather(Lane lane, Stream stream, std::span<const Piece> whole, Done done) override;
  void use_memory(DeviceSpan memory) override {
    const std::lock_guard lock(issuing_);
    memory_.use(memory);
  }
  void forget_memory(DeviceSpan memory) noexcept override {
    const std::lock_guard lock(issuing_);
    memory_.forget(memory);
  }
  void post(std::span<const std::byte> bytes) noexcept override { messages_->post(bytes); }
  void read_posts(std::span<Post> of_all) noexcept override { messages_->read_posts(of_all); }
  std::string posts_held_up_by() const override { return messages_->posts_held_up_by(); }
  void abort() noexcept override;

 private:
  struct Call {
    TransportNccl& owner;
    std::vector<Piece> give, take;  // by rank
    bool gathers = false;           // all_gather's: every rank is given the same piece
    bool in_one = false;            // and on every rank, equal pieces lie one behind the other
    Done done;
    bool held = false;     // until this rank has given up registered memory
    bool reached = false;  // its stream has come to it
  };
  using Calls = std::deque<std::unique_ptr<Call>>;

  void connect(const NcclOptions& options);
  void check_same_gpu();
  std::string text_of(NcclResult result);
  void begin(Lane lane, Stream stream, std::unique_ptr<Call> call);
  bool failed() {
    const std::lock_guard lock(mutex_);
    return !error_.empty();
  }
  void wake(const std::unique_lock<std::mutex>&) {
    woken_ = true;
    changed_.notify_all();
  }
  // headrace-nccl:
  void run();
  void take_places();
  std::uint8_t facts_of(const Call& call);
  void launch();
  void give_up_registered();
  NcclResult issue(const Call& call);
  void look_for_errors();
  void end_calls();
  void fail(const std::string& why) noexcept;

  const std::shared_ptr<Transport> messages_;
  const std::shared_ptr<Device> device_;
  std::mutex mutex_;  // the next seven
  std::condition_variable changed_;
  std::array<Calls, 2> made_;  // of kGather and kReduce; they have no place yet
  std::uint64_t pending_ = 0;  // calls that have not ended
  std::uint64_t passed_ = 0;   // of launched_, from the front
  bool ending_ = false;        // their done() is being called
  bool woken_ = false, closing_ = false;
  std::string error_;  // once set, it stays: no call passes any more

  // headrace-nccl's:
  std::array<LaunchOrder, 2> orders_;
  std::uint64_t places_ = 0, launches_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Call>> placed_;
  Calls launched_;

  const NcclLibrary library_;
  OwnStream stream_;
  NcclCommunicator communicator_;
  std::mutex issuing_;  // held while NCCL takes a call, and for the next
  NcclMemory memory_;
  std::thread thread_;
};

// ---- construction and end ----

TransportNccl::TransportNccl(const NcclOptions& options)
    : messages_(checked(options).messages),
      device_(options.device),
      orders_{LaunchOrder(*messages_, Lane::kGather, [this] { wake(std::unique_lock(mutex_)); }),
              LaunchOrder(*messages_, Lane::kReduce, [this] { wake(std::unique_lock(mutex_)); })},
      library_(library_for(options)),
      stream_{*device_},
      communicator_(library_),
      memory_(communicator_, library_, options.register_memory, warning_of(options)) {
  connect(options);
  thread_ = async::start_thread("headrace-nccl", [this] { run(); });
}

void TransportNccl::connect(const NcclOptions& options) {
  const auto most = std::min<milliseconds>(options.deadline, std::chrono::hours(24 * 365));
  const NcclResult result = communicator_.until_done(
      communicator_.start(world_size(), options.id, rank()), Clock::now() + most);
  if (result == kNcclSuccess) return check_same_gpu();
  const std::string who = "rank " + std::to_string(rank()) + " of " + std::to_string(world_size());
  if (result == kNcclInProgress) {
    throw Error(Code::kPeerLost,
                who + " waited " + std::to_string(options.deadline.count()) +
                    " ms for the other ranks to make their NCCL transport: none was made; see "
                    "that each has this run's id and reaches the host that made it, or raise "
                    "NcclOptions::deadline");
  }
  throw Error(result == kNcclRemoteError ? Code::kPeerLost : Code::kUnsupported,
              "NCCL on " + who + ": " + library_.describe(result) +
                  ": no transport was made; set NCCL_DEBUG=INFO in the environment for details");
}

void TransportNccl::check_same_gpu() {
  const int engine = device_->cuda_ordinal(), nccl = communicator_.cuda_ordinal();
  if (engine < 0 || nccl < 0 || engine == nccl) return;
  throw Error(Code::kInvalidArgument,
              "make_nccl_transport: NCCL is on cuda:" + std::to_string(nccl) +
                  ", the calling thread's GPU, but NcclOptions::device is on cuda:" +
                  std::to_string(engine) + ": no transport was made; call cudaSetDevice(" +
                  std::to_string(engine) + ") on this thread first");
}

// The farewell, in one of two ways.
//
// Example: ranks 0 and 1 have made all their calls, and rank 0 comes here first. Nothing is pending
// and nothing has failed, so it finishes the communicator: NCCL passes on the bytes already issued.
// After kGrace it is aborted instead. `messages` ends by itself, when its last owner goes.
//
// Example: rank 0 comes here with a gather pending. abort() first stores the error, so that nothing
// counts as passed any more. It ends NCCL's work on the GPU, then aborts `messages`, which ends the
// calls that wait there. It returns when the thread has ended the gather with the error.
TransportNccl::~TransportNccl() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ending_; });
  const bool clean = pending_ == 0 && error_.empty();
  lock.unlock();
  if (clean) {
    communicator_.finish(Clock::now() + kGrace);
  } else {
    abort();
  }
  lock.lock();
  closing_ = true;
  changed_.notify_all();
  lock.unlock();
  thread_.join();
}

// ---- calls ----

void TransportNccl::all_to_all(Lane lane, Stream stream, std::span<const Piece> give,
                               std::span<const Piece> take, Done done) {
  if (lane == Lane::kTalk) {
    if (failed()) return done.function(done.context, error_.c_str());
    return messages_->all_to_all(lane, {}, give, take, done);
  }
  begin(lane, stream,
        std::make_unique<Call>(Call{.owner = *this,
                                    .give = {give.begin(), give.end()},
                                    .take = {take.begin(), take.end()},
                                    .done = done}));
}

void TransportNccl::all_gather(Lane lane, Stream stream, std::span<const Piece> whole, Done done) {
  if (lane == Lane::kTalk) return Transport::all_gather(lane, stream, whole, done);
  auto call = std::make_unique<Call>(Call{.owner = *this,
                                          .give = std::vector<Piece>(whole.size(), whole[rank()]),
                                          .take = {whole.begin(), whole.end()},
                                          .gathers = true,
                                          .in_one = true,
                                          .done = done});
  const auto* const first = static_cast<const std::byte*>(whole[0].data);
  for (std::size_t r = 0; r < whole.size(); ++r)
    call->in_one = call->in_one && whole[r].size_bytes == whole[0].size_bytes &&
                   whole[r].data == first + r * whole[r].size_bytes;
  begin(lane, stream, std::move(call));
}

void TransportNccl::begin(Lane lane, Stream stream, std::unique_ptr<Call> call) {
  std::unique_lock lock(mutex_);
  if (!error_.empty()) {
    lock.unlock();
    return call->done.function(call->done.context, error_.c_str());
  }
  Call* const made = call.get();
  ++pending_;
  made_[static_cast<std::size_t>(lane)].push_back(std::move(call));
  lock.unlock();
  const auto reached = [](void* context) noexcept {
    Call& of = *static_cast<Call*>(context);
    std::unique_lock reaching(of.owner.mutex_);
    of.reached = true;
    of.owner.wake(reaching);
  };
  try {
    device_->notify(stream, reached, made);
  } catch (const std::exception& error) {
    fail(error.what());
    reached(made);
  }
}

// The error before all else: what ends meanwhile has not passed.
void TransportNccl::abort() noexcept {
  fail("this rank has aborted its transport");
  messages_->abort();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending_ == 0; });
}

void TransportNccl::fail(const std::string& why) noexcept {
  {
    std::unique_lock lock(mutex_);
    if (error_.empty()) error_ = why;
    wake(lock);
  }
  communicator_.abort();
}

// ---- the thread ----

void TransportNccl::run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    const auto ready = [&] { return woken_ || closing_; };
    if (launched_.empty()) {
      changed_.wait(lock, ready);
    } else {
      changed_.wait_for(lock, kErrorCheck, ready);
    }
    woken_ = false;
    const bool good = error_.empty();
    lock.unlock();
    try {
      if (good) take_places();
      if (good) launch();
      if (good) look_for_errors();
    } catch (const std::exception& error) {
      fail(error.what());
    }
    end_calls();
    lock.lock();
  }
}

void TransportNccl::take_places() {
  for (std::size_t lane = 0; lane < orders_.size(); ++lane) {
    const auto place = orders_[lane].take_place(places_);
    std::unique_lock lock(mutex_);
    Calls& calls = made_[lane];
    if (place) {
      constexpr auto kAlike = LaunchOrder::kRegistered | LaunchOrder::kUnregistered;
      if ((place->facts & kAlike) == 0) {
        calls.front()->held = true;
        placed_[place->number] = nullptr;
      } else {
        calls.front()->in_one = (place->facts & LaunchOrder::kInOne) != 0;
        placed_[place->number] = std::move(calls.front());
        calls.pop_front();
      }
    }
    if (calls.empty() || !calls.front()->reached || calls.front()->held) continue;
    if (!orders_[lane].idle()) continue;
    const Call& next = *calls.front();
    lock.unlock();
    orders_[lane].come(facts_of(next));
  }
}

std::uint8_t TransportNccl::facts_of(const Call& call) {
  const std::lock_guard lock(issuing_);
  const std::uint8_t facts = memory_.facts_of(call.give, call.take, rank());
  return call.in_one ? facts | LaunchOrder::kInOne : facts;
}

// In the place of a call whose memory the ranks have registered in part. They come to it again.
void TransportNccl::give_up_registered() {
  {
    const std::lock_guard lock(issuing_);
    memory_.give_up();
  }
  std::unique_lock lock(mutex_);
  for (Calls& calls : made_) {
    if (!calls.empty()) calls.front()->held = false;
  }
  wake(lock);
}

void TransportNccl::launch() {
  while (!placed_.empty() && placed_.begin()->first == launches_) {
    // NCCL may still read and write registered memory for the calls before.
    const bool gives_up = placed_.begin()->second == nullptr;
    if (gives_up && !launched_.empty()) return;
    ++launches_;
    auto next = std::move(placed_.begin()->second);
    placed_.erase(placed_.begin());
    if (gives_up) {
      give_up_registered();
      continue;
    }
    launched_.push_back(std::move(next));
    const NcclResult result = issue(*launched_.back());
    if (is_error(result)) fail(text_of(result));  // before the notification, which it lets through
    const auto passed = [](void* context) noexcept {
      auto& self = *static_cast<TransportNccl*>(context);
      std::unique_lock lock(self.mutex_);
      ++self.passed_;
      self.wake(lock);
    };
    try {
      device_->notify(stream_.stream, passed, this);
    } catch (const std::exception& error) {
      fail(error.what());
      passed(this);
    }
  }
}

NcclResult TransportNccl::issue(const Call& call) {
  auto* const on = reinterpret_cast<NcclStream>(stream_.stream.handle);
  const auto issued = [&](NcclCommHandle comm) {
    NcclResult worst = kNcclSuccess;
    if (call.in_one) {
      const Piece& own = call.take[rank()];
      return library_.all_gather(own.data, call.take[0].data, own.size_bytes, kNcclInt8, comm, on);
    }
    for (std::uint32_t r = 0; r < world_size() && !is_error(worst); ++r) {
      const Piece &give = call.give[r], &take = call.take[r];
      const int peer = static_cast<int>(r);
      if (call.gathers && take.size_bytes > 0)
        worst =
            library_.broadcast(take.data, take.data, take.size_bytes, kNcclInt8, peer, comm, on);
      if (call.gathers || r == rank()) continue;
      if (give.size_bytes > 0)
        worst = library_.send(give.data, give.size_bytes, kNcclInt8, peer, comm, on);
      if (take.size_bytes > 0 && !is_error(worst))
        worst = library_.recv(take.data, take.size_bytes, kNcclInt8, peer, comm, on);
    }
    return worst;
  };
  const std::lock_guard lock(issuing_);
  return communicator_.until_done(communicator_.issue(issued), Clock::time_point::max());
}

void TransportNccl::look_for_errors() {
  if (launched_.empty()) return;
  const NcclResult state = communicator_.state();
  if (is_error(state)) throw std::runtime_error(text_of(state));
}

std::string TransportNccl::text_of(NcclResult result) {
  return "NCCL on rank " + std::to_string(rank()) + ": " +
         (result == kNcclEnded ? "it was aborted" : library_.describe(result));
}

// Those whose bytes have passed; once something has failed, all that nothing works on any more.
void TransportNccl::end_calls() {
  std::unique_lock lock(mutex_);
  Calls ended;
  for (; passed_ > 0; --passed_) {
    ended.push_back(std::move(launched_.front()));
    launched_.pop_front();
  }
  if (!error_.empty()) {
    for (auto& [place, call] : placed_) {
      if (call != nullptr) ended.push_back(std::move(call));
    }
    placed_.clear();
    for (Calls& calls : made_) {
      for (; !calls.empty() && calls.front()->reached; calls.pop_front())
        ended.push_back(std::move(calls.front()));
    }
  }
  const char* const error = error_.empty() ? nullptr : error_.c_str();
  ending_ = true;
  lock.unlock();
  for (const auto& call : ended) call->done.function(call->done.context, error);
  lock.lock();
  ending_ = false;
  woken_ = woken_ || (!ended.empty() && !placed_.empty());  // one may wait for those before it
  pending_ -= ended.size();
  changed_.notify_all();
}
}  // namespace
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

std::shared_ptr<Transport> make_nccl_transport(const NcclOptions& options) {
  return std::make_shared<collective::TransportNccl>(options);
}
}  // namespace headrace
