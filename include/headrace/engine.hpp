// SPDX-License-Identifier: Apache-2.0
// headrace/engine.hpp: the front door. Register, freeze, then per step: gather, add_gradient, step.
//
//   headrace::Engine engine(headrace::Settings::from_file("offload.json"));
//   auto no_decay = engine.add_hyperparameters({.weight_decay = 0});
//   auto block = engine.add_group("h.0", {{"qkv.weight", DType::kBf16, {3072, 1024}},
//                                         {"qkv.bias", DType::kBf16, {3072}, no_decay}});
//   engine.freeze();             // plans; refuses with the table, or allocates exactly that
//   engine.load(block, fill);    // values in, group by group
//   { Gathered w = engine.gather(block); forward(w.bytes(id)); }
//   engine.add_gradient(id, gradient, dtype);
//   StepResult r = engine.step({.learning_rate = 3e-4f, .max_norm = 1});
//   engine.close();
//
// Threads: registration, freeze, load, store, step counts, hyperparameters, step and close come one
//          at a time; gather, release and add_gradient may come from several trainer threads
//          (autograd's) at once, but not during the former.
// Ranks:   with several, freeze, gather, step and discard_gradients are collective: every rank
//          calls them alike, in one order. add_gradient is not: what a parameter did not receive
//          on some rank counts as zero there. It may wait for the other ranks' next collective
//          call, so no rank may wait for another by means of its own meanwhile. An engine takes
//          such calls one at a time; from several threads the trainer puts gathers in order, and
//          gradients of one group may come in any.
// Errors:  headrace::Error. Before the first tile of a step is updated an error leaves that step
//          undone and the call may be repeated; after that, and where the update was deferred, the
//          engine is failed, and every call but stats and close throws kFailed with the first
//          cause.
// Process: no signal handlers, no exit, no fork, no change of locale, umask, directory, limits.
//          Threads are named headrace-*, block signals and are gone when close() returns.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/collective.hpp"
#include "headrace/device.hpp"
#include "headrace/error.hpp"
#include "headrace/gathered.hpp"
#include "headrace/log.hpp"
#include "headrace/optimizer.hpp"
#include "headrace/result.hpp"
#include "headrace/settings.hpp"
#include "headrace/stats.hpp"
#include "headrace/tensor.hpp"
#include "headrace/tier.hpp"
#include "headrace/trace.hpp"

