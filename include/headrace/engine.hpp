// SPDX-License-Identifier: Apache-2.0
// headrace/engine.hpp: the main interface. Register groups and freeze the engine. Then, in each
// step, call gather(), add_gradient() and step().
//
//   headrace::Engine engine(headrace::Settings::from_file("offload.json"));
//   auto no_decay = engine.add_hyperparameters({.weight_decay = 0});
//   auto block = engine.add_group("h.0", {{"qkv.weight", DType::kBf16, {3072, 1024}},
//                                         {"qkv.bias", DType::kBf16, {3072}, no_decay}});
//   engine.freeze();             // allocates exactly what it plans, or throws with the plan
//   engine.load(block, fill);    // loads values, group by group
//   { Gathered w = engine.gather(block); forward(w.bytes(id)); }
//   engine.add_gradient(id, gradient, dtype);
//   StepResult r = engine.step({.learning_rate = 3e-4f, .max_norm = 1});
//   engine.close();
//
// Threads: make the calls for registration, freeze(), load(), store(), step counts,
//          hyperparameters, step() and close() one at a time. Several trainer threads (such as
//          autograd's) may call gather(), release() and add_gradient() at the same time, but not
//          during any of those calls.
// Ranks:   with several, freeze(), gather(), step(), discard_gradients(), exchange() and the
//          hashes are collective: every rank makes the same calls in the same order.
//          add_gradient() is not collective: a rank without a gradient for a parameter adds nothing
//          to that parameter's sum. But add_gradient() may wait for the other ranks' next
//          collective call. So may load(), load_checkpoint() and sleep() in the middle of a step or
//          an evaluation; every rank makes these calls too. During that time, no rank may wait for
//          another by any other means. An engine takes collective calls one at a time, so a trainer
//          with several threads must put its gathers in order. Gradients of one group may arrive in
//          any order. A rank that has fewer micro-batches than the others makes the same gathers as
//          they do, without adding gradients. docs/ranks.md lists what else is needed so that the
//          results equal, to the last bit, those of one rank that accumulates gradients.
// Errors:  headrace::Error. If a step fails before a pass over any tile has begun, nothing was
//          updated, and the step may be repeated. The engine detects a failed read or a damaged
//          record header before the pass over the tile in question. But it still waits for the
//          other tiles that it has begun to read, and begins the passes over them. If an error
//          occurs after a pass has begun (for example, a checksum differs), or in a deferred
//          update, the engine has failed. From then on, every call except stats() and close()
//          throws kFailed with the first cause. After kIoStalled, the engine can only be closed.
//          There is one exception. If the previous step was committed to a store, and a step that
//          is not deferred fails with kIo, kNoSpace or kCorrupt, that step is undone and may be
//          repeated.
// Process: the engine installs no signal handler, never exits or forks, and does not change the
//          locale, umask, working directory or limits. Its threads are named headrace-* and block
//          signals. close() ends them.
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
  // The number of events (headrace/trace.hpp) kept between two calls of take_trace(), at 56 bytes
  // each; at most 2^26. 0: no trace.
  std::uint64_t trace_events = 0;
  // A thread that waits in a call invokes this function about ten times a second; store() and the
  // hashes invoke it between tiles. If the function returns true, only that call fails, with
  // kInterrupted. The call has then changed nothing, the engine is intact, and the call may be
  // repeated. Use this function, for example, to save a checkpoint after a signal; interrupt()
  // would end the engine. The function can end calls that wait for a read or a deferred update:
  // gather(), add_gradient(), store(), the hashes, load(), finish_step() and step(). Once load() or
  // step() has begun to change values, the call runs to its end. A wait for other ranks or for a
  // stream does not end early either. The function must not call this engine, and must not throw.
  // May be null.
  std::function<bool()> poll = nullptr;
};

// The kinds of content of a parameter, as store() hands them out and load() takes them in.
enum class Content {
  kWeight,    // in the parameter's dtype
  kMaster,    // f32, whatever the layout; for an f32 parameter, its weight
  kExpAvg,    // f32
  kExpAvgSq,  // f32
};

// The epoch at which a durable engine resumes: the newest one in its store.
struct Resumed {
  std::uint64_t step = 0;                // steps made; StepResult::step of the last one
  std::uint64_t skipped = 0;             // steps skipped because of their gradients
  std::vector<std::byte> trainer_state;  // what set_trainer_state() was given before that step
};

