// SPDX-License-Identifier: Apache-2.0
// engine.cpp: the public face: every call goes to the core.
#include "headrace/engine.hpp"

#include "engine/engine_core.hpp"

namespace headrace {
Engine::Engine(Settings settings, EngineOptions options)
    : core_(std::make_unique<EngineCore>(std::move(settings), std::move(options))) {}
Engine::Engine(std::unique_ptr<EngineCore> core) : core_(std::move(core)) {}
// An engine that goes while a lease of it is open is kept for ever: the lease's holder still reads
// its bytes and gives them back.
Engine::~Engine() {
  if (core_ && core_->has_open_lease()) core_.release()->complain_of_lease();
}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&& other) noexcept {
  if (this == &other) return *this;
  const Engine old(std::move(*this));
  core_ = std::move(other.core_);
  return *this;
}

HyperparameterSetId Engine::add_hyperparameters(const Hyperparameters& values) {
  return core_->registry_before_freeze("add_hyperparameters").add_hyperparameters(values);
}
void Engine::set_default_hyperparameters(const Hyperparameters& values) {
  core_->registry_before_freeze("set_default_hyperparameters").set_default_hyperparameters(values);
}
GroupId Engine::add_group(std::string name, std::vector<ParameterSpec> parameters) {
  return core_->registry_before_freeze("add_group")
      .add_group(std::move(name), std::move(parameters));
}
void Engine::expect_repeated_gradients(GroupId group) {
  core_->registry_before_freeze("expect_repeated_gradients").group(group).repeated_gradients = true;
}
void Engine::expect_no_gradients(GroupId group) {
  core_->registry_before_freeze("expect_no_gradients").set_frozen(group, true);
}
void Engine::set_frozen(ParameterId id, bool frozen) {
  core_->registry_before_freeze("set_frozen").set_frozen(id, frozen);
}
void Engine::keep_bound(GroupId group) {
  core_->registry_before_freeze("keep_bound").group(group).keep_bound = true;
}
void Engine::set_hyperparameters(HyperparameterSetId set, const Hyperparameters& values) {
  core_->set_hyperparameters(set, values);
}
void Engine::freeze() { core_->freeze(); }

std::uint32_t Engine::group_count() const noexcept {
  return static_cast<std::uint32_t>(core_->registry().groups().size());
}
std::uint32_t Engine::parameter_count() const noexcept {
  return static_cast<std::uint32_t>(core_->registry().parameters().size());
}
const std::string& Engine::group_name(GroupId group) const {
  return core_->registry().group(group).name;
}
std::span<const ParameterId> Engine::parameters(GroupId group) const {
  return core_->registry().group(group).parameters;
}
ParameterId Engine::parameter(std::string_view full_name) const {
  return core_->registry().find(full_name);
}
const ParameterSpec& Engine::spec(ParameterId id) const {
  return core_->registry().parameter(id).spec;
}
const std::string& Engine::full_name(ParameterId id) const {
  return core_->registry().parameter(id).full_name;
}
GroupId Engine::group_of(ParameterId id) const { return core_->registry().parameter(id).group; }
std::uint64_t Engine::section_offset_bytes(ParameterId id) const {
  return core_->section_offset_bytes(id);
}
std::uint64_t Engine::section_size_bytes(GroupId group, DType dtype) const {
  return core_->section_size_bytes(group, dtype);
}
const PlanReport& Engine::plan() const { return core_->plan(); }

void Engine::load(GroupId group, const Fill& fill) { core_->load(group, fill); }
void Engine::load(ParameterId id, Content content, const Source& source) {
  core_->load(id, content, source);
}
void Engine::mark_written(GroupId group, const std::string& cause) {
  core_->mark_written(group, cause);
}
std::uint64_t Engine::weight_changes(GroupId group) const { return core_->weight_changes(group); }
std::uint64_t Engine::step_count(ParameterId id) const { return core_->step_count(id); }
void Engine::set_step_count(ParameterId id, std::uint64_t steps) {
  core_->set_step_count(id, steps);
}
void Engine::store(ParameterId id, Content content, const Sink& sink) {
  core_->store(id, content, sink);
}
std::string Engine::hash_parameters() { return core_->hash_parameters(); }
std::string Engine::hash_optimizer_state() { return core_->hash_optimizer_state(); }

Gathered Engine::gather(GroupId group, Stream stream) { return core_->gather(group, stream); }
void Engine::add_gradient(ParameterId id, const void* gradient, DType dtype, Stream stream) {
  core_->add_gradient(id, gradient, dtype, stream);
}
void Engine::discard_gradients() { core_->discard_gradients(); }
StepResult Engine::step(const StepOptions& options) { return core_->step(options); }
void Engine::finish_step() { core_->finish_step(); }
Trace Engine::take_trace() { return core_->take_trace(); }
Stats Engine::stats() const { return core_->stats(); }
void Engine::interrupt() noexcept { core_->interrupt(); }
void Engine::close() { core_->close(); }

Gathered::Gathered(Gathered&& other) noexcept
    : core_(std::exchange(other.core_, nullptr)),
      group_(other.group_),
      slot_(other.slot_),
      stream_(other.stream_) {}
Gathered& Gathered::operator=(Gathered&& other) noexcept {
  if (this == &other) return *this;
  release();
  core_ = std::exchange(other.core_, nullptr);
  group_ = other.group_;
  slot_ = other.slot_;
  stream_ = other.stream_;
  return *this;
}
Gathered::~Gathered() { release(); }
DeviceSpan Gathered::bytes(ParameterId id) const { return core_->bytes(*this, id); }
DeviceSpan Gathered::section(DType dtype) const { return core_->section(*this, dtype); }
void Gathered::release() noexcept {
  if (core_ != nullptr) std::exchange(core_, nullptr)->release(group_, slot_, stream_);
}
}  // namespace headrace