namespace headrace {
struct EngineOptions {
  std::shared_ptr<Device> device = nullptr;          // null: the CPU
  std::shared_ptr<Collective> collective = nullptr;  // null: one rank
  LogSink log = nullptr;                             // null: warnings and errors to stderr
  // Of headrace/trace.hpp, between two calls of take_trace(), 72 bytes each; at most 2^26. 0: no
  // trace.
  std::uint64_t trace_events = 0;
  // Asked about ten times a second by the thread whose call waits, and between tiles by store() and
  // hashes. True ends that call alone, in kInterrupted: nothing was changed, the engine is whole,
  // and the call may be made again. For a signal that is to end in a checkpoint; interrupt() ends
  // the engine. Calls that wait for a read or a deferred update are asked for: gather,
  // add_gradient, store, hashes, load, finish_step and step. Once load() or step() changes values
  // they go on to their end, and so do waits for other ranks and for streams. Calls nothing of this
  // engine, and throws nothing. Null: never.
  std::function<bool()> poll = nullptr;
};

// Logical content of a parameter, as store() hands it out and load() takes it in.
enum class Content {
  kWeight,    // in the parameter's dtype
  kMaster,    // f32, joined from whatever layout it is kept in; of an f32 parameter its weight
  kExpAvg,    // f32
  kExpAvgSq,  // f32
};

// Writes one whole parameter: `values` is elements() * size_bytes(dtype), row-major, host memory.
using Fill = std::function<void(ParameterId id, std::span<std::byte> values)>;
// Receives a stretch of one parameter's elements, in rising order of `first_element`. With several
// ranks: only this rank's shard.
using Sink = std::function<void(std::uint64_t first_element, std::span<const std::byte> values)>;

// Writes a stretch of one parameter's elements, in rising order of `first_element`; `values` holds
// the present ones. With several ranks: only this rank's shard.
using Source = std::function<void(std::uint64_t first_element, std::span<std::byte> values)>;

class Engine;
class EngineCore;
namespace engine {
struct EngineParts;
Engine engine_with_parts(Settings, EngineOptions, EngineParts);
}  // namespace engine

class Engine {
 public:
  explicit Engine(Settings settings, EngineOptions options = {});
  ~Engine();  // close() without its errors
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // ---- registration, before freeze ----
  HyperparameterSetId add_hyperparameters(const Hyperparameters& values);
  void set_default_hyperparameters(const Hyperparameters& values);
  // Parameters used together. Names are unique in the engine. Throws kInvalidArgument naming what
  // is wrong.
  GroupId add_group(std::string name, std::vector<ParameterSpec> parameters);
  // Declares that gradients of this group's parameters arrive several times before a step (a tied
  // weight, several backward passes), so that they are summed in f32. With
  // gradient_accumulation_steps > 1 every group is.
  void expect_repeated_gradients(GroupId group);
  // ParameterSpec::frozen of a parameter that was added: read and never updated, so that it has no
  // memory for gradients, no master and no moments, and is not in hash_optimizer_state(). A
  // gradient of it is refused by name. One that just receives none keeps all that, and may receive
  // some later. A group may have both kinds.
  void set_frozen(ParameterId id, bool frozen);
  // set_frozen(..., true) for all of this group's parameters.
  void expect_no_gradients(GroupId group);
  // Keeps this group's parameters in the device's memory from freeze to close whatever the budget:
  // for the few that belong to no block. Where the device has memory of its own, release and gather
  // such a group again around step().
  void keep_bound(GroupId group);
  // Plans, and allocates exactly the plan: memory, swap files (written in full: no room is found
  // out here), threads. Throws kOutOfBudget with the table and the smallest change that would fit,
  // kNoSpace, kIo, kNotFound, kUnsupported for a path; kPeerLost naming the group, parameter,
  // hyperparameters or setting that another rank has otherwise; nothing is left behind. Collective.
  void freeze();

  // ---- what was registered ----
  std::uint32_t group_count() const noexcept;
  std::uint32_t parameter_count() const noexcept;
  const std::string& group_name(GroupId group) const;
  std::span<const ParameterId> parameters(GroupId group) const;  // in the order given to add_group
  // Throws kNotFound with the nearest name.
  ParameterId parameter(std::string_view full_name) const;
  const ParameterSpec& spec(ParameterId id) const;
  const std::string& full_name(ParameterId id) const;
  GroupId group_of(ParameterId id) const;
  // After freeze: bytes from the start of Gathered::section(spec(id).dtype) to the parameter; and
  // that section's size.
  std::uint64_t section_offset_bytes(ParameterId id) const;
  // 0: the group has none of that dtype.
  std::uint64_t section_size_bytes(GroupId group, DType dtype) const;
  const PlanReport& plan() const;

  // ---- values ----
  // Every group is loaded once before its first gather; state starts at zero, step counts too.
  // Loading again replaces weights, master, moments and step counts. Collective: every rank fills
  // the whole group.
  void load(GroupId group, const Fill& fill);
  // Replaces one content of one parameter, the mirror of store(): for resuming a run, and for
  // changes in its middle. All else stays, its step count and gradient too.
  //   kWeight   an element whose bits are new becomes its own master; one whose are not keeps its
  //             master to the last bit.
  //   kMaster   the weight becomes the master rounded as an update rounds it, so it need not be
  //             loaded beside it. A NaN becomes the canonical one.
  // Cost:     the tiles it lies in are read, and written where a bit changed, through one update
  //           slot; the group's next gather reads again.
  // Order:    after load() of its group. Collective: every rank calls alike, each for its shard.
  // Throws kWrongState naming the group when it was never loaded, or is gathered in a buffer. What
  //          `source` throws, kIo, kCorrupt, kIoStalled before anything was written back: elements
  //          before the stretch at hand are replaced, the others are as before. If there are any
  //          of the former, gather, store, hashes and step are refused by name until the same
  //          content was loaded whole, or the group. An error while writing back fails the engine.
  void load(ParameterId id, Content content, const Source& source);
  // Says that something wrote to this group's weights while they were gathered: on a drive and in
  // memory they may be different ones now, and masters know nothing of it. gather, store,
  // hashes, step and load() of one parameter throw kWrongState with `cause` until load() of the
  // whole group; moments can be stored, since that load resets them. A group that has no values
  // (never loaded, or a load() of it ended on the way) is left at that. From any thread.
  void mark_written(GroupId group, const std::string& cause);
  // How often this group's weights became others since freeze: by load() of it, of a weight or a
  // master in it, by step(). What was computed with the weights of another count is out of date.
  std::uint64_t weight_changes(GroupId group) const;
  // Updates that a parameter has had: what bias correction counts. For resuming, set it after
  // load() of its group, on every rank alike: a difference is kPeerLost at the next step.
  std::uint64_t step_count(ParameterId id) const;
  void set_step_count(ParameterId id, std::uint64_t steps);
  // Streams one content of one parameter through an update slot, in bounded memory.
  void store(ParameterId id, Content content, const Sink& sink);
  // XXH3-128 over logical content (docs/swap_file.md, "Hashes"): parameters in order of full names,
  // each as name, dtype, shape and little-endian bytes. Independent of placement, layout and tile
  // size. With several ranks: of this rank's shards.
  std::string hash_parameters();
  std::string hash_optimizer_state();