// Writes one whole parameter: `values` has elements() * size_bytes(dtype) bytes,
// row-major, in host memory.
using Fill = std::function<void(ParameterId id, std::span<std::byte> values)>;
// Like Fill, but writes only those elements of one parameter that lie in this rank's shard, from
// `first_element` on.
using FillShard =
    std::function<void(ParameterId id, std::uint64_t first_element, std::span<std::byte> values)>;
// Receives one range of a parameter's elements per call, in rising order of `first_element`. With
// several ranks, it receives only this rank's shard.
using Sink = std::function<void(std::uint64_t first_element, std::span<const std::byte> values)>;

// Writes one range of a parameter's elements per call, in rising order of `first_element`. `values`
// holds the current values beforehand. With several ranks, it writes only this rank's shard.
using Source = std::function<void(std::uint64_t first_element, std::span<std::byte> values)>;

class Engine;
class EngineCore;
namespace engine {
struct EngineParts;
Engine engine_with_parts(Settings, EngineOptions, EngineParts);
EngineCore& core_of(Engine& engine) noexcept;
}  // namespace engine

class Engine {
 public:
  explicit Engine(Settings settings, EngineOptions options = {});
  ~Engine();  // calls close(), without throwing its errors
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // ---- registration, before freeze ----
  HyperparameterSetId add_hyperparameters(const Hyperparameters& values);
  void set_default_hyperparameters(const Hyperparameters& values);
  // Adds parameters that are used together. Names must be unique in the engine. Throws
  // kInvalidArgument, naming the fault.
  GroupId add_group(std::string name, std::vector<ParameterSpec> parameters);
  // Declares that a parameter of this group may receive several gradients before a step (a tied
  // weight, several backward passes). The engine then sums them in f32. With
  // gradient_accumulation_steps > 1, it does so for every group.
  void expect_repeated_gradients(GroupId group);
  // Sets ParameterSpec::frozen for a parameter that has already been added. A frozen parameter is
  // read but never updated, has no memory for gradients, no master and no moments, and does not
  // enter hash_optimizer_state(). add_gradient() rejects a gradient for it, and the error names the
  // parameter. A trained parameter has all of these, even if it receives no gradient. A group may
  // have parameters of both kinds.
  void set_frozen(ParameterId id, bool frozen);
  // Calls set_frozen(..., true) for all of this group's parameters.
  void expect_no_gradients(GroupId group);
  // Keeps this group's parameters in the device's memory from freeze() to close(), whatever the
  // budget is. Use it for the few parameters that belong to no block. If the device has memory of
  // its own, release such a group before step() and gather it again afterwards.
  void keep_bound(GroupId group);
  // Declares that this group's gradients stay where the trainer has them: the engine allocates no
  // memory for them, and they come by lend_gradient(). For one rank whose device is the CPU;
  // freeze() rejects other engines, groups with repeated gradients, and Settings::update_mode
  // kDefer.
  void expect_lent_gradients(GroupId group);
  // Declares that this group's weights stay where the trainer has them, at the addresses that
  // lend_weights() gives. The engine keeps moments alone, and updates the weights in place. A value
  // that the trainer writes between steps is the one that the next step updates. The group is never
  // gathered. For trained f32 parameters; otherwise as expect_lent_gradients(), and not for durable
  // engines.
  void expect_lent_weights(GroupId group);
  // Makes the plan, and allocates exactly what the plan says: memory, threads and swap files. The
  // swap files are reserved in full, so that a lack of space shows up here. Collective.
  // Throws  kOutOfBudget with the plan's table, and the smallest change with which the plan would
  //         fit.
  //         kNoSpace, kIo, kNotFound or kUnsupported for a path.
  //         kPeerLost naming the group, parameter, hyperparameters or setting that differs on
  //         another rank.
  //         After an error, nothing is left behind.
  void freeze();

  // ---- what was registered ----
  // The settings that the constructor was given. The reference is valid until the engine is moved
  // from or destroyed.
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
  // After freeze(): the offset of the parameter, in bytes, from the start of
  // Gathered::section(spec(id).dtype).
  std::uint64_t section_offset_bytes(ParameterId id) const;
  // After freeze(): the size of that section. 0: the group has no parameters of that dtype.
  std::uint64_t section_size_bytes(GroupId group, DType dtype) const;
  const PlanReport& plan() const;

