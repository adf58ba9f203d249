// SPDX-License-Identifier: Apache-2.0
// gloo_ranks_test.cpp: worlds of processes, over torch's Gloo on this machine's loopback. Their
// ranks are this program again.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "collective/transport_conformance.hpp"
#include "headrace/error.hpp"
#include "headrace/launch.hpp"
#include "headrace/torch/gloo.hpp"
#include "support/child_processes.hpp"
#include "support/expect_code.hpp"
#include "support/world_training.hpp"

namespace headrace::torch {
namespace {
using collective::PieceExchange;
using collective::require;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
constexpr seconds kWatchdog(60);  // of a process
constexpr milliseconds kSoon(2000);
constexpr std::uint32_t kOne = 1000;  // bytes of a small piece

// ---- a rank, in a process of its own ----

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

std::uint32_t one(std::uint32_t, std::uint32_t) { return kOne; }

[[noreturn]] void say_that_it_waits() {
  say("waits");
  for (;;) ::pause();
}

// A call of each lane.
class CallsOfEachLane {
 public:
  CallsOfEachLane(Transport& transport, std::size_t size_bytes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      calls_.push_back(std::make_unique<PieceExchange>(
          transport, lane, [&](std::uint32_t, std::uint32_t) { return size_bytes; }));
      calls_.back()->start(transport, static_cast<Lane>(lane));
    }
  }
  // The text of one.
  std::string all_fail(milliseconds within) {
    const Clock::time_point end = Clock::now() + within;
    for (auto& call : calls_) {
      const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
      require(call->end().within(std::max(left, milliseconds(0))), "a call did not end in time");
      require(!call->end().error().empty(), "a call ended as if its bytes had passed");
    }
    return calls_.front()->end().error();
  }

 private:
  std::vector<std::unique_ptr<PieceExchange>> calls_;
};

void conforms(Transport& transport) {
  require(transport.name() == "gloo", "another name");
  for (const auto& [name, run] : collective::kTransportCases) {
    say(name);
    run(transport);
  }
}

// Pieces of several chunks.
void cuts_large_pieces(Transport& transport) {
  const std::size_t size = 2 * detail::kChunkBytes + 4097;
  const auto bytes_of = [&](std::uint32_t rank) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i)
      bytes[i] = static_cast<std::byte>((i * 2'654'435'761u) >> 24 ^ rank);
    return bytes;
  };
  std::vector<std::byte> from = bytes_of(transport.rank()), to(size);
  const std::vector<Transport::Piece> give(2, {from.data(), size}), take(2, {to.data(), size});
  collective::TransportCallEnd end;
  transport.all_to_all(Lane::kGather, {}, give, take, end.done());
  require(end.error().empty(), "the call failed: " + end.error());
  require(to == bytes_of(1 - transport.rank()), "other bytes came");
}

// Rank 0, which serves the store, first.
void leaves_one_after_the_other(Transport& transport) {
  collective::meet(transport);
  if (transport.rank() == 1) std::this_thread::sleep_for(milliseconds(500));
}

// Ranks take and give another number of bytes: the calls wait, and no process ends.
void waits_where_sizes_differ(Transport& transport) {
  const std::uint32_t size = transport.rank() == 0 ? 100 : 3000;
  PieceExchange calls(transport, 1, [&](std::uint32_t, std::uint32_t) { return size; });
  calls.start(transport, Lane::kReduce);
  require(!calls.end().within(milliseconds(300)), "a call has ended");
  collective::meet(transport);
  transport.abort();
  require(!calls.end().error().empty(), "the call has passed");
}

// Rank 2 is killed.
void loses_a_rank(Transport& transport) {
  collective::meet(transport);
  if (transport.rank() == 2) say_that_it_waits();
  CallsOfEachLane calls(transport, kOne);
  say("waits");
  say("its text: " + calls.all_fail(kWatchdog));
  PieceExchange later(transport, 9, one);
  later.start(transport, Lane::kTalk);
  require(!later.end().error().empty(), "a call after the loss did not fail");
}

// One of ranks 1 and 2 is killed, and the other never makes the calls: whichever of them a lane
// waits for first, the end of the first has to end its call.
void loses_a_rank_beside_a_late_one(Transport& transport) {
  collective::meet(transport);
  if (transport.rank() != 0) say_that_it_waits();
  CallsOfEachLane calls(transport, kOne);
  say("waits");
  say("its text: " + calls.all_fail(kWatchdog));
}

// Rank 1 makes its calls when rank 0 has aborted its own: no byte may come any more.
void aborts_alone(Transport& transport) {
  constexpr std::size_t kBytes = 4 << 20;
  collective::meet(transport);
  std::vector<Transport::Post> posts(2);
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes, std::byte{2});
  std::vector<Transport::Piece> give(2, {from.data(), kBytes}), take(2, {to.data(), kBytes});
  if (transport.rank() == 0) {
    collective::TransportCallEnd end;
    transport.all_to_all(Lane::kReduce, {}, give, take, end.done());
    std::this_thread::sleep_for(milliseconds(50));
    const Clock::time_point began = Clock::now();
    transport.abort();
    require(Clock::now() - began < kSoon, "abort() took long");
    require(end.within(milliseconds(0)) && !end.error().empty(), "the call did not fail");
    const std::byte word{0x55};
    transport.post({&word, 1});
    std::this_thread::sleep_for(milliseconds(1000));
    require(to == std::vector(kBytes, std::byte{2}), "bytes came after abort()");
    return;
  }
  while (posts[0].number == 0) {
    transport.read_posts(posts);
    std::this_thread::sleep_for(milliseconds(10));
  }
  collective::TransportCallEnd end;
  transport.all_to_all(Lane::kReduce, {}, give, take, end.done());
  (void)end.within(milliseconds(700));
  transport.abort();
  require(!end.error().empty(), "a call whose other side is gone has passed");
}

