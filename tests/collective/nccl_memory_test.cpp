// SPDX-License-Identifier: Apache-2.0
// nccl_memory_test.cpp: memory that ranks register with NCCL: by all ranks, or by none. The
// simulated NCCL breaks the world where only one side of a transfer is registered, or where memory
// is deregistered while it is used.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collective/nccl_library.hpp"
#include "collective/nccl_world.hpp"
#include "collective/transport_conformance.hpp"

namespace headrace::collective {
namespace {
constexpr std::uint32_t kRanks = 3;
constexpr std::size_t kPieceBytes = 1000;
constexpr NcclFlavour kAllFlavours[] = {NcclFlavour::kPrompt, NcclFlavour::kLate,
                                        NcclFlavour::kParallel};

// Ranks that ask for registered memory, and what they are told.
class RegisteringWorld {
 public:
  explicit RegisteringWorld(NcclFlavour flavour, std::optional<std::uint32_t> without = {}) {
    std::vector<std::shared_ptr<device::ComputingDevice>> devices;
    for (std::uint32_t r = 0; r < kRanks; ++r) devices.push_back(nccl_device(flavour, r + 1));
    world_ = nccl_world(make_thread_transports(kRanks), devices, flavour == NcclFlavour::kParallel,
                        [&](std::uint32_t rank, NcclOptions& options) {
                          options.register_memory = rank != without;
                          options.warn = [this, rank](const std::string& line) {
                            const std::lock_guard lock(mutex_);
                            told_[rank].push_back(line);
                          };
                        });
  }

  NcclRank& operator[](std::uint32_t rank) { return world_.ranks[rank]; }
  int launched() const { return SIMULATED_NCCL(simulated_nccl_launched)(world_.id.data()); }
  int launched_registered() const {
    return SIMULATED_NCCL(simulated_nccl_launched_registered)(world_.id.data());
  }
  int registrations() const {
    return SIMULATED_NCCL(simulated_nccl_registrations)(world_.id.data());
  }
  std::vector<std::string> told(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    return told_[rank];
  }
  // Runs `body` on every rank at once.
  void run(const std::function<void(Transport&)>& body) {
    EXPECT_EQ(first_error(transports_of(world_), body), "");
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> told_[kRanks];
  NcclWorld world_;
};

// A rank's memory, and calls in it whose bytes are checked: each rank ends with every rank's piece.
class RankMemory {
 public:
  DeviceSpan all() { return {bytes_.data(), bytes_.size()}; }
  // `apart`: the pieces do not lie in a row. `from`: on kReduce, the memory of what is given, which
  // has had a call before.
  void start(Transport& transport, Lane lane, bool apart = false, RankMemory* from = nullptr) {
    const std::uint32_t own = transport.rank();
    std::ranges::fill(bytes_, std::byte{});
    pieces_.clear();
    for (std::uint32_t r = 0; r < kRanks; ++r)
      pieces_.push_back({&bytes_[r * kPieceBytes], kPieceBytes - (apart ? r : 0)});
    std::ranges::copy(expected(own), static_cast<std::byte*>(pieces_[own].data));
    end_.emplace();
    if (lane == Lane::kGather) return transport.all_gather(lane, {}, pieces_, end_->done());
    const std::vector<Transport::Piece> give(kRanks, (from != nullptr ? from : this)->pieces_[own]);
    transport.all_to_all(lane, {}, give, pieces_, end_->done());
  }
  void finish() {
    const std::string error = end_->error();
    require(error.empty(), "a call failed: " + error);
    for (std::uint32_t r = 0; r < kRanks; ++r) {
      require(std::ranges::equal(expected(r),
                                 std::span(&bytes_[r * kPieceBytes], pieces_[r].size_bytes)),
              "other bytes from rank " + std::to_string(r));
    }
  }
  void gather(Transport& transport, bool apart = false) {
    start(transport, Lane::kGather, apart);
    finish();
  }

