// SPDX-License-Identifier: Apache-2.0
// headrace/settings.hpp: everything that can be set, from a DeepSpeed-style JSON file or in code.
//
// Keys with the same meaning as in DeepSpeed keep DeepSpeed's names; Headrace's own keys are under
// "headrace". docs/settings.md lists all keys with unit, default and reason.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/optimizer.hpp"
#include "headrace/schedule.hpp"
#include "headrace/tensor.hpp"

namespace headrace {
// none: on the device. cpu: in host memory. nvme: in a swap file, except for the part that fits in
// a host budget (docs/settings.md).
enum class OffloadDevice { kNone, kCpu, kNvme };
// The master of a bf16 parameter: the weight and 16 residual bits, or an f32 copy.
enum class MasterLayout { kSplit, kF32 };
enum class IoQueueKind { kAuto, kUring, kAio, kThreads };
constexpr const char* name_of(IoQueueKind kind) noexcept {
  switch (kind) {
    case IoQueueKind::kAuto:
      return "auto";
    case IoQueueKind::kUring:
      return "uring";
    case IoQueueKind::kAio:
      return "aio";
    case IoQueueKind::kThreads:
      break;
  }
  return "threads";
}
enum class RegisterBuffers { kAuto, kOff };
enum class DirectIo { kAuto, kRequire };  // uses O_DIRECT where possible, or requires it
enum class Checksums { kOn, kOff };
// When tiles are updated. All choices give the same results, bit for bit.
//   kBarrier  all within step()
//   kDefer    step() returns early, and each group is updated before its next use
//   kAuto     deferred if that lets updates overlap with other work
enum class UpdateMode { kAuto, kBarrier, kDefer };
// When several ranks agree on what they join and reduce.
enum class RankOrder { kTrace, kEach };
// Where tiles are updated. All choices give the same results, bit for bit.
//   kDevice  the tiles' state goes to the device and comes back; the CPU's cores stay free
//   kAuto    the first steps try both places, and the faster one is kept
enum class UpdateOn { kCpu, kDevice, kAuto };
// How freeze() uses the store that headrace.store names.
//   kAuto     opens it if it exists, else creates it
//   kRequire  refuses to start unless it holds a committed step
//   kNever    refuses to start if it exists
enum class Resume : std::uint8_t { kAuto, kRequire, kNever };
enum class NonFinite { kStop, kSkip };  // step()'s answer to a gradient with NaN or infinity

// headrace.tuned: the machine on which `headrace tune` measured the other settings. This section
// controls nothing, but freeze() warns once if the drives or the kernel differ from those given
// here. Empty: unknown. The section's other keys are notes for readers of the file, and to_json()
// leaves them out.
struct Tuned {
  std::string drive_model = {};  // of all drives
  std::string kernel = {};       // "6.1.0-18-amd64"

  bool operator==(const Tuned&) const = default;
};

// The `optimizer` section of a settings file, as given there. The trainer passes it on.
struct OptimizerSection {
  std::string type = {};  // such as "AdamW"; "" without the section
  std::optional<double> lr = {};
  std::optional<std::array<double, 2>> betas = {};
  std::optional<double> eps = {}, weight_decay = {}, momentum = {}, dampening = {}, lr_decay = {};
  std::optional<bool> bias_correction = {}, adam_w_mode = {}, nesterov = {}, maximize = {};
  std::optional<bool> torch_adam = {};  // torch.optim's defaults, not those of DeepSpeed's own Adam

  // Returns the given values. The others come from DeepSpeed's defaults for `type` if that is
  // given, or else from `defaults`.
  //   rule  Settings::optimizer
  Hyperparameters hyperparameters(OptimizerRule rule, const Hyperparameters& defaults) const;
  // Likewise for the learning rate; `otherwise` is its default.
  double learning_rate(OptimizerRule rule, double otherwise) const;