// Bytes are passing when rank 0 aborts, sooner or later into them.
void aborts_in_the_middle(Transport& transport) {
  constexpr std::size_t kBytes = 64 << 20;
  collective::meet(transport);
  std::vector<std::byte> from(kBytes, std::byte{1}), to(kBytes, std::byte{2});
  std::vector<Transport::Piece> give(2, {from.data(), kBytes}), take(2, {to.data(), kBytes});
  collective::TransportCallEnd end;
  transport.all_to_all(Lane::kGather, {}, give, take, end.done());
  if (transport.rank() == 0) std::this_thread::sleep_for(milliseconds(3));
  if (transport.rank() == 1) (void)end.within(milliseconds(500));
  transport.abort();
  (void)end.error();
  const std::vector<std::byte> at_the_end = to;
  std::this_thread::sleep_for(milliseconds(300));
  require(to == at_the_end, "bytes came after abort()");
}

// Rank 0, which serves the store, stands still, as a machine does that is lost.
void does_without_the_store(std::shared_ptr<Transport> transport) {
  collective::meet(*transport);
  if (transport->rank() == 0) say_that_it_waits();
  std::this_thread::sleep_for(milliseconds(500));  // it has been stopped
  CallsOfEachLane calls(*transport, kOne);
  std::vector<Transport::Post> posts(transport->world_size());
  const Clock::time_point began = Clock::now();
  for (int i = 0; i < 1000; ++i) {
    transport->post({});
    transport->read_posts(posts);
  }
  transport->abort();
  require(Clock::now() - began < kSoon, "posts or abort() waited for the store");
  (void)calls.all_fail(milliseconds(0));
  transport.reset();
  require(Clock::now() - began < 2 * kSoon, "the end waited for the store");
}

// Rank 0, which serves the store, is killed or stands still: the others hear nothing of each other
// either, and the first of them to end closes its connections to the last.
void names_rank_0(std::shared_ptr<Transport> transport) {
  const bool last = transport->rank() == 2, first = transport->rank() == 0;
  const auto collective = make_collective({.transport = std::move(transport),
                                           .deadline = seconds(8),
                                           .warn = [](const std::string&) {}});
  collective->exchange({1, "all are here"}, {}, {});
  if (first) say_that_it_waits();
  say("waits");
  if (last) std::this_thread::sleep_for(seconds(3));
  try {
    collective->exchange({2, "step"}, {}, {});
    say("it has passed");
  } catch (const Error& error) {
    say(std::string("its text: ") + error.what());
  }
}

