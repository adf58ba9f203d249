// SPDX-License-Identifier: Apache-2.0
// headrace/transport.hpp: the seam to whatever carries bytes between ranks: threads of one process,
// a c10d process group (headrace/torch/c10d.hpp), MPI (headrace/mpi.hpp), NCCL (headrace/nccl.hpp).
//
// A transport moves bytes and nothing else. It compares no calls, adds nothing up and has no
// deadline: make_collective() does that once for all transports. So an adapter for another
// transport is small, and a trainer may bring its own.
//
//   auto transport = make_mpi_transport(MPI_COMM_WORLD);
//   EngineOptions options{.device = device};
//   options.collective = make_collective({.transport = transport});
//
// Two ranks exchange the halves of their buckets; rank 1 makes its call later:
//
//   rank 0  all_to_all(kReduce, {}, give {-, its right half}, take {-, scratch}, done)
//           returns at once; rank 0 goes on, and touches neither half nor scratch
//   rank 1  all_to_all(kReduce, {}, give {its left half, -}, take {scratch, -}, done)
//   both    the bytes pass; each rank's done(nullptr) runs on some thread
//
// If rank 1 had failed instead, rank 0 would read that in rank 1's post and call abort(). Its
// done("...") would run, and from then on nothing would touch the half and the scratch memory.
#pragma once
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/collective.hpp"
#include "headrace/device.hpp"

namespace headrace {
// Calls of one lane are executed in their order. No lane waits for another.
enum class Lane : std::uint8_t {
  kGather,  // parameters
  kReduce,  // gradients
  kTalk,    // short messages that ranks wait for, in host memory
};
inline constexpr std::size_t kLanes = 3;

// Threads: calls for one lane come one at a time, from any thread. Different lanes, post(),
//          read_posts() and abort() may run concurrently.
// Order:   every rank makes the same calls of a lane in the same order.
// The destructor ends pending calls as abort() does.
class Transport {
 public:
  // Bytes for or from one rank. For 0 bytes, `data` may be null, and nothing is sent.
  struct Piece {
    void* data = nullptr;
    std::uint64_t size_bytes = 0;
  };
  // function(context, error) runs once for each call: on any thread, perhaps before the call
  // returns. It must not block or call the transport. If `error` is null, the bytes have arrived.
  // Otherwise the text gives the cause, and every later call fails too. Before it runs, the pieces'
  // memory must stay valid, and only the transport writes to received pieces. Afterwards the
  // transport does not touch them.
  struct Done {
    void (*function)(void* context, const char* error) noexcept = nullptr;
    void* context = nullptr;
  };
  static constexpr std::size_t kPostBytes = 1024;
  struct Post {
    std::uint64_t number = 0;  // how many this rank has posted, as far as known; 0: none
    std::uint32_t size_bytes = 0;
    std::array<std::byte, kPostBytes> bytes = {};
  };

  virtual ~Transport() = default;
  virtual std::string_view name() const noexcept = 0;  // "threads", "gloo", "mpi", "nccl"
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t world_size() const noexcept = 0;

  // Whether pieces of kGather and kReduce may lie in this device's memory. Calls are then ordered
  // on their stream: they see what was queued on it before them, and work queued on it after done()
  // sees what was taken. Otherwise pieces are host memory, and the stream means nothing.
  virtual bool reaches(const Device& device) const noexcept { return device.host_reads_memory(); }

  // give[r] goes to rank r; take[r] comes from rank r, which gives the same number of bytes. Both
  // have world_size() pieces, of any sizes; the call ignores this rank's own.
  virtual void all_to_all(Lane lane, Stream stream, std::span<const Piece> give,
                          std::span<const Piece> take, Done done) = 0;
  // whole[r] is rank r's piece, of the same size on every rank. This rank's own is in place. The
  // default implementation is one all_to_all.
  virtual void all_gather(Lane lane, Stream stream, std::span<const Piece> whole, Done done);

  // Publishes `bytes` (at most kPostBytes) for every rank to read, in place of this rank's last
  // post. They arrive within a quarter of a second, whatever the lanes wait for.
  virtual void post(std::span<const std::byte> bytes) noexcept = 0;
  // of_all[r]: the last post of rank r that has arrived here.
  virtual void read_posts(std::span<Post> of_all) noexcept = 0;

  // Ends every pending and later call of this rank with an error, and does not inform the other
  // ranks. When it returns, no call is pending.
  virtual void abort() noexcept = 0;
};

struct CollectiveOptions {
  std::shared_ptr<Transport> transport = nullptr;
  // For calls without an engine, which passes its own device (Collective::use_device). Null: the
  // CPU.
  std::shared_ptr<Device> device = nullptr;
  // How long a call waits for the other ranks. At a quarter of it, `warn` names late ranks.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // Called on a thread of the collective with one line, without a newline. Null: to stderr.
  std::function<void(const std::string& line)> warn = nullptr;
  // Asked about twenty times a second, on a thread of the collective. If it returns true, this
  // rank's calls throw kInterrupted from then on, and the other ranks' kPeerLost. For Ctrl-C, even
  // while a rank waits for one that is dead. It must not block or throw. Null: never.
  std::function<bool()> interrupted = nullptr;
  // The size of a pinned host buffer if the transport cannot access the device's memory: pieces
  // pass through it in chunks.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;
};

// The engine's collective over any transport. It compares the ranks' calls, and names both sides of
// a difference and late ranks. If one rank fails, it ends all ranks with the cause.
//
// Calls:   exchange() compares at once. all_gather() and all_to_all() run at the transport's speed,
//          and are compared if a rank waits for more than 50 ms, and at the next exchange().
// Failure: kPeerLost, or kInterrupted after CollectiveOptions::interrupted, at once and for all
//          later calls. abort() and the end of a rank reach a waiting rank within a quarter of a
//          second. If a rank dies without a post, its silence identifies it, within two seconds of
//          the transport's error.
// Threads: as Collective. Its own thread, headrace-ranks, posts three times a second.
// Throws headrace::Error kInvalidArgument without transport, deadline or staging.
std::shared_ptr<Collective> make_collective(const CollectiveOptions& options);

// One transport for each of `world_size` threads of this process.
std::vector<std::shared_ptr<Transport>> make_thread_transports(std::uint32_t world_size);
}  // namespace headrace