  // ---- values ----
  // Load every group once before its first gather; moments and step counts start at zero. Loading
  // again replaces weights, masters, moments and step counts. Every rank makes the same calls. With
  // Fill, each rank writes the whole group. With FillShard, each rank writes only its own shard, at
  // most one range per parameter. So W ranks together read a model once, and not W times.
  void load(GroupId group, const Fill& fill);
  void load(GroupId group, const FillShard& fill);
  // Gives the address of a parameter's weights (elements() values, row-major, in host memory), of a
  // group that lends them: before the group's load(), and again whenever they have moved. The
  // trainer owns the memory. The engine reads and writes it in load(), store(), step(), the hashes
  // and checkpoints, and at no other time. load() passes this memory to `fill`, which may leave the
  // values as they are. The memory of two parameters must not overlap.
  // Throws   kWrongState for a group without expect_lent_weights(). kInvalidArgument for an address
  //          that is null or not aligned.
  void lend_weights(ParameterId id, void* values);
  // Replaces one kind of content (weight, master or a moment) of one parameter; the inverse of
  // store(). Use it to resume a run, or to change values during one. Everything else stays as it
  // is, including the parameter's step count and gradient.
  //   kWeight   where the weight's bits change, the master becomes the new weight. Elsewhere, the
  //             master keeps every bit.
  //   kMaster   the weight becomes the master, rounded as an update rounds it, so there is no need
  //             to load the weight too. A NaN becomes the canonical NaN.
  // Cost:    reads the tiles in which the parameter lies, through one update slot, and writes back
  //          those in which a bit changed. The group's next gather reads the group again.
  // Order:   after load() of its group. Collective: all ranks make the call, each for its own
  //          shard.
  // Throws   kWrongState, naming the group, if the group was never loaded, or is gathered in a
  //          slot. If `source` throws, or a tile cannot be read (kIo, kCorrupt or kIoStalled), the
  //          load ends there. The elements of the earlier ranges have then been replaced and
  //          written back; the current range and all later ones have not. If any elements have been
  //          replaced, then gather(), store(), the hashes and step() fail and name the parameter,
  //          until the same content or the whole group is loaded again. If a tile cannot be written
  //          back, the engine has failed.
  void load(ParameterId id, Content content, const Source& source);
  // Tells the engine that something wrote to this group's weights while they were gathered. The
  // drive and memory may now differ, and the masters do not have the change. So gather(), store(),
  // the hashes, step(), and load() of one parameter throw kWrongState with `cause`, until the whole
  // group is loaded with load(). Because that load() resets the moments, they can still be stored
  // until then. Does nothing to a group without values (never loaded, or its load() failed). May be
  // called from any thread.
  void mark_written(GroupId group, const std::string& cause);
  // How many times this group's weights have changed since freeze: by load() of the group, by
  // load() of a weight or master in it, or by step(). Results computed when the count was different
  // are out of date.
  std::uint64_t weight_changes(GroupId group) const;
  // The number of updates that a parameter has had. Bias correction uses this number. To resume a
  // run, load() the parameter's group first, and then set the number, to the same value on every
  // rank. If the values differ, the next step throws kPeerLost. With zero_quantized_gradients, set
  // it between steps: in the middle of one it may wait for the other ranks' next collective call,
  // and throws kWrongState once gradients have been added up.
  std::uint64_t step_count(ParameterId id) const;
  void set_step_count(ParameterId id, std::uint64_t steps);
  // Hands one kind of content of one parameter to `sink`, through an update slot, in bounded
  // memory.
  void store(ParameterId id, Content content, const Sink& sink);
  // XXH3-128 over logical content (docs/swap_file.md, "Hashes"): parameters in the order of their
  // full names, each as name, dtype, shape and little-endian bytes. The hashes do not depend on
  // placement, layout, tile size or the number of ranks. The calls are collective; the hashes cover
  // the shards of all ranks, and are equal on every rank. If a rank cannot read its part, it throws
  // the error of that read, and the others throw kPeerLost naming that rank. All ranks may
  // continue.
  std::string hash_parameters();
  std::string hash_optimizer_state();

