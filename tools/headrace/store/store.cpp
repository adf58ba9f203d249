// SPDX-License-Identifier: Apache-2.0
#include "store/store.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/error_text.hpp"
#include "base/units.hpp"
#include "command_line/command_line.hpp"
#include "command_line/report_file.hpp"
#include "headrace/error.hpp"
#include "program/output.hpp"
#include "program/signals.hpp"
#include "program/subcommand.hpp"
#include "store/common_epoch.hpp"
#include "store/export_store.hpp"
#include "store/listed_store.hpp"
#include "store/open_store.hpp"

namespace headrace::tools {
namespace {
namespace fs = std::filesystem;
constexpr const char* kStoreProgram = "headrace store";
constexpr const char* kStoreDescription =
    "Stores of durable engines (headrace.durable).\n\n"
    "  list PATH...                   the stores below these paths: ranks, step, bytes, state\n"
    "  verify NAME PATH...            compares every checksum of the step that all ranks have\n"
    "  copy NAME PATH... --to PATH... copies it to as many other paths\n"
    "  export NAME PATH... --to FILE  writes its weights as safetensors; --state: all\n"
    "  remove NAME PATH...            removes it, without a question\n\n"
    "PATH is an nvme_path, as in headrace.nvme_paths; name all that the store has.\n";
constexpr const char* kStoreFooter =
    "\nA store in use is listed as such, and the other actions refuse it.\n"
    "\nExit codes: 0 done, 1 a store cannot be used as it is or the run failed, 2 refused before "
    "it\n"
    "started, 128+n ended by signal n.\n";

struct StoreOptions {
  std::string action, json;
  std::vector<std::string> words, to;
  bool state = false;
};

swap::PathProbe probe_of(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  if (error || !fs::is_directory(canonical, error)) {
    throw Error(Code::kNotFound, "'" + path +
                                     "' is not a directory; nothing was done. Name the "
                                     "nvme_path below which the store lies.");
  }
  return {.path = canonical.string()};
}

std::vector<swap::PathProbe> probes_of(const std::vector<std::string>& paths) {
  std::vector<swap::PathProbe> probes;
  for (const std::string& path : paths) {
    swap::PathProbe probe = probe_of(path);
    const auto same = std::ranges::find(probes, probe.path, &swap::PathProbe::path);
    if (same == probes.end()) probes.push_back(std::move(probe));
  }
  return probes;
}

// ---- list ----

int list(const StoreOptions& o, std::FILE* out, Json& report) {
  const std::vector<swap::PathProbe> paths = probes_of(o.words);
  std::set<std::string> names;
  for (const swap::PathProbe& path : paths) {
    for (const std::string& name : swap::stores_at(path.path)) names.insert(name);
  }
  report["stores"] = Json::array();
  bool failed = false;
  for (const std::string& name : names) {
    check_signal();
    const ListedStore store = look_at_store(name, paths);
    failed |= store.failed();
    const bool known = store.opened();
    // Where the search ended early, there may be more.
    const bool counted = known || store.ranks > 0;
    print_to(
        out, "{}: {}{}{}\n", name, store.state,
        counted ? fmt::format(", {} rank{}", store.ranks, store.ranks == 1 ? "" : "s") : "",
        known ? fmt::format(", step {}, {}", store.step, base::format_bytes(store.bytes)) : "");
    if (!store.why.empty()) print_to(out, "  {}\n", store.why);
    report["stores"].push_back({{"name", name},
                                {"state", store.state},
                                {"ranks", counted ? Json(store.ranks) : Json()},
                                {"step", known ? Json(store.step) : Json()},
                                {"bytes", known ? Json(store.bytes) : Json()},
                                {"why", store.why}});
  }
  if (names.empty()) print_to(out, "no stores\n");
  return failed ? kFailed : kDone;
}

// ---- verify ----

// One rank, at the epoch that all of them have.
void print_verified(std::FILE* out, const std::string& name, const OpenStore& part,
                    std::uint64_t newest, const Verified& found) {
  print_to(out, "{}, rank {}: step {}, {} tiles, {} verified, {}\n", name, part.head().rank,
           part.steps(), found.tiles, base::format_bytes(found.verified_bytes),
           found.damage.empty() ? "whole" : fmt::format("{} DAMAGED", found.damage.size()));
  for (const std::string& fault : found.damage) print_to(out, "  DAMAGED: {}\n", fault);
  if (newest != part.steps()) {
    print_to(out, "  step {} is not verified: another rank lacks it, so a run goes on after {}\n",
             newest, part.steps());
  }
  if (!part.ring_fault().empty())
    print_to(out, "  a commit record is torn, an older step is whole: {}\n", part.ring_fault());
  if (found.frozen_tiles > 0)
    print_to(out, "  {} tiles of frozen groups are not verified\n", found.frozen_tiles);
  if (found.unchecked_bytes > 0)
    print_to(out, "  {} have no checksums (headrace.checksums was off)\n",
             base::format_bytes(found.unchecked_bytes));
}

int verify(const StoreOptions& o, std::FILE* out, Json& report) {
  const std::string& name = o.words[0];
  const auto paths = probes_of({o.words.begin() + 1, o.words.end()});
  const auto parts = open_all(name, places_of(name, paths));
  std::vector<std::uint64_t> newest;
  for (const auto& part : parts) newest.push_back(part->steps());
  const bool begun = go_to_common_epoch(name, parts) != 0;
  if (!begun)
    print_to(out, "{}: no step that all ranks have, nothing to verify; a run begins anew\n", name);
  report["ranks"] = Json::array();
  bool damaged = false;
  for (const auto& part : parts) {
    const Verified found = begun ? part->verify(check_signal) : Verified{};
    if (begun) print_verified(out, name, *part, newest[part->head().rank], found);
    damaged |= !found.damage.empty();
    report["ranks"].push_back({{"rank", part->head().rank},
                               {"step", begun ? part->steps() : 0},
                               {"newest_step", newest[part->head().rank]},
                               {"tiles", found.tiles},
                               {"verified_bytes", found.verified_bytes},
                               {"unchecked_bytes", found.unchecked_bytes},
                               {"frozen_tiles", found.frozen_tiles},
                               {"ring_fault", part->ring_fault()},
                               {"damage", found.damage}});
  }
  return damaged ? kFailed : kDone;
}

// ---- copy ----

[[noreturn]] void copy_failed(const std::string& what, const std::string& path, int sys_errno) {
  throw Error(sys_errno == ENOSPC ? Code::kNoSpace : Code::kIo,
              "could not " + what + " " + path + ": " + base::errno_text(sys_errno) +
                  "; the copy was removed, the store is as it was. Look at that drive, or name "
                  "another path.",
              sys_errno);
}

void copy_bytes(const swap::StoreFile& from, const swap::StoreFile& to) {
  std::vector<std::byte> block(4 * base::kMiB);
  for (std::uint64_t at = 0; at < from.size_bytes();) {
    check_signal();
    const auto size = std::min<std::uint64_t>(block.size(), from.size_bytes() - at);
    const ssize_t got =
        TEMP_FAILURE_RETRY(::pread(from.fd(), block.data(), size, static_cast<off_t>(at)));
    if (got <= 0) copy_failed("read", from.path(), got < 0 ? errno : EIO);
    for (ssize_t done = 0; done < got;) {
      const ssize_t put = TEMP_FAILURE_RETRY(::pwrite(to.fd(), block.data() + done,
                                                      static_cast<std::size_t>(got - done),
                                                      static_cast<off_t>(at) + done));
      if (put < 0) copy_failed("write", to.path(), errno);
      done += put;
    }
    at += static_cast<std::uint64_t>(got);
  }
}

void refuse_existing(const std::string& name, const std::vector<swap::PathProbe>& targets) {
  for (const swap::PathProbe& target : targets) {
    const std::vector<std::string> there = swap::stores_at(target.path);
    if (std::ranges::find(there, name) == there.end()) continue;
    throw Error(Code::kInvalidArgument, "store '" + name + "' is in " + target.path +
                                            " already; nothing was copied. Name another --to, or "
                                            "remove that one first.");
  }
}

int copy(const StoreOptions& o, std::FILE* out, Json& report) {
  const std::string& name = o.words[0];
  const auto paths = probes_of({o.words.begin() + 1, o.words.end()});
  const auto targets = probes_of(o.to);
  const std::vector<StorePlace> places = places_of(name, paths);
  // What no run continues from is not worth a copy. Checksums are for verify, of the copy too.
  go_to_common_epoch(name, open_all(name, places));
  refuse_existing(name, targets);
  // All are complete before the first has its name.
  std::vector<std::unique_ptr<swap::StoreFile>> sources, copies;
  std::uint64_t bytes = 0;
  for (const StorePlace& place : places) {
    if (place.drives.size() != targets.size()) {
      throw command_line::Fault{fmt::format("the store has {} drives, and --to names {}",
                                            place.drives.size(), targets.size()),
                                "Name as many other paths as it has"};
    }
    for (std::uint32_t d = 0; d < place.drives.size(); ++d) {
      const swap::StoreName file{name, place.rank, d};
      sources.push_back(swap::StoreFile::open(place.drives[d], file, swap::StoreUse::kRead));
      copies.push_back(swap::StoreFile::create(targets[d], file, sources.back()->size_bytes(),
                                               swap::Existing::kRefuse, nullptr));
      copy_bytes(*sources.back(), *copies.back());
      bytes += sources.back()->size_bytes();
    }
  }
  for (const auto& file : copies) {
    file->publish();
    print_to(out, "{}\n", file->path());
  }
  print_to(out, "copied {}, {}\n", name, base::format_bytes(bytes));
  report["bytes"] = bytes;
  return kDone;
}

// ---- export ----

int export_file(const StoreOptions& o, std::FILE* out, Json& report) {
  const std::string& name = o.words[0];
  const auto paths = probes_of({o.words.begin() + 1, o.words.end()});
  const auto parts = open_all(name, places_of(name, paths));
  const Exported made = export_store(
      parts, {.name = name, .path = o.to[0], .with_state = o.state, .between = check_signal});
  print_to(out, "{}\n", o.to[0]);
  print_to(out, "exported {}, step {}: {} tensors, {}\n", name, made.steps, made.tensors,
           base::format_bytes(made.bytes));
  report["file"] = o.to[0];
  report["step"] = made.steps;
  report["tensors"] = made.tensors;
  report["bytes"] = made.bytes;
  return kDone;
}

// ---- remove ----

int remove(const StoreOptions& o, std::FILE* out, Json& report) {
  const std::string& name = o.words[0];
  const auto paths = probes_of({o.words.begin() + 1, o.words.end()});
  // Held until all is gone: no engine opens what is half removed. Damage keeps nothing here.
  std::vector<std::unique_ptr<swap::StoreFile>> files;
  for (const swap::PathProbe& path : paths) {
    for (const swap::StoreName& file : swap::files_of_store(path, name))
      files.push_back(swap::StoreFile::hold(path, file));
  }
  if (files.empty()) open_all(name, {});
  report["removed"] = Json::array();
  for (const auto& file : files) {
    file->remove();
    print_to(out, "removed {} ({})\n", file->path(), base::format_bytes(file->size_bytes()));
    report["removed"].push_back(file->path());
  }
  for (const auto& file : files) {
    const std::string folder = fs::path(file->path()).parent_path().string();
    if (::rmdir(folder.c_str()) != 0 && errno == ENOTEMPTY)
      print_to(out, "{} holds other files: it stays\n", folder);
    ::rmdir(fs::path(folder).parent_path().c_str());  // if it is empty
  }
  return kDone;
}

void check(const StoreOptions& o) {
  using command_line::Fault;
  const std::vector<std::string> actions = {"list", "verify", "copy", "export", "remove"};
  const char* const give = "Give list, verify, copy, export or remove";
  if (o.action.empty()) throw Fault{"an action is missing", give};
  if (std::ranges::find(actions, o.action) == actions.end())
    throw Fault{"'" + o.action + "' is no action", give};
  const std::size_t least = o.action == "list" ? 1 : 2;
  if (o.words.size() < least) {
    throw Fault{o.action + (least == 1 ? " needs a path" : " needs a store's name and its paths"),
                least == 1 ? "Name an nvme_path" : "Name the store, then all its nvme_paths"};
  }
  if (least == 2 && (o.words[0].empty() || o.words[0].find('/') != std::string::npos))
    throw Fault{"'" + o.words[0] + "' is no store's name", "Give the name first, then the paths"};
  if (o.action == "copy" && o.to.empty())
    throw Fault{"copy needs --to", "Name as many other paths as the store has"};
  const bool exports = o.action == "export";
  if (exports && o.to.size() != 1)
    throw Fault{"export needs one --to", "Name the file to write: --to model.safetensors"};
  if (!exports && o.action != "copy" && !o.to.empty())
    throw Fault{"--to is for copy and export", "Leave it out"};
  if (!exports && o.state) throw Fault{"--state is for export alone", "Leave it out"};
  command_line::check_report_target(o.json);
}

int act(const StoreOptions& o) {
  std::FILE* const out = o.json == "-" ? stderr : stdout;
  Json report = document(kStoreProgram);
  report["action"] = o.action;
  const int exit_code = o.action == "list"     ? list(o, out, report)
                        : o.action == "verify" ? verify(o, out, report)
                        : o.action == "copy"   ? copy(o, out, report)
                        : o.action == "export" ? export_file(o, out, report)
                                               : remove(o, out, report);
  report["exit_code"] = exit_code;
  command_line::write_report(o.json, dump(report));
  return exit_code;
}

}  // namespace

int store(int argc, const char* const* argv) {
  StoreOptions options;
  CLI::App app(kStoreDescription, kStoreProgram);
  app.footer(kStoreFooter);
  app.add_option("ACTION", options.action, "list, verify, copy, export or remove")->type_name("");
  app.add_option("WORDS", options.words, "The store's name, except for list; then its nvme_paths")
      ->type_name("");
  command_line::add_repeated(app, "--to", options.to,
                             "copy: an nvme_path for the copy's next drive; may be repeated. "
                             "export: the safetensors file to write")
      ->type_name("PATH");
  app.add_flag("--state", options.state, "export: masters and moments too, in f32");
  app.add_option("--json", options.json, "File for the report; - is stdout")->type_name("FILE");
  return run_subcommand({.program = kStoreProgram,
                         .nothing_done = "nothing was done",
                         .app = app,
                         .json = options.json,
                         .check = [&] { check(options); },
                         .run = [&] { return refuse_if_in_use([&] { return act(options); }); }},
                        argc, argv);
}
}  // namespace headrace::tools
