// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.hpp"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "checkpoint/damage.hpp"
#include "checkpoint/facts.hpp"
#include "checkpoint/place.hpp"
#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "program/output.hpp"
#include "program/progress.hpp"
#include "program/signals.hpp"
#include "program/subcommand.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kCheckpointProgram = "headrace checkpoint";
constexpr const char* kCheckpointDescription =
    "What save_checkpoint() has made. Reads only.\n\n"
    "  inspect DIR  what it holds: rule, parameters, steps, files; --tensors: every tensor\n"
    "  verify DIR   compares every byte with its checksum, and names all that is damaged\n\n"
    "DIR is a checkpoint, or a folder with several: then they are listed, and the file `latest`\n"
    "in it chooses one.\n";
constexpr const char* kCheckpointFooter =
    "\nExit codes: 0 done, 1 the checkpoint is damaged or the run failed, 2 refused before it "
    "started,\n128+n ended by signal n.\n";

struct CheckpointOptions {
  std::vector<std::string> words;  // the action and the folder
  std::string json;
  bool tensors = false;
  const std::string& action() const { return words[0]; }
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

// ---- both ----

int act(const CheckpointOptions& o) {
  std::FILE* const out = o.json == "-" ? stderr : stdout;
  const std::string& directory = o.words[1];
  const bool verifies = o.action() == "verify";
  Json report = document(kCheckpointProgram);
  report["action"] = o.action();
  const CheckpointPlace place = place_of(directory);
  print_to(out, "{}", listed_text(directory, place));
  report["listed"] = listed_json(place);
  report["latest"] = place.latest ? Json(*place.latest) : Json();
  report["folder"] = place.folder;
  int exit_code = lists_damage(place) ? kFailed : kDone;
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
  if (!place.folder.empty()) {
    exit_code = verifies ? verify_one(place.folder, out, report)
                         : inspect_one(o, place.folder, out, report);
  }
  report["exit_code"] = exit_code;
  command_line::write_report(o.json, dump(report));
  return exit_code;
}

void check(const CheckpointOptions& o) {
  using command_line::Fault;
  const char* const give = "Give inspect or verify, then the checkpoint's folder";
  if (o.words.empty()) throw Fault{"an action is missing", give};
  if (o.action() != "inspect" && o.action() != "verify")
    throw Fault{"'" + o.action() + "' is no action", give};
  if (o.words.size() < 2 || o.words[1].empty())
    throw Fault{o.action() + " needs a folder", "Name one that save_checkpoint() has made"};
  if (o.words.size() > 2)
    throw Fault{"'" + o.words[2] + "' is one folder too many", "Name one checkpoint at a time"};
  if (o.tensors && o.action() != "inspect")
    throw Fault{"--tensors is for inspect alone", "Leave it out"};
  command_line::check_report_target(o.json);
}
}  // namespace

int checkpoint(int argc, const char* const* argv) {
  CheckpointOptions options;
  CLI::App app(kCheckpointDescription, kCheckpointProgram);
  app.footer(kCheckpointFooter);
  app.add_option("WORDS", options.words, "inspect or verify, then the folder")->type_name("");
  app.add_flag("--tensors", options.tensors, "inspect: dtype, shape and file of every tensor");
  app.add_option("--json", options.json, "File for the report; - is stdout")->type_name("FILE");
  return run_subcommand({.program = kCheckpointProgram,
                         .nothing_done = "nothing was checked",
                         .app = app,
                         .json = options.json,
                         .check = [&] { check(options); },
                         .run = [&] { return refuse_if_in_use([&] { return act(options); }); }},
                        argc, argv);
}
}  // namespace headrace::tools
