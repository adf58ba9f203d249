// SPDX-License-Identifier: Apache-2.0
// simulated_nccl.cpp: NCCL's functions for ranks that are threads of one process, on streams of CPU
// devices. As strict as NCCL's documentation: a communicator is nonblocking, takes no operation
// while one is in progress, and an operation whose peer does not come never ends but by abort.
// Where one side of an operation is in registered memory and the other is not, the world is broken.
#include "collective/simulated_nccl.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "collective/nccl_library.hpp"

namespace headrace::collective {
namespace {
enum class Of { kPair, kGather, kBroadcast };
struct Message {
  std::vector<char> bytes;
  Of of = Of::kPair;
  bool registered = false;
};

std::mutex mutex;  // all there is
std::condition_variable changed;
int version = 22809;
NcclResult refuse_next = kNcclSuccess;
std::optional<NcclResult> refuse_registration;
std::uint64_t ids = 0;
thread_local device::ComputingDevice* current_device = nullptr;
thread_local bool current_may_block = false;
thread_local int current_ordinal = 0;

struct World {
  std::uint64_t id = 0;
  int size = 0;
  int joined = 0;
  NcclResult error = kNcclSuccess;
  int launched = 0, launched_registered = 0, registrations = 0;
  std::map<std::tuple<int, int, std::uint64_t>, Message> mail;  // from, to, the how manieth
};
std::map<std::uint64_t, std::shared_ptr<World>> worlds;  // by id

struct Operation {
  Of of;  // meets only the same on another rank
  bool send;
  char* data;
  std::size_t size;
  int peer;
  bool registered = false;
  std::uint64_t number = 0;  // between these two ranks: calls meet in the order they were made in
};
struct Group {
  std::vector<Operation> operations;
  std::uintptr_t stream = 0;
};

struct Communicator {
  std::shared_ptr<World> world;
  int rank = 0;
  device::ComputingDevice* device = nullptr;
  bool may_block = false;
  int ordinal = 0;
  bool aborted = false;
  bool closing = false;
  int launching = 0;
  int running = 0;
  std::map<int, std::uint64_t> sent, received;  // by peer
  std::map<const char*, std::size_t> registered;
  std::deque<std::function<void()>> to_launch;
  std::thread launcher;
};
using Shared = std::shared_ptr<Communicator>;
struct Handle {
  Shared communicator;
};

struct OpenGroup {
  int depth = 0;
  Shared communicator;
  Group group;
};
thread_local OpenGroup open;

void post(const Shared& of, const Group& group) {
  const std::lock_guard lock(mutex);
  for (const Operation& operation : group.operations) {
    if (operation.send)
      of->world->mail[{of->rank, operation.peer, operation.number}] = {
          {operation.data, operation.data + operation.size}, operation.of, operation.registered};
  }
  changed.notify_all();
}

// With `mutex` held. Null: it has not come, or is not what `operation` receives.
const Message* arrived(const Shared& of, const Operation& operation) {
  const auto mail = of->world->mail.find({operation.peer, of->rank, operation.number});
  if (mail == of->world->mail.end()) return nullptr;
  const Message& message = mail->second;
  const bool meets = message.bytes.size() == operation.size && message.of == operation.of;
  if (message.registered != operation.registered) of->world->error = kNcclInvalidUsage;
  return meets ? &message : nullptr;
}

// With `mutex` held.
bool all_there(const Shared& of, const Group& group) {
  return std::ranges::all_of(group.operations, [&](const Operation& operation) {
    return operation.send || arrived(of, operation) != nullptr;
  });
}

void await(const Shared& of, const Group& group) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return of->aborted || all_there(of, group); });
}

// What has come is received even where the rest never will.
void take(const Shared& of, const Group& group) {
  const std::lock_guard lock(mutex);
  for (const Operation& operation : group.operations) {
    if (operation.send) continue;
    const Message* const message = arrived(of, operation);
    if (message == nullptr) continue;
    std::memcpy(operation.data, message->bytes.data(), operation.size);
    of->world->mail.erase({operation.peer, of->rank, operation.number});
  }
  --of->running;
  changed.notify_all();
}

void launch(const Shared& of, const Group& group) {
  const Stream stream{group.stream};
  if (of->may_block) {
    of->device->launch(stream, [of, group] {
      post(of, group);
      await(of, group);
      take(of, group);
    });
  } else {
    of->device->launch(stream, [of, group] { post(of, group); });
    await(of, group);
    of->device->launch(stream, [of, group] { take(of, group); });
  }
}

void run_launcher(const Shared& of) {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return of->closing || !of->to_launch.empty(); });
    if (of->to_launch.empty()) return;
    auto next = std::move(of->to_launch.front());
    of->to_launch.pop_front();
    lock.unlock();
    next();
    next = nullptr;
    lock.lock();
    --of->launching;
    changed.notify_all();
  }
}

// With `mutex` held.
bool is_registered(const Communicator& of, const Operation& operation) {
  auto found = of.registered.upper_bound(operation.data);
  if (found == of.registered.begin()) return false;
  --found;
  return operation.data + operation.size <= found->first + found->second;
}

