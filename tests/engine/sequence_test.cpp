// SPDX-License-Identifier: Apache-2.0
// sequence_test: ranks that follow the order of a step before end in the same bits as ranks that
// meet at each call, whatever their trainers do: random programs, on threads that are late at
// random.
//
// A program is a step of gathers and gradients, and what differs from it in each of its steps: a
// layer skipped or gathered again, gradients of another micro-batch, of a group more or less, a
// pass of gathers alone, a hash or an exchange in between, dropped gradients, a refused step. All
// ranks run it, with gradients of their own, and with some missing. A world of ranks runs 32
// programs, one after the other. In one world of six, a rank ends at a random call of its last one;
// then all ranks must end.
//
// HEADRACE_SEQUENCE_PROGRAMS: how many; HEADRACE_SEQUENCE_SEED: of the first world. A failure names
// its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "collective/nccl_world.hpp"
#include "headrace/engine.hpp"
#include "support/computing_host.hpp"
#include "support/late_transport.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_ranks.hpp"

namespace headrace::sequence_test {
namespace {
using device::HostFlavour;
using Random = std::mt19937_64;
constexpr std::uint32_t kPrograms = 32;  // of a world

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

bool one_in(Random& random, std::uint32_t n) { return random() % n == 0; }

struct Call {
  enum class Kind { kGather, kGradients, kRelease, kExchange, kHash, kDiscard, kStep };
  Kind kind = Kind::kStep;
  std::uint32_t group = 0;
  bool not_finite = false;       // gradients
  std::int32_t missing_on = -1;  // a rank that has none of them
  std::int32_t f32_on = -1;      // a rank that brings f32 ones of bf16 parameters
};
using Calls = std::vector<Call>;

struct World {
  std::uint64_t seed = 0;
  std::uint32_t ranks = 2, groups = 1, micro_batches = 1, ahead = 1, prefetch = 2;
  bool none_missing = false;  // of the gradients
  bool f32_gradients = false, mixed = false, late_device = false, late_transport = false,
       over_nccl = false;
  std::vector<Calls> steps;   // of one program behind the other
  std::int32_t ends_at = -1;  // the call of rank `ends` that throws instead
  std::uint32_t ends = 0;
  std::uint32_t stage() const { return seed % 3 == 0 ? 2 : 3; }
  bool on_nvme() const { return seed % 8 == 6 && stage() == 3; }
  std::uint32_t node_ranks() const { return ranks == 4 ? 2 : 1; }
  bool quantised() const { return seed % 4 == 1; }
  // That add their gradients to each other first: of two nodes, or all of them.
  std::uint32_t reduce_ranks() const { return seed % 16 == 9 ? 2 : seed % 8 == 3 ? ranks : 1; }
};

// Forward and backward of one micro-batch.
Calls micro_batch_of(const World& world, Random& random) {
  Calls calls;
  for (std::uint32_t g = 0; g < world.groups; ++g) calls.push_back({Call::Kind::kGather, g});
  const bool again = one_in(random, 2);
  for (std::uint32_t g = world.groups; g-- > 0;) {
    if (again || one_in(random, 3)) calls.push_back({Call::Kind::kGather, g});
    calls.push_back({Call::Kind::kGradients, g});
  }
  if (one_in(random, 4)) {  // tied to the last
    calls.push_back({Call::Kind::kGather, 0});
    calls.push_back({Call::Kind::kGradients, world.groups - 1});
  }
  return calls;
}

Calls step_of(const World& world, Random& random) {
  Calls calls;
  const Calls one = micro_batch_of(world, random);
  for (std::uint32_t m = 0; m < world.micro_batches; ++m)
    calls.insert(calls.end(), one.begin(), one.end());
  if (one_in(random, 3)) {
    for (std::size_t c = 1; c < calls.size(); ++c) {
      if (one_in(random, 6))
        calls.insert(calls.begin() + static_cast<std::ptrdiff_t>(c), Call{Call::Kind::kRelease});
    }
  }
  calls.push_back({Call::Kind::kStep});
  return calls;
}

// A rank's gradients of one call are f32, and the group's are from then on.
void widen_some(Calls& calls, const World& world, Random& random) {
  Call& call = calls[random() % calls.size()];
  if (call.kind == Call::Kind::kGradients)
    call.f32_on = static_cast<std::int32_t>(random() % world.ranks);
}

// Another step than the others.
Calls changed(Calls calls, const World& world, Random& random) {
  const auto somewhere = [&] {
    return calls.begin() + static_cast<std::ptrdiff_t>(random() % calls.size());
  };
  const auto group = [&] { return static_cast<std::uint32_t>(random() % world.groups); };
  switch (random() % 9) {
    case 0: {
      const auto at = somewhere();
      if (at->kind < Call::Kind::kDiscard && calls.size() > 2) calls.erase(at);
      break;
    }
    case 1:
      calls.insert(somewhere(), {Call::Kind::kGather, group()});
      break;
    case 2:
      // Of a group that was gathered last, so that all ranks bring what it needs in one order.
      calls.insert(calls.end() - 1, {{Call::Kind::kGather, 0}, {Call::Kind::kGradients, group()}});
      break;
    case 3: {  // a pass without gradients
      const auto passes = static_cast<std::uint32_t>(1 + random() % 3);
      for (std::uint32_t p = 0; p < passes; ++p) {
        Calls pass;
        for (std::uint32_t g = 0; g < world.groups; ++g) {
          if (!one_in(random, 8)) pass.push_back({Call::Kind::kGather, g});
        }
        calls.insert(calls.begin(), pass.begin(), pass.end());
      }
      break;
    }
    case 4:
      calls.insert(somewhere(), {Call::Kind::kExchange});
      break;
    case 5:
      calls.insert(one_in(random, 2) ? calls.begin() : somewhere(), {Call::Kind::kHash});
      break;
    case 6: {  // the step is begun anew
      const auto end = somewhere();
      Calls begun(calls.begin(), end);
      begun.push_back({Call::Kind::kDiscard});
      calls.insert(calls.begin(), begun.begin(), begun.end());
      break;
    }
    case 7: {  // refused, and dropped
      Calls refused = calls;
      for (Call& call : refused) call.not_finite = call.kind == Call::Kind::kGradients;
      refused.push_back({Call::Kind::kDiscard});
      calls.insert(calls.begin(), refused.begin(), refused.end());
      break;
    }
    case 8:  // before the first gather, so that a rank may begin where another still brings it
      calls.insert(calls.begin(), {Call::Kind::kGradients, group()});
      break;
  }
  return calls;
}

// One world.
void add_steps(World& world, Random& random, std::size_t& calls) {
  const bool same = one_in(random, 6);
  world.micro_batches = one_in(random, 3) ? 2 : 1;
  const auto steps = static_cast<std::uint32_t>(4 + random() % 4);
  Calls step = step_of(world, random);
  for (std::uint32_t s = 0; s < steps; ++s) {
    if (!same && one_in(random, 10)) step = step_of(world, random);  // from here on
    Calls of_step = step;
    while (!same && one_in(random, 3)) of_step = changed(of_step, world, random);
    if (!same && one_in(random, 60)) widen_some(of_step, world, random);
    calls += of_step.size();
    world.steps.push_back(of_step);
  }
}

World world_of(std::uint64_t seed) {
  Random random(seed);
  World world;
  world.seed = seed;
  world.ranks = static_cast<std::uint32_t>(2 + random() % 2);
  if (seed % 8 == 1) world.ranks = 4;  // two nodes
  world.groups = static_cast<std::uint32_t>(1 + random() % 4);
  world.ahead = static_cast<std::uint32_t>(random() % 4);
  world.prefetch = static_cast<std::uint32_t>(random() % 4);
  world.f32_gradients = one_in(random, 4);
  world.mixed = !one_in(random, 4);  // f32 sums round, so their order shows
  world.late_device = one_in(random, 4);
  world.late_transport = one_in(random, 8);
  world.over_nccl = !world.late_transport && one_in(random, 6);
  std::size_t calls = 0, last = 0;
  for (std::uint32_t p = 0; p < kPrograms; ++p) {
    last = calls;
    add_steps(world, random, calls);
  }
  if (one_in(random, 6)) {
    world.ends_at = static_cast<std::int32_t>(last + random() % (calls - last));
    world.ends = static_cast<std::uint32_t>(random() % world.ranks);
  }
  return world;
}

// "g0 a0 !" ...: gathers, gradients, releases; a step per line.
std::string text_of(const World& world) {
  std::string text =
      std::to_string(world.ranks) + " ranks, " + std::to_string(world.groups) + " groups, " +
      std::to_string(world.ahead) + " ahead, " + std::to_string(world.prefetch) +
      " prefetched, stage " + std::to_string(world.stage()) + (world.mixed ? ", mixed" : "") +
      (world.f32_gradients ? ", f32 gradients" : "") + (world.late_device ? ", late device" : "") +
      (world.late_transport ? ", late transport" : "") + (world.quantised() ? ", quantised" : "") +
      (world.reduce_ranks() > 1 ? ", nodes of " + std::to_string(world.reduce_ranks()) : "");
  constexpr std::array kWords = {"gather ", "gradients ", "release", "exchange",
                                 "hash",    "discard",    "step"};
  for (const Calls& step : world.steps) {
    text += "\n ";
    for (const Call& call : step) {
      text += std::string(" ") + kWords[static_cast<std::size_t>(call.kind)];
      if (call.kind <= Call::Kind::kGradients) text += std::to_string(call.group);
      if (call.f32_on >= 0) text += " (f32 on " + std::to_string(call.f32_on) + ")";
      text += call.not_finite ? " (NaN)," : ",";
    }
  }
  return text;
}

struct Outcome {
  std::string text;   // norms and hashes
  std::string error;  // what ended the rank
  Stats stats;
  std::uint64_t meetings_in_last_step = 0;
};

struct Ended : std::runtime_error {
  using runtime_error::runtime_error;
};

struct OwnStream {
  explicit OwnStream(Device& of) : device(of), stream(of.create_stream()) {}
  ~OwnStream() { device.destroy_stream(stream); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  Device& device;
  const Stream stream;
};

Settings settings_of(const World& world, RankOrder order,
                     const testing::TemporaryDirectory& directory) {
  Settings settings;
  settings.rank_agreement = order;
  settings.ranks_ahead = world.ahead;
  settings.prefetch_groups = world.prefetch;
  settings.update_mode = world.seed % 2 == 0 ? UpdateMode::kDefer : UpdateMode::kBarrier;
  settings.update_threads = 1;
  settings.zero_stage = world.stage();
  settings.zero_hpz_partition_size = world.node_ranks();
  settings.hierarchical_reduce_ranks = world.reduce_ranks();
  settings.zero_quantized_weights = world.quantised();
  settings.zero_quantized_gradients = world.quantised() && world.reduce_ranks() == 1;
  settings.gradient_accumulation_steps = 2;  // so that any gradient may come again
  if (!world.on_nvme()) return settings;
  settings.offload_parameters = settings.offload_optimizer = OffloadDevice::kNvme;
  settings.nvme_paths = {directory.string()};
  return settings;
}

// One rank.
class Trainer {
 public:
  Trainer(const World& world, const Settings& settings, std::uint32_t rank,
          const std::shared_ptr<Device>& device, const std::shared_ptr<Collective>& collective)
      : world_(world),
        rank_(rank),
        device_(device),
        lateness_(world.seed * 31 + rank),
        engine_(settings, {.device = device,
                           .collective = collective,
                           .log = [](LogLevel, std::string_view) {}}) {
    for (std::uint32_t g = 0; g < world.groups; ++g) {
      std::vector<ParameterSpec> parameters = {{"w", DType::kBf16, {300 + 100 * g}, {}}};
      if (world.mixed) parameters.push_back({"b", DType::kF32, {77}, {}});
      if (g % 2 == 1) parameters.push_back({"s", DType::kBf16, {41}, {}});
      engine_.add_group("g" + std::to_string(g), parameters);
    }
    engine_.freeze();
    for (std::uint32_t g = 0; g < world.groups; ++g) {
      engine_.load({g}, [](ParameterId id, std::span<std::byte> out) {
        for (std::size_t b = 0; b < out.size(); ++b)
          out[b] = static_cast<std::byte>(b % 2 == 0 ? b * 31 + id.index : 0x3c);
      });
    }
  }

