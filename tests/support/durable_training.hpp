// SPDX-License-Identifier: Apache-2.0
// durable_training.hpp: a training that goes on from its store, the hashes that it must have after
// each step, and children that are killed in it.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "engine/parts.hpp"
#include "support/all_on_nvme.hpp"
#include "support/io_queue_fault.hpp"
#include "support/scripted_trainer.hpp"

namespace headrace::durable_training {
using testing::Departure;
using testing::ScriptedTrainer;

// Groups of one tile and of three.
inline const std::vector<std::int64_t> kGroups = {3000, 150'000, 70'000};
inline constexpr int kSteps = 6;

inline testing::Script script_of_step(std::uint64_t step) {
  // Every third step leaves a group without a gradient: its slot stays where it is.
  const auto departure = step % 3 == 2 ? Departure::kSkippedGroup : Departure::kNone;
  return script_of(departure, static_cast<std::uint32_t>(kGroups.size()), false);
}

inline void train_to(Engine& engine, ScriptedTrainer& trainer, std::uint64_t last) {
  const auto resumed = engine.resumed();
  for (std::uint64_t step = resumed ? resumed->step + 1 : 1; step <= last; ++step)
    trainer.step(script_of_step(step));
}

// Hashes after every step of a run in memory, from 0 on.
inline const std::vector<std::string>& expected() {
  static const std::vector<std::string> hashes = testing::hashes_in_memory(
      kGroups, kSteps, [](Engine&, ScriptedTrainer& trainer, std::uint64_t step) {
        trainer.step(script_of_step(step));
      });
  return hashes;
}

inline Settings durable(const std::vector<std::string>& paths, std::uint64_t every = 1) {
  Settings s = testing::all_on_nvme(paths[0]);
  s.nvme_paths = paths;
  s.update_threads = 1;
  s.io_block_bytes = 64 * 1024;
  s.queue_depth = 4;
  s.durable_every = every;
  s.store = "run";
  return s;
}

inline EngineOptions quiet() {
  return {.log = [](LogLevel, std::string_view) {}};
}

// A run of its own, which closes its engine.
inline void train_run_to(const Settings& settings, std::uint64_t last) {
  Engine engine(settings, quiet());
  ScriptedTrainer trainer(engine, kGroups);
  train_to(engine, trainer, last);
  engine.close();
}

// Runs `body` in a process of its own. Returns its exit code; -n: signal n ended it.
inline int in_a_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      std::cerr << "child: " << error.what() << '\n';
      ::_exit(3);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

inline engine::EngineParts with_faults(const swap::FaultPlan& plan) {
  engine::EngineParts parts;
  parts.make_queue = [plan](const swap::IoQueueOptions& options) {
    swap::ChosenIoQueue chosen = choose_io_queue(IoQueueKind::kThreads, options);
    chosen.queue = make_io_queue_fault(std::move(chosen.queue), plan, nullptr);
    return chosen;
  };
  return parts;
}
}  // namespace headrace::durable_training