  bool operator==(const OptimizerSection&) const = default;
};

// How a file is read.
struct ReadOptions {
  // Entries "a.b=value", which override the file. If a value is not JSON, it is a string.
  std::vector<std::string> overrides = {};
  // Like `overrides`, but only for keys that the file leaves "auto" for the trainer to fill in.
  // Entries for other keys are ignored.
  std::vector<std::string> for_auto = {};
  // How to treat a key that is still "auto" after that. false: the key is a fault. true: the key
  // gets its default, and its name goes into Settings::open.
  bool leave_auto_open = false;
  // true: an unknown key is a fault even if DeepSpeed ignores it. false: such a key causes a
  // warning, but remains a fault if it resembles a known key, or belongs elsewhere.
  bool strict = false;
};

struct Settings {
  // zero_optimization.stage. With several ranks, 0 to 2 keep joined parameters until their update.
  std::uint32_t zero_stage = 3;
  // zero_optimization.zero_hpz_partition_size: the ranks of a node. Above 1, a node keeps a copy of
  // the parameters between a step's first gather and the last, so the others do not leave it.
  std::uint32_t zero_hpz_partition_size = 1;
  // zero_optimization.zero_quantized_weights, zero_quantized_gradients: several ranks send
  // parameters to each other in 8 bits, gradients in 4. Results are no longer exact.
  bool zero_quantized_weights = false;
  bool zero_quantized_gradients = false;
  // zero_optimization.offload_optimizer.device / offload_param.device
  OffloadDevice offload_optimizer = OffloadDevice::kNone;
  OffloadDevice offload_parameters = OffloadDevice::kNone;
  // nvme_path of either section, or headrace.nvme_paths. Each path has one swap file.
  std::vector<std::string> nvme_paths;
  // The proportion of the swapped bytes that goes to each of several paths. Empty ("auto"):
  // freeze() chooses the shares by the speeds that it measures. The shares change no result.
  std::vector<double> drive_shares;
  double gradient_clipping = 0.0;  // global norm; 0 is off. For the trainer: StepOptions::max_norm
  // If gradient_accumulation_steps is 0, it follows from the two batch sizes and the number of
  // ranks: see resolve_batch(). train_batch_size is the number of sequences in a step, over all
  // ranks. train_micro_batch_size_per_gpu is the number of sequences in a micro-batch of one rank.
  // No value: not given.
  std::uint32_t gradient_accumulation_steps = 1;
  std::optional<std::uint32_t> train_batch_size = {};
  std::optional<std::uint32_t> train_micro_batch_size_per_gpu = {};

  // For the trainer: the dtype of parameters, the rule's constants, the learning rate schedule, and
  // the loss scale of fp16.
  bool fp16 = false;  // fp16.enabled
  // bf16.enabled. A file that enables neither fp16 nor bf16 asks for f32, as in DeepSpeed; then
  // this is false. No value: there was no file, or it leaves the dtype to the trainer ("auto").
  std::optional<bool> bf16 = {};
  OptimizerSection optimizer_section;
  Scheduler scheduler;
  LossScaling loss_scaling;