// Rank 0 fails, and ends at once: its store ends with it.
void leaves_its_cause(std::shared_ptr<Transport> transport) {
  const bool first = transport->rank() == 0;
  auto collective = make_collective({.transport = std::move(transport)});
  collective->exchange({1, "all are here"}, {}, {});
  if (first) {
    collective->abort("EIO on its drive");
    collective.reset();
    std::_Exit(0);
  }
  try {
    collective->exchange({2, "step"}, {}, {});
    say("it has passed");
  } catch (const Error& error) {
    say(std::string("its text: ") + error.what());
  }
}

detail::C10dStore own_store(const Launch& launch) {
  detail::JoinWait wait(kWatchdog, nullptr, nullptr);
  detail::PatientCalls calls;
  return detail::open_store(launch, calls, wait, kWatchdog);
}

// Beside the trainer's own calls on the group it was made from.
void serves_a_group_of_the_trainers(const Launch& launch) {
  auto store = own_store(launch);
  const auto options = c10d::ProcessGroupGloo::Options::create(seconds(30));
  options->devices.push_back(detail::gloo_device(launch, {}));
  const int rank = static_cast<int>(launch.rank);
  const auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
      store, rank, static_cast<int>(launch.world_size), options);
  const auto whole =
      c10::make_intrusive<c10d::ProcessGroup>(store, rank, static_cast<int>(launch.world_size));
  whole->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, group);
  const auto other = make_c10d_transport(group, store);
  const auto transport = make_c10d_transport(whole);
  collective::meet(*other);
  PieceExchange waits(*other, 1, one);
  if (launch.rank == 0) waits.start(*other, Lane::kTalk);
  std::vector<at::Tensor> sum = {at::ones({10})};
  group->allreduce(sum)->wait();
  require(sum[0][3].item<float>() == static_cast<float>(launch.world_size), "another sum");
  conforms(*transport);
  if (launch.rank != 0) waits.start(*other, Lane::kTalk);
  waits.check();
  group->allreduce(sum)->wait();
}

volatile ::sig_atomic_t signalled = 0;

