// SPDX-License-Identifier: Apache-2.0
// ranks_test: several ranks, each with leases of its own: what differs where it must not is named,
// and a failure on one rank ends all.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>

#include "partition/partition.hpp"
#include "support/expect_code.hpp"
#include "support/failing_drive.hpp"
#include "support/mlp.hpp"
#include "support/rank_engines.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::ranks_test {
namespace {
using namespace rank_engines;

// Each element is written by one rank, and what one rank loads whole has the same hash.
TEST(RanksLoad, OfShardsWritesEachElementOnce) {
  const auto value = [](ParameterId id, std::uint64_t byte) {
    return static_cast<std::byte>(byte * 7 + id.index * 31 + byte / 251);
  };
  const auto register_groups = [](Engine& engine) {
    engine.add_group("a", {{"w", DType::kBf16, {3, 65536}, {}},
                           {"v", DType::kF32, {70'000}, {}},
                           {"s", DType::kBf16, {11}, {}}});
    engine.add_group("b", {{"t", DType::kF32, {5}, {}}});
    engine.freeze();
  };
  std::string whole;
  run_ranks(1, HostFlavour::kPrompt, plain, [&](Rank& rank) {
    register_groups(rank.engine);
    for (const GroupId group : {GroupId{0}, GroupId{1}}) {
      rank.engine.load(group, [&](ParameterId id, std::span<std::byte> out) {
        for (std::uint64_t at = 0; at < out.size(); ++at) out[at] = value(id, at);
      });
    }
    whole = rank.engine.hash_parameters();
  });
  for (const std::uint32_t world : {1u, 2u, 3u, 4u}) {
    std::mutex mutex;
    std::map<std::uint32_t, std::vector<int>> written;  // how often, by parameter
    const auto errors = run_ranks(world, HostFlavour::kLate, plain, [&](Rank& rank) {
      register_groups(rank.engine);
      for (const GroupId group : {GroupId{0}, GroupId{1}}) {
        rank.engine.load(group, [&](ParameterId id, std::uint64_t first, std::span<std::byte> out) {
          const std::uint64_t bytes = size_bytes(rank.engine.spec(id).dtype);
          for (std::uint64_t at = 0; at < out.size(); ++at) out[at] = value(id, first * bytes + at);
          const std::lock_guard lock(mutex);
          auto& counts = written[id.index];
          counts.resize(rank.engine.spec(id).elements());
          for (std::uint64_t at = 0; at < out.size() / bytes; ++at) ++counts[first + at];
        });
      }
      EXPECT_EQ(rank.engine.hash_parameters(), whole) << world;
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    EXPECT_EQ(written.size(), 4u);
    for (const auto& [parameter, counts] : written)
      EXPECT_EQ(std::ranges::count(counts, 1), std::ssize(counts)) << parameter;
  }
}

// The collective is made without a device, whose work is done later than it is queued.
TEST(RanksGather, IsOrderedOnTheEnginesDevice) {
  constexpr std::uint32_t kWorld = 2, kRounds = 20;
  World world = over_threads(kWorld, HostFlavour::kLate);
  const auto transports = make_thread_transports(kWorld);
  for (std::uint32_t r = 0; r < kWorld; ++r)
    world.ranks[r] = make_collective({.transport = transports[r]});
  const auto errors = run_ranks(std::move(world), plain, [](Rank& rank) {
    const GroupId group = rank.engine.add_group("h", {{"w", DType::kF32, {2 * 65536}, {}}});
    rank.engine.freeze();
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      rank.engine.load(group, [&](ParameterId, std::span<std::byte> out) {
        std::ranges::fill(out, static_cast<std::byte>(round));
      });
      const Gathered whole = rank.engine.gather(group);
      std::vector<std::byte> seen(2 * 65536 * sizeof(float));
      rank.device.copy({}, seen.data(), whole.bytes({0}).data, seen.size());
      rank.device.synchronize({});
      EXPECT_EQ(std::ranges::count(seen, static_cast<std::byte>(round)), std::ssize(seen)) << round;
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// One rank, whose collective holds memory as one does that stages a device's bytes.
TEST(RanksPlan, CountsWhatTheCollectiveHolds) {
  struct Staging final : Collective {
    std::uint32_t rank() const noexcept override { return 0; }
    std::uint32_t world_size() const noexcept override { return 1; }
    void all_gather(CollectiveTag, Stream, std::span<const DeviceSpan>) override {}
    void all_to_all(CollectiveTag, Stream, std::span<const DeviceSpan>, void*) override {}
    void exchange(CollectiveTag, std::span<const std::byte>, std::span<std::byte>) override {}
    void abort(std::string_view) noexcept override {}
    std::uint64_t host_bytes() const noexcept override { return 3 << 20; }
  };
  std::uint64_t planned[2] = {}, held[2] = {};
  for (const bool stages : {false, true}) {
    EngineOptions options;
    if (stages) options.collective = std::make_shared<Staging>();
    Engine engine({}, options);
    engine.add_group("h", {{"w", DType::kBf16, {1000}, {}}});
    engine.freeze();
    planned[stages] = engine.plan().host_bytes;
    held[stages] = engine.stats().engine_bytes;
    EXPECT_EQ(engine.plan().to_text().find("the collective's own") != std::string::npos, stages);
  }
  EXPECT_EQ(planned[true], planned[false] + (3 << 20));
  EXPECT_EQ(held[true], held[false] + (3 << 20));
}

// A trainer's own collective, with a place in the world that no rank has.
TEST(RanksPlace, OutsideOfTheWorldIsRefused) {
  struct Misplaced final : Collective {
    explicit Misplaced(std::uint32_t world) : size(world) {}
    const std::uint32_t size;
    std::uint32_t rank() const noexcept override { return 2; }
    std::uint32_t world_size() const noexcept override { return size; }
    void all_gather(CollectiveTag, Stream, std::span<const DeviceSpan>) override {}
    void all_to_all(CollectiveTag, Stream, std::span<const DeviceSpan>, void*) override {}
    void exchange(CollectiveTag, std::span<const std::byte>, std::span<std::byte>) override {}
    void abort(std::string_view) noexcept override {}
  };
  for (const std::uint32_t world : {0u, 2u}) {
    try {
      Engine engine({}, {.collective = std::make_shared<Misplaced>(world)});
      ADD_FAILURE() << "accepted rank 2 of " << world;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_NE(
          std::string(error.what()).find("rank() 2 and world_size() " + std::to_string(world)),
          std::string::npos)
          << error.what();
    }
  }
}

// ---- a failure on one rank ----

TEST(RanksStep, CanBeRepeatedOnTheRankWhereItFailed) {
  const testing::TemporaryDirectory directory;
  Settings settings;
  settings.offload_optimizer = OffloadDevice::kNvme;
  settings.update_mode = UpdateMode::kBarrier;
  settings.nvme_paths = {directory.string()};
  engine::EngineParts failing;
  failing.make_drive = [](async::Conductor& conductor, swap::DriveOptions options) {
    // The first read, and its repetition too.
    return std::make_unique<testing::FailingDrive>(
        conductor, std::move(options), [reads = 0](const swap::Transfer& transfer) mutable {
          return transfer.kind == swap::IoKind::kRead && reads++ < 2;
        });
  };
  std::vector<std::string> hashes(2);
  const auto errors = run_ranks(
      2, HostFlavour::kPrompt, [&](std::uint32_t) { return settings; },
      [&](Rank& rank) {
        // In one tile, so that the step's first read is before any update.
        rank.engine.add_group("g", {{"w", DType::kF32, {300}, {}}});
        rank.engine.freeze();
        load_all(rank.engine);
        const std::vector<float> gradient(300, 1.0f);
        rank.engine.add_gradient({0}, gradient.data(), DType::kF32);
        if (rank.number == 0) {
          EXPECT_THROW(rank.engine.step({}), Error);
          // The other rank has made this step, or will, with the values that were agreed on.
          for (const auto& change :
               std::vector<std::function<void()>>{[&] { rank.engine.set_hyperparameters({0}, {}); },
                                                  [&] { rank.engine.set_step_count({0}, 7); }}) {
            try {
              change();
              ADD_FAILURE() << "a change before the step was repeated";
            } catch (const Error& error) {
              EXPECT_EQ(error.code(), Code::kWrongState);
              EXPECT_NE(std::string(error.what()).find("step 1 failed"), std::string::npos);
            }
          }
          EXPECT_CODE(Code::kWrongState, rank.engine.step({.max_norm = 0.5f}), "other options");
        }
        EXPECT_EQ(rank.engine.step({}).parameters_updated, 1u);
        const Gathered lease = rank.engine.gather({0});
        const DeviceSpan w = lease.bytes({0});
        hashes[rank.number].assign(static_cast<const char*>(w.data), w.size_bytes);
      },
      {failing, {}});
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(hashes[0], hashes[1]);
}

// ---- leases ----

// What is cached hangs on leases and on time, so ranks may differ in whether a group must be
// joined.
TEST(RanksGather, MayDifferInWhatTheyHold) {
  const auto errors = run_ranks(
      2, HostFlavour::kPrompt, [](std::uint32_t) { return accumulating(1); },
      [](Rank& rank) {
        Engine& engine = rank.engine;
        register_model(engine);
        engine.freeze();
        load_all(engine);
        Gathered held = engine.gather({2});
        if (rank.number == 1) held.release();
        std::mt19937 random(5);
        for (int i = 0; i < 40; ++i) {
          const GroupId group{static_cast<std::uint32_t>(random() % kGroups)};
          const Gathered lease = engine.gather(group);
          const DeviceSpan whole = lease.bytes(engine.parameters(group)[0]);
          const auto* bytes = static_cast<const std::byte*>(whole.data);
          for (std::size_t b = 0; b < whole.size_bytes; b += 999)
            ASSERT_EQ(bytes[b], std::byte{0x3c});
        }
      });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// A second rank that does what this one does, and whose pieces arrive in stream order, not before.
class MirrorRank final : public Collective {
 public:
  explicit MirrorRank(std::shared_ptr<ComputingDevice> device, bool takes_any_thread = false)
      : device_(std::move(device)), takes_any_thread_(takes_any_thread) {}
  std::uint32_t rank() const noexcept override { return 0; }
  std::uint32_t world_size() const noexcept override { return 2; }
  void all_gather(CollectiveTag, Stream stream, std::span<const DeviceSpan> whole) override {
    device_->launch(stream, [own = whole[0], other = whole[1]] {
      std::memcpy(other.data, own.data, other.size_bytes);
    });
  }
  void all_to_all(CollectiveTag, Stream, std::span<const DeviceSpan>, void*) override {}
  void exchange(CollectiveTag, std::span<const std::byte> mine, std::span<std::byte> all) override {
    ++exchanges_;
    std::ranges::copy(mine, all.begin());
    std::ranges::copy(mine, all.begin() + static_cast<std::ptrdiff_t>(mine.size()));
  }
  void abort(std::string_view) noexcept override {}
  bool takes_any_thread() const noexcept override { return takes_any_thread_; }
  std::uint64_t exchanges() const { return exchanges_; }

 private:
  std::shared_ptr<ComputingDevice> device_;
  const bool takes_any_thread_;
  std::atomic<std::uint64_t> exchanges_{0};
};

// Joins on a stream of the engine's own, and a trainer that does not wait for it but in gather().
TEST(RanksGather, ThatIsJoinedAheadWaitsForTheJoin) {
  constexpr std::uint32_t kGroups = 3;
  constexpr std::size_t kBytes = 2 * 65536 * 4;
  std::uint64_t ahead = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto device = device::make_computing_host(
        {.flavour = HostFlavour::kLate, .seed = seed, .late_microseconds_max = 200});
    Settings settings = accumulating(1);  // two gather slots for three groups
    Engine engine(settings,
                  {.device = device, .collective = std::make_shared<MirrorRank>(device, true)});
    for (std::uint32_t g = 0; g < kGroups; ++g)
      engine.add_group("g" + std::to_string(g), {{"w", DType::kF32, {2 * 65536}, {}}});
    engine.freeze();
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      engine.load({g}, [&](ParameterId, std::span<std::byte> out) {
        std::ranges::fill(out, static_cast<std::byte>(0x3c + g));
      });
    }
    const Stream stream = device->create_stream();
    std::vector<std::byte> seen(kBytes);
    for (int step = 0; step < 4; ++step) {
      for (std::uint32_t g = 0; g < kGroups; ++g) {
        const Gathered lease = engine.gather({g}, stream);
        device->launch(stream, [&seen, from = lease.section(DType::kF32).data] {
          std::memcpy(seen.data(), from, kBytes);
        });
        device->synchronize(stream);
        EXPECT_EQ(seen.back(), static_cast<std::byte>(0x3c + g)) << "seed " << seed << " " << step;
      }
      engine.step({});
    }
    ahead += engine.stats().gathers_joined_ahead;
    engine.close();
    device->destroy_stream(stream);
  }
  EXPECT_GT(ahead, 0u);
}

// How many depends on time: in some step, a slot is there before the ranks agree on the join.
TEST(RanksGather, JoinsThatHaveTheirSlotsFollowWithoutAnotherMessage) {
  constexpr std::uint32_t kGroups = 6;
  const auto device = device::make_computing_host({.flavour = HostFlavour::kPrompt});
  const auto collective = std::make_shared<MirrorRank>(device, true);
  Settings settings = accumulating(1);
  settings.ranks_ahead = 3;
  settings.prefetch_groups = 4;
  Engine engine(settings, {.device = device, .collective = collective});
  for (std::uint32_t g = 0; g < kGroups; ++g)
    engine.add_group("g" + std::to_string(g), {{"w", DType::kF32, {2 * 65536}, {}}});
  engine.freeze();
  load_all(engine);
  const auto exchanges_of_step = [&] {
    const std::uint64_t before = collective->exchanges();
    for (std::uint32_t g = 0; g < kGroups; ++g) (void)engine.gather({g});
    engine.step({});
    return collective->exchanges() - before;
  };
  std::uint64_t fewest = exchanges_of_step();  // at every call
  for (int step = 0; step < 10'000 && fewest > kGroups; ++step)
    fewest = std::min(fewest, exchanges_of_step());
  EXPECT_LE(fewest, kGroups) << "one for each join, and one for the step";
  EXPECT_EQ(engine.stats().rank_departures, 0u);
}

TEST(RanksGather, OfASecondStreamWaitsForTheJoinOnTheFirst) {
  constexpr std::size_t kBytes = 2 * 65536 * 4;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto device = device::make_computing_host(
        {.flavour = HostFlavour::kLate, .seed = seed, .late_microseconds_max = 20});
    Engine engine(accumulating(1),
                  {.device = device, .collective = std::make_shared<MirrorRank>(device)});
    const GroupId group = engine.add_group("g", {{"w", DType::kF32, {2 * 65536}, {}}});
    engine.freeze();
    load_all(engine);
    const Stream first = device->create_stream(), second = device->create_stream();
    std::vector<std::byte> seen(kBytes);
    {
      const Gathered one = engine.gather(group, first);
      const Gathered two = engine.gather(group, second);
      device->launch(second, [&seen, from = two.section(DType::kF32).data] {
        std::memcpy(seen.data(), from, kBytes);
      });
    }
    device->synchronize(second);
    device->synchronize(first);
    EXPECT_EQ(seen.back(), std::byte{0x3c}) << "seed " << seed;
  }
}

// Ranks that follow an order, and end in the middle of it: after an evaluation, or where a trainer
// gave up. Rank 1 closes while rank 0 makes no call. The next call of rank 0 then names the cause.
// With nothing ahead: a thread of rank 0 that is yet to join would hear that rank 1 leaves.
void expect_close_without_the_others(bool interrupted, const std::string& cause) {
  std::atomic<bool> closed{false};
  const auto nothing_ahead = [](std::uint32_t rank) {
    Settings settings = plain(rank);
    settings.ranks_ahead = 0;
    return settings;
  };
  const auto errors = run_ranks(2, HostFlavour::kPrompt, nothing_ahead, [&](Rank& rank) {
    register_model(rank.engine);
    rank.engine.freeze();
    load_all(rank.engine);
    const std::vector<float> gradient(300, 1);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      for (std::uint32_t g = 0; g < kGroups; ++g) (void)rank.engine.gather({g});
      for (std::uint32_t g = kGroups; g-- > 0;) {
        (void)rank.engine.gather({g});
        rank.engine.add_gradient({3 * g + 1}, gradient.data(), DType::kF32);
      }
      rank.engine.step({});
    }
    EXPECT_GT(rank.engine.stats().steps_followed, 0u);
    for (std::uint32_t g = 0; g < kGroups; ++g) (void)rank.engine.gather({g});
    if (rank.number == 1) {
      if (interrupted) rank.engine.interrupt();
      rank.engine.close();
      closed = true;
    } else {
      while (!closed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      rank.engine.step({});
    }
  });
  EXPECT_NE(errors[0].find("rank 1 gave up: " + cause), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], "");
}
// Else the test takes until the collective's deadline, longer than any test may take.
TEST(RanksClose, WaitsForTheOthersForAFewSecondsAtMost) {
  expect_close_without_the_others(/*interrupted=*/false, "it closed its engine");
}
TEST(RanksClose, WaitsForNobodyOnceInterrupted) {
  expect_close_without_the_others(/*interrupted=*/true, "interrupted");
}

// ---- what must be equal ----

void expect_other_calls_named(World world) {
  const auto errors = run_ranks(std::move(world), plain, [](Rank& rank) {
    register_model(rank.engine);
    rank.engine.freeze();
    load_all(rank.engine);
    if (rank.number == 0) {
      (void)rank.engine.gather({1});
    } else {
      rank.engine.step({});
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 0"), std::string::npos) << error;
    EXPECT_NE(error.find("gather of group 'h.1'"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
    EXPECT_NE(error.find("step"), std::string::npos) << error;
  }
}
TEST(RanksOrder, AnotherCallOnOneRankIsNamed) {
  expect_other_calls_named(over_threads(2, HostFlavour::kPrompt));
}
TEST(RanksOverNccl, AnotherCallOnOneRankIsNamed) {
  expect_other_calls_named(over_nccl(2, NcclFlavour::kLate));
}

// A trainer's own collective, over one of the library's: it throws in the call number `fails_at`.
class FailingCollective final : public Collective {
 public:
  FailingCollective(std::shared_ptr<Collective> to, int fails_at)
      : to_(std::move(to)), left_(fails_at) {}
  std::uint32_t rank() const noexcept override { return to_->rank(); }
  std::uint32_t world_size() const noexcept override { return to_->world_size(); }
  void all_gather(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> whole) override {
    count();
    to_->all_gather(tag, stream, whole);
  }
  void all_to_all(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                  void* take) override {
    count();
    to_->all_to_all(tag, stream, give, take);
  }
  void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                std::span<std::byte> all) override {
    count();
    to_->exchange(tag, mine, all);
  }
  void abort(std::string_view why) noexcept override { to_->abort(why); }
  bool takes_any_thread() const noexcept override { return true; }

 private:
  void count() {
    if (left_-- == 0) throw std::runtime_error("the switch is down");
  }
  const std::shared_ptr<Collective> to_;
  int left_;
};

// The calls of freeze, of a gather and of a step.
TEST(RanksOrder, ACollectiveThatThrowsOnOneRankEndsAllWithItsCause) {
  for (const int fails_at : {0, 3, 5, 6, 8}) {
    SCOPED_TRACE(fails_at);
    World world = over_threads(2, HostFlavour::kPrompt);
    world.ranks[1] = std::make_shared<FailingCollective>(world.ranks[1], fails_at);
    const auto errors = run_ranks(std::move(world), plain, [&](Rank& rank) {
      register_model(rank.engine);
      rank.engine.freeze();
      load_all(rank.engine);
      for (std::uint32_t g = 0; g < rank.engine.group_count(); ++g) (void)rank.engine.gather({g});
      rank.engine.step({});
    });
    EXPECT_NE(errors[1].find("the switch is down"), std::string::npos) << errors[1];
    EXPECT_NE(errors[0].find("rank 1 gave up: "), std::string::npos) << errors[0];
    EXPECT_NE(errors[0].find("the switch is down"), std::string::npos) << errors[0];
  }
}

struct Difference {
  const char* what;  // in the error
  std::function<void(Engine&)> on_rank_1;
};

TEST(RanksFreeze, NamesWhatDiffers) {
  const std::vector<Difference> differences{
      {"group 'h.1'", [](Engine& e) { e.keep_bound({1}); }},
      {"keep_bound", [](Engine& e) { e.keep_bound({1}); }},
      {"expect_repeated_gradients", [](Engine& e) { e.expect_repeated_gradients({2}); }},
      {"ParameterSpec::frozen", [](Engine& e) { e.expect_no_gradients({2}); }},
      {"parameter 'h.2.b'", [](Engine& e) { e.set_frozen({7}, true); }},
      {"hyperparameters", [](Engine& e) { e.set_default_hyperparameters({.weight_decay = 0.5f}); }},
      {"4 groups",
       [](Engine& e) {
         e.add_group("more", {{"w", DType::kF32, {4}, {}}});
       }},
  };
  for (const Difference& difference : differences) {
    SCOPED_TRACE(difference.what);
    const auto errors = run_ranks(2, HostFlavour::kPrompt, plain, [&](Rank& rank) {
      register_model(rank.engine);
      if (rank.number == 1) difference.on_rank_1(rank.engine);
      rank.engine.freeze();
    });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
      EXPECT_NE(error.find(difference.what), std::string::npos) << error;
    }
  }
}

TEST(RanksFreeze, ComparesEveryHyperparameter) {
  for (const Hyperparameters& other :
       {Hyperparameters{.learning_rate_scale = 0.5f}, Hyperparameters{.beta1 = 0.5f},
        Hyperparameters{.beta2 = 0.5f}, Hyperparameters{.eps = 0.5f},
        Hyperparameters{.weight_decay = 0.5f}, Hyperparameters{.momentum = 0.5f},
        Hyperparameters{.dampening = 0.5f}, Hyperparameters{.learning_rate_decay = 0.5f},
        Hyperparameters{.nesterov = true}, Hyperparameters{.bias_correction = false},
        Hyperparameters{.maximize = true}}) {
    const auto errors = run_ranks(2, HostFlavour::kPrompt, plain, [&](Rank& rank) {
      register_model(rank.engine);
      if (rank.number == 1) rank.engine.set_default_hyperparameters(other);
      rank.engine.freeze();
    });
    for (const std::string& error : errors)
      EXPECT_NE(error.find("'h.0.w' has other hyperparameters on rank 1"), std::string::npos)
          << error;
  }
}

TEST(RanksStep, NamesAChangeThatOneRankAloneHasMade) {
  const std::vector<Difference> differences{
      {"hyperparameter set 1, that of 'h.3.v', has other values on rank 1",
       [](Engine& e) { e.set_hyperparameters({1}, {.weight_decay = 0.5f}); }},
      {"hyperparameter set 1, that of 'h.3.v', has other values on rank 1",
       [](Engine& e) { e.set_hyperparameters({1}, {.weight_decay = 0, .maximize = true}); }},
      {"hyperparameter set 0, that of 'h.0.w', has other values on rank 1",
       [](Engine& e) { e.set_hyperparameters({0}, {.beta2 = 0.9f}); }},
      {"the step count of 'h.1.b' is another on rank 1 than on rank 0, 8 and not 1",
       [](Engine& e) { e.set_step_count(e.parameter("h.1.b"), 8); }},
  };
  for (const std::uint32_t world : {2u, 3u}) {
    for (const Difference& difference : differences) {
      SCOPED_TRACE(difference.what);
      const auto errors = run_ranks(world, HostFlavour::kPrompt, plain, [&](Rank& rank) {
        Engine& engine = rank.engine;
        register_model(engine);
        const HyperparameterSetId set = engine.add_hyperparameters({.weight_decay = 0});
        engine.add_group("h.3", {{"v", DType::kF32, {300}, set}});
        engine.freeze();
        load_all(engine);
        const std::vector<float> ones(300, 1.0f);
        const auto step = [&] {
          for (const char* name : {"h.1.b", "h.3.v"})
            engine.add_gradient(engine.parameter(name), ones.data(), DType::kF32);
          engine.step({});
        };
        step();
        // What all ranks change alike is no difference.
        engine.set_hyperparameters({0}, {.weight_decay = 0.2f});
        engine.set_step_count(engine.parameter("h.0.b"), 5);
        step();
        engine.set_step_count(engine.parameter("h.1.b"), 1);
        const std::string before = engine.hash_parameters() + engine.hash_optimizer_state();
        if (rank.number == 1) difference.on_rank_1(engine);
        try {
          step();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Code::kPeerLost);
          if (rank.number != 1) {
            EXPECT_EQ(engine.hash_parameters() + engine.hash_optimizer_state(), before);
          }
          throw;
        }
      });
      for (const std::string& error : errors)
        EXPECT_NE(error.find(difference.what), std::string::npos) << error;
    }
  }
}

TEST(RanksStep, NamesTheOptionThatDiffers) {
  const StepOptions others[] = {{.learning_rate = 0.5f},
                                {.gradient_scale = 0.25f},
                                {.max_norm = 2.0f},
                                {.max_norm = -0.0f}};  // by its bits
  const char* const names[] = {"learning_rate", "gradient_scale", "max_norm", "max_norm"};
  for (std::size_t i = 0; i < std::size(others); ++i) {
    const auto errors = run_ranks(2, HostFlavour::kPrompt, plain, [&](Rank& rank) {
      register_model(rank.engine);
      rank.engine.freeze();
      load_all(rank.engine);
      rank.engine.step(rank.number == 1 ? others[i] : StepOptions{});
    });
    for (const std::string& error : errors)
      EXPECT_NE(error.find(std::string("step: ") + names[i] + " is another on rank 1"),
                std::string::npos)
          << error;
  }
}

TEST(RanksFreeze, NamesTheParameterAndTheSettingThatDiffer) {
  const auto named = run_ranks(2, HostFlavour::kPrompt, plain, [](Rank& rank) {
    rank.engine.add_group(
        "g", {{"a", DType::kF32, {4}, {}}, {"b", DType::kF32, {rank.number == 0 ? 4 : 5}, {}}});
    rank.engine.freeze();
  });
  for (const std::string& error : named)
    EXPECT_NE(error.find("parameter 'g.b'"), std::string::npos) << error;
  const auto set = run_ranks(
      2, HostFlavour::kPrompt,
      [](std::uint32_t rank) {
        Settings settings;
        settings.tile_elements = 65536 * (rank + 1);
        return settings;
      },
      [](Rank& rank) {
        register_model(rank.engine);
        rank.engine.freeze();
      });
  for (const std::string& error : set) {
    EXPECT_NE(error.find("rank 1 has other settings than rank 0: headrace.tile_elements is 131072 "
                         "there, on rank 0 it is 65536"),
              std::string::npos)
        << error;
  }
}

// Rank 2 has more settings than the others, or fewer: those of a scheduler.
TEST(RanksFreeze, NamesASettingThatOneRankAloneHas) {
  constexpr const char* kScheduled =
      R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7}}})";
  for (const bool has : {true, false}) {
    const auto errors = run_ranks(
        3, HostFlavour::kPrompt,
        [&](std::uint32_t rank) {
          return Settings::from_json((rank == 2) == has ? kScheduled : "{}");
        },
        [](Rank& rank) {
          register_model(rank.engine);
          rank.engine.freeze();
        });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("rank 2 has other settings than rank 0: scheduler.type is " +
                           std::string(has ? "\"WarmupLR\" there, on rank 0 it is not set"
                                           : "not set there, on rank 0 it is \"WarmupLR\"")),
                std::string::npos)
          << error;
    }
  }
}
}  // namespace
}  // namespace headrace::ranks_test
