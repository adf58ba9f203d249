// SPDX-License-Identifier: Apache-2.0
// Checks of keys against each other.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <utility>

#include "settings/given.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

constexpr double kLeastScale = 1e-30;  // gradients are multiplied by its inverse, an f32

// The value of a key that was given and has that type; else null.
const GivenValue* given_boolean(const Given& given, std::string_view path, bool wanted) {
  const GivenValue* found = given.find(path);
  const bool same =
      found != nullptr && found->value->is_boolean() && found->value->get<bool>() == wanted;
  return same ? found : nullptr;
}

// The text of a value that is one; else "".
std::string text_of(const GivenValue* found) {
  const bool is_text = found != nullptr && found->value->is_string();
  return is_text ? found->value->get<std::string>() : std::string();
}

// DeepSpeed's old way to ask for offload to host memory.
void check_cpu_offload(const Given& given, Report& report, std::string_view old_key,
                       std::string_view section, OffloadDevice& device) {
  const GivenValue* old = given_boolean(given, old_key, true);
  if (old == nullptr) return;
  const GivenValue* current = given.find(std::string(section) + ".device");
  if (current != nullptr && text_of(current) != "cpu") {
    report.fault(old->path, "true asks for host memory, but " + current->path.dotted +
                                " asks for something else; remove " + old->path.dotted);
    return;
  }
  report.warn(old->path, "deprecated; taken as " + std::string(section) + ".device \"cpu\"");
  device = OffloadDevice::kCpu;
}

void check_stage(const Given& given, Report& report, const Settings& settings) {
  const GivenValue* stage = given.find("zero_optimization.stage");
  if (stage == nullptr || !stage->value->is_number()) return;
  const double given_number = stage->value->get<double>();
  if (given_number < 0 || given_number > 3) return;  // reported already
  const int number = static_cast<int>(given_number);
  const std::string here = "at stage " + std::to_string(number) + " DeepSpeed would ";
  if (number < 3 && settings.offload_parameters != OffloadDevice::kNone) {
    report.warn(stage->path,
                here + "not offload parameters; here offload_param is followed at every stage");
  }
  if (number == 0 && settings.offload_optimizer != OffloadDevice::kNone) {
    report.warn(
        stage->path,
        here + "not offload the optimizer; here offload_optimizer is followed at every stage");
  } else if (number < 3 && settings.offload_optimizer == OffloadDevice::kNvme) {
    report.warn(stage->path,
                here + "keep the optimizer in host memory; here offload_optimizer is followed");
  }
}

// Warns of keys that a static scale, or none, leaves unused.
void check_dynamic_scale(const Given& given, Report& report, const LossScaling& scaling) {
  const GivenValue* least = given.find("fp16.min_loss_scale");
  if (scaling.min_loss_scale < kLeastScale && least != nullptr) {
    report.fault(
        least->path,
        "a dynamic scale (fp16.loss_scale 0) would fall to where its inverse is no f32; give "
        "at least 1e-30");
  }
  if (const GivenValue* window = given.find("fp16.loss_scale_window");
      scaling.loss_scale_window == 0 && window != nullptr) {
    report.fault(window->path,
                 "a dynamic scale (fp16.loss_scale 0) grows after so many steps; give at least 1");
  }
  if (std::ldexp(1.0, static_cast<int>(scaling.initial_scale_power)) >= scaling.min_loss_scale)
    return;
  const GivenValue* power = given.find("fp16.initial_scale_power");
  report.fault(power != nullptr ? power->path : least->path,
               "the scale would begin at 2^" + std::to_string(scaling.initial_scale_power) +
                   ", below fp16.min_loss_scale; change one of them");
}