void run_case(const std::string& name, const Launch& launch) {
  static const std::map<std::string, void (*)(Transport&)> kCases = {
      {"conforms", conforms},
      {"cuts large pieces", cuts_large_pieces},
      {"leaves one after the other", leaves_one_after_the_other},
      {"waits where sizes differ", waits_where_sizes_differ},
      {"loses a rank", loses_a_rank},
      {"loses a rank beside a late one", loses_a_rank_beside_a_late_one},
      {"aborts alone", aborts_alone},
      {"aborts in the middle", aborts_in_the_middle},
      {"meets", collective::meet},
  };
  if (name == "leaves") {  // where the others connect to it
    detail::GlooMeeting meeting(
        c10::make_intrusive<c10d::PrefixStore>("headrace/", own_store(launch)), launch);
    meeting.come();
    while (!meeting.all_came(false, "")) std::this_thread::sleep_for(milliseconds(20));
    return;
  }
  if (name == "a group of the trainer's") return serves_a_group_of_the_trainers(launch);
  const bool ends_itself = name.starts_with("is interrupted");
  const milliseconds join_within = name == "is alone"        ? seconds(2)
                                   : name == "lacks two"     ? seconds(12)
                                   : name == "is left"       ? seconds(8)
                                   : name == "hears signals" ? seconds(8)
                                   : ends_itself             ? seconds(12)
                                                             : kWatchdog;
  // At its warning, so that it surely waits: for anything; or for others, known to those that came.
  bool interrupts_itself = false;
  const auto warn = [&](const std::string& line) {
    say("warning: " + line);
    interrupts_itself =
        ends_itself && (name == "is interrupted" || line.find("did not come") != std::string::npos);
  };
  if (name == "lacks files") {  // for some of its connections
    const rlimit limit{.rlim_cur = 14, .rlim_max = 14};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (name == "hears signals") ::signal(SIGTERM, [](int) { signalled = 1; });
  if (name == "raises SIGPIPE") ::signal(SIGPIPE, SIG_DFL);
  if (name == "handles SIGPIPE") ::signal(SIGPIPE, [](int) { signalled = 1; });
  const auto interrupted = [&] { return signalled != 0 || interrupts_itself; };
  auto transport = make_gloo_transport(
      launch, {.join_within = join_within, .warn = warn, .interrupted = interrupted});
  if (name == "trains") {
    return testing::train_every_model(make_collective({.transport = std::move(transport)}),
                                      std::getenv("HEADRACE_WORLD_FOLDER"),
                                      [](const std::string& line) { say(line); });
  }
  if (name == "names rank 0") return names_rank_0(std::move(transport));
  if (name == "leaves its cause") return leaves_its_cause(std::move(transport));
  if (name == "without the store") return does_without_the_store(std::move(transport));
  if (name.ends_with("SIGPIPE")) {
    ::raise(SIGPIPE);
    say(signalled != 0 ? "handled" : "ignored");
    return collective::meet(*transport);
  }
  if (name == "stays") {
    collective::meet(*transport);
    say_that_it_waits();
  }
  kCases.at(name)(*transport);
}

int rank_main(const std::string& name) try {
  run_case(name, find_launch());
  say("done");
  return 0;
} catch (const Error& error) {
  say(std::string(code_name(error.code())) + ": " + error.what());
  return 2;
} catch (const std::exception& error) {
  say(std::string("failed: ") + error.what());
  return 1;
}

// ---- the test, which starts itself ----

class GlooRanks : public ::testing::Test {
 protected:
  std::size_t start_rank(const std::string& name, std::uint32_t rank, std::uint32_t world) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    return ranks_.start({self, "--rank", name},
                        {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(world),
                         "MASTER_ADDR=" + address_, "MASTER_PORT=" + std::to_string(port_),
                         "GLOO_SOCKET_IFNAME=" + interface_, "OMP_NUM_THREADS=1",
                         "HEADRACE_WORLD_FOLDER=" + ranks_.folder().string()});
  }
  void start(const std::string& name, std::uint32_t world) {
    for (std::uint32_t r = 0; r < world; ++r) start_rank(name, r, world);
  }
  void wait_until(std::size_t rank, const std::string& words) {
    ASSERT_TRUE(ranks_.wait_for(rank, words, kWatchdog)) << testing::describe(ranks_.wait({}));
  }
  // By rank; -SIGKILL: was lost.
  void expect_ends(const std::vector<int>& codes, milliseconds within = kWatchdog) {
    ends_ = ranks_.wait(within);
    ASSERT_EQ(ends_.size(), codes.size());
    for (std::size_t r = 0; r < codes.size(); ++r) {
      EXPECT_TRUE(ends_[r].exit_code == codes[r] && !ends_[r].killed) << "rank " << r << " of:\n"
                                                                      << testing::describe(ends_);
    }
  }
  void expect_says(std::size_t rank, const std::string& words) {
    EXPECT_NE(ends_.at(rank).said.find(words), std::string::npos) << testing::describe(ends_);
  }
  // Of 3, while rank 0 waits for it in a call of each lane.
  void lose(std::uint32_t lost, const std::string& name) {
    start(name, 3);
    for (const std::uint32_t r : {0u, 1u, 2u}) wait_until(r, "waits");
    std::this_thread::sleep_for(milliseconds(200));  // they are in their calls
    ranks_.signal(lost, SIGKILL);
    const Clock::time_point killed = Clock::now();
    wait_until(0, "its text: ");
    EXPECT_LT(Clock::now() - killed, kSoon);
  }
  void wait_until_rank_0_serves() {
    Launch launch;
    launch.master_address = address_;
    launch.master_port = port_;
    const Clock::time_point end = Clock::now() + kWatchdog;
    while (!master_answers(launch) && Clock::now() < end)
      std::this_thread::sleep_for(milliseconds(20));
  }
  const std::uint16_t port_ = testing::free_port();
  std::string interface_ = "lo", address_ = "127.0.0.1";
  testing::ChildProcesses ranks_;
  std::vector<testing::ChildEnd> ends_;
};

