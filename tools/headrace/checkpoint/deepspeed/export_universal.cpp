// SPDX-License-Identifier: Apache-2.0
//
// Every stage of ZeRO finds here what it reads:
//
//   zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt   all stages
//   zero/NAME/step.pt                              ZeRO-1 and 2: a step count for each parameter
//   zero/optimizer_state.pt                        ZeRO-3: one step count for all
//   mp_rank_00_model_states.pt                     ZeRO-1 and 2: what is not the optimizer's
//   zero_pp_rank_0_mp_rank_00_model_states.pt      ZeRO-3: the same
#include "checkpoint/deepspeed/export_universal.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error_text.hpp"
#include "base/sync_folder.hpp"
#include "checkpoint/chunk_sums.hpp"
#include "checkpoint/deepspeed/values.hpp"
#include "checkpoint/verified_files.hpp"
#include "command_line/words.hpp"
#include "headrace/error.hpp"
#include "pickle/pickle_writer.hpp"
#include "pickle/tensor_file_writer.hpp"
#include "program/progress.hpp"
#include "program/signals.hpp"
#include "swap/refusal.hpp"

namespace headrace::tools {
namespace {
namespace fs = std::filesystem;
using checkpoint::SavedParameter;
using pickle::PickleWriter;
using pickle::TensorFileWriter;
constexpr std::uint64_t kPartBytes = kPartElements * sizeof(float);
constexpr std::uint64_t kMostFloatSteps = std::uint64_t{1} << 24;  // f32 counts no further

void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return;
  const int error = errno;
  throw Error(swap::code_of(error),
              "cannot create " + path + ": " + base::errno_text(error) +
                  "; nothing was converted. " + swap::what_helps(error, "folder"),
              error);
}
void sync_folder(const std::string& path) {
  const int error = base::sync_folder(path);
  if (error == 0) return;
  throw Error(swap::code_of(error),
              "cannot sync " + path + ": " + base::errno_text(error) + "; nothing was converted. " +
                  swap::what_helps(error, "folder"),
              error);
}

// "'a' has step 1, 'b' 2"
void check_steps(const checkpoint::Manifest& manifest) {
  const SavedParameter* first = nullptr;
  for (const SavedParameter& one : manifest.parameters) {
    if (one.frozen) continue;
    if (first == nullptr) first = &one;
    if (one.step == first->step) continue;
    refuse_conversion(
        Code::kUnsupported,
        fmt::format("{} was updated {} times, {} {} times, and DeepSpeed has one count for all",
                    checkpoint::shown_name(first->name), first->step,
                    checkpoint::shown_name(one.name), one.step),
        "Give --step max to take the greatest, which changes the bias correction of the others.");
  }
}

void check_names(const checkpoint::Manifest& manifest) {
  for (const SavedParameter& one : manifest.parameters) {
    const std::string& name = one.name;
    if (!name.empty() && name != "." && name != ".." && name.size() <= 255 &&
        name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
        name != "optimizer_state.pt")
      continue;
    refuse_conversion(Code::kUnsupported,
                      "the parameter " + checkpoint::shown_name(name) +
                          " cannot be the name of a folder, as DeepSpeed's format has it",
                      "Register it by another name.");
  }
}

class Export {
 public:
  Export(const std::string& folder, const ConvertOptions& options)
      : options_(options), files_(folder, checkpoint::read_manifest(folder)) {
    done_.folder = folder;
  }

  Converted run() {
    check();
    checkpoint::NewFolder folder(options_.to, kConverting);
    path_ = folder.path();
    make_folder(path_ + "/zero");
    ProgressLine line;
    const auto& parameters = manifest().parameters;
    for (std::uint32_t i = 0; i < parameters.size(); ++i) {
      line.show(fmt::format("{} of {} parameters: {}", i, parameters.size(),
                            base::one_line(parameters[i].name, 200)));
      write_parameter(i);
    }
    write_optimizer_state();
    write_model_states("mp_rank_00_model_states.pt", true);
    write_model_states("zero_pp_rank_0_mp_rank_00_model_states.pt", false);
    sync_folder(path_ + "/zero");
    folder.finish();
    name_latest();
    return std::move(done_);
  }

 private:
  const checkpoint::Manifest& manifest() const { return files_.manifest(); }
  void check();
  void write_parameter(std::uint32_t parameter);
  void write_state(std::uint32_t parameter, const std::string& path, Content content);
  void write_step(const std::string& path);
  void write_optimizer_state();
  void write_model_states(const std::string& name, bool whole);
  void name_latest() const;
  // Appends all values of a tensor to a storage.
  void copy(std::uint32_t parameter, Content content, std::size_t storage, TensorFileWriter& to,
            bool widened = false);
  std::string pickled_model_states(bool whole) const;
  void add_parameters(PickleWriter& out, bool whole) const;
  void add_config(PickleWriter& out) const;
  void add_step(PickleWriter& out, std::size_t storage) const;
  std::vector<std::uint64_t> storages_of_step() const;
  void finish_step(TensorFileWriter& file) const;