// Steps whose gradients overflow are skipped, unless the file says otherwise; with a dynamic scale
// they must be.
void check_fp16(const Given& given, Report& report, Settings& settings) {
  if (!settings.fp16) {
    if (given.find("fp16.enabled") != nullptr) return;
    for (const Key& key : keys()) {
      const GivenValue* found = key.section() == "fp16" ? given.find(key.path) : nullptr;
      if (found != nullptr && key.honoured())
        report.warn(found->path,
                    "no effect: fp16.enabled is not given, and nothing is fp16 without");
    }
    return;
  }
  const GivenValue* enabled = given.find("fp16.enabled");
  if (settings.bf16.value_or(false)) {
    report.fault(enabled->path,
                 "true, and so is bf16.enabled, but parameters have one dtype; set one to false");
  }
  const LossScaling& scaling = settings.loss_scaling;
  const bool dynamic = scaling.loss_scale == 0;
  if (!dynamic && scaling.loss_scale < kLeastScale) {
    report.fault(given.find("fp16.loss_scale")->path,
                 "the inverse of so small a scale is no f32; give 0 (dynamic) or at least 1e-30");
  }
  if (dynamic) check_dynamic_scale(given, report, scaling);
  const GivenValue* non_finite = given.find("headrace.non_finite");
  if (non_finite == nullptr) {
    settings.non_finite = NonFinite::kSkip;
  } else if (dynamic && settings.non_finite == NonFinite::kStop) {
    report.fault(non_finite->path,
                 "\"stop\" ends the run at the first gradient that overflows, and a dynamic loss "
                 "scale (fp16.loss_scale 0) finds its way by such steps; remove it, or set "
                 "fp16.loss_scale");
  }
}

// As DeepSpeed spells it.
std::optional<DType> dtype_named(std::string_view name) {
  constexpr std::pair<std::string_view, DType> kNames[] = {
      {"fp32", DType::kF32},  {"float32", DType::kF32},   {"float", DType::kF32},
      {"bf16", DType::kBf16}, {"bfloat16", DType::kBf16}, {"fp16", DType::kF16},
      {"half", DType::kF16},  {"float16", DType::kF16}};
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (const auto& [known, dtype] : kNames)
    if (known == name) return dtype;
  return std::nullopt;
}

void check_parameter_dtype(const Given& given, Report& report, const Settings& settings) {
  const GivenValue* named = given.find("data_types.param_dtype");
  const std::optional<DType> asked = settings.parameter_dtype();
  if (named == nullptr || !named->value->is_string() || *named->value == "auto" || !asked ||
      dtype_named(text_of(named)) == asked)
    return;
  report.fault(named->path, "\"" + one_line(text_of(named)) +
                                "\", but bf16.enabled and fp16.enabled ask for " + name_of(*asked) +
                                "; remove it, or set those");
}

void check_dtypes(const Given& given, Report& report, Settings& settings) {
  check_fp16(given, report, settings);
  check_parameter_dtype(given, report, settings);
  const GivenValue* sums = given.find("data_types.grad_accum_dtype");
  if (text_of(sums) == "bf16" || text_of(sums) == "fp16") {
    const bool accumulates = settings.gradient_accumulation_steps > 1;
    report.warn(sums->path,
                "\"" + text_of(sums) + "\" is not followed: " +
                    (accumulates ? "gradients are accumulated in f32, at 4 bytes per parameter"
                                 : "at gradient_accumulation_steps 1 gradients keep their "
                                   "parameter's dtype; where they are accumulated, it is in f32, "
                                   "at 4 bytes per parameter"));
  }
}

void check_deadlines(const Given& given, Report& report, const Settings& settings) {
  if (settings.io_warn_seconds <= settings.io_deadline_seconds) return;
  for (const char* path : {"headrace.io_warn_seconds", "headrace.io_deadline_seconds"}) {
    const GivenValue* found = given.find(path);
    if (found == nullptr) continue;
    report.warn(found->path,
                "io_deadline_seconds comes before io_warn_seconds: a slow transfer fails without a "
                "warning before");
    return;
  }
}
}  // namespace

