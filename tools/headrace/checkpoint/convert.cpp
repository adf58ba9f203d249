// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/convert.hpp"

#include <filesystem>
#include <fstream>

#include "base/error_text.hpp"
#include "checkpoint/deepspeed/export_universal.hpp"
#include "checkpoint/deepspeed/import_universal.hpp"
#include "checkpoint/manifest.hpp"
#include "command_line/words.hpp"
#include "headrace/error.hpp"
#include "pickle/fault.hpp"

namespace headrace::tools {
namespace {
namespace fs = std::filesystem;

bool has_manifest(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(folder + "/" + checkpoint::kManifestName, ignored);
}
bool is_universal(const std::string& folder) {
  std::error_code ignored;
  return fs::is_directory(folder + "/zero", ignored);
}
// "<directory>/NAME" by the file that names one of the folders in it; empty if it names none.
std::string named_in(const std::string& directory, const std::string& file) {
  std::string name;
  std::ifstream in(directory + "/" + file, std::ios::binary);
  std::getline(in, name);
  const bool plain = !name.empty() && name.size() < 256 && name != "." && name != ".." &&
                     name.find('/') == std::string::npos;
  return plain ? directory + "/" + name : std::string();
}

// A checkpoint that DeepSpeed has saved, before ds_to_universal.
bool is_native(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().ends_with("_optim_states.pt")) return true;
  return false;
}

struct Source {
  CheckpointFormat format;
  std::string folder;
};

[[noreturn]] void refuse_source(const std::string& from) {
  for (const std::string& folder : {from, named_in(from, "latest")}) {
    if (folder.empty() || !is_native(folder)) continue;
    throw Error(Code::kUnsupported,
                folder +
                    " is a DeepSpeed checkpoint for its own number of ranks, not a universal one; "
                    "nothing was converted. Convert it first: python -m "
                    "deepspeed.checkpoint.ds_to_universal --inject_missing_state --input_folder " +
                    folder + " --output_folder " + folder + "_universal");
  }
  std::error_code ignored;
  throw Error(Code::kNotFound,
              from +
                  (fs::is_directory(from, ignored)
                       ? " is neither a checkpoint of Headrace, which has manifest.json, nor a "
                         "universal one of DeepSpeed, which has the folder zero"
                       : " is not a directory") +
                  "; nothing was converted. Name one that save_checkpoint() or ds_to_universal has "
                  "made.");
}

Source source_of(const std::string& from) {
  const std::string ours = has_manifest(from) ? from : named_in(from, checkpoint::kLatestName);
  const std::string theirs = is_universal(from) ? from : named_in(from, "latest_universal");
  const bool is_ours = !ours.empty() && has_manifest(ours);
  const bool is_theirs = !theirs.empty() && is_universal(theirs);
  if (is_ours && is_theirs) {
    throw command_line::Fault{from + " has a checkpoint of Headrace and one of DeepSpeed",
                              "Name the folder of one of them"};
  }
  if (is_ours) return {CheckpointFormat::kHeadrace, ours};
  if (is_theirs) return {CheckpointFormat::kDeepSpeed, theirs};
  refuse_source(from);
}

void check_target(const ConvertOptions& options, const Source& source) {
  const bool imports = source.format == CheckpointFormat::kDeepSpeed;
  if (options.format == source.format) {
    throw command_line::Fault{"--to " + std::string(imports ? "deepspeed" : "headrace") + ": " +
                                  source.folder + " has this format already",
                              "Leave out --to"};
  }
  const char* const ours = "is for checkpoints that become Headrace's";
  const auto refuse = [](const char* option, const char* why) {
    throw command_line::Fault{std::string(option) + " " + why, "Leave it out"};
  };
  if (!imports && options.dtype) refuse("--dtype", ours);
  if (!imports && options.rule) refuse("--optimizer", ours);
  if (!imports && options.step) refuse("--step with a number", ours);
  if (!imports && !options.frozen.empty()) refuse("--frozen", ours);
  if (imports && options.step_type != StepType::kNumber)
    refuse("--step-type", "is for checkpoints that become DeepSpeed's");
}
}  // namespace

void refuse_conversion(Code code, const std::string& cause, const std::string& help) {
  throw Error(code, cause + "; nothing was converted. " + help);
}

Converted convert_checkpoint(const ConvertOptions& named) {
  ConvertOptions options = named;
  options.from = checkpoint::without_slashes(named.from);
  options.to = checkpoint::without_slashes(named.to);
  const Source source = source_of(options.from);
  check_target(options, source);
  try {
    return source.format == CheckpointFormat::kDeepSpeed ? import_universal(source.folder, options)
                                                         : export_universal(source.folder, options);
  } catch (const pickle::Fault& fault) {
    const std::string help = fault.help().empty()
                                 ? "Copy the directory again, or run ds_to_universal again."
                                 : fault.help();
    throw Error(fault.code(), std::string(fault.what()) + "; nothing was converted. " + help,
                fault.sys_errno());
  } catch (const checkpoint::Refusal& error) {
    throw Error(error.code(), source.folder + ": " + error.cause() +
                                  "; nothing was converted. Take another checkpoint.");
  }
}
}  // namespace headrace::tools