  void run(Outcome& outcome) {
    for (std::uint32_t s = 0; s < world_.steps.size(); ++s) {
      const std::uint64_t before = engine_.stats().rank_meetings;
      micro_batch_ = 0;
      values_.clear();
      cut_.clear();
      for (const Call& call : world_.steps[s]) make(call, s, outcome);
      outcome.meetings_in_last_step = engine_.stats().rank_meetings - before;
    }
    held_.release();
    outcome.text += engine_.hash_parameters() + engine_.hash_optimizer_state();
    outcome.stats = engine_.stats();
    engine_.close();
  }

 private:
  void be_late() {
    switch (lateness_() % 16) {
      case 0:
        std::this_thread::sleep_for(std::chrono::microseconds(lateness_() % 200));
        break;
      case 1:
      case 2:
      case 3:
        std::this_thread::yield();
        break;
      default:
        break;
    }
  }

  void make(const Call& call, std::uint32_t step, Outcome& outcome) {
    if (static_cast<std::int32_t>(made_++) == world_.ends_at && rank_ == world_.ends)
      throw Ended("this rank ends");
    be_late();
    switch (call.kind) {
      case Call::Kind::kGather: {
        // The last one is kept until the next is there, if there is a slot for that.
        if (world_.prefetch == 0) held_.release();
        Gathered gathered = engine_.gather({call.group}, stream_);
        held_ = std::move(gathered);
        ++micro_batch_;
        if (made_ % 2 == 0) read(outcome);
        break;
      }
      case Call::Kind::kGradients:
        for (const ParameterId id : engine_.parameters({call.group})) add(id, step, call);
        break;
      case Call::Kind::kRelease:
        held_.release();
        break;
      case Call::Kind::kExchange: {
        const std::array mine = {static_cast<std::byte>(rank_ + 1)};
        std::vector<std::byte> all(world_.ranks);
        engine_.exchange(mine, all);
        for (std::uint32_t r = 0; r < world_.ranks; ++r)
          EXPECT_EQ(static_cast<std::uint32_t>(all[r]), r + 1);
        break;
      }
      case Call::Kind::kHash:
        outcome.text += engine_.hash_parameters() + " ";
        break;
      case Call::Kind::kDiscard:
        engine_.discard_gradients();
        break;
      case Call::Kind::kStep:
        held_.release();
        this->step(outcome);
        break;
    }
  }