class GlooWorlds : public GlooRanks, public ::testing::WithParamInterface<std::uint32_t> {};
TEST_P(GlooWorlds, AreAsEveryTransport) {
  start("conforms", GetParam());
  expect_ends(std::vector<int>(GetParam(), 0));
}
INSTANTIATE_TEST_SUITE_P(Gloo, GlooWorlds, ::testing::Values(1u, 2u, 3u, 4u),
                         [](const auto& info) { return "Of" + std::to_string(info.param); });

TEST_P(GlooWorlds, TrainToTheBitsOfOneRank) {
  start("trains", GetParam());
  expect_ends(std::vector<int>(GetParam(), 0), 10 * kWatchdog);
  std::string said;
  for (const testing::ChildEnd& end : ends_) said += end.said;
  EXPECT_EQ(testing::missing_lines(said, GetParam()), "") << said;
}
TEST_F(GlooRanks, ServeAGroupOfTheTrainersBesideItsOwnCalls) {
  start("a group of the trainer's", 3);
  expect_ends({0, 0, 0});
}
TEST_F(GlooRanks, ExchangePiecesOfSeveralChunks) {
  start("cuts large pieces", 2);
  expect_ends({0, 0});
}
TEST_F(GlooRanks, WaitWhereSizesDiffer) {
  start("waits where sizes differ", 2);
  expect_ends({0, 0});
}
TEST_F(GlooRanks, FindTheAddressFromWhichTheyReachTheMaster) {
  interface_ = "";
  start("meets", 2);
  expect_ends({0, 0});
}
TEST_F(GlooRanks, NameAnInterfaceThatIsNone) {
  interface_ = "none7,lo";
  start("meets", 1);
  expect_ends({2});
  expect_says(0, "kInvalidArgument: Gloo cannot use interface 'none7'");
}
TEST_F(GlooRanks, LeaveTheStoreUntilTheLastHasEnded) {
  start("leaves one after the other", 2);
  expect_ends({0, 0});
  EXPECT_EQ(ends_[1].said, "done\n");  // torch would say that the store is lost
}
// Gloo's threads raise it when they write to a rank that has closed its connections.
TEST_F(GlooRanks, AreNotEndedBySIGPIPE) {
  start("raises SIGPIPE", 2);
  expect_ends({0, 0});
  expect_says(0, "ignored");
}
TEST_F(GlooRanks, KeepAHandlerOfSIGPIPE) {
  start("handles SIGPIPE", 2);
  expect_ends({0, 0});
  expect_says(0, "handled");
}
TEST_F(GlooRanks, EndTheirCallsWhenARankIsKilled) {
  lose(2, "loses a rank");
  expect_ends({0, 0, -SIGKILL});
  expect_says(0, "Connection closed by peer");
  expect_says(1, "Connection closed by peer");
}
class GlooLosses : public GlooRanks, public ::testing::WithParamInterface<std::uint32_t> {};
TEST_P(GlooLosses, EndACallThatWaitsForALateRankToo) {
  lose(GetParam(), "loses a rank beside a late one");
  ranks_.signal(3 - GetParam(), SIGKILL);
  expect_ends({0, -SIGKILL, -SIGKILL});
  expect_says(0, "Connection closed by peer");
}
INSTANTIATE_TEST_SUITE_P(Gloo, GlooLosses, ::testing::Values(1u, 2u),
                         [](const auto& info) { return "Rank" + std::to_string(info.param); });
