// SPDX-License-Identifier: Apache-2.0
// Settings::from_json: text, overrides, then key by key against the table, then all together.
#include <algorithm>
#include <string>

#include "base/error_text.hpp"
#include "headrace/error.hpp"
#include "settings/given.hpp"
#include "settings/json_text.hpp"
#include "settings/key_table.hpp"
#include "settings/values.hpp"

namespace headrace::settings {
namespace {
using nlohmann::json;

std::string quoted(std::string_view text) { return "\"" + one_line(text) + "\""; }

std::string sections_with(std::string_view name) {
  std::string text;
  if (name.empty()) return text;
  for (const Key& key : keys()) {
    if (key.name() != name && key.also != name) continue;
    if (!text.empty()) text += " or ";
    text += key.section().empty() ? "the top level" : std::string(key.section());
  }
  return text;
}

// The shortest of `known` that starts with `word`, else the shortest that holds it; "" if none.
std::string_view longer_word(std::string_view word, const std::vector<std::string_view>& known) {
  std::string_view best;
  for (const std::string_view other : known) {
    if (other.find(word) == std::string_view::npos) continue;
    const bool starts = other.starts_with(word), best_starts = best.starts_with(word);
    if (best.empty() || (starts && !best_starts) ||
        (starts == best_starts && other.size() < best.size()))
      best = other;
  }
  return best;
}

bool is_object(const Key& key) {
  return key.kind == Kind::kSection || key.kind == Kind::kOpenSection;
}

// Whether `value` could have been meant for `key`: a comment is no section by a similar name.
bool may_be_meant(const Key& key, const json& value) { return is_object(key) == value.is_object(); }

// As above, and by its type: of keys elsewhere, which nobody misspelt so.
bool is_like(const Key& key, const json& value) {
  if (value == "auto") return !is_object(key);
  switch (key.kind) {
    case Kind::kSection:
    case Kind::kOpenSection:
      return value.is_object();
    case Kind::kBoolean:
      return value.is_boolean();
    case Kind::kInteger:
    case Kind::kNumber:
      return value.is_number();
    case Kind::kEvery:
      return value.is_number() || value.is_string();
    case Kind::kPathList:
    case Kind::kTextList:
    case Kind::kPair:
    case Kind::kSharesOrAuto:
      return value.is_array();
    default:
      return value.is_string();
  }
}

// Where DeepSpeed looks for its own keys and passes over others; elsewhere it refuses them.
bool ignores_unknown_keys(std::string_view section) {
  constexpr std::string_view kSections[] = {"",           "aio",        "activation_checkpointing",
                                            "checkpoint", "data_types", "optimizer",
                                            "scheduler",  "timers"};
  return std::ranges::find(kSections, section) != std::end(kSections);
}

// Of a name that no key has: what it may have been meant for, or where it belongs. "" for one that
// is like nothing known.
std::string near_text(std::string_view section, std::string_view name, const json& value) {
  // Of the file that starts a run, which people give for DeepSpeed's.
  for (const std::string_view launchers_key :
       {"compute_environment", "deepspeed_config", "distributed_type", "mixed_precision",
        "num_processes"}) {
    if (section.empty() && name == launchers_key)
      return "is of Accelerate's launcher; give the file that its deepspeed_config_file names";
  }
  constexpr std::size_t kLongestWord = 64;  // the search costs the product of the lengths
  if (name.size() > kLongestWord) return "";
  constexpr std::size_t kShortestWord = 4;  // something is always near a shorter one
  constexpr std::size_t kShortestElsewhere = 5;
  const bool is_short = name.size() < kShortestWord;
  std::vector<std::string_view> here;
  std::vector<std::string_view> anywhere;
  for (const Key& key : keys()) {
    for (const std::string_view known : {key.name(), key.also}) {
      if (known.empty() || (is_short && !known.starts_with(name.substr(0, 1)))) continue;
      if (is_like(key, value)) anywhere.push_back(known);
      if (key.section() == section && may_be_meant(key, value)) here.push_back(known);
    }
  }
  std::string text = "unknown key";
  std::string_view near_here = base::nearest_word(name, here);
  if (near_here.empty() && !is_short) near_here = longer_word(name, here);
  if (!near_here.empty()) text += "; did you mean " + quoted(near_here) + "?";
  if (const std::string elsewhere = sections_with(name); !elsewhere.empty()) {
    return text + (near_here.empty() ? "; " : " Or: ") + quoted(name) + " belongs in " + elsewhere;
  }
  if (!near_here.empty()) return text;
  const std::string_view near =
      name.size() < kShortestElsewhere ? std::string_view() : base::nearest_word(name, anywhere);
  if (near.empty()) return "";
  return text + "; did you mean " + quoted(near) + " in " + sections_with(near) + "?";
}

class Reader {
 public:
  Reader(Report& report, Settings& settings, Given& given, std::vector<NotServed>& not_served,
         const ReadOptions& options)
      : report_(report),
        settings_(settings),
        given_(given),
        not_served_(not_served),
        leave_auto_open_(options.leave_auto_open),
        strict_(options.strict) {}

