// SPDX-License-Identifier: Apache-2.0
// headrace/transport.hpp: the seam to whatever carries bytes between ranks: threads of one process,
// a c10d process group (headrace/torch/c10d.hpp), MPI (headrace/mpi.hpp), NCCL (headrace/nccl.hpp).
//
// A transport moves bytes and nothing else. It does not compare calls, add anything up or keep a
// deadline: make_collective() does all that for every transport. So an adapter for another
// transport is small, and a trainer may bring its own.
//
//   auto transport = make_mpi_transport(MPI_COMM_WORLD);
//   EngineOptions options{.device = device};
//   options.collective = make_collective({.transport = transport});
//
// Example: two ranks exchange the halves of their buckets, and rank 1 makes its call later:
//
//   rank 0  all_to_all(kReduce, {}, give {-, its right half}, take {-, scratch}, done)
//           returns at once; rank 0 goes on, and touches neither the half nor the scratch memory
//   rank 1  all_to_all(kReduce, {}, give {its left half, -}, take {scratch, -}, done)
//   both    the bytes are transferred; each rank's done(nullptr) runs on some thread
//
// If rank 1 had failed instead, rank 0 would read that in rank 1's post and call abort(). Rank 0's
// done("...") would run, and from then on the transport would touch neither the half nor the
// scratch memory.
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
// Calls on one lane are executed in the order in which they were made. No lane waits for another.
enum class Lane : std::uint8_t {
  kGather,  // parameters
  kReduce,  // gradients
  kTalk,    // short messages that ranks wait for, in host memory
};
inline constexpr std::size_t kLanes = 3;

// Threads: calls for one lane come one at a time, from any thread. Calls for different lanes,
//          post(), read_posts() and abort() may run concurrently.
// Order:   every rank makes the same calls for a lane in the same order.
// The destructor ends pending calls as abort() does.
class Transport {
 public:
  // Bytes for or from one rank. For 0 bytes, `data` may be null, and nothing is sent.
  struct Piece {
    void* data = nullptr;
    std::uint64_t size_bytes = 0;
  };
  // function(context, error) runs once for each call: on any thread, perhaps before the call
  // returns. The function must not block or call the transport. If `error` is null, the bytes have
  // arrived. Otherwise the text gives the cause, and every later call fails too. Until the function
  // runs, the pieces' memory must stay valid, and only the transport may write to the pieces being
  // received. Afterwards the transport does not touch the pieces.
  //
  // caller_waits: the calling thread does nothing else until the function has run. A transport may
  // use this thread to move the bytes, and return only after that.
  struct Done {
    void (*function)(void* context, const char* error) noexcept = nullptr;
    void* context = nullptr;
    bool caller_waits = false;
  };
  static constexpr std::size_t kPostBytes = 1024;
  struct Post {
    std::uint64_t number = 0;  // how many posts the rank has made, as far as known; 0: none
    std::uint32_t size_bytes = 0;
    std::array<std::byte, kPostBytes> bytes = {};
  };

  virtual ~Transport() = default;
  virtual std::string_view name() const noexcept = 0;  // "threads", "gloo", "mpi", "nccl"
  virtual std::uint32_t rank() const noexcept = 0;
  virtual std::uint32_t world_size() const noexcept = 0;

  // Whether pieces of kGather and kReduce may lie in this device's memory. If so, a call is ordered
  // on its stream: it sees the results of work queued there before the call, and work queued there
  // after done() sees the bytes received. Otherwise, pieces lie in host memory, and the stream is
  // ignored.
  virtual bool reaches(const Device& device) const noexcept { return device.host_reads_memory(); }

  // From here on, pieces of kGather and kReduce may lie in this memory of a device that the
  // transport reaches, until forget_memory(). A transport may prepare for it. Neither call waits
  // for calls of other ranks. At forget_memory(), no call that uses the memory is pending; the
  // memory is given back afterwards. Pieces may lie elsewhere too. The default does nothing.
  virtual void use_memory(DeviceSpan memory) { (void)memory; }
  virtual void forget_memory(DeviceSpan memory) noexcept { (void)memory; }