const Shared& shared(NcclCommHandle comm) { return static_cast<Handle*>(comm)->communicator; }

// With `mutex` held.
NcclResult state_of(const Communicator& of) {
  if (of.world->error != kNcclSuccess) return of.world->error;
  const bool in_progress =
      of.world->joined != of.world->size || of.launching != 0 || (of.closing && of.running != 0);
  return in_progress ? kNcclInProgress : kNcclSuccess;
}

// With `mutex` held.
World& world_of(const void* unique_id) {
  std::uint64_t id = 0;
  std::memcpy(&id, unique_id, sizeof(id));
  return *worlds.at(id);
}

NcclCommHandle join(std::uint64_t id, int size, int rank) {
  auto& world = worlds[id];
  if (world == nullptr) world = std::make_shared<World>(World{.id = id, .size = size, .mail = {}});
  ++world->joined;
  auto made = std::make_shared<Communicator>();
  made->world = world;
  made->rank = rank;
  made->device = current_device;
  made->may_block = current_may_block;
  made->ordinal = current_ordinal;
  made->launcher = std::thread([made] { run_launcher(made); });
  changed.notify_all();
  return new Handle{made};
}

NcclResult add(NcclCommHandle comm, NcclStream stream, const std::vector<Operation>& operations) {
  const Shared& of = shared(comm);
  const std::lock_guard lock(mutex);
  const NcclResult state = state_of(*of);
  if (state != kNcclSuccess) return state == kNcclInProgress ? kNcclInvalidUsage : state;
  if (open.depth == 0) return kNcclInvalidUsage;  // this simulation's alone
  if (refuse_next != kNcclSuccess) return std::exchange(refuse_next, kNcclSuccess);
  open.communicator = of;
  open.group.stream = reinterpret_cast<std::uintptr_t>(stream);
  open.group.operations.insert(open.group.operations.end(), operations.begin(), operations.end());
  return kNcclSuccess;
}

bool is_valid(const NcclConfig* config) {
  return config != nullptr && config->size == 40 && config->magic == 0xcafebeef &&
         config->version == 21700 && config->blocking == 0;
}

void end(NcclCommHandle comm) {
  auto* const handle = static_cast<Handle*>(comm);
  {
    const std::lock_guard lock(mutex);
    handle->communicator->closing = true;
    changed.notify_all();
  }
  handle->communicator->launcher.join();
  delete handle;
}
}  // namespace
}  // namespace headrace::collective

using namespace headrace::collective;  // NOLINT: this file is a library of C functions