  void read_section(std::string_view section, const json& object, const Path& path) {
    if (section == "optimizer") other_optimizer_ = names_another(object, is_served_optimizer);
    if (section == "scheduler") other_scheduler_ = names_another(object, is_served_scheduler);
    for (const Member& member : in_order_of_the_text(object, path)) {
      if (report_.full() || passed_ > kMostPassed) return;
      const auto& [order, name, value, member_path] = member;
      if (name->starts_with('_') || *name == "$schema") continue;  // notes to reader and editor
      if (const Key* key = find_key(section, *name)) {
        read_key(*key, *value, member_path);
      } else {
        read_unknown(section, *name, *value, member_path);
      }
    }
  }

 private:
  struct Member {
    std::size_t order;
    const std::string* name;
    const json* value;
    Path path;
  };
  // So that the faults that are kept are the first ones.
  std::vector<Member> in_order_of_the_text(const json& object, const Path& path) const {
    std::vector<Member> members;
    for (auto it = object.begin(); it != object.end(); ++it) {
      Path member = path.member(it.key());
      members.push_back({report_.order_of(member), &it.key(), &*it, std::move(member)});
    }
    std::ranges::stable_sort(members, {}, &Member::order);
    return members;
  }

  static bool is_served_optimizer(const std::string& type) {
    return rule_of(Given(), type).has_value();
  }
  static bool is_served_scheduler(const std::string& type) {
    const auto types = choices_of(*find_key("scheduler", "type"));
    return std::ranges::find(types, std::string_view(type)) != types.end();
  }
  static bool names_another(const json& object, bool (*is_served)(const std::string&)) {
    const auto type = object.find("type");
    return type != object.end() && type->is_string() && *type != "auto" &&
           !is_served(type->get_ref<const std::string&>());
  }

  void read_unknown(std::string_view section, const std::string& name, const json& value,
                    const Path& path) {
    // The type is refused; its constants are its own.
    if (section == "optimizer.params" ? other_optimizer_
                                      : section == "scheduler.params" && other_scheduler_)
      return;
    const std::string near = near_text(section, name, value);
    const bool passes = ignores_unknown_keys(section) && !strict_ &&
                        report_.order_of(path) != Report::kAfterTheText;
    if (!near.empty()) {
      report_.fault(path, near);
    } else if (!passes) {
      report_.fault(
          path, "unknown key; nothing known is spelt like it (docs/settings.md lists all keys)");
    } else if (++passed_ > kMostPassed) {
      report_.fault(path, "unknown key, and so are " + std::to_string(kMostPassed) +
                              " before it; this is no settings file. Name another");
    } else {
      report_.warn(path,
                   "unknown key: nothing follows it here, and DeepSpeed ignores it (a name that "
                   "starts with _ is a note)");
    }
  }

  void read_key(const Key& key, const json& value, const Path& path) {
    if (key.auto_is_unsaid && (value == "auto" || value.is_null())) return;
    if (!given_.add(key.path, {path, &value})) {
      report_.fault(path, "given twice, as " + quoted(key.name()) + " and as " + quoted(key.also) +
                              "; remove one");
      return;
    }
    if (value.is_null() && (key.nullable || key.off_by_default)) return;
    if (key.off_by_default && value == false) return;
    if (key.off_by_default && value.is_object() && value.contains("enabled") &&
        value["enabled"] == "auto") {
      take_auto(path.member("enabled"), "true or false");
      return;
    }
    if (key.path == "zero_optimization" && value.is_boolean()) {
      report_.warn(
          path,
          "true and false are DeepSpeed's old way to write a stage, which is not followed here; "
          "name a stage in an object, such as {\"stage\": 2}");
      return;
    }
    if (value == "auto" && key.kind != Kind::kSection && !takes_auto(key) &&
        key.status != Status::kNoEffect) {
      take_auto(path, allowed_text(key));
      return;
    }
    if (value != "auto" || key.honoured()) read_value(key, value, path, report_, settings_);
    if (key.kind == Kind::kSection && value.is_object()) read_section(key.path, value, path);
    if (!key.honoured()) not_served_.push_back({&key, {path, &value}});
  }

  void take_auto(const Path& path, const std::string& allowed) {
    if (leave_auto_open_) {
      settings_.open.push_back(path.dotted);
    } else {
      report_.fault(path,
                    "\"auto\" is for a trainer to fill in, and none did: give a value or leave the "
                    "key out; allowed: " +
                        allowed);
    }
  }