  // ---- a step ----
  // Joins every rank's shard of `group` on the device.
  //   stream  the stream that will read the result; it waits for the bytes, the host only for a
  //           prefetch that missed.
  // Cost:    an atomic count if resident in memory the device shares; else the shard is swapped
  //          in and copied, and one all-gather per section runs.
  // Order:   collective: every rank gathers the same groups in the same order.
  // Throws kNotFound; kWrongState before load; kOutOfBudget when all gather slots are leased
  //          (names the holders); kIo, kCorrupt: nothing changed, retrying is safe; kIoStalled: the
  //          engine can only be closed; kPeerLost naming both ranks' calls.
  [[nodiscard]] Gathered gather(GroupId group, Stream stream = {});
  // Hands over one parameter's gradient (elements() values of `dtype`, device memory). It has been
  // read when `stream` passes this point; `stream` lives until the step. Summed with what arrived
  // since the last step; an arrival that was not declared is refused by name.
  void add_gradient(ParameterId id, const void* gradient, DType dtype, Stream stream = {});
  void discard_gradients();
  // New values for a set, checked as add_hyperparameters() checks them; the next step uses them.
  // Before freeze too. With several ranks on every one alike: see step().
  void set_hyperparameters(HyperparameterSetId set, const Hyperparameters& values);
  // Global norm, clipping, update of every parameter that received a gradient (on any rank); then
  // gradients are forgotten. Throws kNotFinite naming the first parameter whose gradient holds NaN
  // or infinity: nothing was updated, the gradients are kept until discard_gradients(). With
  // several ranks kPeerLost on all of them, before anything is updated, where they differ in an
  // option, naming it, in the values of a hyperparameter set, naming it and a parameter, or in a
  // step count.
  // With Settings::update_mode kDefer (and kAuto where the plan says so) it returns with updates
  // pending, and what was given here is copied: a group's update is done before its next gather or
  // add_gradient returns, all of them before load(), store(), the hashes and the next step() do.
  // What ends them is thrown by the call that waits, naming this step; the engine has failed then.
  StepResult step(const StepOptions& options);
  // Returns when no update is pending: where what follows is to be timed or must not fail for them.
  void finish_step();

  // ---- at any time ----
  Stats stats() const;
  // What was traced since the last call; from any thread, but not during freeze and close. Nothing
  // with trace_events 0, before freeze, and after close.
  Trace take_trace();
  // Makes the call that is waiting, and later ones but stats and close, end in kInterrupted soon:
  // for good. From any thread and from a signal handler. EngineOptions::poll ends one call.
  void interrupt() noexcept;
  // Drains and frees: threads, files and memory are gone when it returns. Throws kWrongState while
  // a Gathered is open, naming its group. Calling it again does nothing.
  void close();

 private:
  friend Engine engine::engine_with_parts(Settings, EngineOptions, engine::EngineParts);
  explicit Engine(std::unique_ptr<EngineCore> core);
  std::unique_ptr<EngineCore> core_;
};
}  // namespace headrace
