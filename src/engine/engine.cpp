// SPDX-License-Identifier: Apache-2.0
// engine.cpp: the public face: every call goes to the part of the engine that keeps its promise.
#include "headrace/engine.hpp"

#include "engine/engine_core.hpp"
#include "headrace/error.hpp"

namespace headrace {
Engine::Engine(Settings settings, EngineOptions options)
    : core_(std::make_unique<EngineCore>(std::move(settings), std::move(options))) {}
Engine::Engine(std::unique_ptr<EngineCore> core) : core_(std::move(core)) {}
Engine engine::engine_with_parts(Settings settings, EngineOptions options, EngineParts parts) {
  return Engine(
      std::make_unique<EngineCore>(std::move(settings), std::move(options), std::move(parts)));
}
EngineCore& engine::core_of(Engine& engine) noexcept { return *engine.core_; }
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
void Engine::expect_lent_gradients(GroupId group) {
  core_->registry_before_freeze("expect_lent_gradients").group(group).lends_gradients = true;
}
void Engine::expect_lent_weights(GroupId group) {
  core_->registry_before_freeze("expect_lent_weights").group(group).lends_weights = true;
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
const Settings& Engine::settings() const noexcept { return core_->settings(); }
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
  const partition::Partition& cut = core_->frozen("section_offset_bytes").partition;
  const DType dtype = spec(id).dtype;
  return cut.first_in_buffer(cut.parameters[id.index]) * size_bytes(dtype);
}
std::uint64_t Engine::section_size_bytes(GroupId group, DType dtype) const {
  const partition::Partition& cut = core_->frozen("section_size_bytes").partition;
  core_->registry().group(group);
  return cut.buffer_elements(group.index, dtype) * size_bytes(dtype);
}
const PlanReport& Engine::plan() const { return core_->plan(); }

void Engine::load(GroupId group, const Fill& fill) {
  core_->ready("load").values->load(group, fill);
}
void Engine::load(GroupId group, const FillShard& fill) {
  core_->ready("load").values->load(group, fill);
}
void Engine::load(ParameterId id, Content content, const Source& source) {
  core_->ready("load").values->load(id, content, source);
}
void Engine::mark_written(GroupId group, const std::string& cause) {
  engine::Running& running = core_->ready("mark_written");
  core_->registry().group(group);
  running.states.mark_written(group, cause);
}
std::uint64_t Engine::weight_changes(GroupId group) const {
  const engine::Running& running = core_->ready("weight_changes");
  core_->registry().group(group);
  return running.counts.weight_changes[group.index];
}
std::uint64_t Engine::step_count(ParameterId id) const {
  const engine::Running& running = core_->ready("step_count");
  core_->registry().parameter(id);
  return running.counts.steps[id.index];
}
void Engine::set_step_count(ParameterId id, std::uint64_t steps) {
  core_->ready("set_step_count").stepper->set_step_count(id, steps);
}
void Engine::store(ParameterId id, Content content, const Sink& sink) {
  core_->ready("store").values->store(id, content, sink);
}
std::string Engine::hash_parameters() {
  return core_->ready("hash_parameters").values->hash_parameters();
}
std::string Engine::hash_optimizer_state() {
  return core_->ready("hash_optimizer_state").values->hash_optimizer_state();
}

Gathered Engine::gather(GroupId group, Stream stream) {
  return core_->ready("gather").leases->gather(group, stream);
}
void Engine::add_gradient(ParameterId id, const void* gradient, DType dtype, Stream stream) {
  core_->ready("add_gradient").stepper->add_gradient(id, gradient, dtype, stream);
}
void Engine::lend_gradient(ParameterId id, const void* gradient, DType dtype) {
  core_->ready("lend_gradient").stepper->lend_gradient(id, gradient, dtype);
}
void Engine::lend_weights(ParameterId id, void* values) {
  core_->ready("lend_weights").values->lend_weights(id, values);
}
void Engine::discard_gradients() { core_->ready("discard_gradients").gradients->discard(); }
void Engine::exchange(std::span<const std::byte> mine, std::span<std::byte> all) {
  core_->exchange(mine, all);
}
GradientPiece Engine::gradient_statistics(ParameterId id) const {
  core_->registry().parameter(id);
  return core_->ready("gradient_statistics").gradients->statistics(id);
}
StepResult Engine::step(const StepOptions& options) {
  return core_->ready("step").stepper->step(options);
}
void Engine::finish_step() {
  engine::Calls& calls = *core_->ready("finish_step").calls;
  const auto span = calls.span("finish_step");
  calls.finish_updates("finish_step");
}
std::optional<Resumed> Engine::resumed() const {
  const engine::Epochs* const epochs = core_->frozen("resumed").epochs.get();
  return epochs == nullptr ? std::nullopt : epochs->resumed();
}
void Engine::set_trainer_state(std::span<const std::byte> state) {
  engine::Epochs* const epochs = core_->ready("set_trainer_state").epochs.get();
  if (epochs != nullptr) epochs->set_trainer_state(state);
}
void Engine::commit() {
  engine::Epochs* const epochs = core_->ready("commit").epochs.get();
  if (epochs != nullptr) return epochs->commit();
  throw Error(Code::kWrongState,
              "commit: the engine keeps nothing: set headrace.durable and headrace.store");
}
std::uint64_t Engine::durable_step() const {
  const engine::Epochs* const epochs = core_->frozen("durable_step").epochs.get();
  return epochs == nullptr ? 0 : epochs->durable_step();
}
void Engine::sleep(const std::string& directory) { core_->sleep(directory); }
void Engine::wake() { core_->wake(); }
Trace Engine::take_trace() { return core_->take_trace(); }
Stats Engine::stats() const { return core_->stats(); }
void Engine::interrupt() noexcept { core_->interrupt(); }
void Engine::close() { core_->close(); }

Gathered::Gathered(Gathered&& other) noexcept
    : leases_(std::exchange(other.leases_, nullptr)),
      group_(other.group_),
      slot_(other.slot_),
      stream_(other.stream_) {}
Gathered& Gathered::operator=(Gathered&& other) noexcept {
  if (this == &other) return *this;
  release();
  leases_ = std::exchange(other.leases_, nullptr);
  group_ = other.group_;
  slot_ = other.slot_;
  stream_ = other.stream_;
  return *this;
}
Gathered::~Gathered() { release(); }
DeviceSpan Gathered::bytes(ParameterId id) const { return leases_->bytes(*this, id); }
DeviceSpan Gathered::section(DType dtype) const { return leases_->section(*this, dtype); }
void Gathered::release() noexcept {
  if (leases_ != nullptr) std::exchange(leases_, nullptr)->release(group_, slot_, stream_);
}
}  // namespace headrace