  static constexpr std::size_t kMostPassed = 100;

  Report& report_;
  Settings& settings_;
  Given& given_;
  std::size_t passed_ = 0;  // unknown keys that are only warned of
  std::vector<NotServed>& not_served_;
  const bool leave_auto_open_, strict_;
  bool other_optimizer_ = false, other_scheduler_ = false;  // than those that are served
};

// "auto", which a trainer fills in: what comes of it is the trainer's choice.
bool leaves_dtype_open(const json& root) {
  for (const char* path : {"fp16.enabled", "bf16.enabled", "bfloat16.enabled"}) {
    if (const json* value = find_in(root, path); value != nullptr && *value == "auto") return true;
  }
  return false;
}

std::vector<std::string> defaults_taken(const Given& given, const Settings& settings) {
  std::vector<std::string> lines;
  if (settings.parameter_dtype() == DType::kF32 && given.find("bf16.enabled") == nullptr) {
    lines.emplace_back(
        "neither bf16.enabled nor fp16.enabled is true: parameters are to be f32, as in DeepSpeed; "
        "for 16 bits set one of them");
  }
  const OptimizerSection& optimizer = settings.optimizer_section;
  if (optimizer.torch_adam.value_or(false) && !optimizer.type.empty() && !optimizer.weight_decay &&
      settings.optimizer == OptimizerRule::kAdamW) {
    lines.emplace_back(
        "optimizer.params.weight_decay is not given: 0.01 holds, torch.optim.AdamW's, as "
        "torch_adam "
        "is true (without it 0, DeepSpeed's own)");
  }
  for (const Key& key : keys()) {
    if (key.deepspeed_default.empty() || !key.honoured() || given.find(key.path) != nullptr)
      continue;
    if (key.section() == "fp16" && (!settings.fp16 || settings.loss_scaling.loss_scale != 0))
      continue;
    if (const std::string value = value_text(key, settings); !value.empty()) {
      lines.push_back(std::string(key.path) + " is not given: " + value +
                      " holds (DeepSpeed: " + std::string(key.deepspeed_default) + ")");
    }
  }
  return lines;
}

// DeepSpeed reads files with the hjson package, which has a program for this.
constexpr const char* kIfHjson =
    ". If all of the file is HJSON, this makes JSON of it: hjson -j FILE > NEW";

void throw_if_faulty(const Report& report) {
  if (!report.clean()) throw Error(Code::kSettings, report.faults_text());
}

Reading read(std::string_view text, const ReadOptions& options, Report& report) {
  Document document = parse_document(text, Syntax::kRelaxed);
  for (const TextFault& fault : document.faults)
    report.fault_at(fault.offset, fault.text + (fault.in_hjson ? kIfHjson : ""));
  if (!document.parsed) throw_if_faulty(report);
  if (!document.value.is_object()) {
    report.fault_at(document.start, found_text(document.value) + "; settings are an object {...}");
    throw_if_faulty(report);
  }
  report.use(document.offsets);
  apply_overrides(document.value, options.overrides, report);
  const bool dtype_is_open = leaves_dtype_open(document.value);
  fill_auto(document.value, options.for_auto, report);

  Reading reading;
  Given given;
  std::vector<NotServed> not_served;
  Reader(report, reading.settings, given, not_served, options).read_section("", document.value, {});
  if (!reading.settings.parameter_dtype() && !dtype_is_open) reading.settings.bf16 = false;
  check_together(given, report, reading.settings);
  refuse_not_served(not_served, report);
  throw_if_faulty(report);
  warn_of_not_served(not_served, reading.settings, report);
  reading.settings.warnings = report.warnings();
  reading.settings.defaults_taken = defaults_taken(given, reading.settings);
  for (const auto& [path, value] : given.all()) {
    reading.places[path] = report.place_of(value.path).text;
    if (std::ranges::find(reading.settings.open, value.path.dotted) != reading.settings.open.end())
      reading.open.insert(path);
  }
  return reading;
}
}  // namespace

Reading read_settings(std::string_view text, const std::string& origin,
                      const ReadOptions& options) {
  Report report(origin, text);
  return read(text, options, report);
}

void check_written(std::string_view text) {
  Report report("", text, false);
  read(text, {}, report);
}
}  // namespace headrace::settings

namespace headrace {
Settings Settings::from_json(std::string_view text, const std::string& origin,
                             const std::vector<std::string>& overrides) {
  return from_json(text, origin, ReadOptions{.overrides = overrides});
}

Settings Settings::from_json(std::string_view text, const std::string& origin,
                             const ReadOptions& options) {
  return settings::read_settings(text, origin, options).settings;
}
}  // namespace headrace