  // give[r] goes to rank r; take[r] comes from rank r, which gives the same number of bytes. Both
  // have world_size() pieces, of any sizes; the call ignores this rank's own piece.
  virtual void all_to_all(Lane lane, Stream stream, std::span<const Piece> give,
                          std::span<const Piece> take, Done done) = 0;
  // whole[r] is rank r's piece: world_size() pieces of any sizes, which are the same on every rank.
  // This rank's own piece is already in place. The default implementation is one all_to_all.
  virtual void all_gather(Lane lane, Stream stream, std::span<const Piece> whole, Done done);

  // Publishes `bytes` (at most kPostBytes) for every rank to read, in place of this rank's previous
  // post. The bytes arrive within a quarter of a second, even while calls on the lanes wait.
  virtual void post(std::span<const std::byte> bytes) noexcept = 0;
  // Sets of_all[r] to the last post of rank r that has arrived here.
  virtual void read_posts(std::span<Post> of_all) noexcept = 0;
  // If one rank or service passes on the posts of all, and has ended or not answered for more than
  // a second: its name, such as "rank 0". Then no conclusion can be drawn from the silence of other
  // ranks. "": posts arrive.
  virtual std::string posts_held_up_by() const { return {}; }

  // Ends every pending and later call of this rank with an error, but does not inform the other
  // ranks. When it returns, no call is pending.
  virtual void abort() noexcept = 0;
};

struct CollectiveOptions {
  std::shared_ptr<Transport> transport = nullptr;
  // The device for calls without an engine; an engine passes its own (Collective::use_device).
  // Null: the CPU.
  std::shared_ptr<Device> device = nullptr;
  // How long a call waits for the other ranks. After a quarter of that time, `warn` names late
  // ranks.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // Called on a thread of the collective with one line, without a newline. Null: the line goes to
  // stderr.
  std::function<void(const std::string& line)> warn = nullptr;
  // Called about twenty times a second, on a thread of the collective. If it returns true, this
  // rank's calls throw kInterrupted from then on, and the other ranks' calls throw kPeerLost. With
  // this function, Ctrl-C works even while a rank waits for a dead rank. The function must not
  // block or throw. Null: never.
  std::function<bool()> interrupted = nullptr;
  // The size of the pinned host buffer through which pieces pass in chunks if the transport cannot
  // access the device's memory.
  std::uint64_t staging_bytes = std::uint64_t{32} << 20;
};

// Makes an engine's collective over any transport. The collective compares the ranks' calls. Its
// errors name both sides of a difference, and the ranks that are late. If one rank fails, calls on
// all ranks fail with the cause.
//
// Calls:   exchange() is compared at once. all_gather() and all_to_all() run at the transport's
//          speed, and are compared when a rank has waited for more than 50 ms, and at the next
//          exchange().
// Failure: a call throws kPeerLost, or kInterrupted if CollectiveOptions::interrupted returned
//          true, and so does every later call. A waiting rank learns of another rank's abort() or
//          end within a quarter of a second, and likewise of an exception that the transport or the
//          device has thrown in another rank's call. A rank that dies without a last post is
//          identified by its silence, within two seconds of the transport's error.
// Threads: as for Collective. The collective has a thread of its own, headrace-ranks, which posts
//          three times a second.
// Throws headrace::Error kInvalidArgument without a transport, a deadline or staging_bytes, or if
// the transport's rank is not below its world size.
std::shared_ptr<Collective> make_collective(const CollectiveOptions& options);

// Makes one transport for each of `world_size` threads of this process.
std::vector<std::shared_ptr<Transport>> make_thread_transports(std::uint32_t world_size);
}  // namespace headrace