TEST_F(GlooRanks, TouchNoByteAfterAnAbortBeforeTheOtherSideCame) {
  start("aborts alone", 2);
  expect_ends({0, 0});
}
TEST_F(GlooRanks, TouchNoByteAfterAnAbortInTheMiddle) {
  start("aborts in the middle", 2);
  expect_ends({0, 0});
}
TEST_F(GlooRanks, EndAlthoughTheStoreDoesNotAnswer) {
  start("without the store", 2);
  wait_until(0, "waits");
  ranks_.signal(0, SIGSTOP);
  const Clock::time_point end = Clock::now() + kWatchdog;
  while (!ranks_.wait_for(1, "done", milliseconds(100)) && Clock::now() < end) {
  }
  ranks_.signal(0, SIGKILL);
  expect_ends({-SIGKILL, 0});
}
TEST_F(GlooRanks, NameRank0WhenItIsKilled) {
  start("names rank 0", 3);
  for (const std::uint32_t r : {0u, 1u, 2u}) wait_until(r, "waits");
  ranks_.signal(0, SIGKILL);
  expect_ends({-SIGKILL, 0, 0});
  for (const std::uint32_t r : {1u, 2u})
    expect_says(r, "its text: rank 0, which passes on the ranks' posts, no longer answers: ");
}
TEST_F(GlooRanks, NameRank0WhenItStandsStill) {
  start("names rank 0", 3);
  for (const std::uint32_t r : {0u, 1u, 2u}) wait_until(r, "waits");
  ranks_.signal(0, SIGSTOP);
  for (const std::uint32_t r : {1u, 2u}) wait_until(r, "done");
  ranks_.signal(0, SIGKILL);
  expect_ends({-SIGKILL, 0, 0});
  for (const std::uint32_t r : {1u, 2u})
    expect_says(r, "its text: rank 0, which passes on the ranks' posts, no longer answers: ");
}
TEST_F(GlooRanks, HearTheCauseOfARank0ThatEndsAtOnce) {
  start("leaves its cause", 3);
  expect_ends({0, 0, 0});
  for (const std::uint32_t r : {1u, 2u})
    expect_says(r, "its text: rank 0 gave up: EIO on its drive");
}
TEST_F(GlooRanks, RefuseASecondLaunchOnTheirPort) {
  start("stays", 2);
  for (const std::uint32_t r : {0u, 1u}) wait_until(r, "waits");
  start("meets", 2);
  wait_until(2, "MASTER_PORT");
  wait_until(3, "MASTER_PORT");
  for (const std::uint32_t r : {0u, 1u}) ranks_.signal(r, SIGKILL);
  expect_ends({-SIGKILL, -SIGKILL, 2, 2});
  expect_says(2, "kInvalidArgument: rank 0 cannot serve the ranks' store at 127.0.0.1:" +
                     std::to_string(port_));
  expect_says(2, "EADDRINUSE");
  expect_says(3,
              "kInvalidArgument: rank 1 is there already, at 127.0.0.1:" + std::to_string(port_));
}
TEST_F(GlooRanks, RefuseWorldsOfAnotherSize) {
  start_rank("meets", 0, 3);
  wait_until(start_rank("meets", 1, 2), "WORLD_SIZE");
  expect_ends({2, 2});
  // Either may reach the store first.
  const std::string where = ", another rank at 127.0.0.1:" + std::to_string(port_) + " ";
  const std::string& said = ends_.at(0).said;
  EXPECT_TRUE(said.find("WORLD_SIZE 2" + where + "3") != std::string::npos ||
              said.find("WORLD_SIZE 3" + where + "2") != std::string::npos)
      << testing::describe(ends_);
}
TEST_F(GlooRanks, SayWhoDidNotCome) {
  start_rank("lacks two", 0, 4);
  wait_until_rank_0_serves();
  start_rank("lacks two", 2, 4);
  expect_ends({2, 2});
  const std::string where = " did not come to 127.0.0.1:" + std::to_string(port_);
  for (const std::size_t process : {0u, 1u}) {
    // On a busy machine, the first rank warns before the other has come.
    expect_says(process, "warning: rank 1 and ");
    expect_says(process, where + " yet; this rank waits up to 12 s");
    expect_says(process, "kPeerLost: rank 1 and 1 more" + where + " within 12 s");
  }
}
TEST_F(GlooRanks, SayThatOneLeftBeforeTheyWereConnected) {
  start_rank("is left", 0, 2);
  start_rank("leaves", 1, 2);
  expect_ends({2, 0});
  expect_says(0, "kPeerLost: the ranks did not connect within 8 s: rank 1 shows no sign of life");
}
class GlooFailures : public GlooRanks, public ::testing::WithParamInterface<std::uint32_t> {};
TEST_P(GlooFailures, BeforeAllAreConnectedEndTheOthersWithRankAndCause) {
  const Clock::time_point began = Clock::now();
  for (std::uint32_t r = 0; r < 3; ++r) {
    interface_ = r == GetParam() ? "none7" : "lo";
    start_rank("meets", r, 3);
  }
  expect_ends({2, 2, 2});
  EXPECT_LT(Clock::now() - began, kWatchdog / 2);
  for (std::uint32_t r = 0; r < 3; ++r) {
    expect_says(r, r == GetParam() ? "kInvalidArgument: Gloo cannot use interface 'none7'"
                                   : "kPeerLost: rank " + std::to_string(GetParam()) +
                                         " failed before the ranks were connected: Gloo cannot use "
                                         "interface 'none7'");
  }
}
TEST_P(GlooFailures, ByASignalBeforeAllHaveComeEndTheOthers) {
  const auto start_one = [&](std::uint32_t r) {
    start_rank(r == GetParam() ? "is interrupted among others" : "meets", r, 4);
  };
  start_one(0);
  wait_until_rank_0_serves();  // else a rank warns of that alone
  const Clock::time_point began = Clock::now();
  start_one(1);
  start_one(2);
  expect_ends({2, 2, 2});
  EXPECT_LT(Clock::now() - began, kWatchdog / 2);
  for (std::uint32_t r = 0; r < 3; ++r) {
    if (r == GetParam()) continue;
    expect_says(r, "kPeerLost: rank " + std::to_string(GetParam()) +
                       " failed before the ranks were connected: joining the ranks: interrupted");
  }
}
TEST_F(GlooRanks, NameTheLimitOnOpenFilesOfOneOfThem) {
  for (std::uint32_t r = 0; r < 3; ++r) start_rank(r == 1 ? "lacks files" : "meets", r, 3);
  expect_ends({2, 2, 2});
  for (std::uint32_t r = 0; r < 3; ++r) {
    expect_says(r, r == 1 ? "kIo: connecting to the other ranks takes 14 open files"
                          : "kPeerLost: rank 1 failed before the ranks were connected: connecting");
    expect_says(r, "raise the limit on open files (ulimit -n)");
  }
}
TEST_F(GlooRanks, NameTheLimitOnOpenFilesWhereTheStoreIsServed) {
  start_rank("lacks files", 0, 2);
  expect_ends({2});
  expect_says(0, "kIo: meeting the other ranks takes 24 open files");
  expect_says(0, "raise the limit on open files (ulimit -n)");
}
INSTANTIATE_TEST_SUITE_P(Gloo, GlooFailures, ::testing::Values(0u, 1u, 2u),
                         [](const auto& info) { return "OfRank" + std::to_string(info.param); });
