// SPDX-License-Identifier: Apache-2.0
// headrace/transport.hpp: the seam to whatever carries bytes between ranks: threads of one process,
// a c10d process group (headrace/torch/c10d.hpp), MPI (headrace/mpi.hpp), NCCL (headrace/nccl.hpp).
//
// A transport moves bytes and nothing else. It compares no calls, adds nothing up and knows no
// deadline: make_collective() does that above it, once for all of them. So an adapter for another
// transport is small, and a trainer may bring its own.
//
//   auto transport = make_mpi_transport(MPI_COMM_WORLD);
//   EngineOptions options{.device = device};
//   options.collective = make_collective({.transport = transport, .device = device});
//
// Two ranks exchange the halves of their buckets; rank 1 comes later:
//
//   rank 0  all_to_all(kReduce, {}, give {-, its right half}, take {-, scratch}, done)
//           returns at once; rank 0 goes on, and touches neither half nor scratch
//   rank 1  all_to_all(kReduce, {}, give {its left half, -}, take {scratch, -}, done)
//   both    the bytes pass; each rank's done(nullptr) runs on some thread
//
// Had rank 1 failed instead, rank 0 would read so in rank 1's post, call abort(), and its
// done("...") would run: from then on nothing touches the half and the scratch any more.
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
// Calls of one lane are carried out in their order. No lane waits for another.
enum class Lane : std::uint8_t {
  kGather,  // parameters
  kReduce,  // gradients
  kTalk,    // short messages that ranks wait for, in host memory
};
inline constexpr std::size_t kLanes = 3;

// Threads: calls for one lane come one at a time, from any thread; different lanes, post(),
//          read_posts() and abort() beside each other.
// Order:   every rank makes the same calls of a lane in the same order.
// A destroyed transport has ended its calls as abort() does.
class Transport {
 public:
  // Bytes for one rank, or from one. Without bytes `data` may be null, and nothing is sent.
  struct Piece {
    void* data = nullptr;
    std::uint64_t size_bytes = 0;
  };
  // function(context, error) runs once for each call: on any thread, perhaps before the call
  // returns. It must not block or call the transport. A null `error`: the bytes have passed. Else
  // the text says what failed, and every later call fails too. Until then the pieces' memory stays
  // valid, and nobody but the transport writes what is taken; afterwards the transport does not
  // touch it.
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

  // give[r] goes to rank r; take[r] comes from rank r, which gives as many bytes. Both have
  // world_size() pieces, of any sizes; this rank's own are not looked at.
  virtual void all_to_all(Lane lane, Stream stream, std::span<const Piece> give,
                          std::span<const Piece> take, Done done) = 0;
  // whole[r] is rank r's piece, of the same size on every rank. This rank's own is in its place.
  // Without an implementation of its own: one all_to_all.
  virtual void all_gather(Lane lane, Stream stream, std::span<const Piece> whole, Done done);

  // Lays out `bytes` for every rank to read, in place of what this rank posted before. Comes soon
  // (within a quarter of a second), whatever the lanes wait for. At most kPostBytes.
  virtual void post(std::span<const std::byte> bytes) noexcept = 0;
  // of_all[r]: the last post of rank r that is known here.
  virtual void read_posts(std::span<Post> of_all) noexcept = 0;

  // Ends every pending call of this rank with an error, and every later one. The other ranks are
  // not told. When it has returned, no pending call is left.
  virtual void abort() noexcept = 0;
};

struct CollectiveOptions {
  std::shared_ptr<Transport> transport = nullptr;
  std::shared_ptr<Device> device = nullptr;  // the engine's; null: the CPU
  // How long a call waits for the other ranks. At a quarter of it `warn` names who is late.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // One line without its end, on a thread of the collective's. Null: to stderr.
  std::function<void(const std::string& line)> warn = nullptr;
  // Of pinned host memory, where the transport does not reach the device's memory: pieces pass
  // through it in chunks.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;
};

// The engine's collective over a transport, whatever it is. It compares the ranks' calls, names
// both sides of a difference and who is late, and ends all ranks with the cause when one fails.
//
// Calls: exchange() compares at once. all_gather() and all_to_all() pass at the transport's speed
//        and are compared where a rank waits for more than 50 ms, and at the next exchange().
// Failure: kPeerLost, then and ever after. abort() and a rank's end show within a quarter of a
//        second where another rank waits. A rank that dies without a word is named by its silence,
//        within two seconds of the transport's error.
// Threads: the seam's. One of its own, headrace-ranks, posts a sign of life three times a second.
// Throws headrace::Error kInvalidArgument: no transport, no deadline, no staging.
std::shared_ptr<Collective> make_collective(const CollectiveOptions& options);

// One transport for each of `world_size` threads of this process.
std::vector<std::shared_ptr<Transport>> make_thread_transports(std::uint32_t world_size);
}  // namespace headrace