extern "C" {
void simulated_nccl_set_device(headrace::device::ComputingDevice* device, bool may_block) {
  current_device = device;
  current_may_block = may_block;
}
void simulated_nccl_set_ordinal(int ordinal) { current_ordinal = ordinal; }
void simulated_nccl_break(const void* unique_id, int error) {
  const std::lock_guard lock(mutex);
  world_of(unique_id).error = static_cast<NcclResult>(error);
}
int simulated_nccl_launched(const void* unique_id) {
  const std::lock_guard lock(mutex);
  return world_of(unique_id).launched;
}
int simulated_nccl_launched_registered(const void* unique_id) {
  const std::lock_guard lock(mutex);
  return world_of(unique_id).launched_registered;
}
int simulated_nccl_registrations(const void* unique_id) {
  const std::lock_guard lock(mutex);
  return world_of(unique_id).registrations;
}
void simulated_nccl_refuse_registration(int error) {
  const std::lock_guard lock(mutex);
  refuse_registration = static_cast<NcclResult>(error);
}
void simulated_nccl_refuse_next(int error) {
  const std::lock_guard lock(mutex);
  refuse_next = static_cast<NcclResult>(error);
}
void simulated_nccl_set_version(int now) {
  const std::lock_guard lock(mutex);
  version = now;
}

NcclResult ncclGetVersion(int* out) {
  const std::lock_guard lock(mutex);
  *out = version;
  return kNcclSuccess;
}
NcclResult ncclGetUniqueId(headrace::NcclId* id) {
  const std::lock_guard lock(mutex);
  id->fill(0);
  ++ids;
  std::memcpy(id->data(), &ids, sizeof(ids));
  return kNcclSuccess;
}
NcclResult ncclCommInitRankConfig(NcclCommHandle* comm, int ranks, headrace::NcclId id, int rank,
                                  NcclConfig* config) {
  if (!is_valid(config) || current_device == nullptr) return kNcclInvalidUsage;
  std::uint64_t number = 0;
  std::memcpy(&number, id.data(), sizeof(number));
  const std::lock_guard lock(mutex);
  *comm = join(number, ranks, rank);
  return kNcclInProgress;
}
NcclResult ncclCommGetAsyncError(NcclCommHandle comm, NcclResult* error) {
  const std::lock_guard lock(mutex);
  *error = state_of(*shared(comm));
  return kNcclSuccess;
}
NcclResult ncclCommCuDevice(NcclCommHandle comm, int* ordinal) {
  *ordinal = shared(comm)->ordinal;
  return kNcclSuccess;
}
NcclResult ncclCommRegister(NcclCommHandle comm, void* data, std::size_t bytes, void** handle) {
  Communicator& of = *shared(comm);
  const std::lock_guard lock(mutex);
  *handle = nullptr;
  if (refuse_registration) {
    const NcclResult result = *refuse_registration;
    refuse_registration.reset();
    return result;
  }
  if (of.launching != 0) return kNcclInvalidUsage;
  if (!of.registered.emplace(static_cast<const char*>(data), bytes).second)
    return kNcclInvalidUsage;
  ++of.world->registrations;
  *handle = data;
  return kNcclSuccess;
}
NcclResult ncclCommDeregister(NcclCommHandle comm, void* handle) {
  Communicator& of = *shared(comm);
  const std::lock_guard lock(mutex);
  const bool known = of.registered.erase(static_cast<const char*>(handle)) == 1;
  if (!known || of.running != 0) of.world->error = kNcclInvalidUsage;
  if (!known) return kNcclInvalidUsage;
  --of.world->registrations;
  return kNcclSuccess;
}
NcclResult ncclCommAbort(NcclCommHandle comm) {
  {
    const std::lock_guard lock(mutex);
    shared(comm)->aborted = true;
    changed.notify_all();
  }
  end(comm);
  return kNcclSuccess;
}
NcclResult ncclCommFinalize(NcclCommHandle comm) {
  const std::lock_guard lock(mutex);
  shared(comm)->closing = true;
  changed.notify_all();
  return state_of(*shared(comm));
}
NcclResult ncclCommDestroy(NcclCommHandle comm) {
  end(comm);
  return kNcclSuccess;
}

NcclResult ncclAllGather(const void* source, void* target, std::size_t count, int,
                         NcclCommHandle comm, NcclStream stream) {
  const Shared& of = shared(comm);
  auto* const whole = static_cast<char*>(target);
  auto* const own = whole + static_cast<std::size_t>(of->rank) * count;
  if (source != own) return kNcclInvalidUsage;  // in place only
  std::vector<Operation> operations;
  for (int peer = 0; peer < of->world->size; ++peer) {
    if (peer == of->rank) continue;
    operations.push_back({Of::kGather, true, own, count, peer});
    operations.push_back(
        {Of::kGather, false, whole + static_cast<std::size_t>(peer) * count, count, peer});
  }
  return add(comm, stream, operations);
}
NcclResult ncclBroadcast(const void* source, void* target, std::size_t count, int, int root,
                         NcclCommHandle comm, NcclStream stream) {
  const Shared& of = shared(comm);
  if (source != target) return kNcclInvalidUsage;  // in place only
  auto* const data = static_cast<char*>(target);
  std::vector<Operation> operations;
  if (of->rank != root) operations.push_back({Of::kBroadcast, false, data, count, root});
  for (int peer = 0; of->rank == root && peer < of->world->size; ++peer) {
    if (peer != root) operations.push_back({Of::kBroadcast, true, data, count, peer});
  }
  return add(comm, stream, operations);
}
NcclResult ncclSend(const void* source, std::size_t count, int, int peer, NcclCommHandle comm,
                    NcclStream stream) {
  return add(comm, stream,
             {{Of::kPair, true, static_cast<char*>(const_cast<void*>(source)), count, peer}});
}
NcclResult ncclRecv(void* target, std::size_t count, int, int peer, NcclCommHandle comm,
                    NcclStream stream) {
  return add(comm, stream, {{Of::kPair, false, static_cast<char*>(target), count, peer}});
}
NcclResult ncclGroupStart() {
  ++open.depth;
  return kNcclSuccess;
}
NcclResult ncclGroupEnd() {
  if (--open.depth != 0) return kNcclSuccess;
  OpenGroup ended = std::exchange(open, {});
  if (ended.communicator == nullptr) return kNcclSuccess;
  const std::lock_guard lock(mutex);
  for (Operation& operation : ended.group.operations) {
    auto& counts = operation.send ? ended.communicator->sent : ended.communicator->received;
    operation.number = counts[operation.peer]++;
    operation.registered = is_registered(*ended.communicator, operation);
  }
  ended.communicator->world->launched_registered +=
      std::ranges::all_of(ended.group.operations, &Operation::registered) ? 1 : 0;
  ++ended.communicator->world->launched;
  ++ended.communicator->launching;
  ++ended.communicator->running;
  ended.communicator->to_launch.push_back(
      [of = ended.communicator, group = ended.group] { launch(of, group); });
  changed.notify_all();
  return kNcclInProgress;
}
const char* ncclGetErrorString(NcclResult result) {
  return result == kNcclRemoteError ? "remote process exited or there was a network error"
                                    : "invalid usage";
}
const char* ncclGetLastError(NcclCommHandle) { return "simulated"; }
}