std::string lower_case(std::string name) {
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

std::optional<OptimizerRule> rule_of(const Given& given, std::string name) {
  name = lower_case(std::move(name));
  const bool coupled = given_boolean(given, "optimizer.params.adam_w_mode", false) != nullptr;
  if (name == "adam") return coupled ? OptimizerRule::kAdam : OptimizerRule::kAdamW;
  if (name == "adamw") return OptimizerRule::kAdamW;
  if (name == "adagrad") return OptimizerRule::kAdagrad;
  if (name == "lion") return OptimizerRule::kLion;
  if (name != "sgd") return std::nullopt;
  const GivenValue* momentum = given.find("optimizer.params.momentum");
  const bool has_momentum =
      momentum != nullptr && momentum->value->is_number() && momentum->value->get<double>() != 0;
  return has_momentum ? OptimizerRule::kSgdMomentum : OptimizerRule::kSgd;
}

bool is_adamw(std::string name) { return lower_case(std::move(name)) == "adamw"; }

void check_optimizer(const Given& given, Report& report, Settings& settings) {
  const GivenValue* type = given.find("optimizer.type");
  std::string name = text_of(type);
  if (type == nullptr) {
    type = given_boolean(given, "optimizer.params.adam_w_mode", false);
    name = "adam";
    if (const GivenValue* decoupled = given_boolean(given, "optimizer.params.adam_w_mode", true);
        decoupled != nullptr && given.find("headrace.optimizer") != nullptr &&
        settings.optimizer == OptimizerRule::kAdam) {
      report.fault(decoupled->path,
                   "true asks for the rule adamw, headrace.optimizer for adam; remove one of them");
    }
  } else if (const GivenValue* coupled =
                 given_boolean(given, "optimizer.params.adam_w_mode", false)) {
    if (is_adamw(name))
      report.warn(coupled->path,
                  "no effect, as in DeepSpeed: the type AdamW decays weights; Adam has it");
  }
  if (type != nullptr && !name.empty() && name != "auto") {
    const std::optional<OptimizerRule> rule = rule_of(given, name);
    const bool ours = given.find("headrace.optimizer") != nullptr;
    if (!rule) {
      report.fault(type->path, "\"" + one_line(name) +
                                   "\" is not served; allowed: \"Adam\", \"AdamW\", "
                                   "\"Adagrad\", \"Lion\" or \"SGD\"");
    } else if (ours && *rule != settings.optimizer) {
      report.fault(type->path, "\"" + one_line(name) + "\" asks for the rule " + name_of(*rule) +
                                   ", headrace.optimizer for " + name_of(settings.optimizer) +
                                   "; remove one of them");
    } else {
      settings.optimizer = *rule;
    }
  }
}

// Keys of one scheduler or rule beside another.
void check_types(const Given& given, Report& report, const Settings& settings) {
  for (const Key& key : keys()) {
    const GivenValue* found = key.of_types.empty() ? nullptr : given.find(key.path);
    if (found == nullptr) continue;
    const bool of_scheduler = key.path.starts_with("scheduler.");
    const std::string_view type =
        of_scheduler ? name_of(settings.scheduler.type) : name_of(settings.optimizer);
    const auto types = words_of(key.of_types);
    if (std::ranges::find(types, type) != types.end()) continue;
    std::string having;
    for (const std::string_view one : types)
      having += (having.empty() ? "" : ", ") + std::string(one);
    if (of_scheduler && settings.scheduler.type == SchedulerType::kNone) {
      report.fault(found->path, "without scheduler.type nothing would follow it; name one of " +
                                    having + ", or remove it");
    } else {
      report.fault(found->path, std::string(of_scheduler ? "" : "the rule ") + std::string(type) +
                                    " has no such key (" + having +
                                    (types.size() > 1 ? " have" : " has") +
                                    " one), so it would change nothing; remove it");
    }
  }
}

bool has_betas(OptimizerRule rule) {
  return rule == OptimizerRule::kAdamW || rule == OptimizerRule::kAdam ||
         rule == OptimizerRule::kLion;
}

// Warns of keys that are served but do not do what they seem to do.
void warn_of_scheduler(const Given& given, Report& report, const Settings& settings) {
  const Scheduler& s = settings.scheduler;
  const GivenValue* total = given.find("scheduler.params.total_num_steps");
  if (total != nullptr && s.total_num_steps > 0 && s.total_num_steps < s.warmup_num_steps) {
    report.warn(total->path, "the warm-up of " + std::to_string(s.warmup_num_steps) +
                                 " steps is longer, so nothing is left for the decay");
  }
  if (s.type != SchedulerType::kOneCycle || has_betas(settings.optimizer)) return;
  for (const char* path : {"scheduler.params.cycle_momentum", "scheduler.params.cycle_min_mom",
                           "scheduler.params.cycle_max_mom", "scheduler.params.decay_mom_rate"}) {
    const GivenValue* found = given.find(path);
    if (found == nullptr || *found->value == false) continue;
    report.warn(found->path, std::string("no effect: the rule ") + name_of(settings.optimizer) +
                                 " has no betas that a cycle could move");
  }
}

// Of SGD: torch refuses it too.
void check_nesterov(const Given& given, Report& report, const Settings& settings) {
  const OptimizerSection& section = settings.optimizer_section;
  if (!section.nesterov.value_or(false)) return;
  // Without a momentum here the trainer has its own.
  if (settings.optimizer == OptimizerRule::kSgdMomentum && section.momentum.value_or(1) > 0 &&
      section.dampening.value_or(0) == 0)
    return;
  report.fault(given.find("optimizer.params.nesterov")->path,
               "needs optimizer.params.momentum above 0 and no dampening; set them so, or this to "
               "false");
}

// Requires the keys that a scheduler cannot do without.
// DeepSpeed takes a null for the optimizer's rate, and 0.001 where the key is missing.
void check_null_rate(const Given& given, Report& report) {
  const GivenValue* most = given.find("scheduler.params.warmup_max_lr");
  if (most == nullptr || !most->value->is_null()) return;
  report.fault(most->path,
               "null is the optimizer's learning rate in DeepSpeed's WarmupDecayLR, and a missing "
               "key is 0.001; give the number");
}

void check_scheduler(const Given& given, Report& report, const Settings& settings) {
  std::vector<std::string_view> needed;
  switch (settings.scheduler.type) {
    case SchedulerType::kWarmupDecayLR:
      check_null_rate(given, report);
      [[fallthrough]];
    case SchedulerType::kWarmupCosineLR:
      needed = {"scheduler.params.total_num_steps"};
      break;
    case SchedulerType::kOneCycle:
      needed = {"scheduler.params.cycle_min_lr", "scheduler.params.cycle_max_lr"};
      break;
    default:
      break;
  }
  for (const std::string_view path : needed) {
    if (given.find(path) != nullptr) continue;
    report.fault(given.find("scheduler.type")->path, std::string(name_of(settings.scheduler.type)) +
                                                         " needs " + std::string(path) +
                                                         ", which is not given");
  }
}

// Accumulation that follows from the batch sizes is known when the number of ranks is.
void check_batch(const Given& given, Report& report, Settings& settings) {
  const auto& whole = settings.train_batch_size;
  const auto& micro = settings.train_micro_batch_size_per_gpu;
  if (!whole) return;
  if (micro && given.find("gradient_accumulation_steps") == nullptr)
    settings.gradient_accumulation_steps = 0;
  const std::uint64_t accumulation = settings.gradient_accumulation_steps;
  const std::uint64_t of_rank = std::max<std::uint64_t>(1, accumulation) * micro.value_or(1);
  if (*whole % of_rank == 0) return;
  std::string factors = micro ? "train_micro_batch_size_per_gpu " + std::to_string(*micro) : "";
  if (accumulation > 1) {
    factors += (factors.empty() ? "" : " x ") + std::string("gradient_accumulation_steps ") +
               std::to_string(accumulation);
  }
  report.fault(given.find("train_batch_size")->path,
               std::to_string(*whole) + " is no multiple of " + factors +
                   ", so no number of ranks can make it; change one of them, or leave one out and "
                   "it follows from the others");
}

void check_together(const Given& given, Report& report, Settings& settings) {
  check_cpu_offload(given, report, "zero_optimization.cpu_offload",
                    "zero_optimization.offload_optimizer", settings.offload_optimizer);
  check_cpu_offload(given, report, "zero_optimization.cpu_offload_params",
                    "zero_optimization.offload_param", settings.offload_parameters);
  check_stage(given, report, settings);
  check_nodes(given, report, settings);
  check_dtypes(given, report, settings);
  check_optimizer(given, report, settings);
  check_types(given, report, settings);
  check_scheduler(given, report, settings);
  warn_of_scheduler(given, report, settings);
  check_nesterov(given, report, settings);
  check_batch(given, report, settings);
  check_deadlines(given, report, settings);
  check_drive_paths(given, report, settings);
  check_store(given, report, settings);
}
}  // namespace headrace::settings
