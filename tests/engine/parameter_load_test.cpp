// SPDX-License-Identifier: Apache-2.0
// parameter_load_test: one parameter's content replaced: what changes, what stays, what is left
// when it ends halfway.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

#include "engine/parts.hpp"
#include "kernels/number_formats.hpp"
#include "support/computing_host.hpp"
#include "support/expect_code.hpp"
#include "support/failing_drive.hpp"
#include "support/mlp.hpp"
#include "support/saved_state.hpp"
#include "support/temporary_directory.hpp"

namespace headrace {
namespace {
using testing::SavedState;

// Every transfer of a kind fails while it is told to.
struct Failing {
  std::atomic<bool> reads{false}, writes{false};
};

enum class Where { kMemory, kRecordsOnNvme, kAllOnNvme, kLateDevice };

// Group "g": "w" bf16 over three tiles, "v" bf16 in the third of them, "b" f32. Two steps old.
class ParameterLoad : public ::testing::TestWithParam<std::tuple<Where, MasterLayout>> {
 protected:
  static constexpr std::uint64_t kElements = 2 * 65536 + 5000;
  static constexpr std::uint64_t kScratchElements = 65536;  // f32 values in one call of a source

  ParameterLoad() {
    Settings s;
    const auto [where, master] = GetParam();
    s.master = master;
    s.tile_elements = 65536;
    if (where == Where::kRecordsOnNvme || where == Where::kAllOnNvme) {
      s.nvme_paths = {directory_.string()};
      s.offload_optimizer = OffloadDevice::kNvme;
      if (where == Where::kAllOnNvme) s.offload_parameters = OffloadDevice::kNvme;
    }
    device_ = device::make_computing_host({.flavour = where == Where::kLateDevice
                                                          ? device::HostFlavour::kLate
                                                          : device::HostFlavour::kPrompt,
                                           .seed = 3,
                                           .late_microseconds_max = 50});
    engine::EngineParts parts;
    parts.make_drive = [this](async::Conductor& conductor, swap::DriveOptions options) {
      return std::make_unique<testing::FailingDrive>(
          conductor, std::move(options), [this](const swap::Transfer& transfer) {
            return (transfer.kind == swap::IoKind::kRead ? failing_.reads : failing_.writes).load();
          });
    };
    engine_ = std::make_unique<Engine>(engine::engine_with_parts(
        s, EngineOptions{.device = device_, .log = [](LogLevel, std::string_view) {}},
        std::move(parts)));
    group_ = engine_->add_group("g", {{"w", DType::kBf16, {kElements}, {}},
                                      {"v", DType::kBf16, {700}, {}},
                                      {"b", DType::kF32, {90000}, {}}});
    other_ = engine_->add_group("h", {{"w", DType::kBf16, {300}, {}}});
    engine_->freeze();
    for (const GroupId group : {group_, other_}) {
      engine_->load(group, [&](ParameterId id, std::span<std::byte> out) { fill(id, out); });
    }
    for (int i = 0; i < 2; ++i) step();
  }
  void fill(ParameterId id, std::span<std::byte> out) {
    const bool bf16 = engine_->spec(id).dtype == DType::kBf16;
    for (std::uint64_t e = 0; e < engine_->spec(id).elements(); ++e) {
      const float value = testing::noise(id.index, e);
      const std::uint16_t rounded = kernels::f32_to_bf16(value);
      if (bf16) std::memcpy(&out[2 * e], &rounded, 2);
      if (!bf16) std::memcpy(&out[4 * e], &value, 4);
    }
  }
  void step() {
    std::vector<float> gradient(kElements);
    for (std::uint32_t i = 0; i < engine_->parameter_count(); ++i) {
      for (std::size_t e = 0; e < gradient.size(); ++e) gradient[e] = testing::noise(40 + i, e);
      engine_->add_gradient({i}, gradient.data(), DType::kF32);
      device_->synchronize({});
    }
    engine_->step({.learning_rate = 0.01f});
  }
  std::vector<std::byte> stored(ParameterId id, Content content) {
    std::vector<std::byte> all;
    engine_->store(id, content, [&](std::uint64_t, std::span<const std::byte> values) {
      all.insert(all.end(), values.begin(), values.end());
    });
    return all;
  }
  std::vector<float> floats(ParameterId id, Content content) {
    const std::vector<std::byte> bytes = stored(id, content);
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  // `values` are the content's own; all of the parameter.
  template <class T>
  void load(ParameterId id, Content content, const std::vector<T>& values) {
    engine_->load(id, content, [&](std::uint64_t first, std::span<std::byte> out) {
      std::memcpy(out.data(), values.data() + first, out.size());
    });
  }
  std::string hashes() { return engine_->hash_parameters() + engine_->hash_optimizer_state(); }
  std::vector<std::byte> gathered(ParameterId id) {
    const Stream stream = device_->create_stream();
    std::vector<std::byte> bytes;
    {
      const Gathered lease = engine_->gather(engine_->group_of(id), stream);
      const DeviceSpan span = lease.bytes(id);
      bytes.resize(span.size_bytes);
      device_->launch(stream, [&] { std::memcpy(bytes.data(), span.data, span.size_bytes); });
      device_->synchronize(stream);
    }
    device_->destroy_stream(stream);
    return bytes;
  }
  testing::TemporaryDirectory directory_;
  Failing failing_;
  std::shared_ptr<device::ComputingDevice> device_;
  std::unique_ptr<Engine> engine_;
  GroupId group_, other_;
  const ParameterId w_{0}, v_{1}, b_{2};
};

class ParameterLoadOnNvme : public ParameterLoad {};

TEST_P(ParameterLoad, ShowsTheSourceWhatIsThereAndWritesNothingThatIsTheSame) {
  const std::string before = hashes();
  const std::uint64_t written = engine_->stats().nvme_written_bytes;
  for (const Content content :
       {Content::kWeight, Content::kMaster, Content::kExpAvg, Content::kExpAvgSq}) {
    const std::vector<std::byte> present = stored(w_, content);
    const std::uint64_t bytes = content == Content::kWeight ? 2 : 4;
    std::uint64_t next = 0;
    engine_->load(w_, content, [&](std::uint64_t first, std::span<std::byte> values) {
      EXPECT_EQ(first, next);
      EXPECT_EQ(std::memcmp(values.data(), present.data() + first * bytes, values.size()), 0);
      next += values.size() / bytes;
    });
    EXPECT_EQ(next, kElements);
  }
  EXPECT_EQ(engine_->stats().nvme_written_bytes, written);
  EXPECT_EQ(hashes(), before);
}

TEST_P(ParameterLoad, OfOneWeightLeavesEveryOtherMasterMomentAndCount) {
  const SavedState before(*engine_);
  std::vector<float> master = floats(w_, Content::kMaster);
  const std::uint16_t fresh = kernels::f32_to_bf16(-3.25f);
  engine_->load(w_, Content::kWeight, [&](std::uint64_t first, std::span<std::byte> values) {
    if (first <= 70000 && 70000 < first + values.size() / 2)
      std::memcpy(&values[2 * (70000 - first)], &fresh, 2);
  });
  master[70000] = -3.25f;
  EXPECT_TRUE(floats(w_, Content::kMaster) == master);
  EXPECT_EQ(engine_->step_count(w_), 2u);
  std::uint16_t seen = 0;
  std::memcpy(&seen, &gathered(w_)[2 * 70000], 2);
  EXPECT_EQ(seen, fresh);
  // Put back with its master it is as if nothing had been.
  before.into(*engine_);
  EXPECT_TRUE(SavedState(*engine_) == before);
}

TEST_P(ParameterLoad, OfAMasterGivesItsBitsBackAndRoundsTheWeight) {
  std::vector<float> given(kElements);
  for (std::size_t e = 0; e < kElements; ++e) given[e] = testing::noise(9, e) * 3.0f;
  given[0] = std::numeric_limits<float>::infinity();
  given[1] = -0.0f;
  given[2] = 1e-42f;
  given[3] = std::bit_cast<float>(0x3f808000u);  // a tie
  given[4] = std::bit_cast<float>(0x7f7fffffu);
  load(w_, Content::kMaster, given);
  EXPECT_EQ(std::memcmp(floats(w_, Content::kMaster).data(), given.data(), 4 * kElements), 0);
  const std::vector<std::byte> weight = stored(w_, Content::kWeight);
  for (std::size_t e = 0; e < kElements; ++e) {
    std::uint16_t seen = 0;
    std::memcpy(&seen, &weight[2 * e], 2);
    const std::uint16_t wanted = std::get<1>(GetParam()) == MasterLayout::kF32
                                     ? kernels::f32_to_bf16(given[e])
                                     : kernels::split_master(given[e]).weight;
    ASSERT_EQ(seen, wanted) << e;
  }
  EXPECT_EQ(gathered(w_), weight);
  // Of an f32 parameter it is the weight.
  const std::vector<float> f32(90000, 0.7f);
  load(b_, Content::kMaster, f32);
  EXPECT_TRUE(floats(b_, Content::kWeight) == f32);
  // A NaN comes back as the one that an update would leave.
  given[5] = std::bit_cast<float>(0xff812345u);
  load(w_, Content::kMaster, given);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(floats(w_, Content::kMaster)[5]), kernels::kCanonicalNan);
}

TEST_P(ParameterLoad, OfMomentsAndCountsIsWhatTheNextStepUses) {
  const SavedState before(*engine_);
  step();
  const std::string once = hashes();
  step();
  EXPECT_NE(hashes(), once);
  before.into(*engine_);
  step();
  EXPECT_EQ(hashes(), once);
  before.into(*engine_);
  engine_->set_step_count(w_, 17);
  EXPECT_EQ(engine_->step_count(w_), 17u);
  step();
  EXPECT_EQ(engine_->step_count(w_), 18u);
  EXPECT_NE(hashes(), once);
}

// What is cached or resident is never the old bytes.
TEST_P(ParameterLoad, IsSeenByTheNextGather) {
  for (int round = 0; round < 3; ++round) {
    (void)gathered(w_);
    (void)gathered({3});
    std::vector<std::uint16_t> given(kElements);
    for (std::size_t e = 0; e < kElements; ++e)
      given[e] = kernels::f32_to_bf16(testing::noise(60 + round, e));
    load(w_, Content::kWeight, given);
    const std::vector<std::byte> seen = gathered(w_);
    ASSERT_EQ(std::memcmp(seen.data(), given.data(), seen.size()), 0) << "round " << round;
    step();
  }
}

TEST_P(ParameterLoad, OfASourceThatThrowsIsNamedUntilItWasLoadedWhole) {
  std::vector<float> given(kElements);
  for (std::size_t e = 0; e < kElements; ++e) given[e] = testing::noise(80, e);
  const SavedState before(*engine_);
  load(w_, Content::kMaster, given);
  const std::string wanted = hashes();
  before.into(*engine_);
  const std::string old = hashes();
  struct Stop {};
  const auto stop_at = [&](std::uint64_t element) {
    return [&, element](std::uint64_t first, std::span<std::byte> values) {
      if (first >= element) throw Stop();
      std::memcpy(values.data(), given.data() + first, values.size());
    };
  };
  // At the first call nothing has changed.
  EXPECT_THROW(engine_->load(w_, Content::kMaster, stop_at(0)), Stop);
  EXPECT_EQ(hashes(), old);
  for (const std::uint64_t element : {kScratchElements, 2 * kScratchElements}) {
    EXPECT_THROW(engine_->load(w_, Content::kMaster, stop_at(element)), Stop);
    EXPECT_CODE(Code::kWrongState, (void)engine_->gather(group_), "'g.w', content master");
    EXPECT_CODE(Code::kWrongState, engine_->step({}), "'g.w', content master");
    EXPECT_CODE(Code::kWrongState, engine_->hash_parameters(), "'g.w', content master");
    EXPECT_CODE(Code::kWrongState, stored(v_, Content::kWeight), "'g.w', content master");
    load(w_, Content::kWeight, std::vector<std::uint16_t>(kElements, 0x3f80));
    EXPECT_CODE(Code::kWrongState, engine_->hash_parameters(), "'g.w', content master");
    load(w_, Content::kMaster, given);
    EXPECT_EQ(hashes(), wanted);
  }
  // Weights: the half that was replaced is not taken for one that was so before.
  const std::vector<std::uint16_t> ones(kElements, 0x3f80);
  load(w_, Content::kWeight, ones);
  const std::string ones_hash = hashes();
  load(w_, Content::kMaster, given);
  const auto half = [&](std::uint64_t first, std::span<std::byte> values) {
    if (first >= 65536) throw Stop();
    std::memcpy(values.data(), ones.data() + first, values.size());
  };
  EXPECT_THROW(engine_->load(w_, Content::kWeight, half), Stop);
  load(w_, Content::kWeight, ones);
  EXPECT_EQ(hashes(), ones_hash);
  // Loading the group mends everything.
  EXPECT_THROW(engine_->load(w_, Content::kExpAvg, stop_at(kScratchElements)), Stop);
  engine_->load(group_, [&](ParameterId id, std::span<std::byte> out) { fill(id, out); });
  EXPECT_EQ(engine_->step_count(w_), 0u);
  step();
}

TEST_P(ParameterLoadOnNvme, OfADriveThatFailsIsWholeOrNamedOrTheEngineHasFailed) {
  const std::vector<float> given(kElements, 0.5f);
  engine_->load(w_, Content::kExpAvg, [](std::uint64_t, std::span<std::byte>) {});
  const std::string before = hashes();
  step();  // so that no tile is held
  const std::string stepped = hashes();
  EXPECT_NE(stepped, before);
  step();
  const SavedState state(*engine_);
  step();
  state.into(*engine_);
  const std::string old = hashes();
  // The tile held is not the first of w.
  (void)stored(b_, Content::kExpAvg);
  failing_.reads = true;
  EXPECT_CODE(Code::kIo, load(w_, Content::kExpAvg, given), "g.w");
  failing_.reads = false;
  EXPECT_EQ(hashes(), old);
  // The second tile cannot be read: the first is replaced.
  const auto fail_after_first = [&](std::uint64_t first, std::span<std::byte> values) {
    std::memcpy(values.data(), given.data() + first, values.size());
    failing_.reads = true;
  };
  EXPECT_CODE(Code::kIo, engine_->load(w_, Content::kExpAvg, fail_after_first), ".swap");
  failing_.reads = false;
  EXPECT_CODE(Code::kWrongState, (void)engine_->gather(group_), "'g.w', content exp_avg");
  load(w_, Content::kExpAvg, given);
  EXPECT_TRUE(floats(w_, Content::kExpAvg) == given);
  step();
  failing_.writes = true;
  EXPECT_CODE(Code::kIo, load(w_, Content::kExpAvgSq, given), ".swap");
  failing_.writes = false;
  EXPECT_CODE(Code::kFailed, load(w_, Content::kExpAvgSq, given), ".swap");
  EXPECT_CODE(Code::kFailed, engine_->step_count(w_), ".swap");
}

TEST_P(ParameterLoadOnNvme, OfADriveThatFailsBecauseOfTheSourcesOwnErrorFailsTheEngine) {
  bool first_call = true;
  EXPECT_CODE(Code::kIo,
              engine_->load(b_, Content::kExpAvg,
                            [&](std::uint64_t, std::span<std::byte> values) {
                              if (!first_call) throw std::runtime_error("enough");
                              first_call = false;
                              std::ranges::fill(values, std::byte{0x3f});
                              failing_.writes = true;
                            }),
              ".swap");
  failing_.writes = false;
  EXPECT_CODE(Code::kFailed, engine_->hash_parameters(), ".swap");
}

TEST_P(ParameterLoad, RefusesWhatIsOutOfOrder) {
  const auto nothing = [](std::uint64_t, std::span<std::byte>) {};
  const std::string before = hashes();
  EXPECT_CODE(Code::kNotFound, engine_->load({9}, Content::kWeight, nothing), "9");
  EXPECT_CODE(Code::kNotFound, engine_->step_count({9}), "9");
  EXPECT_CODE(Code::kNotFound, engine_->set_step_count({9}, 1), "9");
  EXPECT_CODE(Code::kInvalidArgument, engine_->set_step_count(w_, ~std::uint64_t{0}), "g.w");
  {
    const Gathered lease = engine_->gather(group_);
    if (std::get<0>(GetParam()) == Where::kLateDevice ||
        std::get<0>(GetParam()) == Where::kAllOnNvme) {
      EXPECT_CODE(Code::kWrongState, engine_->load(w_, Content::kWeight, nothing), "'g'");
    }
    // A lease of another group is in nobody's way.
    engine_->load({3}, Content::kWeight, nothing);
  }
  EXPECT_EQ(hashes(), before);
  Engine fresh{Settings{}};
  EXPECT_CODE(Code::kWrongState, fresh.load({0}, Content::kWeight, nothing), "freeze()");
  EXPECT_CODE(Code::kWrongState, fresh.step_count({0}), "freeze()");
  fresh.add_group("g", {{"w", DType::kBf16, {8}, {}}});
  fresh.freeze();
  EXPECT_CODE(Code::kWrongState, fresh.load({0}, Content::kWeight, nothing), "'g' was never");
  EXPECT_CODE(Code::kWrongState, fresh.set_step_count({0}, 1), "'g' was never");
  fresh.close();
  EXPECT_CODE(Code::kWrongState, fresh.load({0}, Content::kWeight, nothing), "closed");
}

TEST_P(ParameterLoad, EndsWhereItIsInterrupted) {
  EXPECT_CODE(Code::kInterrupted,
              engine_->load(w_, Content::kWeight,
                            [&](std::uint64_t, std::span<std::byte>) { engine_->interrupt(); }),
              "load: interrupted");
}

std::string name_of_row(const ::testing::TestParamInfo<std::tuple<Where, MasterLayout>>& info) {
  constexpr const char* kNames[] = {"Memory", "RecordsOnNvme", "AllOnNvme", "LateDevice"};
  return std::string(kNames[static_cast<int>(std::get<0>(info.param))]) +
         (std::get<1>(info.param) == MasterLayout::kSplit ? "Split" : "F32Master");
}
INSTANTIATE_TEST_SUITE_P(
    Everywhere, ParameterLoad,
    ::testing::Combine(::testing::Values(Where::kMemory, Where::kRecordsOnNvme, Where::kAllOnNvme,
                                         Where::kLateDevice),
                       ::testing::Values(MasterLayout::kSplit, MasterLayout::kF32)),
    name_of_row);
INSTANTIATE_TEST_SUITE_P(
    Everywhere, ParameterLoadOnNvme,
    ::testing::Combine(::testing::Values(Where::kRecordsOnNvme, Where::kAllOnNvme),
                       ::testing::Values(MasterLayout::kSplit, MasterLayout::kF32)),
    name_of_row);
}  // namespace
}  // namespace headrace
