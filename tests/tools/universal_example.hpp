// SPDX-License-Identifier: Apache-2.0
// universal_example.hpp: small universal directories as ds_to_universal makes them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/deepspeed/values.hpp"
#include "pickle/pickle_writer.hpp"
#include "pickle/tensor_file_writer.hpp"

namespace headrace::tools {
// A file of one tensor: flat, or as a dict has it.
inline void write_tensor(const std::string& path, const std::string& dtype,
                         const std::vector<std::int64_t>& shape, bool in_dict,
                         const std::vector<float>& values) {
  pickle::PickleWriter out;
  const auto add = [&] { out.tensor(dtype, 0, shape); };
  if (in_dict) {
    out.dict([&] {
      out.text("param");
      add();
      out.text("cat_dim");
      out.integer(0);
    });
  } else {
    add();
  }
  std::vector<std::byte> bytes;
  round_to(dtype, values, bytes);
  pickle::TensorFileWriter file(path, out.finish(), {bytes.size()}, checkpoint::kSaving);
  file.write(0, bytes);
  file.finish();
}

enum class StepPlace { kNumberFiles, kTensorFiles, kOptimizerState, kFractions, kNowhere };

struct UniversalExample {
  struct Parameter {
    std::string name, dtype;
    std::vector<std::int64_t> shape;
    std::vector<float> values;  // moments are twice and three times these
  };
  std::vector<Parameter> parameters, frozen;
  std::vector<Parameter> unlisted;  // frozen ones that only the module has, as with ZeRO-1
  std::string extra_state;          // a name whose value is no tensor
  std::vector<std::string> buffers;
  std::vector<std::pair<std::string, std::string>> shared;  // a second name, and the first
  std::vector<std::string> model_files = {"mp_rank_00_model_states.pt"};
  bool flat = false;  // tensors without shape, as of ZeRO-3
  StepPlace steps = StepPlace::kTensorFiles;
  std::string optimizer = "AdamW";
  std::optional<bool> adam_w_mode, decoupled;
  std::int64_t step = 7;

  void write(const std::string& folder) const {
    for (const Parameter& one : parameters) {
      const std::string below = folder + "/zero/" + one.name;
      std::filesystem::create_directories(below);
      const std::vector<std::int64_t> none = {static_cast<std::int64_t>(one.values.size())};
      float times = 1;
      for (const char* const kind : {"fp32", "exp_avg", "exp_avg_sq"}) {
        std::vector<float> values = one.values;
        for (float& value : values) value *= times;
        times += 1;
        write_tensor(below + "/" + kind + ".pt", "F32", flat ? none : one.shape, !flat, values);
      }
      write_step(below + "/step.pt");
    }
    write_optimizer_state(folder + "/zero/optimizer_state.pt");
    write_model_states(folder);
  }

  void write_step(const std::string& path) const {
    if (steps == StepPlace::kTensorFiles)
      write_tensor(path, "F32", {}, false, {static_cast<float>(step)});
    if (steps == StepPlace::kFractions) write_tensor(path, "F32", {}, false, {0.5f});
    if (steps != StepPlace::kNumberFiles) return;
    pickle::PickleWriter out;
    out.integer(step);
    pickle::TensorFileWriter(path, out.finish(), {}, checkpoint::kSaving).finish();
  }

  void write_optimizer_state(const std::string& path) const {
    pickle::PickleWriter out;
    out.dict([&] {
      out.text("param_groups");
      out.list([&] {
        out.dict([&] {
          out.text("amsgrad");
          out.boolean(false);
          if (!decoupled) return;
          out.text("decoupled_weight_decay");
          out.boolean(*decoupled);
        });
      });
      if (steps != StepPlace::kOptimizerState) return;
      out.text("optimizer_state_dict");
      out.dict([&] {
        out.text("state");
        out.dict([&] {
          out.integer(0);
          out.dict([&] {
            out.text("step");
            out.integer(step);
          });
        });
      });
    });
    pickle::TensorFileWriter(path, out.finish(), {}, checkpoint::kSaving).finish();
  }

  // The frozen ones' values are divided among the files.
  void write_model_states(const std::string& folder) const {
    for (std::size_t rank = 0; rank < model_files.size(); ++rank) {
      std::vector<std::vector<std::byte>> storages;
      const std::string pickle = model_states(rank, storages);
      std::vector<std::uint64_t> sizes;
      for (const auto& storage : storages) sizes.push_back(storage.size());
      std::filesystem::remove(folder + "/" + model_files[rank]);
      pickle::TensorFileWriter file(folder + "/" + model_files[rank], pickle, sizes,
                                    checkpoint::kSaving);
      for (std::size_t i = 0; i < storages.size(); ++i) file.write(i, storages[i]);
      file.finish();
    }
  }

  std::string model_states(std::size_t rank, std::vector<std::vector<std::byte>>& storages) const {
    pickle::PickleWriter out;
    const auto shapes = [&](const std::vector<Parameter>& some) {
      out.ordered_dict([&] {
        for (const Parameter& one : some) {
          out.text(one.name);
          out.size(one.shape);
        }
      });
    };
    out.dict([&] {
      out.text("module");
      out.ordered_dict([&] {
        for (const Parameter& one : parameters) {
          if (one.dtype.empty()) continue;
          out.text(one.name);
          out.tensor(one.dtype, storages.size(), std::vector<std::int64_t>{0});
          storages.emplace_back();
        }
        for (const Parameter& one : unlisted) {
          out.text(one.name);
          out.tensor(one.dtype, storages.size(), one.shape);
          round_to(one.dtype, one.values, storages.emplace_back());
        }
        if (extra_state.empty()) return;
        out.text(extra_state);
        out.list([] {});
      });
      out.text("param_shapes");
      out.list([&] { shapes(parameters); });
      out.text("frozen_param_shapes");
      shapes(frozen);
      out.text("frozen_param_fragments");
      out.ordered_dict([&] { add_shares(rank, out, storages); });
      out.text("buffer_names");
      out.list([&] {
        for (const std::string& name : buffers) out.text(name);
      });
      out.text("shared_params");
      out.dict([&] {
        for (const auto& [name, first] : shared) {
          out.text(name);
          out.text(first);
        }
      });
      add_config(out);
    });
    return out.finish();
  }

  void add_shares(std::size_t rank, pickle::PickleWriter& out,
                  std::vector<std::vector<std::byte>>& storages) const {
    for (const Parameter& one : frozen) {
      const std::size_t count = one.values.size() / model_files.size();
      const std::vector<std::int64_t> size = {static_cast<std::int64_t>(count)};
      out.text(one.name);
      out.tensor(one.dtype, storages.size(), size);
      round_to(one.dtype, std::span(one.values).subspan(rank * count, count),
               storages.emplace_back());
    }
  }

  void add_config(pickle::PickleWriter& out) const {
    if (optimizer.empty()) return;
    out.text("ds_config");
    out.dict([&] {
      out.text("optimizer");
      out.dict([&] {
        out.text("type");
        out.text(optimizer);
        if (!adam_w_mode) return;
        out.text("params");
        out.dict([&] {
          out.text("adam_w_mode");
          out.boolean(*adam_w_mode);
        });
      });
    });
  }
};
}  // namespace headrace::tools
