// SPDX-License-Identifier: Apache-2.0
// What one key at a time cannot say.
#include <algorithm>
#include <cctype>
#include <optional>

#include "settings/given.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

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
  const int number = static_cast<int>(stage->value->get<double>());
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

void check_dtypes(const Given& given, Report& report, const Settings& settings) {
  if (const auto* fp16 = given_boolean(given, "fp16.enabled", true)) {
    report.fault(
        fp16->path,
        "true asks for fp16, which is not served; set it to false and bf16.enabled to true");
  }
  if (const auto* bf16 = given_boolean(given, "bf16.enabled", false)) {
    report.warn(
        bf16->path,
        "false is not followed: parameters have the dtype that the trainer registers, f32 or bf16");
  }
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

// The rule that DeepSpeed's `optimizer.type` names; none: nothing that is served.
std::optional<OptimizerRule> rule_of(const Given& given, std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool coupled = given_boolean(given, "optimizer.params.adam_w_mode", false) != nullptr;
  if (name == "adam" || name == "adamw")
    return coupled ? OptimizerRule::kAdam : OptimizerRule::kAdamW;
  if (name == "adagrad") return OptimizerRule::kAdagrad;
  if (name == "lion") return OptimizerRule::kLion;
  if (name != "sgd") return std::nullopt;
  const GivenValue* momentum = given.find("optimizer.params.momentum");
  const bool has_momentum =
      momentum != nullptr && momentum->value->is_number() && momentum->value->get<double>() != 0;
  return has_momentum ? OptimizerRule::kSgdMomentum : OptimizerRule::kSgd;
}

void check_optimizer(const Given& given, Report& report, Settings& settings) {
  const GivenValue* type = given.find("optimizer.type");
  const std::string name = text_of(type);
  if (type != nullptr && type->value->is_string() && name != "auto") {
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
  if (const auto* amsgrad = given_boolean(given, "optimizer.params.amsgrad", true)) {
    report.fault(amsgrad->path, "AMSGrad is not served; remove the key or set it to false");
  }
  if (const auto* norm = given.find("optimizer.params.max_grad_norm")) {
    if (norm->value->is_number()) {
      report.fault(norm->path, "does not belong here; write gradient_clipping at the top level");
    }
  }
}

void check_together(const Given& given, Report& report, Settings& settings) {
  check_cpu_offload(given, report, "zero_optimization.cpu_offload",
                    "zero_optimization.offload_optimizer", settings.offload_optimizer);
  check_cpu_offload(given, report, "zero_optimization.cpu_offload_params",
                    "zero_optimization.offload_param", settings.offload_parameters);
  check_stage(given, report, settings);
  check_dtypes(given, report, settings);
  check_optimizer(given, report, settings);
  check_deadlines(given, report, settings);
  check_drive_paths(given, report, settings);
}
}  // namespace headrace::settings
