// SPDX-License-Identifier: Apache-2.0
// convert.hpp: checkpoints of Headrace from DeepSpeed's universal ones, and universal ones from
// those of Headrace.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/files.hpp"
#include "headrace/error.hpp"
#include "headrace/optimizer.hpp"
#include "headrace/tensor.hpp"

namespace headrace::tools {
inline constexpr checkpoint::Caller kConverting{"headrace checkpoint convert",
                                                "nothing was converted"};
inline constexpr const char* kDeepSpeedVersion = "0.19.8";  // whose format this is

enum class CheckpointFormat : std::uint8_t { kHeadrace, kDeepSpeed };
// The type of a step count: DeepSpeed's own Adam takes a number, torch's a tensor.
enum class StepType : std::uint8_t { kNumber, kTensor };

struct ConvertOptions {
  std::string from, to;
  std::optional<CheckpointFormat> format = {};  // of `to`
  // Where the steps of parameters differ: the greatest for all.
  bool greatest_step = false;
  // To Headrace.
  std::optional<DType> dtype = {};         // of trained parameters, whatever the directory says
  std::optional<OptimizerRule> rule = {};  // kAdam or kAdamW, whatever the directory says
  std::optional<std::uint64_t> step = {};  // of all trained parameters
  std::vector<std::string> frozen = {};    // names: only their weights are taken
  // To DeepSpeed.
  StepType step_type = StepType::kNumber;
};

struct Converted {
  CheckpointFormat from = CheckpointFormat::kDeepSpeed;
  std::string folder;  // that was read
  std::string rule;
  std::uint64_t trained = 0, frozen = 0, elements = 0, step = 0, written_bytes = 0;
  std::vector<std::string> left_out;      // "scale: a buffer"
  std::vector<std::string> not_executed;  // "os.system": what pickles ask for and was not needed
};

// Throws headrace::Error: "cause; nothing was converted. help".
[[noreturn]] void refuse_conversion(Code code, const std::string& cause, const std::string& help);

// Writes the new folder options.to, complete or not at all. Holds a few MiB beside names and
// pickles.
// Throws command_line::Fault for options that contradict what is there, and headrace::Error.
Converted convert_checkpoint(const ConvertOptions& options);
}  // namespace headrace::tools
