// SPDX-License-Identifier: Apache-2.0
// collective_over_transport.cpp: the collective that make_collective() makes: whose turn it is,
// what is compared, and the way of a device's bytes to the transport. What ends a call that is not
// carried out is in peer_watch.hpp.
#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "collective/peer_watch.hpp"
#include "collective/staging.hpp"
#include "headrace/error.hpp"

namespace headrace::collective {
namespace {
using Piece = Transport::Piece;

// Waits for one call of a transport.
class CallEnd {
 public:
  Transport::Done done() noexcept {
    return {[](void* context, const char* error) noexcept {
              static_cast<CallEnd*>(context)->end(error);
            },
            this, true};
  }
  // The transport's error, or "".
  std::string wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_; });
    return std::move(error_);
  }

 private:
  void end(const char* error) noexcept {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    if (error != nullptr) error_ = *error == 0 ? "no reason given" : error;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::string error_;
};

std::uint64_t total_of(std::span<const DeviceSpan> pieces) {
  std::uint64_t bytes = 0;
  for (const DeviceSpan& piece : pieces) bytes += piece.size_bytes;
  return bytes;
}
std::uint64_t largest_of(std::span<const DeviceSpan> pieces) {
  return std::ranges::max(pieces, {}, &DeviceSpan::size_bytes).size_bytes;
}
// Of a piece that goes in parts, the bytes of the part that begins at `at`.
std::uint64_t part_at(const DeviceSpan& piece, std::uint64_t at, std::uint64_t part) {
  return at < piece.size_bytes ? std::min<std::uint64_t>(part, piece.size_bytes - at) : 0;
}

const CollectiveOptions& checked(const CollectiveOptions& options) {
  const auto refuse = [](const std::string& cause) {
    throw Error(Code::kInvalidArgument, "make_collective: " + cause + "; no collective was made");
  };
  if (options.transport == nullptr) refuse("CollectiveOptions::transport is null");
  const std::uint32_t rank = options.transport->rank(),
                      world_size = options.transport->world_size();
  if (rank >= world_size) refuse("the transport has " + text_beyond_world(rank, world_size));
  if (options.deadline <= std::chrono::milliseconds(0))
    refuse("a deadline of 0 would end every call: leave it out for ten minutes");
  return options;
}

class CollectiveOverTransport final : public Collective {
 public:
  explicit CollectiveOverTransport(const CollectiveOptions& options)
      : transport_(checked(options).transport),
        staging_bytes_(options.staging_bytes),
        rank_(transport_->rank()),
        world_size_(transport_->world_size()),
        posts_(world_size_),
        watch_(options) {
    use_device(options.device);
  }

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t world_size() const noexcept override { return world_size_; }
  void use_device(const std::shared_ptr<Device>& device) override;
  void use_memory(DeviceSpan memory) override {
    if (!staged()) transport_->use_memory(memory);
  }
  // Also if another device is used by now.
  void forget_memory(DeviceSpan memory) noexcept override { transport_->forget_memory(memory); }
  void all_gather(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> whole) override;
  void all_to_all(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                  void* take) override;
  void all_to_all_v(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                    std::span<const DeviceSpan> take, std::uint64_t largest_bytes) override;
  void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                std::span<std::byte> all) override;
  void abort(std::string_view why) noexcept override { watch_.abort(why); }
  bool takes_any_thread() const noexcept override { return true; }
  bool has_all_to_all_v() const noexcept override { return true; }
  std::uint64_t host_bytes() const noexcept override {
    return staging_ ? staging_->size_bytes() : 0;
  }

 private:
  bool staged() const { return staging_.has_value(); }
  // A call, from its beginning to its end.
  template <class Body>
  void carry_out(const Call& call, const Body& body);
  void give_up() noexcept;
  // One call of the transport: begin(done) makes it.
  template <class Begin>
  void pass(const Begin& begin);
  void gather_in_place(std::span<const DeviceSpan> whole, Stream stream);
  void gather_staged(std::span<const DeviceSpan> whole, Stream stream);
  // take[r] comes from rank r. `largest`: of the pieces of all ranks, in bytes.
  struct Pieces {
    std::span<const DeviceSpan> give, take;
    std::uint64_t largest = 0;
  };
  void all_to_all(Lane lane, const Pieces& of, Stream stream);
  void all_to_all_staged(Lane lane, const Pieces& of, Stream stream);
  void all_to_all_in_place(Lane lane, const Pieces& of, Stream stream);
  void gather_messages(std::span<const std::byte> mine, std::byte* all);
  void compare(Post& mine);

  const std::shared_ptr<Transport> transport_;
  std::shared_ptr<Device> device_;  // null: the CPU
  const std::uint64_t staging_bytes_;
  const std::uint32_t rank_, world_size_;
  std::optional<Staging> staging_;  // if the transport does not reach the device's memory
  std::vector<Post> posts_;         // of one exchange
  std::vector<Piece> give_, take_;
  std::vector<DeviceSpan> taken_;  // of an all_to_all
  QueuedCalls queued_;
  PeerWatch watch_;
};

