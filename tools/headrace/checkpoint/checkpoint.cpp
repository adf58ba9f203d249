// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "checkpoint/convert.hpp"
#include "checkpoint/damage.hpp"
#include "checkpoint/facts.hpp"
#include "checkpoint/join.hpp"
#include "checkpoint/place.hpp"
#include "command_line/command_line.hpp"
#include "command_line/quantities.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/report_parts.hpp"
#include "program/signals.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kCheckpointProgram = "headrace checkpoint";
constexpr const char* kCheckpointDescription =
    "What save_checkpoint() has made.\n\n"
    "  inspect DIR      what it holds: rule, parameters, steps, files; --tensors: every tensor\n"
    "  verify DIR       compares every byte with its checksum, and names all that is damaged\n"
    "  convert FROM TO  makes TO, a checkpoint, from FROM, a universal one of DeepSpeed; or a\n"
    "                   universal one from a checkpoint. Runs nothing that a pickle asks for\n"
    "  join FROM TO     makes TO, a checkpoint, from the checkpoint FROM: its weights in one "
    "file,\n"
    "                   its states in one file, or in files of --file-bytes. Verifies every "
    "byte\n\n"
    "DIR is a checkpoint, or a folder with several: then inspect and verify list them, and the "
    "file\n"
    "`latest` in it chooses one. Inspect and verify only read.\n";
constexpr const char* kCheckpointFooter =
    "\nExit codes: 0 done, 1 the checkpoint is damaged or the run failed, 2 refused before it "
    "started,\n128+n ended by signal n.\n";

struct CheckpointOptions {
  std::vector<std::string> words;  // the action and its folders
  std::string json;
  bool tensors = false;
  ConvertOptions convert;
  JoinOptions join;
  // Options that were given and are for one action alone: its name and theirs.
  std::vector<std::pair<std::string, std::string>> for_one;
  const std::string& action() const { return words[0]; }
  bool makes_a_folder() const { return action() == "convert" || action() == "join"; }
};

// ---- what is in a folder ----

std::string listed_text(const std::string& directory, const CheckpointPlace& place) {
  if (place.listed.empty() && !place.latest) return "";
  std::string text = fmt::format("{}:\n", directory);
  for (const ListedFolder& one : place.listed) {
    text += fmt::format("  {}: {}", base::one_line(one.name, 200), one.state);
    if (!one.steps.empty()) text += ", " + one.steps;
    if (one.size_bytes) text += ", " + base::format_bytes(*one.size_bytes);
    if (!one.why.empty()) text += ": " + one.why;
    text += "\n";
  }
  if (place.latest) text += fmt::format("  latest names {}\n", base::one_line(*place.latest));
  return text;
}

Json listed_json(const CheckpointPlace& place) {
  Json json = Json::array();
  for (const ListedFolder& one : place.listed) {
    json.push_back({{"name", one.name},
                    {"state", one.state},
                    {"steps", one.steps},
                    {"size_bytes", one.size_bytes ? Json(*one.size_bytes) : Json()},
                    {"why", one.why}});
  }
  return json;
}

bool lists_damage(const CheckpointPlace& place) {
  for (const ListedFolder& one : place.listed)
    if (one.state == "damaged") return true;
  return false;
}

// ---- inspect ----

int inspect_one(const CheckpointOptions& o, const std::string& folder, std::FILE* out,
                Json& report) {
  try {
    const OpenCheckpoint open = open_checkpoint(folder);
    const CheckpointFacts facts = facts_of(open);
    print_to(out, "{}:\n{}", folder, facts_text(open, facts));
    if (o.tensors) print_to(out, "{}", tensors_text(open));
    report["checkpoint"] = facts_json(open, facts);
    if (o.tensors) report["checkpoint"]["tensors"] = tensors_json(open);
    return facts.whole_lengths() ? kDone : kFailed;
  } catch (const checkpoint::Refusal& error) {
    throw Error(error.code(),
                folder + ": " + error.cause() + "; nothing is shown. Take another checkpoint.");
  }
}

// ---- verify ----

Json damage_json(const VerifiedCheckpoint& found) {
  Json json = Json::array();
  for (const CheckpointDamage& damage : found.damage) {
    json.push_back({{"file", damage.file},
                    {"tensor", damage.tensor.empty() ? Json() : Json(damage.tensor)},
                    {"begin_byte", damage.begin_byte},
                    {"end_byte", damage.end_byte},
                    {"what", damage.what}});
  }
  return json;
}

VerifiedCheckpoint verified(const std::string& folder) {
  try {
    OpenCheckpoint open = open_checkpoint(folder);
    std::uint64_t total = 0;
    for (const checkpoint::PlacedTensor& tensor : open.layout.tensors) total += tensor.size_bytes;
    if (open.manifest.trainer_state) total += open.manifest.trainer_state->size_bytes;
    ProgressLine line;
    return verify_checkpoint(open, [&](const std::string& file, std::uint64_t done) {
      check_signal();
      line.show(fmt::format("{} of {} verified: {}", base::format_bytes(done),
                            base::format_bytes(total), base::one_line(file, 200)));
    });
  } catch (const checkpoint::Refusal& error) {
    if (error.code() != Code::kCorrupt) {
      throw Error(error.code(), folder + ": " + error.cause() + "; nothing was verified.");
    }
    VerifiedCheckpoint found;
    found.damage.push_back({checkpoint::kManifestName,
                            {},
                            0,
                            0,
                            error.cause() + "; without it nothing else is verified"});
    return found;
  }
}

