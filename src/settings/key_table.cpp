// SPDX-License-Identifier: Apache-2.0
// keys.txt as a table, with the field that each key fills. If they do not fit together,
// that is a bug in Headrace, and ends the program when it first reads the table.
#include "settings/key_table.hpp"

#include <algorithm>
#include <charconv>
#include <deque>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>

#include "base/check.hpp"

namespace headrace::settings {
namespace {
constexpr std::string_view kText =
#include "keys.inc"
    ;

// &Settings::tile_elements, or a path of members from there.
template <auto Member, auto... Inner>
constexpr auto& reach(auto& object) {
  if constexpr (sizeof...(Inner) == 0) {
    return object.*Member;
  } else {
    return reach<Inner...>(object.*Member);
  }
}
template <auto... Members>
constexpr Field field_at() {
  using T = std::remove_reference_t<decltype(reach<Members...>(std::declval<Settings&>()))>;
  if constexpr (std::is_enum_v<T>) {
    return ChoiceIn{
        [](const Settings& s) { return static_cast<std::size_t>(reach<Members...>(s)); },
        [](Settings& s, std::size_t index) { reach<Members...>(s) = static_cast<T>(index); }};
  } else {
    return In<T>([](Settings& s) -> T& { return reach<Members...>(s); });
  }
}

template <auto Member>
constexpr Field setting = field_at<Member>();
template <auto Member>
constexpr Field scaling = field_at<&Settings::loss_scaling, Member>();
template <auto Member>
constexpr Field constant = field_at<&Settings::optimizer_section, Member>();
template <auto Member>
constexpr Field schedule = field_at<&Settings::scheduler, Member>();
template <auto Member>
constexpr Field tuned = field_at<&Settings::tuned, Member>();

constexpr std::pair<std::string_view, Field> kFields[] = {
    {"zero_optimization.stage", setting<&Settings::zero_stage>},
    {"zero_optimization.zero_hpz_partition_size", setting<&Settings::zero_hpz_partition_size>},
    {"zero_optimization.zero_quantized_weights", setting<&Settings::zero_quantized_weights>},
    {"zero_optimization.zero_quantized_gradients", setting<&Settings::zero_quantized_gradients>},
    {"zero_optimization.offload_optimizer.device", setting<&Settings::offload_optimizer>},
    {"zero_optimization.offload_param.device", setting<&Settings::offload_parameters>},
    {"gradient_clipping", setting<&Settings::gradient_clipping>},
    {"gradient_accumulation_steps", setting<&Settings::gradient_accumulation_steps>},
    {"train_batch_size", setting<&Settings::train_batch_size>},
    {"train_micro_batch_size_per_gpu", setting<&Settings::train_micro_batch_size_per_gpu>},
    {"bf16.enabled", setting<&Settings::bf16>},
    {"fp16.enabled", setting<&Settings::fp16>},
    {"fp16.loss_scale", scaling<&LossScaling::loss_scale>},
    {"fp16.initial_scale_power", scaling<&LossScaling::initial_scale_power>},
    {"fp16.loss_scale_window", scaling<&LossScaling::loss_scale_window>},
    {"fp16.hysteresis", scaling<&LossScaling::hysteresis>},
    {"fp16.consecutive_hysteresis", scaling<&LossScaling::consecutive_hysteresis>},
    {"fp16.min_loss_scale", scaling<&LossScaling::min_loss_scale>},
    {"optimizer.type", constant<&OptimizerSection::type>},
    {"optimizer.params.lr", constant<&OptimizerSection::lr>},
    {"optimizer.params.betas", constant<&OptimizerSection::betas>},
    {"optimizer.params.eps", constant<&OptimizerSection::eps>},
    {"optimizer.params.weight_decay", constant<&OptimizerSection::weight_decay>},
    {"optimizer.params.bias_correction", constant<&OptimizerSection::bias_correction>},
    {"optimizer.params.adam_w_mode", constant<&OptimizerSection::adam_w_mode>},
    {"optimizer.params.torch_adam", constant<&OptimizerSection::torch_adam>},
    {"optimizer.params.momentum", constant<&OptimizerSection::momentum>},
    {"optimizer.params.dampening", constant<&OptimizerSection::dampening>},
    {"optimizer.params.nesterov", constant<&OptimizerSection::nesterov>},
    {"optimizer.params.maximize", constant<&OptimizerSection::maximize>},
    {"optimizer.params.lr_decay", constant<&OptimizerSection::lr_decay>},
    {"scheduler.type", schedule<&Scheduler::type>},
    {"scheduler.params.warmup_min_lr", schedule<&Scheduler::warmup_min_lr>},
    {"scheduler.params.warmup_max_lr", schedule<&Scheduler::warmup_max_lr>},
    {"scheduler.params.warmup_num_steps", schedule<&Scheduler::warmup_num_steps>},
    {"scheduler.params.warmup_type", schedule<&Scheduler::warmup_type>},
    {"scheduler.params.total_num_steps", schedule<&Scheduler::total_num_steps>},
    {"scheduler.params.warmup_min_ratio", schedule<&Scheduler::warmup_min_ratio>},
    {"scheduler.params.cos_min_ratio", schedule<&Scheduler::cos_min_ratio>},
    {"scheduler.params.cycle_min_lr", schedule<&Scheduler::cycle_min_lr>},
    {"scheduler.params.cycle_max_lr", schedule<&Scheduler::cycle_max_lr>},
    {"scheduler.params.decay_lr_rate", schedule<&Scheduler::decay_lr_rate>},
    {"scheduler.params.cycle_first_step_size", schedule<&Scheduler::cycle_first_step_size>},
    {"scheduler.params.cycle_second_step_size", schedule<&Scheduler::cycle_second_step_size>},
    {"scheduler.params.cycle_first_stair_count", schedule<&Scheduler::cycle_first_stair_count>},
    {"scheduler.params.cycle_second_stair_count", schedule<&Scheduler::cycle_second_stair_count>},
    {"scheduler.params.decay_step_size", schedule<&Scheduler::decay_step_size>},
    {"scheduler.params.cycle_momentum", schedule<&Scheduler::cycle_momentum>},
    {"scheduler.params.cycle_min_mom", schedule<&Scheduler::cycle_min_mom>},
    {"scheduler.params.cycle_max_mom", schedule<&Scheduler::cycle_max_mom>},
    {"scheduler.params.decay_mom_rate", schedule<&Scheduler::decay_mom_rate>},
    {"scheduler.params.lr_range_test_min_lr", schedule<&Scheduler::lr_range_test_min_lr>},
    {"scheduler.params.lr_range_test_step_rate", schedule<&Scheduler::lr_range_test_step_rate>},
    {"scheduler.params.lr_range_test_step_size", schedule<&Scheduler::lr_range_test_step_size>},
    {"scheduler.params.lr_range_test_staircase", schedule<&Scheduler::lr_range_test_staircase>},
    {"headrace.device_budget_bytes", setting<&Settings::device_budget_bytes>},
    {"headrace.drive_shares", setting<&Settings::drive_shares>},
    {"headrace.master", setting<&Settings::master>},
    {"headrace.optimizer", setting<&Settings::optimizer>},
    {"headrace.moments", setting<&Settings::moments>},
    {"headrace.non_finite", setting<&Settings::non_finite>},
    {"headrace.rounding_seed", setting<&Settings::rounding_seed>},
    {"headrace.tile_elements", setting<&Settings::tile_elements>},
    {"headrace.update_slots", setting<&Settings::update_slots>},
    {"headrace.update_mode", setting<&Settings::update_mode>},
    {"headrace.update_on", setting<&Settings::update_on>},
    {"headrace.prefetch_groups", setting<&Settings::prefetch_groups>},
    {"headrace.rank_agreement", setting<&Settings::rank_agreement>},
    {"headrace.ranks_ahead", setting<&Settings::ranks_ahead>},
    {"headrace.hierarchical_reduce_ranks", setting<&Settings::hierarchical_reduce_ranks>},
    {"headrace.update_threads", setting<&Settings::update_threads>},
    {"headrace.io_block_bytes", setting<&Settings::io_block_bytes>},
    {"headrace.queue_depth", setting<&Settings::queue_depth>},
    {"headrace.submit_batch", setting<&Settings::submit_batch>},
    {"headrace.io_queue", setting<&Settings::io_queue>},
    {"headrace.register_buffers", setting<&Settings::register_buffers>},
    {"headrace.direct", setting<&Settings::direct>},
    {"headrace.allow_memory_backed", setting<&Settings::allow_memory_backed>},
    {"headrace.checksums", setting<&Settings::checksums>},
    {"headrace.io_warn_seconds", setting<&Settings::io_warn_seconds>},
    {"headrace.io_deadline_seconds", setting<&Settings::io_deadline_seconds>},
    {"headrace.durable", setting<&Settings::durable_every>},
    {"headrace.store", setting<&Settings::store>},
    {"headrace.resume", setting<&Settings::resume>},
    {"headrace.trainer_state_bytes", setting<&Settings::trainer_state_bytes>},
    {"headrace.background_save_bytes_per_second",
     setting<&Settings::background_save_bytes_per_second>},
    {"headrace.tuned.drive_model", tuned<&Tuned::drive_model>},
    {"headrace.tuned.kernel", tuned<&Tuned::kernel>},
};

struct Type {
  std::string_view name;
  Kind kind;
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  std::string_view unit = {};
  std::string_view choices = {};
};
constexpr Type kTypes[] = {
    {"section", Kind::kSection},
    {"object", Kind::kOpenSection},
    {"boolean", Kind::kBoolean},
    {"integer", Kind::kInteger},
    {"count", Kind::kInteger, 0},
    {"steps", Kind::kInteger, 0, 2147483647, "steps"},
    {"number", Kind::kNumber},
    {"f32", Kind::kNumber, 0, kMostOfF32},
    {"share", Kind::kNumber, 0, 1, "ratio"},
    {"pair", Kind::kPair},
    {"size", Kind::kSize},
    {"budget", Kind::kSizeOrAuto},
    {"text", Kind::kText},
    {"texts", Kind::kTextList},
    {"path", Kind::kPath},
    {"paths", Kind::kPathList},
    {"shares", Kind::kSharesOrAuto},
    {"every", Kind::kEvery, 1, 2147483647, "steps", "none|step"},
};

constexpr std::string_view kSwitchBegin = "switch ";
constexpr std::string_view kRefusedBegin = "refused:";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

// Takes the text before `mark`, and the mark, off `text`; all of it if there is no mark.
std::string_view take(std::string_view& text, std::string_view mark) {
  const std::size_t end = text.find(mark);
  const std::string_view before = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + mark.size());
  return trimmed(before);
}

bool take_end(std::string_view& text, std::string_view end) {
  const bool there = text.ends_with(end);
  if (there) text.remove_suffix(end.size());
  return there;
}

template <class Number>
void read_number(std::string_view text, Number& to) {
  if (text.empty()) return;
  const char* const end = text.data() + text.size();
  HEADRACE_CHECK(std::from_chars(text.data(), end, to).ptr == end, std::string(text).c_str());
}

// "integer from 4096 to 65536 by 4096 (bytes) or null"
void read_values(std::string_view text, Key& key) {
  key.auto_is_unsaid = take_end(text, " or auto");
  key.nullable = take_end(text, " or null") || key.auto_is_unsaid;
  std::string_view range = take(text, "(");
  key.unit = take(text, ")");
  const std::string_view name = take(range, " from ");
  if (name.find('|') != name.npos) {
    const bool is_switch = name.starts_with(kSwitchBegin);
    key.kind = is_switch ? Kind::kSwitch : Kind::kChoice;
    key.choices = is_switch ? name.substr(kSwitchBegin.size()) : name;
    return;
  }
  const auto* type = std::ranges::find(kTypes, name, &Type::name);
  HEADRACE_CHECK(type != std::end(kTypes), std::string(name).c_str());
  key.kind = type->kind;
  key.least = type->least, key.most = type->most;
  key.choices = type->choices;
  if (key.unit.empty()) key.unit = type->unit;
  std::string_view limits = take(range, " by ");
  read_number(take(limits, " to "), key.least);
  read_number(limits, key.most);
  read_number(range, key.multiple);
}

// "engine", "trainer of adamw|adam"; or what needs no word.
void read_who(std::string_view text, Key& key) {
  std::string_view types = text;
  const std::string_view who = take(types, " of ");
  if (who == "engine" || who == "trainer") {
    key.status = who == "engine" ? Status::kEngine : Status::kTrainer;
    key.of_types = types;
  } else if (text == "unless enabled") {
    key.off_by_default = true;
  } else {
    (text.starts_with("headrace.") ? key.same_as : key.in_any_case) = text;
  }
}

class Lines {
 public:
  explicit Lines(std::string_view text) {
    while (!text.empty()) read(take(text, "\n"));
    for (const auto& [path, field] : kFields) {
      const auto key = std::ranges::find(keys, path, &Key::path);
      HEADRACE_CHECK(key != keys.end(), std::string(path).c_str());
      key->field = field;
    }
  }