  // Notes the sum of what was gathered, as it is when the device's work so far is done.
  void read(Outcome& outcome) {
    const ParameterId id = engine_.parameters(held_.group()).front();
    const DeviceSpan whole = held_.bytes(id);
    std::vector<std::byte> seen(whole.size_bytes);
    device_->copy(stream_, seen.data(), whole.data, seen.size());
    device_->synchronize(stream_);
    std::uint64_t sum = 0;
    for (const std::byte one : seen) sum = sum * 31 + static_cast<std::uint64_t>(one);
    outcome.text += std::to_string(sum) + " ";
  }

  void step(Outcome& outcome) {
    std::array<char, 64> text = {};
    try {
      const StepResult result =
          engine_.step({.learning_rate = 1e-2f, .gradient_scale = 0.5f, .max_norm = 1.0f});
      std::snprintf(text.data(), text.size(), "%a/%llu ", result.gradient_norm,
                    static_cast<unsigned long long>(result.parameters_updated));
    } catch (const Error& error) {
      if (error.code() != Code::kNotFinite) throw;
      std::snprintf(text.data(), text.size(), "refused ");
    }
    outcome.text += text.data();
  }

  // The same in every run of the program, and another on each rank.
  void add(ParameterId id, std::uint32_t step, const Call& call) {
    Random random(world_.seed + 1009 * (step + 31 * (micro_batch_ + 97 * (rank_ + 7 * id.index))));
    if (random() % 4 == 0 && !call.not_finite && !world_.none_missing) return;
    if (static_cast<std::int32_t>(rank_) == call.missing_on) return;
    const std::uint64_t elements = engine_.spec(id).elements();
    std::vector<float>& values = values_.emplace_back(elements);
    for (float& value : values) {
      const auto bits = static_cast<std::uint32_t>(random());
      value = std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-31f,
                         static_cast<int>(bits % 12));
    }
    if (call.not_finite && rank_ == 0) values[0] = std::numeric_limits<float>::quiet_NaN();
    const bool is_f32 = world_.f32_gradients || static_cast<std::int32_t>(rank_) == call.f32_on;
    if (engine_.spec(id).dtype == DType::kF32 || is_f32) {
      engine_.add_gradient(id, values.data(), DType::kF32, stream_);
      return;
    }
    std::vector<std::uint16_t>& cut = cut_.emplace_back(elements);
    for (std::uint64_t e = 0; e < elements; ++e) {
      std::uint32_t word = 0;
      std::memcpy(&word, &values[e], sizeof(word));
      cut[e] = static_cast<std::uint16_t>(word >> 16);
    }
    engine_.add_gradient(id, cut.data(), DType::kBf16, stream_);
  }