 private:
  std::vector<std::byte> expected(std::uint32_t from) const {
    return bytes_between(from, 0, 1, pieces_[from].size_bytes);
  }
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kRanks * kPieceBytes);
  std::vector<Transport::Piece> pieces_;
  std::optional<TransportCallEnd> end_;
};

TEST(NcclMemory, IsRegisteredOnAllRanksAndServesAllTheirCalls) {
  for (const NcclFlavour flavour : kAllFlavours) {
    RegisteringWorld world(flavour);
    std::vector<RankMemory> memory(kRanks);
    world.run([&](Transport& transport) {
      RankMemory& mine = memory[transport.rank()];
      transport.use_memory(mine.all());
      for (int call = 0; call < 4; ++call) mine.gather(transport, call % 2 == 1);
    });
    EXPECT_EQ(world.registrations(), 3);
    EXPECT_EQ(world.launched(), 4 * 3);
    EXPECT_EQ(world.launched_registered(), world.launched());
    // Given back, and other memory taken: as an engine that sleeps.
    std::vector<RankMemory> other(kRanks);
    world.run([&](Transport& transport) {
      transport.forget_memory(memory[transport.rank()].all());
      transport.use_memory(other[transport.rank()].all());
      other[transport.rank()].gather(transport);
    });
    EXPECT_EQ(world.registrations(), 3);
    EXPECT_EQ(world.launched_registered(), 5 * 3);
    for (std::uint32_t r = 0; r < kRanks; ++r) EXPECT_TRUE(world.told(r).empty());
  }
}

// As before the engine has memory of its own.
TEST(NcclMemory, IsNotGivenUpByCallsBeforeAnyIsRegistered) {
  RegisteringWorld world(NcclFlavour::kLate);
  std::vector<RankMemory> memory(kRanks);
  world.run([&](Transport& transport) {
    RankMemory& mine = memory[transport.rank()];
    mine.gather(transport);
    transport.use_memory(mine.all());
    mine.gather(transport);
  });
  EXPECT_EQ(world.launched_registered(), 3);
  EXPECT_EQ(world.registrations(), 3);
}

// Every call passes, and nothing stays registered.
void expect_given_up(RegisteringWorld& world, std::optional<std::uint32_t> silent = {}) {
  std::vector<RankMemory> memory(kRanks);
  world.run([&](Transport& transport) {
    RankMemory& mine = memory[transport.rank()];
    transport.use_memory(mine.all());
    for (int call = 0; call < 3; ++call) mine.gather(transport, call == 1);
    RankMemory later;
    transport.use_memory(later.all());
    later.gather(transport);
    transport.forget_memory(later.all());
  });
  EXPECT_EQ(world.launched(), 4 * 3);
  EXPECT_EQ(world.launched_registered(), 0);
  EXPECT_EQ(world.registrations(), 0);
  for (std::uint32_t r = 0; r < kRanks; ++r)
    EXPECT_EQ(world.told(r).size(), r == silent ? 0u : 1u) << r;
}

TEST(NcclMemory, IsGivenUpByAllIfNcclRefusesItOnOne) {
  for (const NcclFlavour flavour : kAllFlavours) {
    for (const int error : {static_cast<int>(kNcclInvalidUsage), 0}) {
      RegisteringWorld world(flavour);
      SIMULATED_NCCL(simulated_nccl_refuse_registration)(error);
      expect_given_up(world);
      std::string all;
      for (std::uint32_t r = 0; r < kRanks; ++r) all += world.told(r)[0] + "\n";
      EXPECT_NE(
          all.find(error == 0 ? "2.93 KiB could not be registered: it is switched off "
                                "(NCCL_LOCAL_REGISTER). No rank's"
                              : "2.93 KiB could not be registered: invalid usage (simulated)"),
          all.npos)
          << all;
      EXPECT_NE(all.find("another rank passes memory that is not registered"), all.npos) << all;
    }
  }
}

TEST(NcclMemory, IsGivenUpByAllIfOneDoesNotAskForIt) {
  for (const NcclFlavour flavour : kAllFlavours) {
    for (const std::uint32_t without : {0u, 2u}) {
      RegisteringWorld world(flavour, without);
      expect_given_up(world, without);
    }
  }
}

// The calls before it, which may be under way, end first.
TEST(NcclMemory, IsGivenUpAtACallWithOtherMemory) {
  for (const NcclFlavour flavour : kAllFlavours) {
    RegisteringWorld world(flavour);
    std::vector<RankMemory> gathers(kRanks), reductions(kRanks), others(kRanks);
    world.run([&](Transport& transport) {
      const std::uint32_t own = transport.rank();
      RankMemory &mine = gathers[own], &reduction = reductions[own];
      transport.use_memory(mine.all());
      transport.use_memory(reduction.all());
      mine.gather(transport);
      reduction.start(transport, Lane::kReduce);
      (own == 2 ? others[own] : mine).gather(transport);
      reduction.finish();
      mine.gather(transport);
    });
    EXPECT_EQ(world.launched(), 4 * 3);
    EXPECT_GE(world.launched_registered(), 3);
    EXPECT_LE(world.launched_registered(), 6 + 2);  // rank 2's other piece is not
    EXPECT_EQ(world.registrations(), 0);
  }
}

TEST(NcclMemory, IsGivenUpWhereOnlyWhatIsTakenLiesElsewhere) {
  RegisteringWorld world(NcclFlavour::kLate);
  std::vector<RankMemory> memory(kRanks), others(kRanks);
  world.run([&](Transport& transport) {
    const std::uint32_t own = transport.rank();
    transport.use_memory(memory[own].all());
    memory[own].gather(transport);
    RankMemory& target = own == 2 ? others[own] : memory[own];
    target.start(transport, Lane::kReduce, /*apart=*/false, &memory[own]);
    target.finish();
  });
  EXPECT_EQ(world.launched_registered(), 3);
  EXPECT_EQ(world.registrations(), 0);
}

TEST(NcclMemory, NeedsANcclThatRegisters) {
  SIMULATED_NCCL(simulated_nccl_set_version)(21800);
  const auto device = nccl_device(NcclFlavour::kPrompt, 1);
  SIMULATED_NCCL(simulated_nccl_set_device)(device.get(), false);
  NcclOptions options = {.id = nccl_unique_id(HEADRACE_SIMULATED_NCCL),
                         .messages = make_thread_transports(1)[0],
                         .device = device,
                         .library = HEADRACE_SIMULATED_NCCL,
                         .register_memory = true};
  try {
    (void)make_nccl_transport(options);
    ADD_FAILURE() << "made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("needs NCCL 2.19 or newer"), std::string::npos)
        << error.what();
  }
  SIMULATED_NCCL(simulated_nccl_set_version)(22809);
}
}  // namespace
}  // namespace headrace::collective
