// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/deepspeed/import_universal.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "checkpoint/deepspeed/model_states.hpp"
#include "checkpoint/deepspeed/optimizer_state.hpp"
#include "checkpoint/deepspeed/values.hpp"
#include "checkpoint/written_files.hpp"
#include "headrace/checkpoint.hpp"
#include "headrace/error.hpp"
#include "pickle/fault.hpp"
#include "program/progress.hpp"
#include "program/signals.hpp"

namespace headrace::tools {
namespace {
namespace fs = std::filesystem;
using checkpoint::SavedParameter;
using pickle::Kind;
using pickle::PickledTensor;
using pickle::TensorFile;
using pickle::Value;

// Hands out the values of parts, one after the other, `elements` in all, as f32.
template <class Take>
void for_values(const std::vector<TensorPart>& parts, std::uint64_t elements, const Take& take) {
  std::vector<std::byte> bytes;
  std::vector<float> values;
  std::uint64_t done = 0;
  for (const TensorPart& part : parts) {
    const std::uint64_t size = part.tensor->element_bytes(),
                        count = std::min(part.tensor->elements(), elements - done);
    for (std::uint64_t at = 0; at < count; at += values.size()) {
      check_signal();
      bytes.resize(std::min(kPartElements, count - at) * size);
      part.file->read(*part.tensor, at * size, bytes);
      widen(part.tensor->dtype, bytes, values);
      take(done + at, std::span<const float>(values));
    }
    done += count;
  }
}

// zero/NAME/KIND.pt: the tensor itself, or a dict that has it as "param" beside how
// tensor-parallel ranks divided it.
class StateFile {
 public:
  StateFile(const std::string& folder, const std::string& name, const std::string& kind)
      : file_(folder + "/zero/" + name + "/" + kind + ".pt") {
    const Value* value = &file_.root();
    if (value->is(Kind::kDict)) {
      shaped_ = true;
      value = value->find("param");
      if (value == nullptr) file_.refuse("its dict has no tensor 'param'");
    }
    tensor_ = &file_.tensor(*value, "its tensor");
    if (!widens(tensor_->dtype))
      file_.refuse("its dtype is " + std::string(tensor_->dtype) + ", not f32, bf16 or f16");
  }
  const PickledTensor& tensor() const { return *tensor_; }
  bool shaped() const { return shaped_; }
  TensorPart part() { return {&file_, tensor_}; }
  void expect_elements(std::uint64_t elements) const {
    if (tensor_->elements() == elements) return;
    file_.refuse(
        fmt::format("its tensor has {} elements, its parameter {}", tensor_->elements(), elements));
  }
  [[noreturn]] void refuse(const std::string& cause) const { file_.refuse(cause); }
  const TensorFile& file() const { return file_; }
  const auto& unknown() const { return file_.unknown(); }

 private:
  TensorFile file_;
  const PickledTensor* tensor_ = nullptr;
  bool shaped_ = false;
};

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 48;  // as a manifest has it

// Of a shape that a file names.
void check_sizes(const TensorFile& file, const std::string& name,
                 const std::vector<std::int64_t>& shape) {
  if (shape.size() > pickle::kMostDimensions) file.refuse(name + " has more than 64 dimensions");
  std::uint64_t elements = 1;
  for (const std::int64_t size : shape) {
    const auto times = static_cast<std::uint64_t>(size);
    if (size < 1) file.refuse(name + " has a dimension of " + std::to_string(size));
    if (elements > kMostElements / times) file.refuse(name + " has more than 2^48 elements");
    elements *= times;
  }
}

class Import {
 public:
  Import(std::string folder, const ConvertOptions& options)
      : folder_(std::move(folder)), options_(options), stated_(folder_), state_(folder_) {}

  Converted run() {
    find_rule();
    for (const std::string& name : options_.frozen) require_parameter(name);
    for (const StatedParameter& one : stated_.parameters()) add(one);
    even_steps();
    name_others();
    write();
    return std::move(done_);
  }

 private:
  void find_rule();
  void require_parameter(const std::string& name) const;
  void add(const StatedParameter& stated);
  void add_trained(const StatedParameter& stated, SavedParameter& saved);
  std::string dtype_of(const StatedParameter& stated) const;
  std::uint64_t step_count(const StatedParameter& stated);
  void check_shape(const SavedParameter& saved, const StatedParameter& stated,
                   const StateFile& master) const;
  void check_frozen(const StatedParameter& stated, const SavedParameter& saved) const;
  void even_steps();
  void name_others();
  void write();
  void write_frozen(std::uint32_t parameter, checkpoint::WrittenFiles& files);
  void write_trained(std::uint32_t parameter, checkpoint::WrittenFiles& files);
  void write_moment(std::uint32_t parameter, Content content, checkpoint::WrittenFiles& files);
  bool is_named_frozen(const std::string& name) const {
    return std::ranges::find(options_.frozen, name) != options_.frozen.end();
  }
  std::string state_path(const std::string& name, const std::string& kind) const {
    return folder_ + "/zero/" + name + "/" + kind + ".pt";
  }

