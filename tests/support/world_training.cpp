// SPDX-License-Identifier: Apache-2.0
#include "support/world_training.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>
#include <string_view>

namespace headrace::testing {
namespace {
constexpr std::uint32_t kGroups = 5, kSteps = 3;
constexpr ParameterId kFrozen = {4};
constexpr std::size_t kLargest = std::size_t{300} * 301;

const std::vector<WorldModel>& models() {
  static const std::vector<WorldModel> all = {
      {.name = "Plain"},
      {.name = "Frozen", .frozen = true},
      {.name = "Absent", .absent = true},
      {.name = "Tied", .tied = true},
      {.name = "Bound", .absent = true, .bound = true},
      {.name = "GatheredAgain", .absent = true, .gathered_again = true},
      {.name = "Ragged", .micro_batches = 5},
      {.name = "FewerThanRanks", .micro_batches = 2, .absent = true},
      {.name = "GradientsInF32", .absent = true, .f32 = true},
      {.name = "OneGroup", .micro_batches = 7, .absent = true, .one_group = true},
      {.name = "All",
       .micro_batches = 5,
       .frozen = true,
       .absent = true,
       .f32 = true,
       .tied = true,
       .gathered_again = true},
  };
  return all;
}

// Finite values of many magnitudes: what they sum to depends on the order. Any stretch of them is a
// gradient. The same as bf16, cut off.
struct Values {
  static constexpr std::size_t kWindows = 4096;
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;
  Values() {
    std::mt19937 random(1);
    for (std::size_t i = 0; i < kLargest + kWindows; ++i) {
      const auto bits = static_cast<std::uint32_t>(random());
      const float value = std::ldexp(static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-31f,
                                     static_cast<int>(bits % 12));
      std::uint32_t word = 0;
      std::memcpy(&word, &value, sizeof(word));
      f32.push_back(value);
      bf16.push_back(static_cast<std::uint16_t>(word >> 16));
    }
  }
};

std::uint32_t draw(std::uint32_t step, std::uint32_t micro_batch, std::uint32_t of) {
  std::mt19937 random(step * 100'003 + micro_batch * 1009 + of);
  return static_cast<std::uint32_t>(random());
}

Settings settings_of(const WorldModel& model, const WorldSetup& setup, std::uint32_t world) {
  Settings settings;
  if (setup.place != WorldPlace::kMemory) {
    settings.offload_optimizer = settings.offload_parameters = OffloadDevice::kNvme;
    settings.nvme_paths = {setup.folder};
    settings.allow_memory_backed = true;
  }
  if (setup.place == WorldPlace::kBudget) settings.update_slots = settings.prefetch_groups = 1;
  settings.update_mode = setup.update_mode;
  settings.rank_agreement = setup.rank_order;
  settings.zero_stage = setup.zero_stage;
  settings.zero_hpz_partition_size = setup.node_ranks;
  settings.zero_quantized_weights = settings.zero_quantized_gradients = setup.quantised;
  settings.tile_elements = 65536;
  settings.gradient_accumulation_steps = (model.micro_batches + world - 1) / world;
  return settings;
}

// A first moment without memory keeps the sign of a zero. A gradient of -0 in all micro-batches is
// -0, and no longer so where a rank without one adds 0.
constexpr Hyperparameters kForgetful = {.beta1 = 0};
bool is_forgetful(ParameterId id) { return id.index % 4 == 2; }

void add_groups(const WorldModel& model, Engine& engine) {
  const HyperparameterSetId forgetful = engine.add_hyperparameters(kForgetful);
  for (std::uint32_t g = 0; g < (model.one_group ? 1 : kGroups); ++g) {
    engine.add_group("h." + std::to_string(g), {{"w", DType::kBf16, {300, 301}, {}},
                                                {"b", DType::kF32, {77'777}, {}},
                                                {"s", DType::kBf16, {700}, forgetful},
                                                {"t", DType::kBf16, {66'000}, {}}});
  }
  if (model.frozen) {
    engine.set_frozen(kFrozen, true);
    engine.add_group("codes", {{"codes", DType::kU8, {200'001}, {}, true}});
  }
  for (std::uint32_t g = 1; model.bound && g < kGroups; ++g) engine.expect_no_gradients({g});
  if (model.bound) engine.keep_bound({0});
}

PlanReport plan_of(const WorldModel& model, const Settings& settings,
                   const EngineOptions& options) {
  Engine engine(settings, options);
  add_groups(model, engine);
  engine.freeze();
  PlanReport plan = engine.plan();
  engine.close();
  return plan;
}

// What `mine` is on every rank.
std::vector<double> on_all_ranks(const EngineOptions& options, double mine) {
  if (!options.collective) return {mine};
  std::vector<double> all(options.collective->world_size());
  options.collective->exchange({0, "budget"}, std::as_bytes(std::span(&mine, 1)),
                               std::as_writable_bytes(std::span(all)));
  return all;
}

// The least budget, of those tried, that every rank can have and under which part of rank 0's state
// stays in memory. Collective.
std::uint64_t middle_budget(const WorldModel& model, Settings settings,
                            const EngineOptions& options) {
  const PlanReport plan = plan_of(model, settings, options);
  const auto least = on_all_ranks(options, static_cast<double>(plan.smallest_host_bytes));
  settings.host_budget_bytes = static_cast<std::uint64_t>(*std::ranges::max_element(least));
  for (;; settings.host_budget_bytes += std::uint64_t{1} << 19) {
    const double share = plan_of(model, settings, options).resident_share_of_state;
    if (on_all_ranks(options, share)[0] > 0) return settings.host_budget_bytes;
  }
}

class WorldTrainer {
 public:
  WorldTrainer(const WorldModel& model, const WorldSetup& setup, Engine& engine, Device* device,
               std::uint32_t rank, std::uint32_t world)
      : model_(model),
        looks_(setup.quantised),
        engine_(engine),
        device_(device),
        rank_(rank),
        world_(world) {
    add_groups(model, engine);
    engine.freeze();
    for (std::uint32_t g = 0; g < engine.group_count(); ++g) {
      engine.load({g}, [](ParameterId id, std::span<std::byte> out) {
        for (std::size_t b = 0; b < out.size(); ++b) out[b] = initial(id, b);
      });
    }
  }

  WorldOutcome train() {
    WorldOutcome outcome;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      std::optional<Gathered> bound;
      if (model_.bound) bound = engine_.gather({0});
      for (std::uint32_t first = 0; first < model_.micro_batches; first += world_)
        micro_batch(step, first + rank_);
      bound.reset();
      const StepResult result =
          engine_.step({.learning_rate = 1e-2f,
                        .gradient_scale = 1.0f / static_cast<float>(model_.micro_batches),
                        .max_norm = 1.0f});
      outcome.steps.emplace_back(result.gradient_norm, result.parameters_updated);
    }
    outcome.parameters = engine_.hash_parameters();
    outcome.optimizer_state = engine_.hash_optimizer_state();
    outcome.resident_share_of_state = engine_.plan().resident_share_of_state;
    outcome.seen = seen_;
    collect(outcome);
    return outcome;
  }

 private:
  static std::byte initial(ParameterId id, std::size_t byte) {
    return static_cast<std::byte>(byte % 2 == 0 ? byte * 31 + id.index : 0x3c);
  }
  void look(const Gathered& gathered, GroupId group) {
    if (device_ != nullptr) device_->synchronize({});
    for (const ParameterId id : engine_.parameters(group)) {
      const DeviceSpan whole = gathered.bytes(id);
      for (std::size_t b = 0; b < whole.size_bytes; ++b)
        seen_ = seen_ * 31 + static_cast<const std::uint8_t*>(whole.data)[b];
    }
  }
  void gather(GroupId group, bool first) {
    const Gathered gathered = engine_.gather(group);
    if (looks_ && first) look(gathered, group);
    const ParameterId id = engine_.parameters(group).front();
    if (engine_.spec(id).dtype != DType::kU8) return;
    if (device_ != nullptr) device_->synchronize({});
    const DeviceSpan whole = gathered.bytes(id);  // of a device whose memory is the host's
    const auto* const bytes = static_cast<const std::byte*>(whole.data);
    for (std::size_t b = 0; b < whole.size_bytes; ++b) {
      if (bytes[b] != initial(id, b)) throw std::runtime_error("byte " + std::to_string(b));
    }
  }
  // Every rank makes the same gathers, also one that has no such micro-batch.
  void micro_batch(std::uint32_t step, std::uint32_t at) {
    const std::uint32_t groups = engine_.group_count();
    const bool first = at < world_;
    for (std::uint32_t g = model_.bound ? 1 : 0; g < groups; ++g) gather({g}, first);
    if (model_.tied) gather({0}, first);
    if (model_.tied && model_.gathered_again) gather({0}, first);
    for (std::uint32_t g = groups; g-- > 0;) {
      if (model_.gathered_again) gather({g}, first);
      if (at < model_.micro_batches) add_gradients(step, at, {g});
    }
  }
  void add_gradients(std::uint32_t step, std::uint32_t at, GroupId group) {
    if (model_.absent && draw(step, at, 900 + group.index) % 5 == 0) return;
    for (const ParameterId id : engine_.parameters(group)) {
      if (has_gradient(step, at, id)) add_gradient(step, at, id);
    }
  }
  bool has_gradient(std::uint32_t step, std::uint32_t at, ParameterId id) const {
    if (engine_.spec(id).frozen) return false;
    if (!model_.absent) return true;
    return draw(step, at, id.index) % 3 != 0 && (id.index != 3 || step == 1);
  }
  void add_gradient(std::uint32_t step, std::uint32_t at, ParameterId id) {
    static const Values values;
    static const std::vector<float> negative_zeros(kLargest, -0.0f);
    static const std::vector<std::uint16_t> negative_zeros_bf16(kLargest, 0x8000);
    const bool zero = is_forgetful(id) && step > 0;
    const std::size_t window = draw(step, at, 500 + id.index) % Values::kWindows;
    if (engine_.spec(id).dtype == DType::kBf16 && !model_.f32) {
      engine_.add_gradient(id, zero ? negative_zeros_bf16.data() : &values.bf16[window],
                           DType::kBf16);
    } else {
      engine_.add_gradient(id, zero ? negative_zeros.data() : &values.f32[window], DType::kF32);
    }
  }
  void collect(WorldOutcome& outcome) {
    for (std::uint32_t i = 0; i < engine_.parameter_count(); ++i) {
      if (engine_.spec({i}).frozen) continue;
      for (const Content content : {Content::kMaster, Content::kExpAvg, Content::kExpAvgSq}) {
        auto& words = outcome.values[{i, content}];
        words.resize(engine_.spec({i}).elements());
        engine_.store({i}, content, [&](std::uint64_t first, std::span<const std::byte> stretch) {
          std::memcpy(words.data() + first, stretch.data(), stretch.size());
        });
      }
    }
  }
  const WorldModel& model_;
  const bool looks_;
  std::uint64_t seen_ = 0;
  Engine& engine_;
  Device* const device_;  // null: the engine's own
  const std::uint32_t rank_, world_;
};
}  // namespace

std::span<const WorldModel> world_models() { return models(); }

std::string WorldOutcome::text() const {
  std::string text = parameters + " " + optimizer_state;
  for (const auto& [norm, updated] : steps) {
    std::array<char, 64> step = {};
    std::snprintf(step.data(), step.size(), " %a/%llu", norm,
                  static_cast<unsigned long long>(updated));
    text += step.data();
  }
  if (seen != 0) text += " saw " + std::to_string(seen);
  return text;
}

WorldOutcome train_as_rank(const WorldModel& model, const WorldSetup& setup,
                           EngineOptions options) {
  if (!options.log) options.log = [](LogLevel, std::string_view) {};
  const std::uint32_t rank = options.collective ? options.collective->rank() : 0;
  const std::uint32_t world = options.collective ? options.collective->world_size() : 1;
  Settings settings = settings_of(model, setup, world);
  if (setup.place == WorldPlace::kBudget)
    settings.host_budget_bytes = middle_budget(model, settings, options);
  Engine engine(settings, options);
  WorldOutcome outcome =
      WorldTrainer(model, setup, engine, options.device.get(), rank, world).train();
  engine.close();
  return outcome;
}

namespace {
// HEADRACE_MATRIX=full: every place and update mode; else these take turns.
std::vector<WorldSetup> setups_of(std::size_t model, const std::string& folder) {
  const char* const wanted = std::getenv("HEADRACE_MATRIX");
  const bool full = wanted != nullptr && std::string_view(wanted) == "full";
  std::vector<WorldSetup> setups;
  for (std::size_t place = 0; place < kWorldPlaces.size(); ++place) {
    for (const UpdateMode mode : {UpdateMode::kDefer, UpdateMode::kBarrier}) {
      const bool turn =
          place == model % kWorldPlaces.size() && (mode == UpdateMode::kDefer) == (model % 2 == 0);
      const std::uint32_t stage = model / 2 % 2 == 0 ? 2 : 3;
      if (full || turn)
        setups.push_back({static_cast<WorldPlace>(place), mode, folder, RankOrder::kTrace, stage});
    }
  }
  return setups;
}

std::string line_of(std::uint32_t rank, const WorldModel& model, const WorldSetup& setup,
                    const WorldOutcome& outcome) {
  return "rank " + std::to_string(rank) + ": " + model.name + ", " +
         kWorldPlaces[static_cast<std::size_t>(setup.place)] +
         (setup.update_mode == UpdateMode::kDefer ? ", deferred: " : ", barrier: ") +
         outcome.text() + "\n";
}
}  // namespace

void train_every_model(const std::shared_ptr<Collective>& collective, const std::string& folder,
                       const std::function<void(const std::string& line)>& say) {
  for (std::size_t i = 0; i < models().size(); ++i) {
    for (WorldSetup setup : setups_of(i, folder)) {
      if (collective->world_size() == 4) setup.node_ranks = 2;  // where the stage is 3
      const WorldOutcome outcome = train_as_rank(models()[i], setup, {.collective = collective});
      say(line_of(collective->rank(), models()[i], setup, outcome));
    }
  }
}

std::string missing_lines(const std::string& said, std::uint32_t world_size) {
  std::string missing;
  for (std::size_t i = 0; i < models().size(); ++i) {
    const WorldOutcome alone = train_as_rank(models()[i], {}, {});
    for (const WorldSetup& setup : setups_of(i, "")) {
      for (std::uint32_t r = 0; r < world_size; ++r) {
        const std::string line = line_of(r, models()[i], setup, alone);
        if (said.find(line) == std::string::npos) missing += line;
      }
    }
  }
  return missing;
}
}  // namespace headrace::testing