// Where the others wait for the last one to come.
TEST_F(GlooRanks, NameRank0WhenItStandsStillWhileTheyMeet) {
  start_rank("meets", 0, 3);
  wait_until_rank_0_serves();
  start_rank("is alone", 1, 3);
  wait_until(1, "warning: rank 2 did not come");
  ranks_.signal(0, SIGSTOP);
  wait_until(1, "kPeerLost");
  ranks_.signal(0, SIGKILL);
  expect_ends({-SIGKILL, 2});
  expect_says(1,
              "kPeerLost: rank 0, which serves the ranks' store at MASTER_ADDR:MASTER_PORT "
              "(127.0.0.1:" +
                  std::to_string(port_) + "), did not answer within 2 s");
}
TEST_F(GlooRanks, NameRank0WhenItStandsStillWhileTheyConnect) {
  start_rank("meets", 0, 3);
  start_rank("hears signals", 1, 3);
  start_rank("leaves", 2, 3);  // so nobody becomes connected
  wait_until(1, "warning: the ranks have met, but are not connected yet");
  ranks_.signal(0, SIGSTOP);
  wait_until(1, "kPeerLost");
  ranks_.signal(0, SIGKILL);
  expect_ends({-SIGKILL, 2, 0});
  expect_says(1,
              "kPeerLost: rank 0, which serves the ranks' store at MASTER_ADDR:MASTER_PORT "
              "(127.0.0.1:" +
                  std::to_string(port_) + "), did not answer within 8 s");
}
TEST_F(GlooRanks, EndTheirWaitForARank0ThatStandsStillWhenTheyAreInterrupted) {
  start_rank("meets", 0, 3);
  wait_until_rank_0_serves();
  start_rank("hears signals", 1, 3);
  wait_until(1, "warning: rank 2 did not come");
  ranks_.signal(0, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(300));  // it waits for an answer
  ranks_.signal(1, SIGTERM);
  const Clock::time_point began = Clock::now();
  wait_until(1, "kInterrupted: joining the ranks: interrupted");
  EXPECT_LT(Clock::now() - began, seconds(4));  // before its deadline
  ranks_.signal(0, SIGKILL);
  expect_ends({-SIGKILL, 2});
}
TEST_F(GlooRanks, SayThatTheMastersNameIsUnknown) {
  address_ = "no-such-host.invalid";
  const Clock::time_point began = Clock::now();
  start("meets", 2);
  expect_ends({2, 2});
  EXPECT_LT(Clock::now() - began, kWatchdog / 2);
  for (const std::uint32_t r : {0u, 1u}) {
    expect_says(r,
                "kInvalidArgument: MASTER_ADDR is 'no-such-host.invalid', which cannot be "
                "resolved: ");
  }
}
TEST_F(GlooRanks, SayThatNothingServesTheirPort) {
  start_rank("is alone", 1, 2);
  expect_ends({2});
  expect_says(0, "warning: the ranks' store at 127.0.0.1:" + std::to_string(port_) +
                     " does not answer yet");
  expect_says(
      0, "kPeerLost: the ranks' store at 127.0.0.1:" + std::to_string(port_) + " did not answer");
}
TEST_F(GlooRanks, EndTheirWaitForOthersWhenTheyAreInterrupted) {
  start_rank("is interrupted", 0, 2);
  const Clock::time_point began = Clock::now();
  expect_ends({2});
  EXPECT_LT(Clock::now() - began, kWatchdog / 2);
  expect_says(0, "kInterrupted: joining the ranks: interrupted");
}
TEST_F(GlooRanks, EndTheirWaitForTheStoreWhenTheyAreInterrupted) {
  start_rank("is interrupted", 1, 2);
  expect_ends({2});
  expect_says(0, "kInterrupted: joining the ranks: interrupted");
}
// It accepts connections, and says nothing.
TEST_F(GlooRanks, SayThatAnotherProgramServesTheirPort) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;  // free_port() keeps it bound
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port_);
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(socket, 8), 0);
  start_rank("is alone", 1, 2);
  expect_ends({2});
  ::close(socket);
  expect_says(0,
              "kPeerLost: rank 0, which serves the ranks' store at MASTER_ADDR:MASTER_PORT "
              "(127.0.0.1:" +
                  std::to_string(port_) +
                  "), did not answer within 2 s; no "
                  "transport was made; see whether it stands still, or another program listens");
}

TEST(GlooTransport, RefusesAProcessThatNoLauncherStarted) {
  EXPECT_CODE(Code::kInvalidArgument, (void)make_gloo_transport({}),
              "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set; no transport was made;");
}
TEST(C10dTransport, RefusesAGroupThatItsCallsCannotBeWokenIn) {
  struct Other : c10d::Backend {
    Other() : Backend(0, 1) {}
    const std::string getBackendName() const override { return "nccl"; }
  };
  EXPECT_CODE(Code::kUnsupported,
              (void)make_c10d_transport(c10::make_intrusive<Other>(),
                                        c10::make_intrusive<c10d::HashStore>()),
              "the process group's backend is 'nccl'");
}
}  // namespace
}  // namespace headrace::torch

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--rank")
    return headrace::torch::rank_main(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
