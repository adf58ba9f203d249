// SPDX-License-Identifier: Apache-2.0
// handles_of_c.hpp: the two tables of handles of headrace/c.h: engines and leases.
#pragma once
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "bindings/c/call_gate.hpp"
#include "bindings/c/calls.hpp"
#include "bindings/c/handles.hpp"
#include "bindings/c/log_queue.hpp"
#include "headrace/c.h"
#include "headrace/engine.hpp"

namespace headrace::bindings {
struct EngineOfC {
  std::shared_ptr<LogQueue> log;  // null: the host has a sink. The engine's threads hold it too.
  Engine engine;
  std::string settings_json;
  CallGate gate = {};
  pid_t owner = getpid();
  std::vector<std::byte> loaded_trainer_state = {};
};
struct LeaseOfC {
  Gathered gathered;
  headrace_engine* engine;
  pid_t owner = getpid();
};
using EngineHandles = HandleTable<EngineOfC, 256>;
using LeaseHandles = HandleTable<LeaseOfC, 8192>;
extern EngineHandles engines;
extern LeaseHandles leases;

template <class Owned>
void refuse_in_child(const Owned& object) {
  refuse_in_child(object.owner, "engine", "the engine, its threads and files are");
}

// Keeps an engine in use during one call.
class EngineCall {
 public:
  EngineCall(headrace_engine* handle, CallKind kind)
      : use_(checked(handle)), in_(use_->gate, kind) {}
  Engine* operator->() const noexcept { return &use_->engine; }
  Engine& operator*() const noexcept { return use_->engine; }
  const std::string& settings_json() const noexcept { return use_->settings_json; }
  LogQueue* log() const noexcept { return use_->log.get(); }
  // For calls that run alone.
  std::vector<std::byte>& loaded_trainer_state() const noexcept {
    return use_->loaded_trainer_state;
  }

 private:
  static EngineHandles::Use checked(headrace_engine* handle) {
    EngineHandles::Use use = engines.use(handle);
    refuse_in_child(*use);
    return use;
  }
  EngineHandles::Use use_;
  InGate in_;
};
inline EngineCall look(headrace_engine* handle) { return {handle, CallKind::kLook}; }
inline EngineCall feed(headrace_engine* handle) { return {handle, CallKind::kFeed}; }
inline EngineCall run(headrace_engine* handle) { return {handle, CallKind::kRun}; }
inline EngineCall shape(headrace_engine* handle) { return {handle, CallKind::kShape}; }

// Keeps a lease and its engine in use during one call. An engine being closed has no leases.
class LeaseCall {
 public:
  explicit LeaseCall(headrace_gathered* handle)
      : use_(leases.use(handle)), engine_(use_->engine, CallKind::kLook) {}
  Gathered* operator->() const noexcept { return &use_->gathered; }

 private:
  LeaseHandles::Use use_;
  EngineCall engine_;
};
}  // namespace headrace::bindings