  // headrace.*
  std::uint64_t host_budget_bytes = 0;    // 0: no budget given
  bool host_budget_auto = false;          // "auto": what the cgroup or the machine leaves
  std::uint64_t device_budget_bytes = 0;  // of a device with memory of its own; 0: none given
  MasterLayout master = MasterLayout::kSplit;
  OptimizerRule optimizer = OptimizerRule::kAdamW;
  MomentCodec moments = MomentCodec::kF32;
  NonFinite non_finite = NonFinite::kStop;
  std::uint64_t rounding_seed = 0;        // for moments that are stochastically rounded
  std::uint64_t tile_elements = 1 << 20;  // a multiple of 65,536
  std::uint32_t update_slots = 4;         // tiles in memory during the update; at least 1
  std::uint32_t prefetch_groups = 2;      // groups read ahead of the one in use
  // With several ranks: whether they follow the order of the step before, and how many gathers
  // ahead of the trainer they then join.
  RankOrder rank_agreement = RankOrder::kTrace;
  std::uint32_t ranks_ahead = 1;
  // Above 1: the ranks of a node, in a row, which add their gradients to each other before sums
  // leave it. Changes the order of additions, so the last bits of results.
  std::uint32_t hierarchical_reduce_ranks = 1;
  UpdateMode update_mode = UpdateMode::kAuto;
  UpdateOn update_on = UpdateOn::kCpu;
  std::uint32_t update_threads = 0;        // 0: as many as affinity, cgroup quota and Slurm allow
  std::uint64_t io_block_bytes = 1 << 20;  // size of one request to a drive; a multiple of 4096
  std::uint32_t queue_depth = 16;          // requests in flight per drive
  std::uint32_t submit_batch = 2;  // requests per submit; more get merged (docs/architecture.md)
  IoQueueKind io_queue = IoQueueKind::kAuto;
  // With io_uring: registers memory and files once, if the limit on locked memory allows it.
  RegisterBuffers register_buffers = RegisterBuffers::kAuto;
  DirectIo direct = DirectIo::kAuto;
  bool allow_memory_backed = false;  // true: nvme_path may be a tmpfs
  Checksums checksums = Checksums::kOn;
  double io_warn_seconds = 10;      // a warning names a transfer older than this
  double io_deadline_seconds = 60;  // a transfer older than this fails with kIoStalled
  // Durable epochs (docs/durable.md): after every durable_every steps, the state is committed to a
  // store that survives the process. 0: never.
  std::uint64_t durable_every = 0;
  std::string store = {};
  Resume resume = Resume::kAuto;
  std::uint64_t trainer_state_bytes = 65536;  // the most that set_trainer_state() accepts
  // The most that save_checkpoint_in_background() writes on each rank. 0: there are no such saves,
  // and no memory for them.
  std::uint64_t background_save_bytes_per_second = 0;
  Tuned tuned;

  // One line for each key that is accepted but has no effect. The engine logs each line once.
  std::vector<std::string> warnings;
  // One line for each key that a file omits and whose default differs between DeepSpeed versions,
  // with the value in use. Each such key affects training.
  std::vector<std::string> defaults_taken;
  // Keys that were left "auto", with ReadOptions::leave_auto_open.
  std::vector<std::string> open;

  // The parameter dtype that a file asks for: fp16 or bf16 if that is enabled, else f32. No value:
  // the trainer chooses (see `bf16`). The engine accepts any dtype, and the trainer should use this
  // one.
  std::optional<DType> parameter_dtype() const;
  // Fills in the values missing from the equation
  //   train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * world_size
  // as DeepSpeed does. A trainer calls this before it creates an engine. If none of the three batch
  // settings is given, the call changes nothing.
  //   micro_batch  the trainer's own micro-batch size, for a file that gives neither that size nor
  //                the size of the whole batch
  // Errors:  kSettings when the given values contradict each other.
  void resolve_batch(std::uint32_t world_size, std::optional<std::uint32_t> micro_batch = {});

  // Reads and checks a file. `overrides` are "a.b=value" strings, which override the file. If a
  // value is not JSON, it is a string. Throws kSettings with every fault found, one per line:
  // "FILE:LINE:COLUMN: key: what, and what is allowed"; kNotFound / kIo when the file cannot be
  // read.
  static Settings from_file(const std::string& path,
                            const std::vector<std::string>& overrides = {});
  static Settings from_file(const std::string& path, const ReadOptions& options);
  // Likewise for text; `origin` replaces the file name in messages.
  static Settings from_json(std::string_view text, const std::string& origin = "settings",
                            const std::vector<std::string>& overrides = {});
  static Settings from_json(std::string_view text, const std::string& origin,
                            const ReadOptions& options);
  // The effective values as JSON, in the key structure of a file. from_json(to_json()) gives the
  // same settings, with two exceptions: the notes made while reading (warnings, defaults_taken and
  // open) are dropped, and the dtype is f32 if none was chosen.
  std::string to_json() const;
  // Checks values that were set in code, as from_json() checks those of a file. Throws kSettings
  // with every fault, one per line: "key: what, and what is allowed".
  void check() const;

  bool operator==(const Settings&) const = default;
};
}  // namespace headrace