  const std::string folder_;
  const ConvertOptions& options_;
  ModelStates stated_;
  OptimizerState state_;
  OptimizerRule rule_ = OptimizerRule::kAdamW;
  checkpoint::Manifest manifest_;
  std::vector<const StatedParameter*> sources_;  // by parameter of the manifest
  std::set<std::string> not_executed_;
  Converted done_;
};

void Import::find_rule() {
  const auto rule = options_.rule ? options_.rule : stated_.rule() ? stated_.rule() : state_.rule();
  if (!rule) {
    refuse_conversion(Code::kUnsupported,
                      folder_ + " does not say by which rule it was trained, adam or adamw",
                      "Give --optimizer with one of the two.");
  }
  rule_ = *rule;
  manifest_.rule = done_.rule = headrace::name_of(rule_);
  manifest_.moments = headrace::name_of(MomentCodec::kF32);
}

void Import::require_parameter(const std::string& name) const {
  const auto& all = stated_.parameters();
  if (std::ranges::find(all, name, &StatedParameter::name) != all.end()) return;
  refuse_conversion(Code::kInvalidArgument,
                    "--frozen " + base::one_line(name) + ": " + folder_ + " has no such parameter",
                    "Leave it out.");
}

void Import::add(const StatedParameter& stated) {
  SavedParameter saved{
      stated.name, {}, stated.shape, stated.frozen || is_named_frozen(stated.name), 0};
  if (stated.frozen) {
    saved.dtype = stated.dtype;
    check_frozen(stated, saved);
  } else {
    add_trained(stated, saved);
  }
  done_.elements += checkpoint::elements_of(saved);
  ++(saved.frozen ? done_.frozen : done_.trained);
  manifest_.parameters.push_back(std::move(saved));
  sources_.push_back(&stated);
}

void Import::add_trained(const StatedParameter& stated, SavedParameter& saved) {
  saved.dtype = dtype_of(stated);
  const StateFile master(folder_, stated.name, "fp32");
  not_executed_.insert(master.unknown().begin(), master.unknown().end());
  if (master.shaped()) {
    saved.shape.clear();
    for (const std::uint64_t size : master.tensor().shape)
      saved.shape.push_back(static_cast<std::int64_t>(size));
  }
  check_shape(saved, stated, master);
  if (saved.frozen) return;
  for (const char* const kind : {"exp_avg", "exp_avg_sq"}) {
    std::error_code ignored;
    if (!fs::exists(state_path(stated.name, kind), ignored)) {
      refuse_conversion(Code::kNotFound, state_path(stated.name, kind) + " is not there",
                        "If the parameter was not trained, give --frozen " + stated.name + ".");
    }
    const StateFile moment(folder_, stated.name, kind);
    moment.expect_elements(checkpoint::elements_of(saved));
    not_executed_.insert(moment.unknown().begin(), moment.unknown().end());
  }
  saved.step = step_count(stated);
}

std::string Import::dtype_of(const StatedParameter& stated) const {
  const std::string dtype = options_.dtype ? headrace::name_of(*options_.dtype) : stated.dtype;
  if (widens(dtype)) return dtype;
  refuse_conversion(Code::kUnsupported,
                    folder_ + (dtype.empty() ? " does not say which dtype '" + stated.name + "' has"
                                             : ": '" + stated.name + "' has dtype " + dtype),
                    "Give --dtype with bf16, f16 or f32, the one in which it is to be trained on.");
}

void Import::check_shape(const SavedParameter& saved, const StatedParameter& stated,
                         const StateFile& master) const {
  check_sizes(master.file(), "its parameter", saved.shape);
  master.expect_elements(checkpoint::elements_of(saved));
  if (stated_.split() || saved.shape == stated.shape) return;
  master.refuse("its tensor has the shape " + nlohmann::json(saved.shape).dump() +
                ", its parameter " + nlohmann::json(stated.shape).dump());
}

void Import::check_frozen(const StatedParameter& stated, const SavedParameter& saved) const {
  const TensorFile& file = *stated.parts[0].file;
  const std::string name = "the frozen '" + stated.name + "'";
  if (!widens(saved.dtype)) {
    refuse_conversion(Code::kUnsupported, file.path() + ": " + name + " has dtype " + saved.dtype,
                      "Headrace has f32, bf16 and f16.");
  }
  std::uint64_t there = 0;
  for (const TensorPart& part : stated.parts) {
    if (part.tensor->dtype != saved.dtype) file.refuse(name + " has several dtypes");
    there += part.tensor->elements();
  }
  check_sizes(file, name, saved.shape);
  if (stated_.split()) {
    refuse_conversion(Code::kUnsupported,
                      file.path() + ": " + name + " is divided among tensor-parallel ranks",
                      "Save it with one of them.");
  }
  // Shares are of one size, so the last ones may be padded.
  const std::uint64_t elements = checkpoint::elements_of(saved);
  if (there < elements || there - elements >= stated.parts.size())
    file.refuse(fmt::format("{} has {} of its {} elements", name, there, elements));
}

std::uint64_t Import::step_count(const StatedParameter& stated) {
  if (options_.step) return *options_.step;
  const std::string path = state_path(stated.name, "step");
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    TensorFile file(path);
    return step_of(file, file.root(), "its step");
  }
  if (const auto step = state_.step(stated.sub_group)) return *step;
  refuse_conversion(Code::kUnsupported, folder_ + " has no step count of '" + stated.name + "'",
                    "Give --step with the number of updates that were made.");
}

// Each parameter has a step count of its own here, so unequal ones need no decision.
void Import::even_steps() {
  for (const SavedParameter& one : manifest_.parameters)
    done_.step = std::max(done_.step, one.step);
  if (!options_.greatest_step) return;
  for (SavedParameter& one : manifest_.parameters)
    if (!one.frozen) one.step = done_.step;
}

// What is in the folder zero is known, or the parameters are not all there.
void Import::name_others() {
  std::set<std::string> known;
  for (const SavedParameter& one : manifest_.parameters) known.insert(one.name);
  for (const auto& [name, what] : stated_.others())
    if (!known.contains(name)) done_.left_out.push_back(base::one_line(name, 200) + ": " + what);
  for (const auto& entry : fs::directory_iterator(folder_ + "/zero")) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory() || known.contains(name) || stated_.others().contains(name)) continue;
    refuse_conversion(Code::kCorrupt,
                      entry.path().string() + " belongs to no parameter of *_model_states.pt",
                      "Run ds_to_universal again, or remove what does not belong there.");
  }
  for (const auto& names : {stated_.unknown(), state_.unknown()})
    not_executed_.insert(names.begin(), names.end());
  done_.not_executed.assign(not_executed_.begin(), not_executed_.end());
}

