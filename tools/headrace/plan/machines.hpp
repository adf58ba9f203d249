// SPDX-License-Identifier: Apache-2.0
// machines.hpp: the machine that a plan is made for: one node's memory, drives and rates, and the
// source of each figure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/settings.hpp"

namespace headrace::tools {
// A figure of a node and its source: "measured (...)", "published", "assumed", "given".
struct Figure {
  double value = 0;
  std::string source = {};
};

// One node. Bytes, or per second; memory and drives are shared by its ranks, one per GPU.
struct Machine {
  std::string name = {}, source = {};
  std::uint32_t gpus = 0;  // 0: the CPU is the device
  std::uint32_t cpus = 1;
  std::uint64_t gpu_memory_bytes = 0;  // of each; 0: unknown, not checked
  std::uint64_t host_bytes = 0;        // 0: unknown, not checked
  std::uint64_t nvme_bytes = 0;        // of all drives; 0: unknown, not checked
  std::uint32_t drives = 1;
  bool here = false;     // this one, whose drives may be looked at
  double drive_tbw = 0;  // terabytes (10^12) that each drive may be written; 0: not given
  Figure nvme_read = {}, nvme_write = {},
         nvme_mixed = {};                   // all drives; mixed 0: one direction after the other
  Figure memory = {};                       // bytes/s the CPUs read and write
  Figure update = {}, update_checked = {};  // elements/s of the update, all CPUs
  Figure verify = {};                       // bytes/s of checksums, all CPUs
  Figure flops = {};                        // of one GPU, or of all CPUs, as training reaches them
  Figure backward_flops = {};               // the same in backward alone
  Figure link = {};                         // of each GPU, each way
  Figure network = {};                      // into the node
  Figure peers = {};                        // into each rank, from the others of its node
  Figure call = {};                         // seconds that a collective call takes without bytes
  Figure transport = {};                    // bytes/s that a core carries to and from other ranks
  Figure flush = {};                        // seconds, of all drives at once; for a store alone
};

// "dgx-2, ...": for help.
std::string known_machines();
// A name of the table, or a JSON file: of `headrace doctor --json`, of `headrace bench --json`,
// whose ceilings are this machine's, or of figures by name (docs/tools.md). "": this machine.
// Throws Error kNotFound, kInvalidArgument, kIo.
Machine machine_of(const std::string& word);

// Fills in, marked as assumed, what a machine does not say: update and checksum rates by memory and
// CPUs, the rest by what is common.
void assume_the_rest(Machine& machine);
// Room on the drives that `settings` name, each file system once, where the machine is this one.
// The files of the store that they name, if it is there, count as room: it is continued in place.
void look_at_drives(Machine& machine, const Settings& settings);
// nullptr: none of that name.
const Machine* known_machine(const std::string& name);
Machine this_machine();
// Throws what machine_of() does.
Machine machine_of_file(const std::string& path);

// The text of the file that `option` names. Throws Error kNotFound, kIo.
std::string text_of_file(const std::string& option, const std::string& path);

// This machine's GPUs become those of `machine`: the first `wanted` that can be used. Throws Error
// kInvalidArgument where there are fewer.
void take_gpus_here(Machine& machine, std::uint32_t wanted);
// Takes over the results of `headrace bench copy --json`: the GPU's memory, and its link, each way
// while both are busy. A machine without GPUs then has one. Throws as machine_of() does.
void take_copy_report(Machine& machine, const std::string& path);

// A figure by its name in files and options ("nvme_read"), or nullptr.
Figure* figure_of(Machine& machine, const std::string& name);
struct FigureName {
  const char* name;
  const char* unit;
  const char* what;
  Figure Machine::*figure;
  // Less is a mistaken unit, more no machine.
  double least, most;
};
const std::vector<FigureName>& figure_names();
// Whether a plan with these settings and so many ranks on `nodes` nodes uses the figure. `on_cpu`:
// the CPU is the device.
bool is_used(const FigureName& figure, const Settings& settings, std::uint32_t ranks,
             std::uint32_t nodes, bool on_cpu);
}  // namespace headrace::tools