  std::vector<Key> keys;

 private:
  void read(std::string_view line) {
    if (line.empty() || line.starts_with('#')) return;
    if (line.starts_with('[')) {
      std::string_view names = take(line, "]").substr(1);
      section_ = take(names, ",");
      take(line, " |");
      if (!line.empty()) add(section_, names, line);
    } else if (line.find(" |") == line.npos) {
      const std::string_view name = take(line, "=");
      texts_[name] = trimmed(line);
    } else {
      std::string_view names = take(line, " |");
      const std::string_view name = take(names, ",");
      add(section_.empty() ? name : kept(std::string(section_) + "." + std::string(name)), names,
          line);
    }
  }

  void add(std::string_view path, std::string_view also, std::string_view cells) {
    Key key{.path = path};
    key.also = trimmed(also);
    read_values(take(cells, " |"), key);
    read_who(take(cells, " |"), key);
    std::string_view help = take(cells, " |");
    if (key.kind == Kind::kSection) key.status = Status::kEngine;
    if (help.starts_with(kRefusedBegin)) {
      key.status = Status::kRefused;
      help.remove_prefix(kRefusedBegin.size());
    }
    key.help = text_of(help);
    key.deepspeed_default = text_of(cells);
    keys.push_back(key);
  }

  std::string_view text_of(std::string_view cell) const {
    cell = trimmed(cell);
    if (!cell.starts_with('$')) return cell;
    const auto text = texts_.find(cell.substr(1));
    HEADRACE_CHECK(text != texts_.end(), std::string(cell).c_str());
    return text->second;
  }

  // Paths live as long as the program, as the rest of the text does.
  static std::string_view kept(std::string path) {
    static std::deque<std::string> paths;
    return paths.emplace_back(std::move(path));
  }

  std::string_view section_;
  std::map<std::string_view, std::string_view> texts_;
};
}  // namespace

std::span<const Key> keys() {
  static const std::vector<Key> all = Lines(kText).keys;
  return all;
}
}  // namespace headrace::settings