void Import::write() {
  checkpoint::assign_files(manifest_, rule_, SaveOptions{}.file_bytes);
  checkpoint::NewFolder folder(options_.to, kConverting);
  checkpoint::WrittenFiles files(manifest_, options_.to, kConverting);
  files.create(folder.path());
  ProgressLine line;
  for (std::uint32_t i = 0; i < sources_.size(); ++i) {
    line.show(fmt::format("{} of {} parameters: {}", i, sources_.size(),
                          base::one_line(sources_[i]->name, 200)));
    if (sources_[i]->frozen)
      write_frozen(i, files);
    else
      write_trained(i, files);
  }
  files.write_steps_and_indexes();
  files.sync();
  files.write_manifest();
  for (const auto& file : files.layout().files) done_.written_bytes += file.size_bytes;
  folder.finish();
}

void Import::write_frozen(std::uint32_t i, checkpoint::WrittenFiles& files) {
  const SavedParameter& saved = manifest_.parameters[i];
  std::vector<std::byte> bytes;
  const std::uint32_t tensor = files.layout().tensor_of(i, Content::kWeight);
  for_values(sources_[i]->parts, checkpoint::elements_of(saved),
             [&](std::uint64_t at, std::span<const float> values) {
               round_to(saved.dtype, values, bytes);
               files.write(tensor, at * (bytes.size() / values.size()), bytes);
             });
}

void Import::write_trained(std::uint32_t i, checkpoint::WrittenFiles& files) {
  const SavedParameter& saved = manifest_.parameters[i];
  const std::uint32_t weight = files.layout().tensor_of(i, Content::kWeight),
                      master = files.layout().tensor_of(i, Content::kMaster);
  StateFile file(folder_, saved.name, "fp32");
  file.expect_elements(checkpoint::elements_of(saved));
  std::vector<std::byte> bytes;
  for_values({file.part()}, checkpoint::elements_of(saved),
             [&](std::uint64_t at, std::span<const float> values) {
               round_to(saved.dtype, values, bytes);
               files.write(weight, at * (bytes.size() / values.size()), bytes);
               if (!saved.frozen) files.write(master, at * sizeof(float), std::as_bytes(values));
             });
  if (saved.frozen) return;
  write_moment(i, Content::kExpAvg, files);
  write_moment(i, Content::kExpAvgSq, files);
}

void Import::write_moment(std::uint32_t i, Content content, checkpoint::WrittenFiles& files) {
  const SavedParameter& saved = manifest_.parameters[i];
  StateFile file(folder_, saved.name, content == Content::kExpAvg ? "exp_avg" : "exp_avg_sq");
  file.expect_elements(checkpoint::elements_of(saved));
  const std::uint32_t tensor = files.layout().tensor_of(i, content);
  for_values({file.part()}, checkpoint::elements_of(saved),
             [&](std::uint64_t at, std::span<const float> values) {
               files.write(tensor, at * sizeof(float), std::as_bytes(values));
             });
}
}  // namespace

Converted import_universal(const std::string& folder, const ConvertOptions& options) {
  Converted done = Import(folder, options).run();
  done.from = CheckpointFormat::kDeepSpeed;
  done.folder = folder;
  return done;
}
}  // namespace headrace::tools