  const ConvertOptions& options_;
  checkpoint::VerifiedFiles files_;
  std::string path_;
  Converted done_;
};

void Export::check() {
  done_.rule = manifest().rule;
  const auto rule = checkpoint::rule_named(manifest().rule);
  if (rule != OptimizerRule::kAdam && rule != OptimizerRule::kAdamW) {
    refuse_conversion(
        Code::kUnsupported,
        done_.folder + " was trained with " + manifest().rule +
            ", and DeepSpeed's universal format has the two moments of adam and adamw alone",
        "Take the weights from its model.safetensors.");
  }
  check_names(manifest());
  if (!options_.greatest_step) check_steps(manifest());
  for (const SavedParameter& one : manifest().parameters) {
    done_.elements += checkpoint::elements_of(one);
    ++(one.frozen ? done_.frozen : done_.trained);
    if (!one.frozen) done_.step = std::max(done_.step, one.step);
  }
  if (done_.trained == 0) {
    refuse_conversion(
        Code::kUnsupported,
        done_.folder + " has no trained parameters, so DeepSpeed's optimizer has nothing to load",
        "Take the weights from its model.safetensors.");
  }
  if (options_.step_type == StepType::kTensor && done_.step > kMostFloatSteps) {
    refuse_conversion(Code::kUnsupported,
                      fmt::format("torch keeps its step count in f32, which has no {}", done_.step),
                      "Give --step-type number, for DeepSpeed's own Adam.");
  }
  if (manifest().trainer_state)
    done_.left_out.push_back(std::string(checkpoint::kTrainerStateName) + ": the trainer's own");
}

void Export::copy(std::uint32_t parameter, Content content, std::size_t storage,
                  TensorFileWriter& to, bool widened) {
  const std::uint32_t tensor = files_.layout().tensor_of(parameter, content);
  const std::uint64_t size = files_.layout().tensors[tensor].size_bytes;
  std::vector<std::byte> bytes;
  std::vector<float> values;
  for (std::uint64_t at = 0; at < size; at += bytes.size()) {
    check_signal();
    bytes.resize(std::min(kPartBytes, size - at));
    files_.read(tensor, at, bytes);
    if (widened) widen(manifest().parameters[parameter].dtype, bytes, values);
    const auto written =
        widened ? std::as_bytes(std::span<const float>(values)) : std::span<const std::byte>(bytes);
    to.write(storage, written);
    done_.written_bytes += written.size();
  }
}

void Export::write_parameter(std::uint32_t i) {
  const SavedParameter& one = manifest().parameters[i];
  const std::string folder = path_ + "/zero/" + one.name;
  make_folder(folder);
  write_state(i, folder + "/fp32.pt", one.frozen ? Content::kWeight : Content::kMaster);
  if (!one.frozen) {
    write_state(i, folder + "/exp_avg.pt", Content::kExpAvg);
    write_state(i, folder + "/exp_avg_sq.pt", Content::kExpAvgSq);
    write_step(folder + "/step.pt");
  }
  sync_folder(folder);
}

// In f32, whatever a frozen weight has.
void Export::write_state(std::uint32_t i, const std::string& path, Content content) {
  const SavedParameter& one = manifest().parameters[i];
  PickleWriter out;
  out.dict([&] {
    out.text("param");
    out.tensor("F32", 0, one.shape);
  });
  TensorFileWriter file(path, out.finish(), {checkpoint::elements_of(one) * sizeof(float)},
                        kConverting);
  copy(i, content, 0, file, content == Content::kWeight);
  file.finish();
}

void Export::add_step(PickleWriter& out, std::size_t storage) const {
  if (options_.step_type == StepType::kNumber)
    out.integer(static_cast<std::int64_t>(done_.step));
  else
    out.tensor("F32", storage, {});
}
std::vector<std::uint64_t> Export::storages_of_step() const {
  if (options_.step_type == StepType::kNumber) return {};
  return {sizeof(float)};
}
void Export::finish_step(TensorFileWriter& file) const {
  const auto step = static_cast<float>(done_.step);
  if (options_.step_type == StepType::kTensor) file.write(0, std::as_bytes(std::span(&step, 1)));
  file.finish();
}

void Export::write_step(const std::string& path) {
  PickleWriter out;
  add_step(out, 0);
  TensorFileWriter file(path, out.finish(), storages_of_step(), kConverting);
  finish_step(file);
}

// Hyperparameters are not in a checkpoint of Headrace: those of DeepSpeed's configuration stay.
// ZeRO-1 and 2 load as many parameter groups as are listed here, and no engine has more groups than
// parameters.
void Export::write_optimizer_state() {
  PickleWriter out;
  const auto groups = [&] {
    out.text("param_groups");
    out.list([&] {
      for (std::uint64_t i = 0; i < done_.trained; ++i) {
        out.dict([&] {
          out.text("params");
          out.list([&] { out.integer(static_cast<std::int64_t>(i)); });
        });
      }
    });
  };
  out.dict([&] {
    out.text("ds_version");
    out.text(kDeepSpeedVersion);
    groups();
    out.text("optimizer_state_dict");
    out.dict([&] {
      groups();
      out.text("state");
      out.dict([&] {
        out.integer(0);
        out.dict([&] {
          out.text("step");
          add_step(out, 0);
        });
      });
    });
  });
  TensorFileWriter file(path_ + "/zero/optimizer_state.pt", out.finish(), storages_of_step(),
                        kConverting);
  finish_step(file);
}

// What says that weights decay as in AdamW, or not: DeepSpeed's configuration has the same.
void Export::add_config(PickleWriter& out) const {
  const bool is_adamw = checkpoint::rule_named(manifest().rule) == OptimizerRule::kAdamW;
  out.text("ds_config");
  out.dict([&] {
    out.text("optimizer");
    out.dict([&] {
      out.text("type");
      out.text(is_adamw ? "AdamW" : "Adam");
      out.text("params");
      out.dict([&] {
        out.text("adam_w_mode");
        out.boolean(is_adamw);
      });
    });
  });
}

// Each parameter's weight is the storage with its number. Not whole, as ZeRO-3 saves them: those of
// trained parameters are empty.
void Export::add_parameters(PickleWriter& out, bool whole) const {
  const auto& parameters = manifest().parameters;
  const std::vector<std::int64_t> none = {0};
  const auto for_each = [&](bool frozen, const auto& add) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].frozen != frozen) continue;
      out.text(parameters[i].name);
      add(i);
    }
  };
  const auto shape = [&](std::size_t i) { out.size(parameters[i].shape); };
  const auto weight = [&](std::size_t i) {
    const bool is_whole = whole || parameters[i].frozen;
    out.tensor(parameters[i].dtype, i, is_whole ? parameters[i].shape : none);
  };
  out.text("module");
  out.ordered_dict([&] {
    for_each(false, weight);
    for_each(true, weight);
  });
  out.text("param_shapes");
  out.list([&] { out.ordered_dict([&] { for_each(false, shape); }); });
  out.text("frozen_param_shapes");
  out.ordered_dict([&] { for_each(true, shape); });
  out.text("frozen_param_fragments");
  out.ordered_dict([&] { for_each(true, weight); });
}

