// SPDX-License-Identifier: Apache-2.0
// headrace/engine.hpp: the front door. Register, freeze, then per step: gather, add_gradient, step.
//
//   headrace::Engine engine(headrace::Settings::from_file("offload.json"));
//   auto no_decay = engine.add_hyperparameters({.weight_decay = 0});
//   auto block = engine.add_group("h.0", {{"qkv.weight", DType::kBf16, {3072, 1024}},
//                                         {"qkv.bias", DType::kBf16, {3072}, no_decay}});
//   engine.freeze();             // plans; allocates exactly that, or throws with the table
//   engine.load(block, fill);    // values in, group by group
//   { Gathered w = engine.gather(block); forward(w.bytes(id)); }
//   engine.add_gradient(id, gradient, dtype);
//   StepResult r = engine.step({.learning_rate = 3e-4f, .max_norm = 1});
//   engine.close();
//
// Threads: make one call at a time to registration, freeze, load, store, step counts,
//          hyperparameters, step and close. Several trainer threads (such as autograd's) may call
//          gather, release and add_gradient at once, but not during the former calls.
// Ranks:   with several, freeze, gather, step, discard_gradients and hashes are collective: every
//          rank makes the same calls in order. add_gradient is not: a gradient that a rank did not
//          receive adds nothing there. The call may wait for the other ranks' next collective
//          call, so meanwhile no rank may wait for another by other means. An engine takes such
//          calls one at a time. A trainer of several threads puts gathers in order; gradients of
//          one group may come in any order. A rank that has fewer micro-batches than others makes
//          their gathers without adding gradients. docs/ranks.md says what else keeps the results
//          equal, to the last bit, to those of one rank that accumulates.
// Errors:  headrace::Error. If a step fails and no pass over a tile has begun, the step is undone
//          and may be repeated. A failed read and a damaged record header come before the pass
//          over their tile. But the step waits for the tiles that it had begun to read, and passes
//          over them still begin. An error after a pass has begun (such as a checksum that
//          differs), or in a deferred update, leaves the engine failed. Then every call but stats
//          and close throws kFailed with the first cause. After kIoStalled the engine can only be
//          closed.
//          If the step before was committed to a store, kIo, kNoSpace and kCorrupt leave a step
//          that is not deferred undone, and it may be repeated.
// Process: the engine installs no signal handler, never exits or forks, and does not change locale,
//          umask, directory or limits. Its threads are named headrace-* and block signals. close()
//          ends them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
  // Events (headrace/trace.hpp) kept between two calls of take_trace(), 56 bytes each; at most
  // 2^26. 0: no trace.
  std::uint64_t trace_events = 0;
  // A thread that waits in a call invokes this function about ten times a second; store() and the
  // hashes invoke it between tiles. If it returns true, that call alone fails with kInterrupted: it
  // has changed nothing, the engine is intact, and the call may be repeated. Use it to save a
  // checkpoint after a signal; interrupt() ends the engine. It ends calls that wait for a read or a
  // deferred update: gather, add_gradient, store, hashes, load, finish_step and step. Once load()
  // or step() changes values, the call runs to its end. Waits for other ranks and for streams do
  // not end early either. The function must not call this engine, and must not throw. May be null.
  std::function<bool()> poll = nullptr;
};

// Logical content of a parameter, as store() hands it out and load() takes it in.
enum class Content {
  kWeight,    // in the parameter's dtype
  kMaster,    // f32, joined from either layout; for an f32 parameter, its weight
  kExpAvg,    // f32
  kExpAvgSq,  // f32
};

// The epoch at which a durable engine resumes: the newest one of its store.
struct Resumed {
  std::uint64_t step = 0;                // steps made; StepResult::step of the last one
  std::uint64_t skipped = 0;             // steps skipped for their gradients
  std::vector<std::byte> trainer_state;  // what set_trainer_state() was given before that step
};

// Writes one whole parameter: `values` has elements() * size_bytes(dtype) bytes,
// row-major, in host memory.
using Fill = std::function<void(ParameterId id, std::span<std::byte> values)>;
// The same for those elements of one parameter that lie in this rank's shard, from `first_element`
// on.
using FillShard =
    std::function<void(ParameterId id, std::uint64_t first_element, std::span<std::byte> values)>;
// Receives a range of one parameter's elements, in rising order of `first_element`. With several
// ranks: only this rank's shard.
using Sink = std::function<void(std::uint64_t first_element, std::span<const std::byte> values)>;

