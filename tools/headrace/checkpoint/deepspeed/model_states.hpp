// SPDX-License-Identifier: Apache-2.0
// model_states.hpp: what the files *_model_states.pt of a universal directory say of its
// parameters: names, shapes, dtypes, which are frozen, and the values of these.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headrace/optimizer.hpp"
#include "pickle/tensor_file.hpp"

namespace headrace::tools {
// A tensor in a file: all values of a parameter, or one rank's share of a frozen one.
struct TensorPart {
  pickle::TensorFile* file = nullptr;
  const pickle::PickledTensor* tensor = nullptr;
};
struct StatedParameter {
  std::string name;
  std::vector<std::int64_t> shape;  // of one of several tensor-parallel ranks: see `split`
  std::string dtype;                // empty: the files do not say
  std::uint64_t sub_group = 0;      // of ZeRO-3
  bool frozen = false;
  std::vector<TensorPart> parts;  // of a frozen one, in order
};

class ModelStates {
 public:
  // All files of the directory. Throws pickle::Fault and headrace::Error.
  explicit ModelStates(const std::string& folder);

  // Trained ones first, in DeepSpeed's order.
  const std::vector<StatedParameter>& parameters() const noexcept { return parameters_; }
  // Names that are no parameters of Headrace: "a buffer", "the same as embed.weight", "a tensor of
  // 9 U8 values".
  const std::map<std::string, std::string>& others() const noexcept { return others_; }
  // The rule by ds_config, if it names one.
  std::optional<OptimizerRule> rule() const;
  // With several tensor-parallel ranks, shapes are those of a part.
  bool split() const noexcept { return split_; }
  std::vector<std::string> unknown() const;

 private:
  void open(const std::string& folder);
  void read(pickle::TensorFile& file);
  void read_trained(pickle::TensorFile& file, const pickle::Value& root);
  void read_others(pickle::TensorFile& file, const pickle::Value& root);
  void read_frozen(pickle::TensorFile& file, const pickle::Value& root);
  void read_module(pickle::TensorFile& file, const pickle::Value& module);
  void add_frozen(pickle::TensorFile& file, const std::string& name,
                  const pickle::PickledTensor& tensor);
  void add_shares(const std::string& folder);
  StatedParameter* find(const std::string& name);
  StatedParameter& add(const std::string& name, const pickle::TensorFile& file,
                       const pickle::Value& shape);

  std::vector<std::unique_ptr<pickle::TensorFile>> files_;   // those that are read first
  std::vector<std::unique_ptr<pickle::TensorFile>> shares_;  // of the other ranks of ZeRO-3
  std::vector<StatedParameter> parameters_;
  std::map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> others_;
  bool split_ = false;
};
}  // namespace headrace::tools
