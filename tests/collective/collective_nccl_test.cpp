// SPDX-License-Identifier: Apache-2.0
// collective_nccl_test.cpp: the collective over NCCL: what it takes, and what a rank is told
// when NCCL is not there, another rank is late, dies, gives up or calls something else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "collective/nccl_library.hpp"
#include "collective/nccl_world.hpp"
#include "device/device_bytes.hpp"
#include "device/forwarding_device.hpp"

namespace headrace::collective {
namespace {
using std::chrono::milliseconds;
constexpr milliseconds kLong = std::chrono::minutes(2);
constexpr NcclFlavour kFlavours[] = {NcclFlavour::kPrompt, NcclFlavour::kLate,
                                     NcclFlavour::kParallel};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return {Code::kOk, "returned"};
}

// What every rank's call ends in, after which every later call says the same.
std::vector<std::string> ends_of(std::vector<Rank>& ranks,
                                 const std::function<void(std::uint32_t, Rank&)>& call) {
  std::vector<std::string> texts(ranks.size());
  on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
    texts[r] = peer_lost_text([&] { call(r, rank); });
    EXPECT_EQ(peer_lost_text([&] { meet(*rank.collective, {99, "later"}); }), texts[r]);
  });
  return texts;
}

// ---- the library ----

TEST(NcclLibrary, ThatIsMissingIsNamedWithWhatHelps) {
  const Error error = error_of([] { (void)nccl_unique_id("/nowhere/libnccl.so.2"); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_TRUE(has(error.what(), "/nowhere/libnccl.so.2")) << error.what();
  EXPECT_TRUE(has(error.what(), "ranks cannot talk over NCCL")) << error.what();
  EXPECT_TRUE(has(error.what(), "nvidia-nccl-cu13")) << error.what();
  EXPECT_TRUE(has(error.what(), "LD_LIBRARY_PATH")) << error.what();
}

// The functions that are declared by hand are there, under these names.
TEST(NcclLibrary, OfNvidiaGivesIdsWhereItIs) {
  NcclId first = {}, second = {};
  try {
    first = nccl_unique_id();
    second = nccl_unique_id();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  EXPECT_NE(first, second);
}

TEST(NcclLibrary, WithoutAFunctionIsNamedWithIt) {
  const Error error = error_of([] { (void)nccl_unique_id(HEADRACE_NCCL_WITHOUT_SYMBOLS); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_TRUE(has(error.what(), "has no ncclGetUniqueId")) << error.what();
}

TEST(NcclLibrary, ThatIsTooOldIsNamedWithItsVersion) {
  SIMULATED_NCCL(simulated_nccl_set_version)(21705);
  const Error error = error_of([] { (void)nccl_unique_id(HEADRACE_SIMULATED_NCCL); });
  SIMULATED_NCCL(simulated_nccl_set_version)(22809);
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_TRUE(has(error.what(), "is NCCL 2.17.5, older than 2.18.0")) << error.what();
}

TEST(CollectiveNccl, RefusesOptionsThatCannotBe) {
  const auto device = nccl_device(NcclFlavour::kPrompt, 1);
  const NcclOptions outside = {.rank = 2, .world_size = 2, .device = device};
  const NcclOptions alone = {.rank = 0, .world_size = 2};
  const NcclOptions hurried = {.device = device, .deadline = milliseconds(0)};
  for (const NcclOptions& options : {outside, alone, hurried}) {
    EXPECT_EQ(error_of([&] { (void)make_nccl_collective(options); }).code(),
              Code::kInvalidArgument);
  }
}

class OnGpu final : public device::ForwardingDevice<Device> {
 public:
  OnGpu(std::shared_ptr<Device> to, int ordinal)
      : ForwardingDevice(std::move(to)), ordinal_(ordinal) {}
  int cuda_ordinal() const noexcept override { return ordinal_; }

 private:
  int ordinal_;
};

TEST(CollectiveNccl, IsRefusedOnAThreadWithAnotherGpuThanTheDevices) {
  const auto host = nccl_device(NcclFlavour::kPrompt, 1);
  const auto make = [&](int of_thread, int of_device) {
    return error_of([&] {
      SIMULATED_NCCL(simulated_nccl_set_device)(host.get(), false);
      SIMULATED_NCCL(simulated_nccl_set_ordinal)(of_thread);
      (void)make_nccl_collective({.id = nccl_unique_id(HEADRACE_SIMULATED_NCCL),
                                  .device = std::make_shared<OnGpu>(host, of_device),
                                  .library = HEADRACE_SIMULATED_NCCL});
    });
  };
  const Error error = make(0, 1);
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_TRUE(has(error.what(), "NCCL is on cuda:0")) << error.what();
  EXPECT_TRUE(has(error.what(), "call cudaSetDevice(1) on this thread first")) << error.what();
  EXPECT_EQ(make(1, 1).code(), Code::kOk);
  EXPECT_EQ(make(1, -1).code(), Code::kOk);  // a device that does not say
  SIMULATED_NCCL(simulated_nccl_set_ordinal)(0);
}

// ---- from nothing to a world ----

// [id_by_file]
// The same id on every rank, by way of a file that all of them see and that no earlier run left.
headrace::NcclId id_by_file(std::uint32_t rank, const std::filesystem::path& file,
                            const std::string& library) {
  headrace::NcclId id = {};
  auto* const bytes = reinterpret_cast<char*>(id.data());
  if (rank == 0) {
    id = headrace::nccl_unique_id(library);
    const std::filesystem::path part = file.string() + ".part";
    std::ofstream(part, std::ios::binary).write(bytes, std::ssize(id));
    std::filesystem::rename(part, file);  // so that it is never seen half written
    return id;
  }
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::ifstream(file, std::ios::binary).read(bytes, std::ssize(id));
  return id;
}
// [/id_by_file]

TEST(CollectiveNccl, IsMadeWithAnIdHandedOverByFile) {
  const std::filesystem::path file =
      testing::TempDir() + "/headrace-nccl-" + std::to_string(::getpid());
  std::vector<Rank> ranks(2);
  on_every_rank(ranks, [&](std::uint32_t r, Rank&) {
    const auto device = nccl_device(NcclFlavour::kLate, r + 1);
    SIMULATED_NCCL(simulated_nccl_set_device)(device.get(), false);
    const auto collective =
        make_nccl_collective({.rank = r,
                              .world_size = 2,
                              .id = id_by_file(r, file, HEADRACE_SIMULATED_NCCL),
                              .device = device,
                              .library = HEADRACE_SIMULATED_NCCL});
    meet(*collective, {1, "here"});
  });
  std::filesystem::remove(file);
}

// ---- results ----

class CountingDevice final : public device::ForwardingDevice<Device> {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::uint64_t bytes = 0;
  std::uint64_t limit = ~std::uint64_t{0};
  void* allocate(std::size_t size) noexcept override {
    if (bytes + size > limit) return nullptr;
    bytes += size;
    return ForwardingDevice::allocate(size);
  }
  void deallocate(void* data, std::size_t size) noexcept override {
    bytes -= size;
    ForwardingDevice::deallocate(data, size);
  }
};

TEST(CollectiveNccl, TakesTheMemoryItSays) {
  const NcclId id = nccl_unique_id(HEADRACE_SIMULATED_NCCL);
  std::vector<Rank> ranks(3);
  on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
    const auto host = nccl_device(NcclFlavour::kLate, r + 1);
    SIMULATED_NCCL(simulated_nccl_set_device)(host.get(), false);
    const auto device = std::make_shared<CountingDevice>(host);
    rank.device = device;
    device->limit = nccl_scratch_bytes(3);
    NcclOptions options = {.rank = r, .world_size = 3, .id = id, .device = device};
    options.library = HEADRACE_SIMULATED_NCCL;
    rank.collective = make_nccl_collective(options);
    EXPECT_EQ(device->bytes, nccl_scratch_bytes(3));
    std::vector<std::uint16_t> bucket(6000), taken(6000);
    const DeviceSpan piece = {bucket.data(), 4000};
    rank.collective->all_to_all({1, "r"}, {}, std::vector<DeviceSpan>(3, piece), taken.data());
    meet(*rank.collective, {3, "b"});
    device->synchronize({});
    EXPECT_EQ(device->bytes, nccl_scratch_bytes(3));
    rank.collective.reset();
    EXPECT_EQ(device->bytes, 0u);
  });
  const auto device = std::make_shared<CountingDevice>(nccl_device(NcclFlavour::kPrompt, 1));
  device->limit = nccl_scratch_bytes(1) - 1;
  EXPECT_EQ(error_of([&] {
              (void)make_nccl_collective(
                  {.id = id, .device = device, .library = HEADRACE_SIMULATED_NCCL});
            }).code(),
            Code::kOutOfBudget);
}

TEST(CollectiveNccl, RefusesABufferThatDoesNotDivide) {
  NcclWorld made = nccl_world(2, NcclFlavour::kLate);
  char bytes[3] = {};
  const Error error = error_of([&] {
    made.ranks[0].collective->all_gather({1, "gather h.0"}, {}, {bytes, 3});
  });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_TRUE(has(error.what(), "3 bytes")) << error.what();
  // Nothing was posted: the ranks can still meet.
  on_every_rank(made.ranks, [](std::uint32_t, Rank& rank) {
    meet(*rank.collective, {2, "after"});
  });
}

// ---- different calls ----

TEST(CollectiveNccl, NamesBothCallsThatBlock) {
  for (const NcclFlavour flavour : kFlavours) {
    NcclWorld made = nccl_world(3, flavour, kLong);
    const auto texts = ends_of(made.ranks, [](std::uint32_t r, Rank& rank) {
      std::string what = r == 1 ? "norm" : "freeze";  // gone before the others read it
      std::vector<std::byte> mine(r == 1 ? 8 : 0), all(3 * mine.size());
      rank.collective->exchange({4, what}, mine, all);
    });
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
    EXPECT_TRUE(has(texts[0], "rank 1 called exchange 'norm' (sequence 4, 8 bytes)")) << texts[0];
    EXPECT_TRUE(has(texts[0], "rank 0 called exchange 'freeze' (sequence 4, 0 bytes)")) << texts[0];
  }
}

// Queued calls are compared at the next call that blocks, and the first that differs is named.
TEST(CollectiveNccl, NamesBothCallsThatWereQueued) {
  struct Case {
    std::uint64_t sequence;
    const char* what;
    std::size_t bytes;
    const char* named;
  };
  for (const Case& other : {Case{7, "gather h.4", 8, "'gather h.4' (sequence 7, 8 bytes)"},
                            Case{6, "gather h.3", 8, "'gather h.3' (sequence 6, 8 bytes)"},
                            Case{7, "gather h.3", 16, "'gather h.3' (sequence 7, 16 bytes)"}}) {
    for (const NcclFlavour flavour : kFlavours) {
      NcclWorld made = nccl_world(2, flavour, kLong);
      std::vector<std::array<char, 16>> bytes(2);
      const auto texts = ends_of(made.ranks, [&](std::uint32_t r, Rank& rank) {
        rank.collective->all_gather({1, "the same"}, {}, {bytes[r].data(), 8});
        meet(*rank.collective, {2, "the same"});
        rank.collective->all_gather({3, "the same"}, {}, {bytes[r].data(), 8});
        const Case mine = r == 0 ? Case{7, "gather h.3", 8, ""} : other;
        rank.collective->all_gather({mine.sequence, mine.what}, {}, {bytes[r].data(), mine.bytes});
        rank.collective->all_gather({8, "the same"}, {}, {bytes[r].data(), 8});
        meet(*rank.collective, {9, "the same"});
      });
      EXPECT_EQ(texts[0], texts[1]);
      EXPECT_TRUE(has(texts[0], std::string("rank 1 called all_gather ") + other.named))
          << texts[0];
      EXPECT_TRUE(has(texts[0], "rank 0 called all_gather 'gather h.3' (sequence 7, 8 bytes)"))
          << texts[0];
    }
  }
}

// One rank queued a call that the other never made: it is told, though that call does not end.
TEST(CollectiveNccl, EndsQueuedWorkThatAnotherRankDidNotQueue) {
  NcclWorld made = nccl_world(2, NcclFlavour::kParallel, kLong);
  std::vector<char> bytes(8);
  const auto texts = ends_of(made.ranks, [&](std::uint32_t r, Rank& rank) {
    const Stream stream = rank.device->create_stream();
    if (r == 0) rank.collective->all_gather({1, "gather h.3"}, stream, {bytes.data(), 8});
    const std::string text = peer_lost_text([&] { meet(*rank.collective, {2, "step"}); });
    rank.device->synchronize(stream);
    rank.device->destroy_stream(stream);
    throw Error(Code::kPeerLost, text);
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_TRUE(has(texts[0],
                  "rank 1 called exchange 'step' (sequence 2, 0 bytes) where rank 0 called "
                  "all_gather 'gather h.3' (sequence 1, 8 bytes)"))
      << texts[0];
}

// ---- ranks that are late, leave, die, or give up ----

TEST(CollectiveNccl, IsNotMadeWithoutAllRanks) {
  const auto device = nccl_device(NcclFlavour::kLate, 1);
  SIMULATED_NCCL(simulated_nccl_set_device)(device.get(), false);
  const Error error = error_of([&] {
    (void)make_nccl_collective({.rank = 1,
                                .world_size = 2,
                                .id = nccl_unique_id(HEADRACE_SIMULATED_NCCL),
                                .device = device,
                                .deadline = milliseconds(30),
                                .library = HEADRACE_SIMULATED_NCCL});
  });
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_TRUE(has(error.what(), "rank 1 of 2 waited 30 ms")) << error.what();
}

TEST(CollectiveNccl, NamesTheRanksThatDoNotComeWithinTheDeadline) {
  for (const NcclFlavour flavour : kFlavours) {
    NcclWorld made = nccl_world(3, flavour, milliseconds(400));
    std::vector<std::string> texts(3);
    on_every_rank(made.ranks, [&](std::uint32_t r, Rank& rank) {
      if (r == 2) return;
      texts[r] = peer_lost_text([&] { meet(*rank.collective, {3, "freeze"}); });
    });
    for (const std::uint32_t r : {0u, 1u}) {
      EXPECT_TRUE(has(
          texts[r], "rank 2 did not come to exchange 'freeze' (sequence 3, 0 bytes) within 400 ms"))
          << texts[r];
    }
    // The late one finds that they were there, and that they are there no more.
    EXPECT_EQ(peer_lost_text([&] { meet(*made.ranks[2].collective, {3, "freeze"}); }), "returned");
    const std::string late = peer_lost_text([&] { meet(*made.ranks[2].collective, {4, "step"}); });
    EXPECT_TRUE(has(late, "rank 0, rank 1 did not come to exchange 'step'")) << late;
  }
}

TEST(CollectiveNccl, EndsQueuedWorkAtTheDeadline) {
  NcclWorld made = nccl_world(2, NcclFlavour::kParallel, milliseconds(300));
  Rank& rank = made.ranks[0];
  std::vector<char> bytes(8);
  rank.collective->all_gather({1, "gather h.3"}, {}, {bytes.data(), 8});  // returns all the same
  rank.device->synchronize({});
  const std::string text = peer_lost_text([&] { meet(*rank.collective, {2, "step"}); });
  EXPECT_TRUE(has(text, "all_gather 'gather h.3' (sequence 1, 8 bytes) did not end within 300 ms"))
      << text;
}

TEST(CollectiveNccl, TellsTheWaitingThatOneAborts) {
  for (const NcclFlavour flavour : kFlavours) {
    NcclWorld made = nccl_world(3, flavour, kLong);
    const auto texts = ends_of(made.ranks, [](std::uint32_t r, Rank& rank) {
      if (r == 2) rank.collective->abort("disk full");
      meet(*rank.collective, {1, "norm"});
    });
    for (const std::string& text : texts)
      EXPECT_TRUE(has(text, "rank 2 gave up: disk full")) << text;
  }
}

// The other rank is not in a call, and will not be: this one's own call ends all the same.
TEST(CollectiveNccl, EndsItsOwnPendingCallOnAbort) {
  for (const NcclFlavour flavour : kFlavours) {
    NcclWorld made = nccl_world(2, flavour, milliseconds(500));
    std::string text;
    std::thread waiting([&] {
      text = peer_lost_text([&] { meet(*made.ranks[0].collective, {1, "step"}); });
    });
    std::this_thread::sleep_for(milliseconds(20));
    made.ranks[0].collective->abort("disk full");
    waiting.join();
    EXPECT_TRUE(has(text, "rank 0 gave up: disk full")) << text;
  }
}

TEST(CollectiveNccl, EndsQueuedWorkOnAbort) {
  NcclWorld made = nccl_world(2, NcclFlavour::kParallel, std::chrono::seconds(30));
  std::vector<char> bytes(8);
  Rank& rank = made.ranks[0];
  rank.collective->all_gather({1, "gather h.3"}, {}, {bytes.data(), 8});
  rank.collective->abort("disk full");
  rank.device->synchronize({});
}

TEST(CollectiveNccl, TellsTheWaitingThatOneLeft) {
  for (const NcclFlavour flavour : kFlavours) {
    NcclWorld made = nccl_world(2, flavour, kLong);
    std::string text;
    std::thread waiting([&] {
      text = peer_lost_text([&] { meet(*made.ranks[0].collective, {1, "step 4"}); });
    });
    made.ranks[1].collective.reset();
    waiting.join();
    EXPECT_TRUE(has(text, "rank 1 has left and will not come to exchange 'step 4'")) << text;
  }
}

TEST(CollectiveNccl, SaysWhatNcclReportsOfARankThatDied) {
  for (const NcclFlavour flavour : kFlavours) {
    NcclWorld made = nccl_world(2, flavour, kLong);
    std::string text;
    std::thread waiting([&] {
      text = peer_lost_text([&] { meet(*made.ranks[0].collective, {1, "step 4"}); });
    });
    SIMULATED_NCCL(simulated_nccl_break)(made.id.data(), kNcclRemoteError);
    waiting.join();
    EXPECT_TRUE(has(text, "remote process exited")) << text;
    EXPECT_TRUE(has(text, "simulated")) << text;  // ncclGetLastError
    EXPECT_TRUE(has(text, "no rank can go on")) << text;
    std::vector<char> bytes(8);
    EXPECT_EQ(peer_lost_text([&] {
                made.ranks[0].collective->all_gather({2, "g"}, {}, {bytes.data(), 8});
              }),
              text);
  }
}

TEST(CollectiveNccl, SaysWhichCallNcclRefused) {
  NcclWorld made = nccl_world(1, NcclFlavour::kLate, kLong);
  std::vector<char> bytes(8);
  SIMULATED_NCCL(simulated_nccl_refuse_next)(5);
  const std::string text = peer_lost_text([&] {
    made.ranks[0].collective->all_gather({2, "gather h.3"}, {}, {bytes.data(), 8});
  });
  EXPECT_TRUE(has(text, "NCCL at all_gather 'gather h.3' (sequence 2, 8 bytes): invalid usage"))
      << text;
}
}  // namespace
}  // namespace headrace::collective