void CollectiveOverTransport::use_device(const std::shared_ptr<Device>& device) {
  if (device == nullptr || device == device_) return;
  staging_.reset();
  device_ = device;
  if (transport_->reaches(*device)) return;
  const std::uint64_t least = std::uint64_t{8192} * world_size_;
  if (staging_bytes_ < least) {
    throw Error(Code::kInvalidArgument, "make_collective: staging_bytes is " +
                                            std::to_string(staging_bytes_) + ", and " +
                                            std::to_string(world_size_) + " ranks need at least " +
                                            std::to_string(least) + "; no collective was made");
  }
  staging_.emplace(device, staging_bytes_);
}

// The transport, or the device, has thrown on this rank. The other ranks would wait for it.
void CollectiveOverTransport::give_up() noexcept {
  try {
    throw;
  } catch (const std::exception& error) {
    watch_.give_up(error.what());
  } catch (...) {
    watch_.give_up("an exception of no known type");
  }
}

template <class Body>
void CollectiveOverTransport::carry_out(const Call& call, const Body& body) {
  watch_.begin(call, queued_);
  try {
    body();
  } catch (const Error&) {
    give_up();
    throw;
  } catch (const std::bad_alloc&) {
    give_up();
    throw;
  } catch (...) {
    give_up();
    watch_.throw_end();
  }
  watch_.end();
}

template <class Begin>
void CollectiveOverTransport::pass(const Begin& begin) {
  CallEnd end;
  try {
    begin(end.done());
  } catch (...) {
    give_up();  // the transport may have kept `end`: it lets go of it here
    throw;
  }
  const std::string error = end.wait();
  if (!error.empty()) watch_.fail(error);
}

void CollectiveOverTransport::gather_in_place(std::span<const DeviceSpan> whole, Stream stream) {
  if (device_ != nullptr) device_->synchronize(stream);
  take_.clear();
  for (const DeviceSpan& piece : whole) take_.push_back({piece.data, piece.size_bytes});
  pass([&](Transport::Done done) { transport_->all_gather(Lane::kGather, stream, take_, done); });
}

// In rounds, as large as the staging memory allows: the same number on every rank.
void CollectiveOverTransport::gather_staged(std::span<const DeviceSpan> whole, Stream stream) {
  const std::uint64_t part = staging_->part_bytes(world_size_);
  const std::uint64_t largest = largest_of(whole);
  for (std::uint64_t at = 0; at < largest; at += part) {
    take_.clear();
    for (std::uint32_t r = 0; r < world_size_; ++r)
      take_.push_back({staging_->part(r, world_size_), part_at(whole[r], at, part)});
    const auto in_device = [&](std::uint32_t r) {
      return static_cast<std::byte*>(whole[r].data) + at;
    };
    if (take_[rank_].size_bytes > 0)
      device_->copy(stream, take_[rank_].data, in_device(rank_), take_[rank_].size_bytes);
    device_->synchronize(stream);
    pass([&](Transport::Done done) { transport_->all_gather(Lane::kGather, {}, take_, done); });
    for (std::uint32_t r = 0; r < world_size_; ++r) {
      if (r != rank_ && take_[r].size_bytes > 0)
        device_->copy(stream, in_device(r), take_[r].data, take_[r].size_bytes);
    }
    device_->synchronize(stream);
  }
}

void CollectiveOverTransport::all_gather(CollectiveTag tag, Stream stream,
                                         std::span<const DeviceSpan> whole) {
  check_pieces(tag, whole.size(), world_size_);
  const std::uint64_t bytes = total_of(whole);
  const Call call = make_call(CallKind::kAllGather, tag, bytes);
  queued_.add(call);
  carry_out(call, [&] {
    if (bytes == 0 || world_size_ == 1) return;
    if (staged()) return gather_staged(whole, stream);
    gather_in_place(whole, stream);
  });
}

// In rounds, as large as the staging memory allows: the same number on every rank.
void CollectiveOverTransport::all_to_all_staged(Lane lane, const Pieces& of, Stream stream) {
  const std::uint32_t parts = 2 * world_size_;
  const std::uint64_t part = staging_->part_bytes(parts);
  const auto in_device = [](const DeviceSpan& piece, std::uint64_t at) {
    return static_cast<std::byte*>(piece.data) + at;
  };
  for (std::uint64_t at = 0; at < of.largest; at += part) {
    give_.assign(world_size_, {});
    take_.assign(world_size_, {});
    for (std::uint32_t r = 0; r < world_size_; ++r) {
      if (r == rank_) continue;
      give_[r] = {staging_->part(r, parts), part_at(of.give[r], at, part)};
      take_[r] = {staging_->part(world_size_ + r, parts), part_at(of.take[r], at, part)};
      if (give_[r].size_bytes > 0)
        device_->copy(stream, give_[r].data, in_device(of.give[r], at), give_[r].size_bytes);
    }
    device_->synchronize(stream);
    pass([&](Transport::Done done) { transport_->all_to_all(lane, {}, give_, take_, done); });
    for (std::uint32_t r = 0; r < world_size_; ++r) {
      if (r != rank_ && take_[r].size_bytes > 0)
        device_->copy(stream, in_device(of.take[r], at), take_[r].data, take_[r].size_bytes);
    }
    device_->synchronize(stream);
  }
}