// Writes a range of one parameter's elements, in rising order of `first_element`; `values` holds
// the current values. With several ranks: only this rank's shard.
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
  // Adds parameters that are used together. Names are unique in the engine. Throws kInvalidArgument
  // and names the fault.
  GroupId add_group(std::string name, std::vector<ParameterSpec> parameters);
  // Declares that gradients of this group's parameters arrive several times before a step (a tied
  // weight, several backward passes): the engine then sums them in f32. With
  // gradient_accumulation_steps > 1 this holds for every group.
  void expect_repeated_gradients(GroupId group);
  // Sets ParameterSpec::frozen of an added parameter: it is read but never updated. A frozen
  // parameter has no memory for gradients, no master and no moments, and does not enter
  // hash_optimizer_state(). add_gradient() rejects a gradient of it and names it. A trained
  // parameter keeps all of these even if it receives no gradient. A group may have both kinds.
  void set_frozen(ParameterId id, bool frozen);
  // set_frozen(..., true) for all of this group's parameters.
  void expect_no_gradients(GroupId group);
  // Keeps this group's parameters in the device's memory from freeze to close, whatever the budget.
  // Use it for the few parameters that belong to no block. If the device has memory of its own,
  // release such a group before step() and gather it again afterwards.
  void keep_bound(GroupId group);
  // Makes the plan and allocates exactly what it says: memory, threads, and swap files, which are
  // reserved in full so that a lack of room shows here. Collective.
  // Throws  kOutOfBudget with the table and the smallest change that would fit.
  //         kNoSpace, kIo, kNotFound, kUnsupported for a path.
  //         kPeerLost naming the group, parameter, hyperparameters or setting that differs on
  //         another rank.
  //         After an error nothing is left behind.
  void freeze();

  // ---- what was registered ----
  // As the constructor was given them. Valid until the engine is moved from or destroyed.
  const Settings& settings() const noexcept;
  std::uint32_t group_count() const noexcept;
  std::uint32_t parameter_count() const noexcept;
  const std::string& group_name(GroupId group) const;
  std::span<const ParameterId> parameters(GroupId group) const;  // in the order given to add_group
  // Throws kNotFound with the nearest name.
  ParameterId parameter(std::string_view full_name) const;
  const ParameterSpec& spec(ParameterId id) const;
  const std::string& full_name(ParameterId id) const;
  GroupId group_of(ParameterId id) const;
  // After freeze: bytes from the start of Gathered::section(spec(id).dtype) to the parameter, and
  // that section's size.
  std::uint64_t section_offset_bytes(ParameterId id) const;
  // 0: the group has none of that dtype.
  std::uint64_t section_size_bytes(GroupId group, DType dtype) const;
  const PlanReport& plan() const;

  // ---- values ----
  // Load every group once before its first gather; state and step counts start at zero. Loading
  // again replaces weights, masters, moments and step counts. Every rank makes the same calls. With
  // Fill each rank writes the whole group. With FillShard each writes its own shard alone, at most
  // one range per parameter, so that W ranks read a model once and not W times.
  void load(GroupId group, const Fill& fill);
  void load(GroupId group, const FillShard& fill);
  // Replaces one content of one parameter, the inverse of store(). Use it to resume a run, or to
  // change values during one. Everything else stays, including its step count and gradient.
  //   kWeight   where the weight's bits change, the master becomes the new weight; elsewhere the
  //             master keeps every bit.
  //   kMaster   the weight becomes the master rounded as an update rounds it, so there is no need
  //             to load it too. A NaN becomes the canonical one.
  // Cost:    reads the tiles it lies in, and writes those where a bit changed, through one update
  //          slot; the group's next gather reads again.
  // Order:   after load() of its group. Collective: all ranks make the call, each for its shard.
  // Throws   kWrongState naming the group when it was never loaded, or is gathered in a slot. An
  //          exception of `source`, kIo, kCorrupt or kIoStalled comes before anything was written
  //          back: elements before the current range are replaced, later ones are not. If any are
  //          replaced, gather, store, hashes and step fail and name the parameter until the same
  //          content, or the group, is loaded again. An error while writing back fails the engine.
  void load(ParameterId id, Content content, const Source& source);
  // Reports that something wrote to this group's weights while they were gathered: drive and memory
  // may differ now, and the masters do not have the change. gather, store, hashes, step and load()
  // of one parameter throw kWrongState with `cause` until load() of the whole group. Moments can
  // still be stored, since that load resets them. Does nothing to a group without values (never
  // loaded, or its load() failed). From any thread.
  void mark_written(GroupId group, const std::string& cause);
  // How many times this group's weights have changed since freeze: by load() of it, of a weight or
  // a master in it, by step(). Results computed with the weights of another count are out of date.
  std::uint64_t weight_changes(GroupId group) const;
  // The number of updates of a parameter, which bias correction uses. To resume, set it after
  // load() of its group, to the same value on every rank: otherwise the next step throws kPeerLost.
  std::uint64_t step_count(ParameterId id) const;
  void set_step_count(ParameterId id, std::uint64_t steps);
  // Streams one content of one parameter through an update slot, in bounded memory.
  void store(ParameterId id, Content content, const Sink& sink);
  // XXH3-128 over logical content (docs/swap_file.md, "Hashes"): parameters in order of full names,
  // each as name, dtype, shape and little-endian bytes. The hashes do not depend on placement,
  // layout, tile size or the number of ranks. They are collective, cover the shards of all ranks,
  // and are equal on every rank. A rank that cannot read its part throws its error; the others
  // throw kPeerLost naming it, and all may continue.
  std::string hash_parameters();
  std::string hash_optimizer_state();

  // ---- a step ----
  // Joins every rank's shard of `group` on the device.
  //   stream  the stream that will read the result. It waits for the bytes. The host waits only if
  //           the shard was not prefetched, or has not arrived yet.
  // Cost:    an atomic count if there is one rank, the weights are resident, and the device shares
  //          that memory. Else the shard is swapped in and copied if it has no slot yet, and with
  //          several ranks one all-gather per section runs.
  // Order:   collective: every rank gathers the same groups in the same order.
  // Throws   kNotFound. kWrongState before load. kOutOfBudget when all gather slots are leased; it
  //          names the holders. kIo, kCorrupt: nothing changed, retrying is safe. kIoStalled: the
  //          engine can only be closed. kPeerLost naming both ranks' calls.
  [[nodiscard]] Gathered gather(GroupId group, Stream stream = {});
  // Hands over one parameter's gradient (elements() values of `dtype`, device memory). The engine
  // has read it when `stream` passes this point; `stream` lives until the step. The engine adds it
  // to the gradients since the last step. Without expect_repeated_gradients() it rejects a second
  // gradient of a parameter and names it.
  void add_gradient(ParameterId id, const void* gradient, DType dtype, Stream stream = {});
  void discard_gradients();
  // Replaces the values of a set, before or after freeze, with the checks of add_hyperparameters().
  // The next step uses them. With several ranks, make the same call on all of them: see step().
  void set_hyperparameters(HyperparameterSetId set, const Hyperparameters& values);
  // Computes the global norm, clips, and updates every parameter that received a gradient (on any
  // rank); then forgets the gradients. With Settings::update_mode kDefer (and kAuto where the plan
  // says so) it copies its arguments and returns with updates pending. A group's update is done
  // before its next gather or add_gradient returns; all of them are before load(), store(), the
  // hashes and the next step() return. The call that waits for an update throws its error, naming
  // this step; the engine has failed then.
  // Throws   kNotFinite naming the first parameter whose gradient holds NaN or infinity: nothing
  //          was updated, and the gradients are kept until discard_gradients(). With several ranks
  //          kPeerLost on all of them, before anything is updated, where they differ in an option,
  //          in the values of a hyperparameter set, or in a step count. It names the option, or the
  //          set and a parameter.
  StepResult step(const StepOptions& options);
  // Returns when no update is pending. Use it before you take times, or to get errors here.
  void finish_step();

  // ---- durable epochs (headrace.durable; docs/durable.md) ----
  // After every step, or every N steps, the engine commits weights, masters, moments, step counts,
  // hyperparameters and the trainer's state to the store: all of a step, or nothing of it. When
  // step(t) has returned, the commit before it is durable. So a kill repeats at most one step that
  // has returned; with N, at most N. Without headrace.durable, resumed() has no value,
  // set_trainer_state() keeps nothing, durable_step() is 0, and commit() throws kWrongState.
  // With several ranks, all resume at the last epoch that all have. The first load() after a step
  // is collective, and set_trainer_state() keeps each rank's own state.
  //
  // After freeze: the epoch that the engine resumed at. Everything is in place: load nothing.
  // No value: the store is new, and the values have to be loaded.
  std::optional<Resumed> resumed() const;
  // Keeps what the trainer needs to go on, such as generators of random numbers and the position in
  // the data, for the epoch of the next step. Copied. At most headrace.trainer_state_bytes.
  void set_trainer_state(std::span<const std::byte> state);
  // Commits now, and returns when all that was done is durable, on every rank. Collective. Throws
  // the error of a drive; the engine has failed then, and the store keeps the epoch before.
  void commit();
  // The step of the last durable epoch; with several ranks, of the last one that all of them are
  // known to have. 0 if there is none. May be called from any thread.
  std::uint64_t durable_step() const;

  // ---- at any time ----
  Stats stats() const;
  // The events traced since the last call; from any thread, but not during freeze and close. Empty
  // with trace_events 0, before freeze, and after close.
  Trace take_trace();
  // Makes the waiting call, and all later calls except stats and close, throw kInterrupted. The
  // call ends when the work it waits for ends: a gather with its read, a step with its current
  // tiles. This cannot be undone; EngineOptions::poll ends a single call. From any thread and from
  // a signal handler.
  void interrupt() noexcept;
  // Completes work in progress, then ends threads and frees files and memory. Deferred updates that
  // have not begun are dropped; the error of one that no call has thrown is logged. Throws
  // kWrongState while a Gathered is open, naming its group. Calling it again does nothing.
  void close();

 private:
  friend Engine engine::engine_with_parts(Settings, EngineOptions, engine::EngineParts);
  explicit Engine(std::unique_ptr<EngineCore> core);
  std::unique_ptr<EngineCore> core_;
};
}  // namespace headrace