  // ---- a step ----
  // Joins every rank's shard of `group` on the device.
  //   stream  the stream that will read the result. This stream waits for the bytes. The host waits
  //           until the shard has arrived and, with several ranks, until all of them have come.
  // Cost:    only an atomic count if there is one rank, the weights are resident, and the device
  //          shares that memory. Otherwise the call switches to a thread of the engine and back,
  //          and the shard is swapped in and copied if it has no slot yet. Several ranks meet in
  //          every gather that they have not joined ahead (docs/ranks.md). Unless all of them still
  //          have the group joined, one all-gather runs per section.
  // Order:   collective: every rank gathers the same groups in the same order.
  // Throws   kNotFound. kWrongState before load. kOutOfBudget when all gather slots are leased; the
  //          error names the holders. kIo, kCorrupt: nothing has changed, and retrying is safe. If
  //          the ranks had agreed on this gather already, the collective has ended instead, and
  //          later collective calls throw kPeerLost.
  //          kIoStalled: the engine can only be closed. kPeerLost naming both ranks' calls.
  [[nodiscard]] Gathered gather(GroupId group, Stream stream = {});
  // Hands over one parameter's gradient (elements() values of `dtype`, in device memory). The
  // engine has read it when `stream` passes this point; `stream` must stay alive until the step.
  // The engine adds it to the gradients received since the last step. Without
  // expect_repeated_gradients(), the engine rejects a second gradient for the same parameter, and
  // the error names the parameter.
  void add_gradient(ParameterId id, const void* gradient, DType dtype, Stream stream = {});
  // The same for a group with expect_lent_gradients(). The call reads the gradient, for the norm,
  // and step() reads it again. Until that or discard_gradients() has returned, the memory must keep
  // its values. Each gradient may have any dtype, and loses no bit.
  void lend_gradient(ParameterId id, const void* gradient, DType dtype);
  void discard_gradients();
  // Sends the trainer's own data, such as losses, to all ranks: all[r * mine.size() + i] becomes
  // rank r's mine[i]. Collective. `mine` has the same size on every rank, and `all` that size times
  // the number of ranks; kInvalidArgument if not. Cost: two exchanges of the collective. Cheapest
  // between step() and the next gather(): elsewhere the ranks leave the order in which they work
  // ahead (docs/ranks.md).
  void exchange(std::span<const std::byte> mine, std::span<std::byte> all);
  // Of the gradients that one parameter has received since the last step, added up and not scaled;
  // zeros if it has none. For trainers that clip by a rule of their own before step(). Waits until
  // the device has read those gradients. Throws kUnsupported with several ranks, which add them up
  // only in step().
  GradientPiece gradient_statistics(ParameterId id) const;
  // Replaces the values of a set, before or after freeze(), and checks them as
  // add_hyperparameters() does. The next step uses the new values. With several ranks, make the
  // same call on all of them: see step().
  void set_hyperparameters(HyperparameterSetId set, const Hyperparameters& values);
  // Computes the global norm, clips the gradients, updates every parameter that received a gradient
  // (on any rank), and then forgets the gradients. With Settings::update_mode kDefer (and with
  // kAuto if the plan says so), step() copies its arguments and returns with updates pending. A
  // group's update is done before the next gather() or add_gradient() for that group returns. All
  // updates are done before load(), store(), the hashes or the next step() returns. If an update
  // fails, the call that waits for it throws the error, naming this step, and the engine has
  // failed.
  // Throws   kNotFinite naming the first parameter whose gradient holds NaN or infinity. Nothing
  //          was updated then, and the gradients are kept until discard_gradients(). If several
  //          ranks differ in an option, in the values of a hyperparameter set, or in a step count,
  //          all of them throw kPeerLost before anything is updated. The error names the option, or
  //          the set and a parameter. kWrongState if a step that failed on this rank, after the
  //          ranks had agreed on it, is repeated with other options: nothing was updated here.
  StepResult step(const StepOptions& options);
  // Waits until no update is pending. Use it before you measure times, or to get the errors of
  // pending updates here.
  void finish_step();