void CollectiveOverTransport::all_to_all_in_place(Lane lane, const Pieces& of, Stream stream) {
  if (device_ != nullptr) device_->synchronize(stream);
  give_.clear();
  take_.clear();
  for (std::uint32_t r = 0; r < world_size_; ++r) {
    give_.push_back({of.give[r].data, of.give[r].size_bytes});
    take_.push_back(r == rank_ ? Piece{} : Piece{of.take[r].data, of.take[r].size_bytes});
  }
  pass([&](Transport::Done done) { transport_->all_to_all(lane, stream, give_, take_, done); });
}

void CollectiveOverTransport::all_to_all(Lane lane, const Pieces& of, Stream stream) {
  if (of.largest == 0 || world_size_ == 1) return;
  if (staged()) return all_to_all_staged(lane, of, stream);
  all_to_all_in_place(lane, of, stream);
}

void CollectiveOverTransport::all_to_all(CollectiveTag tag, Stream stream,
                                         std::span<const DeviceSpan> give, void* take) {
  check_pieces(tag, give.size(), world_size_);
  const Call call = make_call(CallKind::kAllToAll, tag, total_of(give));
  queued_.add(call);
  carry_out(call, [&] {
    auto* to = static_cast<std::byte*>(take);
    const std::uint64_t own = give[rank_].size_bytes;
    taken_.clear();
    for (std::uint32_t r = 0; r < world_size_; ++r) {
      taken_.push_back(r == rank_ ? DeviceSpan{} : DeviceSpan{to, own});
      if (r != rank_) to += own;
    }
    all_to_all(Lane::kReduce, {give, taken_, largest_of(give)}, stream);
  });
}

void CollectiveOverTransport::all_to_all_v(CollectiveTag tag, Stream stream,
                                           std::span<const DeviceSpan> give,
                                           std::span<const DeviceSpan> take,
                                           std::uint64_t largest_bytes) {
  check_pieces(tag, give.size(), world_size_);
  check_pieces(tag, take.size(), world_size_);
  const Call call = make_call(CallKind::kAllToAllV, tag, largest_bytes);
  queued_.add(call);
  const Lane lane = tag.of_gradients ? Lane::kReduce : Lane::kGather;
  carry_out(call, [&] { all_to_all(lane, {give, take, largest_bytes}, stream); });
}

// `all` is world_size times as large as `mine`, which may lie in its place there already.
void CollectiveOverTransport::gather_messages(std::span<const std::byte> mine, std::byte* all) {
  give_.assign(world_size_, {const_cast<std::byte*>(mine.data()), mine.size()});
  take_.clear();
  for (std::uint32_t r = 0; r < world_size_; ++r)
    take_.push_back({all + r * mine.size(), mine.size()});
  pass([&](Transport::Done done) { transport_->all_to_all(Lane::kTalk, {}, give_, take_, done); });
  if (take_[rank_].data != mine.data()) std::memcpy(take_[rank_].data, mine.data(), mine.size());
}

// Ends where all ranks are in this call, and made the same ones before it.
void CollectiveOverTransport::compare(Post& mine) {
  gather_messages(std::as_bytes(std::span(&mine, 1)), reinterpret_cast<std::byte*>(posts_.data()));
  if (const auto why = refusal_of(posts_, rank_)) watch_.refuse(*why);
  if (queued_the_same(posts_)) return;
  std::vector<QueuedCalls> queued(world_size_);
  gather_messages(std::as_bytes(std::span(&queued_, 1)),
                  reinterpret_cast<std::byte*>(queued.data()));
  watch_.refuse(queued_difference(posts_, queued));
}

// Short messages come with what is compared.
void CollectiveOverTransport::exchange(CollectiveTag tag, std::span<const std::byte> mine,
                                       std::span<std::byte> all) {
  const Call call = make_call(CallKind::kExchange, tag, mine.size());
  carry_out(call, [&] {
    Post post;
    post.number = watch_.calls();
    post.call = call;
    post.queued = queued_.count;
    post.queued_hash = queued_.hash;
    const bool is_short = mine.size() <= post.body.size();
    if (is_short && !mine.empty()) std::memcpy(post.body.data(), mine.data(), mine.size());
    compare(post);
    if (!is_short) return gather_messages(mine, all.data());
    for (std::uint32_t r = 0; r < world_size_ && !mine.empty(); ++r)
      std::memcpy(&all[r * mine.size()], posts_[r].body.data(), mine.size());
  });
}
}  // namespace
}  // namespace headrace::collective

namespace headrace {
std::shared_ptr<Collective> make_collective(const CollectiveOptions& options) {
  return std::make_shared<collective::CollectiveOverTransport>(options);
}
}  // namespace headrace