int verify_one(const std::string& folder, std::FILE* out, Json& report) {
  const VerifiedCheckpoint found = verified(folder);
  print_to(out, "{}: {} verified, {}\n", folder, base::format_bytes(found.verified_bytes),
           found.damage.empty() ? "whole" : fmt::format("{} DAMAGED", found.damage.size()));
  for (const CheckpointDamage& damage : found.damage)
    print_to(out, "  DAMAGED: {}\n", damage_line(damage));
  for (const std::string& note : found.notes) print_to(out, "  {}\n", note);
  report["verified_bytes"] = found.verified_bytes;
  report["damage"] = damage_json(found);
  report["notes"] = found.notes;
  return found.damage.empty() ? kDone : kFailed;
}

// ---- convert ----

const char* format_name(bool deepspeed) { return deepspeed ? "deepspeed" : "headrace"; }

std::string converted_text(const Converted& done, const std::string& to) {
  const bool imports = done.from == CheckpointFormat::kDeepSpeed;
  std::string text = fmt::format(
      "{}: made from {}\n  {} to {}: {}, {} trained, {} frozen, {} elements, step {}\n", to,
      done.folder, format_name(imports), format_name(!imports), done.rule, grouped(done.trained),
      grouped(done.frozen), grouped(done.elements), grouped(done.step));
  for (const std::string& one : done.left_out) text += "  left out: " + one + "\n";
  for (const std::string& one : done.not_executed) text += "  not needed, not run: " + one + "\n";
  return text;
}

int convert(const CheckpointOptions& o, std::FILE* out, Json& report) {
  const Converted done = convert_checkpoint(o.convert);
  const bool imports = done.from == CheckpointFormat::kDeepSpeed;
  print_to(out, "{}", converted_text(done, o.convert.to));
  report["from"] = {{"format", format_name(imports)}, {"folder", done.folder}};
  report["to"] = {{"format", format_name(!imports)}, {"folder", o.convert.to}};
  report["optimizer"] = done.rule;
  report["trained"] = done.trained;
  report["frozen"] = done.frozen;
  report["elements"] = done.elements;
  report["step"] = done.step;
  report["written_bytes"] = done.written_bytes;
  report["left_out"] = done.left_out;
  report["not_executed"] = done.not_executed;
  return kDone;
}

// ---- join ----

std::string joined_text(const Joined& done, const std::string& to) {
  std::string text =
      fmt::format("{}: made from {}\n  {} tensors in {} files, {}; before in {} files\n", to,
                  done.folder, grouped(done.tensors), grouped(done.files),
                  base::format_bytes(done.written_bytes), grouped(done.files_before));
  for (const std::string& one : done.left_out)
    text += "  left out: " + one + ", which is not the checkpoint's\n";
  return text;
}

int join(const CheckpointOptions& o, std::FILE* out, Json& report) {
  const Joined done = join_checkpoint(o.join);
  print_to(out, "{}", joined_text(done, o.join.to));
  report["from"] = {{"folder", done.folder}, {"files", done.files_before}};
  report["to"] = {{"folder", o.join.to}, {"files", done.files}};
  report["tensors"] = done.tensors;
  report["written_bytes"] = done.written_bytes;
  report["left_out"] = done.left_out;
  return kDone;
}

// ---- all ----

int look(const CheckpointOptions& o, std::FILE* out, Json& report) {
  const std::string& directory = o.words[1];
  const bool verifies = o.action() == "verify";
  const CheckpointPlace place = place_of(directory);
  print_to(out, "{}", listed_text(directory, place));
  report["listed"] = listed_json(place);
  report["latest"] = place.latest ? Json(*place.latest) : Json();
  report["folder"] = place.folder;
  if (place.folder.empty() && place.latest) {
    throw Error(Code::kCorrupt, directory +
                                    "/latest does not name a checkpoint beside it; nothing was "
                                    "checked. Name the checkpoint's own folder.");
  }
  if (place.folder.empty() && verifies) {
    throw Error(Code::kInvalidArgument, directory +
                                            " has no file `latest` that chooses a checkpoint; "
                                            "nothing was verified. Name one of those in it.");
  }
  if (place.folder.empty()) return lists_damage(place) ? kFailed : kDone;
  return verifies ? verify_one(place.folder, out, report)
                  : inspect_one(o, place.folder, out, report);
}

int act(const CheckpointOptions& o) {
  std::FILE* const out = o.json == "-" ? stderr : stdout;
  Json report = document(kCheckpointProgram);
  report["action"] = o.action();
  const int exit_code = o.action() == "convert" ? convert(o, out, report)
                        : o.action() == "join"  ? join(o, out, report)
                                                : look(o, out, report);
  report["exit_code"] = exit_code;
  command_line::write_report(o.json, dump(report));
  return exit_code;
}

