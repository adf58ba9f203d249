// SPDX-License-Identifier: Apache-2.0
// transport_nccl_test.cpp: the transport over NCCL: the suites, what it takes, and what ends its
// calls when NCCL is not there, a rank is late, dies or calls something else.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "collective/collective_conformance.hpp"
#include "collective/nccl_library.hpp"
#include "collective/nccl_world.hpp"
#include "collective/rank_cases.hpp"
#include "collective/transport_conformance.hpp"
#include "device/forwarding_device.hpp"

namespace headrace::collective {
namespace {
using std::chrono::milliseconds;
constexpr std::pair<NcclFlavour, const char*> kFlavours[] = {{NcclFlavour::kPrompt, "Prompt"},
                                                             {NcclFlavour::kLate, "Late"},
                                                             {NcclFlavour::kParallel, "Parallel"}};

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

// ---- the suites ----

class TransportNccl : public ::testing::TestWithParam<TransportCase> {};

TEST_P(TransportNccl, AsEveryTransport) {
  for (const auto& [flavour, name] : kFlavours) {
    for (const std::uint32_t world_size : {1u, 2u, 3u, 4u}) {
      const NcclWorld world = nccl_world(world_size, flavour);
      EXPECT_EQ(first_error(transports_of(world), GetParam().run), "")
          << world_size << " ranks, " << name;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Conformance, TransportNccl, ::testing::ValuesIn(kTransportCases),
                         [](const auto& info) { return info.param.name; });

std::vector<WorldMaker> worlds() {
  std::vector<WorldMaker> all;
  for (const auto& [flavour, name] : kFlavours) {
    for (const std::uint32_t world_size : {1u, 2u, 3u}) {
      all.push_back({"Nccl" + std::to_string(world_size) + name, world_size,
                     [=, of = flavour](milliseconds deadline) {
                       return nccl_ranks(world_size, of, deadline);
                     }});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Nccl, CollectiveConformance, ::testing::ValuesIn(worlds()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Nccl, CollectiveOfSeveral, ::testing::ValuesIn(of_several(worlds())),
                         [](const auto& info) { return info.param.name; });

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

TEST(TransportNccl, RefusesOptionsThatCannotBe) {
  const auto device = nccl_device(NcclFlavour::kPrompt, 1);
  const auto messages = make_thread_transports(1)[0];
  const NcclOptions silent = {.device = device};
  const NcclOptions alone = {.messages = messages};
  const NcclOptions hurried = {.messages = messages, .device = device, .deadline = milliseconds(0)};
  for (const NcclOptions& options : {silent, alone, hurried})
    EXPECT_EQ(error_of([&] { (void)make_nccl_transport(options); }).code(), Code::kInvalidArgument);
}

class OnGpu final : public device::ForwardingDevice<Device> {
 public:
  OnGpu(std::shared_ptr<Device> to, int ordinal)
      : ForwardingDevice(std::move(to)), ordinal_(ordinal) {}
  int cuda_ordinal() const noexcept override { return ordinal_; }

 private:
  int ordinal_;
};

TEST(TransportNccl, IsRefusedOnAThreadWithAnotherGpuThanTheDevices) {
  const auto host = nccl_device(NcclFlavour::kPrompt, 1);
  std::shared_ptr<Transport> made;
  const auto make = [&](int of_thread, int of_device) {
    return error_of([&] {
      SIMULATED_NCCL(simulated_nccl_set_device)(host.get(), false);
      SIMULATED_NCCL(simulated_nccl_set_ordinal)(of_thread);
      made = make_nccl_transport({.id = nccl_unique_id(HEADRACE_SIMULATED_NCCL),
                                  .messages = make_thread_transports(1)[0],
                                  .device = std::make_shared<OnGpu>(host, of_device),
                                  .library = HEADRACE_SIMULATED_NCCL});
    });
  };
  const Error error = make(0, 1);
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_TRUE(has(error.what(), "NCCL is on cuda:0")) << error.what();
  EXPECT_TRUE(has(error.what(), "call cudaSetDevice(1) on this thread first")) << error.what();
  EXPECT_EQ(make(1, -1).code(), Code::kOk);  // a device that does not say
  EXPECT_EQ(make(1, 1).code(), Code::kOk);
  EXPECT_TRUE(made->reaches(OnGpu(host, 1)));
  EXPECT_FALSE(made->reaches(OnGpu(host, 0)));
  EXPECT_FALSE(made->reaches(*host));
  SIMULATED_NCCL(simulated_nccl_set_ordinal)(0);
}

// ---- from nothing to a world ----

TEST(TransportNccl, IsMadeWithAnIdHandedOverByFile) {
  const std::filesystem::path file =
      ::testing::TempDir() + "/headrace-nccl-" + std::to_string(::getpid());
  EXPECT_EQ(first_error(make_thread_transports(2),
                        [&](Transport& of_rank) {
                          const std::uint32_t r = of_rank.rank();
                          const auto device = nccl_device(NcclFlavour::kLate, r + 1);
                          SIMULATED_NCCL(simulated_nccl_set_device)(device.get(), false);
                          const auto transport = make_nccl_transport(
                              {.id = id_by_file(r, file, HEADRACE_SIMULATED_NCCL),
                               .messages = {&of_rank, [](Transport*) {}},
                               .device = device,
                               .library = HEADRACE_SIMULATED_NCCL});
                          gathers_in_place(*transport);
                        }),
            "");
  std::filesystem::remove(file);
}

TEST(TransportNccl, IsNotMadeWithoutAllRanks) {
  const auto device = nccl_device(NcclFlavour::kLate, 1);
  SIMULATED_NCCL(simulated_nccl_set_device)(device.get(), false);
  const Error error = error_of([&] {
    (void)make_nccl_transport({.id = nccl_unique_id(HEADRACE_SIMULATED_NCCL),
                               .messages = make_thread_transports(2)[1],
                               .device = device,
                               .deadline = milliseconds(30),
                               .library = HEADRACE_SIMULATED_NCCL});
  });
  EXPECT_EQ(error.code(), Code::kPeerLost);
  EXPECT_TRUE(has(error.what(), "rank 1 of 2 waited 30 ms")) << error.what();
}

// ---- what the GPU carries out ----

// Where one rank's pieces lie in a row and another's do not, all take the same way. The call sees
// what its stream had queued before it.
TEST(TransportNccl, GathersPiecesThatLieInARowOnSomeRanks) {
  const NcclWorld world = nccl_world(3, NcclFlavour::kParallel);
  const auto body = [&](Transport& transport) {
    constexpr std::size_t kSize = 1000;
    const std::uint32_t own = transport.rank();
    const std::size_t stride = kSize + (own == 1 ? 8 : 0);
    std::vector<std::byte> bytes(3 * stride);
    std::vector<Transport::Piece> whole;
    for (std::size_t r = 0; r < 3; ++r) whole.push_back({bytes.data() + r * stride, kSize});
    device::ComputingDevice& device = *world.ranks[own].device;
    const Stream stream = device.create_stream();
    device.launch(stream, [&bytes, stride, own] {
      std::this_thread::sleep_for(milliseconds(20));
      std::ranges::copy(bytes_between(own, 0, 1, kSize), bytes.data() + own * stride);
    });
    TransportCallEnd end;
    transport.all_gather(Lane::kGather, stream, whole, end.done());
    require(end.error().empty(), "all_gather: " + end.error());
    for (std::uint32_t r = 0; r < 3; ++r) {
      require(std::ranges::equal(bytes_between(r, 0, 1, kSize),
                                 std::span(bytes).subspan(r * stride, kSize)),
              "other bytes from rank " + std::to_string(r));
    }
    device.destroy_stream(stream);
  };
  EXPECT_EQ(first_error(transports_of(world), body), "");
}

std::uint32_t thousand(std::uint32_t, std::uint32_t) { return 1000; }

// A kernel that waits for another rank would hold up what needs the whole GPU.
TEST(TransportNccl, LaunchesNothingBeforeAllRanksHaveCome) {
  const NcclWorld world = nccl_world(2, NcclFlavour::kParallel);
  const auto launched = [&] { return SIMULATED_NCCL(simulated_nccl_launched)(world.id.data()); };
  PieceExchange early(*world.ranks[0].transport, 1, thousand);
  PieceExchange late(*world.ranks[1].transport, 1, thousand);
  early.start(*world.ranks[0].transport, Lane::kReduce);
  EXPECT_FALSE(early.end().within(milliseconds(50)));
  EXPECT_EQ(launched(), 0);
  late.start(*world.ranks[1].transport, Lane::kReduce);
  early.check();
  late.check();
  EXPECT_EQ(launched(), 2);
}

// Ends the second call of kGather, the answer to its first call of NCCL's, when it is told to.
class AnswersLate final : public Transport {
 public:
  explicit AnswersLate(std::shared_ptr<Transport> to) : to_(std::move(to)) {}
  std::string_view name() const noexcept override { return to_->name(); }
  std::uint32_t rank() const noexcept override { return to_->rank(); }
  std::uint32_t world_size() const noexcept override { return to_->world_size(); }
  void all_to_all(Lane lane, Stream, std::span<const Piece> give, std::span<const Piece> take,
                  Done done) override {
    if (lane != Lane::kGather || ++gathers_ != 2)
      return to_->all_to_all(lane, {}, give, take, done);
    done_ = done;
    to_->all_to_all(lane, {}, give, take, answer_.done());
  }
  void post(std::span<const std::byte> bytes) noexcept override { to_->post(bytes); }
  void read_posts(std::span<Post> of_all) noexcept override { to_->read_posts(of_all); }
  void abort() noexcept override { to_->abort(); }
  bool has_answer() { return answer_.within(milliseconds(10'000)); }
  void answer() { done_.function(done_.context, nullptr); }

 private:
  std::shared_ptr<Transport> to_;
  int gathers_ = 0;
  TransportCallEnd answer_;
  Done done_;
};

// Rank 1 learns the place of the second call before that of the first.
TEST(TransportNccl, LaunchesInTheSameOrderOnEveryRank) {
  auto messages = make_thread_transports(2);
  const auto late = std::make_shared<AnswersLate>(messages[1]);
  messages[1] = late;
  const NcclWorld world = nccl_world(messages, NcclFlavour::kParallel);
  std::vector<std::unique_ptr<PieceExchange>> calls;
  for (const Lane lane : {Lane::kGather, Lane::kReduce}) {
    for (const NcclRank& rank : world.ranks) {
      calls.push_back(std::make_unique<PieceExchange>(*rank.transport,
                                                      static_cast<std::size_t>(lane), thousand));
      calls.back()->start(*rank.transport, lane);
    }
    EXPECT_TRUE(lane == Lane::kReduce || late->has_answer());
  }
  const auto launched = [&] { return SIMULATED_NCCL(simulated_nccl_launched)(world.id.data()); };
  for (int waited = 0; launched() < 2 && waited < 10'000; ++waited)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_FALSE(calls.back()->end().within(milliseconds(50)));
  EXPECT_EQ(launched(), 2);  // both of rank 0's
  late->answer();
  for (const auto& call : calls) call->check();
}

// ---- what ends its calls ----

// Rank 0's all_to_all, launched on both: rank 1 gives it nothing, so that it waits on the GPU.
class WaitsOnTheGpu {
 public:
  explicit WaitsOnTheGpu(const NcclWorld& world) {
    PieceExchange nothing(*world.ranks[1].transport, 1,
                          [](std::uint32_t, std::uint32_t) { return 0u; });
    call_.emplace(*world.ranks[0].transport, 1, thousand);
    call_->start(*world.ranks[0].transport, Lane::kReduce);
    nothing.start(*world.ranks[1].transport, Lane::kReduce);
    nothing.check();
    EXPECT_FALSE(call_->end().within(milliseconds(20)));
  }
  std::string error() { return call_->end().error(); }

 private:
  std::optional<PieceExchange> call_;
};

TEST(TransportNccl, EndsACallThatWaitsOnTheGpuWhenItAborts) {
  for (const auto& [flavour, name] : kFlavours) {
    const NcclWorld world = nccl_world(2, flavour);
    WaitsOnTheGpu call(world);
    world.ranks[0].transport->abort();
    EXPECT_EQ(call.error(), "this rank has aborted its transport") << name;
  }
}

TEST(TransportNccl, SaysWhatNcclReportsOfARankThatDied) {
  for (const auto& [flavour, name] : kFlavours) {
    const NcclWorld world = nccl_world(2, flavour);
    WaitsOnTheGpu call(world);
    SIMULATED_NCCL(simulated_nccl_break)(world.id.data(), kNcclRemoteError);
    const std::string text = call.error();
    EXPECT_TRUE(has(text, "NCCL on rank 0: remote process exited")) << name << ": " << text;
    EXPECT_TRUE(has(text, "simulated")) << text;  // ncclGetLastError
    PieceExchange later(*world.ranks[0].transport, 2, thousand);
    later.start(*world.ranks[0].transport, Lane::kTalk);
    EXPECT_EQ(later.end().error(), text);
  }
}

TEST(TransportNccl, SaysWhatNcclRefused) {
  const NcclWorld world = nccl_world(2, NcclFlavour::kLate);
  PieceExchange refused(*world.ranks[0].transport, 1, thousand);
  PieceExchange other(*world.ranks[1].transport, 1, thousand);
  SIMULATED_NCCL(simulated_nccl_refuse_next)(5);
  refused.start(*world.ranks[0].transport, Lane::kReduce);
  other.start(*world.ranks[1].transport, Lane::kReduce);
  while (!refused.end().within(milliseconds(1)) && !other.end().within(milliseconds(1))) {
  }
  for (const NcclRank& rank : world.ranks) rank.transport->abort();
  EXPECT_TRUE(has(refused.end().error() + other.end().error(), "invalid usage (simulated)"));
}

// Other ranks' messages are on their way yet: they are to arrive.
TEST(TransportNccl, LeavesItsMessagesWholeWhenItEndsRightAfterACall) {
  for (int round = 0; round < 200; ++round) {
    const auto messages = make_thread_transports(2);
    NcclWorld world = nccl_world(messages, NcclFlavour::kPrompt);
    EXPECT_EQ(first_error(messages,
                          [&](Transport& of_rank) {
                            auto& transport = world.ranks[of_rank.rank()].transport;
                            PieceExchange call(*transport, 1, thousand);
                            call.start(*transport, Lane::kReduce);
                            call.check();
                            transport.reset();
                            meet(of_rank);
                          }),
              "");
  }
}

TEST(TransportNccl, EndsItsCallsWhenItsMessagesFail) {
  const auto messages = make_thread_transports(2);
  const NcclWorld world = nccl_world(messages, NcclFlavour::kLate);
  PieceExchange call(*world.ranks[1].transport, 1, thousand);
  call.start(*world.ranks[1].transport, Lane::kGather);
  EXPECT_FALSE(call.end().within(milliseconds(20)));
  messages[1]->abort();
  const std::string text = "threads: this rank has aborted its transport";
  EXPECT_EQ(call.end().error(), text);
  for (const Lane lane : {Lane::kReduce, Lane::kTalk}) {
    PieceExchange later(*world.ranks[1].transport, 2, thousand);
    later.start(*world.ranks[1].transport, lane);
    EXPECT_EQ(later.end().error(), text);
  }
}

// ---- under make_collective() ----

// Ranks that gather other sizes wait on the GPU for ever, were they not told.
TEST(CollectiveOverNccl, NamesBothGathersOfDifferentSizes) {
  for (const auto& [flavour, name] : kFlavours) {
    auto ranks = nccl_ranks(2, flavour);
    std::vector<std::array<char, 16>> bytes(2);
    std::vector<std::string> texts(2);
    on_every_rank(ranks, [&](std::uint32_t r, Rank& rank) {
      rank.collective->all_gather({3, "the same"}, {}, equal_pieces(bytes[r].data(), 8, 2));
      texts[r] = peer_lost_text([&] {
        rank.collective->all_gather({7, "gather h.3"}, {},
                                    equal_pieces(bytes[r].data(), r == 0 ? 8u : 16u, 2));
      });
    });
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_TRUE(has(texts[0],
                    "rank 1 called all_gather 'gather h.3' (sequence 7, 16 bytes) where rank 0 "
                    "called all_gather 'gather h.3' (sequence 7, 8 bytes)"))
        << name << ": " << texts[0];
  }
}

TEST(CollectiveOverNccl, NamesTheRankThatDoesNotComeToAGather) {
  auto ranks = nccl_ranks(2, NcclFlavour::kParallel, milliseconds(300));
  std::vector<char> bytes(8);
  const std::string text = peer_lost_text([&] {
    ranks[0].collective->all_gather({1, "gather h.3"}, {}, equal_pieces(bytes.data(), 8, 2));
  });
  EXPECT_TRUE(has(text,
                  "rank 1 did not come to all_gather 'gather h.3' (sequence 1, 8 bytes) within "
                  "300 ms"))
      << text;
}
}  // namespace
}  // namespace headrace::collective