  // ---- durable epochs (headrace.durable; docs/durable.md) ----
  // After every step, or every N steps, the engine commits weights, masters, moments, step counts,
  // hyperparameters and the trainer's state to the store: either all of a step, or nothing of it.
  // When step(t) has returned, the previous commit is durable. So if the process is killed, at most
  // one step that had returned must be repeated, or at most N steps with a commit every N steps.
  // Without headrace.durable, resumed() has no value, set_trainer_state() keeps nothing,
  // durable_step() is 0, and commit() throws kWrongState.
  // With several ranks, all of them resume at the last epoch that all of them have. The first
  // load() after a step is collective, and set_trainer_state() keeps each rank's own state.
  //
  // After freeze(): the epoch at which the engine resumed. All values are in place, so load
  // nothing.
  // No value: the store is new, so load the values.
  std::optional<Resumed> resumed() const;
  // Stores the bytes that the trainer needs in order to continue, such as the states of random
  // number generators and the position in the data. They become part of the epoch of the next step,
  // or of the present one if commit() comes first. If neither comes, close() does not commit them.
  // Until other bytes are given, they stay part of later epochs, also in a run that resumes. The
  // bytes are copied. There may be at most headrace.trainer_state_bytes of them.
  void set_trainer_state(std::span<const std::byte> state);
  // Commits now, and returns when everything done so far is durable on every rank. Collective.
  // If a drive fails, throws its error. The engine has then failed, and the store keeps the
  // previous epoch.
  void commit();
  // The step of the last durable epoch, or with several ranks, of the last epoch that all of them
  // are known to have. 0 if there is none. May be called from any thread.
  std::uint64_t durable_step() const;

  // ---- sleep (docs/checkpoints.md) ----
  // Gives host and device memory back until wake(): for a program whose other parts need it for a
  // while. Weights and state that live in memory go to files on the drives, with checksums. Swap
  // files and stores stay as they are.
  //   directory  where those files go; empty: the engine's nvme paths
  // Until wake(), every call but wake(), close(), stats() and queries of what was registered throws
  // kWrongState. wake() begins to remove the files, which may go on until the next sleep() or
  // close(). A killed process loses what they hold, unless the engine is durable.
  // Cost:    writes everything that lives in memory once, and syncs it. Completes deferred updates
  //          first. If the engine is durable, commits first what has changed, and that is
  //          collective.
  // Order:   no group is gathered, and no gradient has arrived since the last step, nor been added
  //          up here for another rank. Each rank decides by itself: call it between steps. In the
  //          middle of a step or an evaluation, it may wait for the other ranks' next collective
  //          call. The device has read what it was given: synchronise the trainer's streams before.
  // Throws   kWrongState naming a group that is gathered, or gradients, or a background save that
  //          still reads. kInvalidArgument if there is no directory. kNoSpace, kIo. The engine is
  //          then awake, as before.
  void sleep(const std::string& directory = {});
  // Takes the memory again, and reads back and verifies what lived there. Everything is then as if
  // the engine had not slept, bit for bit.
  // Throws   kOutOfBudget if host or device lack memory, kIo, kCorrupt. The engine then still
  //          sleeps: repeat the call.
  void wake();

  // ---- at any time ----
  Stats stats() const;
  // Returns the events traced since the last call. May be called from any thread, but not during
  // freeze() or close(). The result is empty if trace_events is 0, before freeze(), and after
  // close().
  Trace take_trace();
  // Makes the waiting call, and all later calls except stats() and close(), throw kInterrupted. The
  // waiting call ends when the work that it waits for ends: for a gather(), the read; for a step(),
  // the current tiles. An interrupt cannot be undone. To end a single call, use EngineOptions::poll
  // instead. May be called from any thread and from a signal handler.
  void interrupt() noexcept;
  // Completes work in progress, then ends threads and frees files and memory. Deferred updates that
  // have not begun are dropped. If an update has failed and no call has thrown its error, close()
  // logs that error. Throws kWrongState while a Gathered is open, naming its group. A second call
  // does nothing. With several ranks, in the middle of a step or an evaluation, close() waits until
  // the others make their next call or close too, but at most 3 s, and after interrupt() not at
  // all. Then it ends the collective: calls of the others that need this rank throw kPeerLost.
  void close();

 private:
  friend Engine engine::engine_with_parts(Settings, EngineOptions, engine::EngineParts);
  friend EngineCore& engine::core_of(Engine& engine) noexcept;
  explicit Engine(std::unique_ptr<EngineCore> core);
  std::unique_ptr<EngineCore> core_;
};
}  // namespace headrace