void check_folders(const CheckpointOptions& o) {
  using command_line::Fault;
  const bool makes = o.makes_a_folder();
  const std::size_t wanted = makes ? 3 : 2;
  for (std::size_t i = 1; i < wanted; ++i) {
    if (o.words.size() > i && !o.words[i].empty()) continue;
    if (makes) throw Fault{o.action() + " needs two folders", "Name the one to read and a new one"};
    throw Fault{o.action() + " needs a folder", "Name one that save_checkpoint() has made"};
  }
  if (o.words.size() > wanted) {
    throw Fault{"'" + o.words[wanted] + "' is one folder too many",
                makes ? "Name the one to read and a new one" : "Name one checkpoint at a time"};
  }
}

void check(CheckpointOptions& o) {
  using command_line::Fault;
  const char* const give = "Give inspect, verify, convert or join, then the checkpoint's folder";
  if (o.words.empty()) throw Fault{"an action is missing", give};
  if (!o.makes_a_folder() && o.action() != "inspect" && o.action() != "verify")
    throw Fault{"'" + o.action() + "' is no action", give};
  check_folders(o);
  if (o.tensors && o.action() != "inspect")
    throw Fault{"--tensors is for inspect alone", "Leave it out"};
  for (const auto& [action, option] : o.for_one) {
    if (action != o.action()) throw Fault{option + " is for " + action + " alone", "Leave it out"};
  }
  if (o.makes_a_folder()) {
    o.convert.from = o.join.from = o.words[1];
    o.convert.to = o.join.to = o.words[2];
  }
  command_line::check_report_target(o.json);
}

// Notes that the option was given.
void is_for(CheckpointOptions& options, const char* action, CLI::Option* option) {
  option->each([&options, action, name = option->get_name()](const std::string&) {
    options.for_one.emplace_back(action, name);
  });
}

void add_join_options(CLI::App& app, CheckpointOptions& options) {
  is_for(options, "join",
         app.add_option_function<std::string>(
                "--file-bytes",
                [&join = options.join](const std::string& word) {
                  join.file_bytes =
                      command_line::to_bytes("--file-bytes", word, {1, std::uint64_t{1} << 60});
                },
                "join: the most bytes of tensors in a file, such as 5GB; else one file takes all")
             ->type_name("BYTES"));
}

void set_step(ConvertOptions& convert, const std::string& word) {
  convert.greatest_step = word == "max";
  convert.step.reset();
  if (convert.greatest_step) return;
  convert.step = command_line::to_whole("--step", word, {0, (std::uint64_t{1} << 53) - 1});
}

void add_convert_options(CLI::App& app, CheckpointOptions& options) {
  using command_line::add_choice;
  ConvertOptions& convert = options.convert;
  const auto noted = [&options](CLI::Option* option) { is_for(options, "convert", option); };
  noted(add_choice(
      app, "--to", convert.format,
      {{"headrace", CheckpointFormat::kHeadrace}, {"deepspeed", CheckpointFormat::kDeepSpeed}},
      "convert: the format of TO, which is the one that FROM has not"));
  noted(app.add_option_function<std::string>(
      "--step", [&convert](const std::string& word) { set_step(convert, word); },
      "convert: max: where parameters' steps differ, the greatest for all; to headrace also a "
      "number, for all"));
  noted(add_choice(app, "--step-type", convert.step_type,
                   {{"number", StepType::kNumber}, {"tensor", StepType::kTensor}},
                   "convert to deepspeed: number for DeepSpeed's own Adam, tensor for torch's "
                   "(torch_adam)"));
  noted(add_choice(app, "--dtype", convert.dtype,
                   {{"bf16", DType::kBf16}, {"f16", DType::kF16}, {"f32", DType::kF32}},
                   "convert to headrace: of trained weights; else as FROM says"));
  noted(add_choice(app, "--optimizer", convert.rule,
                   {{"adam", OptimizerRule::kAdam}, {"adamw", OptimizerRule::kAdamW}},
                   "convert to headrace: the rule; else as FROM says"));
  noted(command_line::add_repeated(app, "--frozen", convert.frozen,
                                   "convert to headrace: a parameter of which only the weight is "
                                   "taken; may be given several times"));
}
}  // namespace

int checkpoint(int argc, const char* const* argv) {
  CheckpointOptions options;
  CLI::App app(kCheckpointDescription, kCheckpointProgram);
  app.footer(kCheckpointFooter);
  app.add_option("WORDS", options.words, "inspect, verify, convert or join, then the folder or two")
      ->type_name("");
  app.add_flag("--tensors", options.tensors, "inspect: dtype, shape and file of every tensor");
  add_convert_options(app, options);
  add_join_options(app, options);
  app.add_option("--json", options.json, "File for the report; - is stdout")->type_name("FILE");
  return run_subcommand({.program = kCheckpointProgram,
                         .nothing_done = "nothing was done",
                         .app = app,
                         .json = options.json,
                         .check = [&] { check(options); },
                         .run = [&] { return refuse_if_in_use([&] { return act(options); }); }},
                        argc, argv);
}
}  // namespace headrace::tools