std::string Export::pickled_model_states(bool whole) const {
  PickleWriter out;
  const auto number = [&](const char* key, std::uint64_t value) {
    out.text(key);
    out.integer(static_cast<std::int64_t>(value));
  };
  out.dict([&] {
    add_parameters(out, whole);
    add_config(out);
    out.text("buffer_names");
    out.list([] {});
    out.text("shared_params");
    out.dict([] {});
    for (const char* const key : {"optimizer", "lr_scheduler", "data_sampler", "random_ltd"}) {
      out.text(key);
      out.none();
    }
    number("global_steps", done_.step);
    number("skipped_steps", 0);
    number("dp_world_size", 1);
    number("mp_world_size", 1);
    out.text("ds_version");
    out.text(kDeepSpeedVersion);
  });
  return out.finish();
}

void Export::write_model_states(const std::string& name, bool whole) {
  const auto& parameters = manifest().parameters;
  std::vector<std::uint64_t> sizes;
  for (std::uint32_t i = 0; i < parameters.size(); ++i) {
    const std::uint32_t tensor = files_.layout().tensor_of(i, Content::kWeight);
    const bool is_whole = whole || parameters[i].frozen;
    sizes.push_back(is_whole ? files_.layout().tensors[tensor].size_bytes : 0);
  }
  TensorFileWriter file(path_ + "/" + name, pickled_model_states(whole), sizes, kConverting);
  for (std::uint32_t i = 0; i < parameters.size(); ++i)
    if (sizes[i] > 0) copy(i, Content::kWeight, i, file);
  file.finish();
}

// As ds_to_universal writes it, without a line feed.
void Export::name_latest() const {
  const fs::path to(options_.to);
  checkpoint::name_latest(options_.to, "latest_universal", to.filename().string(), kConverting);
}
}  // namespace

Converted export_universal(const std::string& folder, const ConvertOptions& options) {
  Converted done = Export(folder, options).run();
  done.from = CheckpointFormat::kHeadrace;
  return done;
}
}  // namespace headrace::tools