  const World& world_;
  const std::uint32_t rank_;
  const std::shared_ptr<Device> device_;
  const OwnStream own_stream_{*device_};  // the default one would wait for all others
  const Stream stream_ = own_stream_.stream;
  Random lateness_;
  std::deque<std::vector<float>> values_;  // of a step: a late device reads them late
  std::deque<std::vector<std::uint16_t>> cut_;
  Engine engine_;
  Gathered held_;
  std::uint32_t micro_batch_ = 0, made_ = 0;
};

struct Seats {
  std::vector<std::shared_ptr<Device>> devices;
  std::vector<std::shared_ptr<Collective>> collectives;
};

Seats seats_of(const World& world) {
  constexpr std::chrono::seconds kDeadline(60);
  Seats seats;
  if (world.over_nccl) {
    const auto flavour =
        world.late_device ? collective::NcclFlavour::kLate : collective::NcclFlavour::kPrompt;
    for (collective::Rank& rank : collective::nccl_ranks(world.ranks, flavour, kDeadline)) {
      seats.devices.push_back(rank.device);
      seats.collectives.push_back(std::move(rank.collective));
    }
    return seats;
  }
  for (std::uint32_t r = 0; r < world.ranks; ++r) {
    seats.devices.push_back(device::make_computing_host(
        {.flavour = world.late_device ? HostFlavour::kLate : HostFlavour::kPrompt,
         .seed = world.seed + r + 1,
         .late_microseconds_max = 20}));
  }
  seats.collectives = collective::make_collectives(
      world.late_transport ? collective::make_late_transports(world.ranks, world.seed)
                           : make_thread_transports(world.ranks),
      seats.devices, kDeadline);
  return seats;
}

std::vector<Outcome> run(const World& world, RankOrder order) {
  Seats seats = seats_of(world);
  const testing::TemporaryDirectory drive;
  const Settings settings = settings_of(world, order, drive);
  std::vector<Outcome> outcomes(world.ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world.ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        Trainer(world, settings, r, seats.devices[r], seats.collectives[r]).run(outcomes[r]);
      } catch (const Ended& error) {
        outcomes[r].error = error.what();
        seats.collectives[r]->abort("a trainer ended");
      } catch (const std::exception& error) {
        outcomes[r].error = error.what();
      }
      seats.collectives[r].reset();  // together: NCCL's wait for each other
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

struct Counts {
  std::atomic<std::uint64_t> worlds{0}, steps{0}, followed{0}, departures{0}, ahead{0}, ended{0},
      refused{0};
};

// By all ranks: groups that are not in the order of backward, of which a rank lacks one.
bool is_refused(const std::vector<Outcome>& outcomes) {
  return std::ranges::all_of(outcomes, [](const Outcome& of_rank) {
    return of_rank.error.find("have been summed already") != std::string::npos;
  });
}

void check(const World& world, Counts& counts) {
  const std::vector<Outcome> followed = run(world, RankOrder::kTrace);
  ++counts.worlds;
  if (world.ends_at >= 0) {
    for (const Outcome& outcome : followed) EXPECT_NE(outcome.error, "");
    ++counts.ended;
    return;
  }
  const std::vector<Outcome> met = run(world, RankOrder::kEach);
  if (world.reduce_ranks() > 1 && (is_refused(followed) || is_refused(met))) {
    ++counts.refused;
    return;
  }
  for (std::uint32_t r = 0; r < world.ranks; ++r) {
    ASSERT_EQ(met[r].error, "");
    ASSERT_EQ(followed[r].error, "") << "rank " << r;
    ASSERT_EQ(followed[r].text, met[r].text) << "rank " << r;
    EXPECT_EQ(met[r].stats.steps_followed, 0u);
  }
  const Stats& stats = followed[0].stats;
  counts.steps += world.steps.size();
  counts.followed += stats.steps_followed;
  counts.departures += stats.rank_departures;
  counts.ahead += stats.gathers_joined_ahead;
}

TEST(Sequence, RandomProgramsEndInTheSameBits) {
  const std::uint64_t worlds =
      (from_environment("HEADRACE_SEQUENCE_PROGRAMS", 10'000) + kPrograms - 1) / kPrograms;
  const std::uint64_t first = from_environment("HEADRACE_SEQUENCE_SEED", 1);
  Counts counts;
  std::atomic<std::uint64_t> next{first};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (std::uint64_t seed = next++; seed < first + worlds && !HasFailure(); seed = next++) {
        const World world = world_of(seed);
        SCOPED_TRACE("HEADRACE_SEQUENCE_SEED=" + std::to_string(seed) + ": " + text_of(world));
        check(world, counts);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::ostringstream text;
  text << counts.worlds * kPrograms << " programs, seeds " << first << " to "
       << first + counts.worlds - 1 << ": " << counts.steps << " steps, of which "
       << counts.followed << " followed; " << counts.departures << " departures; " << counts.ahead
       << " gathers joined ahead; " << counts.ended << " worlds that a rank ended; "
       << counts.refused << " whose nodes could not sum\n";
  std::printf("%s", text.str().c_str());
}

// Every other step leaves the order where ranks hold two groups of one position, in memory that the
// runner freed in an order of its own on each.
TEST(Sequence, RanksThatLeaveBringWhatTheyHoldAsTheirTrainersDid) {
  constexpr std::uint32_t kSteps = 40;
  World world{.ranks = 2, .groups = 3, .ahead = 2, .none_missing = true, .steps = {}};
  world.mixed = world.late_device = true;
  Calls same;
  for (const std::uint32_t g : {0u, 1u, 2u}) same.push_back({Call::Kind::kGather, g});
  same.push_back({Call::Kind::kGradients, 2});
  same.push_back({Call::Kind::kGather, 1});
  for (const std::uint32_t g : {1u, 0u}) same.push_back({Call::Kind::kGradients, g});
  Calls more = same;
  more[5].missing_on = 0;  // so that rank 0 brings group 0 where rank 1 brings group 1
  more.push_back({Call::Kind::kGradients, 0});
  for (std::uint32_t s = 0; s < kSteps; ++s) {
    world.steps.push_back(s % 2 == 0 ? same : more);
    world.steps.back().push_back({Call::Kind::kStep});
  }
  const std::vector<Outcome> followed = run(world, RankOrder::kTrace);
  const std::vector<Outcome> met = run(world, RankOrder::kEach);
  for (std::uint32_t r = 0; r < world.ranks; ++r) {
    ASSERT_EQ(followed[r].error, "");
    EXPECT_EQ(followed[r].text, met[r].text) << "rank " << r;
    EXPECT_EQ(followed[r].stats.rank_departures, kSteps / 2);
  }
}

// Forward and backward, three micro-batches: the first step meets at each call, the others once.
TEST(Sequence, MeetsOncePerStep) {
  constexpr std::uint64_t kSteps = 5;
  for (const std::uint32_t ahead : {0u, 1u, 2u}) {
    World world{.seed = 1,
                .ranks = 3,
                .groups = 4,
                .ahead = ahead,
                .none_missing = true,
                .mixed = true,
                .steps = {}};
    Calls step;
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      for (std::uint32_t g = 0; g < world.groups; ++g) step.push_back({Call::Kind::kGather, g});
      for (std::uint32_t g = world.groups; g-- > 0;) {
        step.push_back({Call::Kind::kGather, g});
        step.push_back({Call::Kind::kGradients, g});
      }
    }
    step.push_back({Call::Kind::kStep});
    world.steps.assign(kSteps, step);
    std::uint64_t joined_ahead = 0;
    for (const Outcome& outcome : run(world, RankOrder::kTrace)) {
      EXPECT_EQ(outcome.error, "");
      EXPECT_EQ(outcome.meetings_in_last_step, 1u);
      EXPECT_EQ(outcome.stats.steps_followed, kSteps - 1);
      EXPECT_EQ(outcome.stats.rank_departures, 0u);
      joined_ahead += outcome.stats.gathers_joined_ahead;
    }
    EXPECT_TRUE(ahead == 0 || joined_ahead > 0);
    for (const Outcome& outcome : run(world, RankOrder::kEach))
      EXPECT_GE(outcome.meetings_in_last_step, 3u * 2 * world.groups);
  }
}
}  // namespace
}  // namespace headrace::sequence_test
