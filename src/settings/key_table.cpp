// SPDX-License-Identifier: Apache-2.0
// The table itself, in the order in which docs/settings.md and Settings::to_json() show it.
#include "settings/key_table.hpp"

#include <algorithm>
#include <iterator>

#include "base/sizes.hpp"

namespace headrace::settings {
namespace {
constexpr Key section(std::string_view path, std::string_view help) {
  return {.path = path, .kind = Kind::kSection, .status = Status::kEngine, .help = help};
}
constexpr Key engine(std::string_view path, Kind kind, std::string_view help) {
  return {.path = path, .kind = kind, .status = Status::kEngine, .help = help};
}
constexpr Key tuned(std::string_view path, std::string_view help) {
  return engine(path, Kind::kText, help);
}
constexpr Key tuned_rate(std::string_view path, std::string_view help) {
  return engine(path, Kind::kNumber, help).from(0).in("GB/s").with([](Key& key) {
    key.unsaid_at_zero = true;
  });
}
constexpr Key trainer(std::string_view path, Kind kind, std::string_view help) {
  return {.path = path, .kind = kind, .status = Status::kTrainer, .help = help};
}

constexpr double kMaxCount = 2147483647;

// Constants of schedulers.
constexpr Key rate(std::string_view path, std::string_view help) {
  return trainer(path, Kind::kNumber, help).from(0, 3.4e38).in("learning rate");
}
constexpr Key ratio(std::string_view path, std::string_view help) {
  return rate(path, help).in("ratio");
}
constexpr Key steps(std::string_view path, std::string_view help) {
  return trainer(path, Kind::kInteger, help).from(0, kMaxCount).in("steps");
}
constexpr std::string_view kWarmups = "WarmupLR|WarmupDecayLR";
constexpr std::string_view kAllWarmups = "WarmupLR|WarmupDecayLR|WarmupCosineLR";
constexpr double kDaySeconds = 86400;

constexpr Key kHonoured[] = {
    // ---- what is honoured, under DeepSpeed's names
    section("zero_optimization", "DeepSpeed's ZeRO section."),
    engine("zero_optimization.stage", Kind::kInteger,
           "Does not change the placement: the two sections below decide what is offloaded. If "
           "DeepSpeed would offload less at this stage, a warning says so.")
        .in("stage")
        .from(0, 3)
        .with_check(),
    section("zero_optimization.offload_optimizer", "Where the optimizer state lives.").or_null(),
    engine("zero_optimization.offload_optimizer.device", Kind::kChoice,
           "none and cpu: in host memory. nvme: in a swap file, unless headrace.host_budget_bytes "
           "leaves room in host memory. A GPU never stores it, but may update it: "
           "headrace.update_on.")
        .one_of("none|cpu|nvme")
        .into<&Settings::offload_optimizer>(),
    engine("zero_optimization.offload_optimizer.nvme_path", Kind::kPath,
           "A directory on the drive. A directory in one of the two sections applies to both. For "
           "several drives, see headrace.nvme_paths.")
        .or_null()
        .with_check(),
    section("zero_optimization.offload_param", "Where the parameters live.").or_null(),
    engine("zero_optimization.offload_param.device", Kind::kChoice, "As for the optimizer state.")
        .one_of("none|cpu|nvme")
        .into<&Settings::offload_parameters>(),
    engine("zero_optimization.offload_param.nvme_path", Kind::kPath, "As for the optimizer state.")
        .or_null()
        .with_check(),
    engine("zero_optimization.cpu_offload", Kind::kBoolean,
           "Deprecated in DeepSpeed: true means offload_optimizer with device cpu.")
        .or_null()
        .with_check(),
    engine("zero_optimization.cpu_offload_params", Kind::kBoolean,
           "Deprecated in DeepSpeed: true means offload_param with device cpu.")
        .or_as("cpu_offload_param")
        .or_null()
        .with_check(),
    trainer("gradient_clipping", Kind::kNumber, "Largest global gradient norm; 0 does not clip.")
        .in("norm")
        .unlike("0 until 0.19.2, 1.0 since 0.19.3")
        .from(0, 3.4e38)
        .into<&Settings::gradient_clipping>(),
    trainer("gradient_accumulation_steps", Kind::kInteger,
            "Micro-batches per step. With more than one, gradients are summed in f32: 4 bytes per "
            "parameter of host "
            "memory instead of 2.")
        .in("micro-batches")
        .from(1, kMaxCount)
        .or_null()
        .or_auto()
        .into<&Settings::gradient_accumulation_steps>(),
    trainer("train_batch_size", Kind::kInteger,
            "Sequences per step, over all ranks: train_micro_batch_size_per_gpu x "
            "gradient_accumulation_steps x ranks. A missing one of the three follows from the "
            "others; a contradiction is an error.")
        .from(1, kMaxCount)
        .in("sequences")
        .or_null()
        .or_auto()
        .into<&Settings::train_batch_size>(),
    trainer("train_micro_batch_size_per_gpu", Kind::kInteger, "Sequences per micro-batch and rank.")
        .from(1, kMaxCount)
        .in("sequences")
        .or_null()
        .or_auto()
        .into<&Settings::train_micro_batch_size_per_gpu>(),
    section("bf16", "bfloat16 training.").or_as("bfloat16").or_null(),
    trainer(
        "bf16.enabled", Kind::kBoolean,
        "true: the trainer's parameters are bf16. A file in which neither it nor fp16.enabled is "
        "true asks for f32, as in DeepSpeed; \"auto\" in either leaves the choice to the trainer. "
        "Settings::parameter_dtype() gives that dtype.")
        .into<&Settings::bf16>()
        .with_check(),
    section("fp16", "float16 training.").or_null(),
    trainer("fp16.enabled", Kind::kBoolean,
            "true: the trainer's parameters are fp16, with f32 masters, and losses are scaled. A "
            "step whose gradients overflow is skipped (headrace.non_finite).")
        .into<&Settings::fp16>()
        .with_check(),
    trainer("fp16.loss_scale", Kind::kNumber,
            "0: dynamic, by the keys below. Any other value: a "
            "constant scale.")
        .in("factor")
        .from(0, 3.4e38)
        .into<&Settings::loss_scaling, &LossScaling::loss_scale>(),
    trainer("fp16.initial_scale_power", Kind::kInteger,
            "A dynamic scale begins at 2 to this power.")
        .in("exponent of 2")
        .unlike("32 until 0.7.7, 16 since 0.8.0")
        .from(0, 126)
        .into<&Settings::loss_scaling, &LossScaling::initial_scale_power>(),
    trainer("fp16.loss_scale_window", Kind::kInteger,
            "A dynamic scale doubles one step after so many consecutive steps without overflow, "
            "at least 1.")
        .from(0, kMaxCount)
        .in("steps")
        .into<&Settings::loss_scaling, &LossScaling::loss_scale_window>(),
    trainer("fp16.hysteresis", Kind::kInteger,
            "The number of overflows until a dynamic scale is halved. The count is restored when "
            "the scale doubles.")
        .in("overflows")
        .from(1, kMaxCount)
        .into<&Settings::loss_scaling, &LossScaling::hysteresis>(),
    trainer("fp16.consecutive_hysteresis", Kind::kBoolean,
            "true: hysteresis is restored by each step that does not overflow.")
        .into<&Settings::loss_scaling, &LossScaling::consecutive_hysteresis>(),
    trainer("fp16.min_loss_scale", Kind::kNumber,
            "The least dynamic scale, above 0. An overflow at this scale ends the run.")
        .in("factor")
        .from(0, 3.4e38)
        .into<&Settings::loss_scaling, &LossScaling::min_loss_scale>(),
    section("optimizer",
            "Which rule runs, and its constants. With a type, what is left out is as in DeepSpeed.")
        .or_null(),
    trainer("optimizer.type", Kind::kText,
            "Sets headrace.optimizer: AdamW, Adam (adamw too, unless adam_w_mode is false), "
            "Adagrad, Lion, SGD (with a momentum: sgd_momentum). Any other type is an error.")
        .or_null()
        .into<&Settings::optimizer_section, &OptimizerSection::type>()
        .with_check(),
    section("optimizer.params", "Its constants.").or_null(),
    trainer("optimizer.params.lr", Kind::kNumber,
            "Learning rate. If optimizer.type is given without it: 0.001, for Adagrad 0.01.")
        .in("learning rate")
        .from(0, 3.4e38)
        .into<&Settings::optimizer_section, &OptimizerSection::lr>(),
    trainer("optimizer.params.betas", Kind::kPair,
            "The betas of the moments. If optimizer.type is given without them: 0.9 and 0.999, for "
            "Lion too, as in DeepSpeed.")
        .from(0, 0.9999999)
        .of("adamw|adam|lion")
        .into<&Settings::optimizer_section, &OptimizerSection::betas>(),
    trainer("optimizer.params.eps", Kind::kNumber,
            "Added to the root. If optimizer.type is given without it: 1e-8, for Adagrad 1e-10.")
        .in("of the gradient")
        .from(0, 3.4e38)
        .of("adamw|adam|adagrad")
        .into<&Settings::optimizer_section, &OptimizerSection::eps>(),
    trainer("optimizer.params.weight_decay", Kind::kNumber,
            "Weight decay. If optimizer.type is given without it: 0, or 0.01 for AdamW with "
            "torch_adam. The trainer decides which parameters decay.")
        .in("of the weight, times the rate")
        .from(0, 3.4e38)
        .into<&Settings::optimizer_section, &OptimizerSection::weight_decay>(),
    trainer("optimizer.params.bias_correction", Kind::kBoolean,
            "Adam's divisions by 1 - beta^t. If optimizer.type is given without it: true.")
        .of("adamw|adam")
        .into<&Settings::optimizer_section, &OptimizerSection::bias_correction>(),
    trainer("optimizer.params.adam_w_mode", Kind::kBoolean,
            "For the type Adam, or without a type: false adds the decay to the gradient.")
        .of("adamw|adam")
        .into<&Settings::optimizer_section, &OptimizerSection::adam_w_mode>()
        .with_check(),
    trainer("optimizer.params.torch_adam", Kind::kBoolean,
            "true: missing constants default to those of torch.optim's AdamW or Adam, which "
            "DeepSpeed would run. The update runs in this engine in both cases.")
        .of("adamw|adam")
        .into<&Settings::optimizer_section, &OptimizerSection::torch_adam>(),
    trainer("optimizer.params.momentum", Kind::kNumber,
            "A value other than 0 turns SGD into sgd_momentum.")
        .in("ratio")
        .from(0, 0.9999999)
        .of("sgd|sgd_momentum")
        .into<&Settings::optimizer_section, &OptimizerSection::momentum>(),
    trainer("optimizer.params.dampening", Kind::kNumber, "The dampening of SGD's momentum.")
        .in("ratio")
        .from(0, 1)
        .of("sgd|sgd_momentum")
        .into<&Settings::optimizer_section, &OptimizerSection::dampening>(),
    trainer("optimizer.params.nesterov", Kind::kBoolean, "true: Nesterov's form of SGD's momentum.")
        .of("sgd|sgd_momentum")
        .into<&Settings::optimizer_section, &OptimizerSection::nesterov>(),
    trainer("optimizer.params.maximize", Kind::kBoolean,
            "true: maximizes the loss instead of "
            "minimizing it.")
        .into<&Settings::optimizer_section, &OptimizerSection::maximize>(),
    trainer("optimizer.params.lr_decay", Kind::kNumber, "Adagrad's decay of the learning rate.")
        .in("per step")
        .from(0, 3.4e38)
        .of("adagrad")
        .into<&Settings::optimizer_section, &OptimizerSection::lr_decay>(),
    section("scheduler",
            "The learning rate by step; headrace/schedule.hpp has the formulas. A step that was "
            "skipped does not count.")
        .or_null(),
    trainer("scheduler.type", Kind::kChoice,
            "none: the rate is constant. Without warmup_max_lr, WarmupLR ends at the optimizer's "
            "rate, and WarmupDecayLR at 0.001.")
        .one_of("none|WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest")
        .or_null()
        .into<&Settings::scheduler, &Scheduler::type>(),
    section("scheduler.params", "Its constants.").or_null(),
    rate("scheduler.params.warmup_min_lr", "The rate at the beginning of a warm-up.")
        .of(kWarmups)
        .into<&Settings::scheduler, &Scheduler::warmup_min_lr>(),
    rate("scheduler.params.warmup_max_lr", "The rate at the end of a warm-up.")
        .or_null()
        .of(kWarmups)
        .into<&Settings::scheduler, &Scheduler::warmup_max_lr>(),
    steps("scheduler.params.warmup_num_steps", "The number of warm-up steps; 1 counts as 2.")
        .from(1, kMaxCount)
        .of(kAllWarmups)
        .into<&Settings::scheduler, &Scheduler::warmup_num_steps>(),
    trainer("scheduler.params.warmup_type", Kind::kChoice,
            "log: the rate rises with the logarithm of the step; linear: evenly.")
        .one_of("log|linear")
        .of(kAllWarmups)
        .into<&Settings::scheduler, &Scheduler::warmup_type>(),
    steps("scheduler.params.total_num_steps",
          "Steps until the decay has reached its end. Must be given.")
        .from(1, kMaxCount)
        .of("WarmupDecayLR|WarmupCosineLR")
        .into<&Settings::scheduler, &Scheduler::total_num_steps>(),
    ratio("scheduler.params.warmup_min_ratio",
          "The rate at the beginning of the warm-up, "
          "relative to the optimizer's rate.")
        .of("WarmupCosineLR")
        .into<&Settings::scheduler, &Scheduler::warmup_min_ratio>(),
    ratio("scheduler.params.cos_min_ratio",
          "The rate at the end of the cosine, relative to the "
          "optimizer's rate.")
        .of("WarmupCosineLR")
        .into<&Settings::scheduler, &Scheduler::cos_min_ratio>(),
    rate("scheduler.params.cycle_min_lr", "The rate at both ends of the cycle. Must be given.")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_min_lr>(),
    rate("scheduler.params.cycle_max_lr", "The rate in the middle of the cycle. Must be given.")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_max_lr>(),
    rate("scheduler.params.decay_lr_rate", "How fast the rate falls after the cycle.")
        .in("per unit of decay")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::decay_lr_rate>(),
    steps("scheduler.params.cycle_first_step_size", "The number of steps in which the rate rises.")
        .from(1, kMaxCount)
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_first_step_size>(),
    steps("scheduler.params.cycle_second_step_size",
          "The number of steps in which the rate "
          "falls; by default as many as it rises.")
        .or_null()
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_second_step_size>(),
    steps("scheduler.params.cycle_first_stair_count", "The number of stairs in the rise; 0: none.")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_first_stair_count>(),
    steps("scheduler.params.cycle_second_stair_count",
          "The number of stairs in the fall; by "
          "default as many as in the rise.")
        .or_null()
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_second_stair_count>(),
    steps("scheduler.params.decay_step_size", "Steps per unit of decay; 0: no decay.")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::decay_step_size>(),
    trainer("scheduler.params.cycle_momentum", Kind::kBoolean,
            "true: beta1 moves opposite to the rate, and beta2 is 0.99; for rules with betas.")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_momentum>(),
    ratio("scheduler.params.cycle_min_mom", "beta1 in the middle of the cycle.")
        .from(0, 0.9999999)
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_min_mom>(),
    ratio("scheduler.params.cycle_max_mom", "beta1 at both ends of the cycle.")
        .from(0, 0.9999999)
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_max_mom>(),
    ratio("scheduler.params.decay_mom_rate", "How fast beta1 rises after the cycle.")
        .in("per unit of decay")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::decay_mom_rate>(),
    rate("scheduler.params.lr_range_test_min_lr", "The rate at the beginning of the test.")
        .of("LRRangeTest")
        .into<&Settings::scheduler, &Scheduler::lr_range_test_min_lr>(),
    rate("scheduler.params.lr_range_test_step_rate",
         "The part of the first rate that is added "
         "per step size.")
        .in("per step size")
        .of("LRRangeTest")
        .into<&Settings::scheduler, &Scheduler::lr_range_test_step_rate>(),
    steps("scheduler.params.lr_range_test_step_size", "The number of steps per step size.")
        .from(1, kMaxCount)
        .of("LRRangeTest")
        .into<&Settings::scheduler, &Scheduler::lr_range_test_step_size>(),
    trainer("scheduler.params.lr_range_test_staircase", Kind::kBoolean,
            "true: adds that part at once, at the end of each step size.")
        .of("LRRangeTest")
        .into<&Settings::scheduler, &Scheduler::lr_range_test_staircase>(),
    section("data_types", "Dtypes."),
    trainer("data_types.param_dtype", Kind::kText,
            "The dtype that bf16.enabled and fp16.enabled ask for, under torch's name. Any other "
            "value is an error, as in DeepSpeed.")
        .or_null()
        .with_check(),
    engine("data_types.grad_accum_dtype", Kind::kChoice,
           "Headrace sums gradients in f32: fp32 or null. A warning says so for any other value.")
        .one_of("fp32|bf16|fp16")
        .or_null()
        .with_check(),

    // ---- ours
    section("headrace",
            "Keys that DeepSpeed does not have. It ignores the section, so one file serves both."),
    engine("headrace.host_budget_bytes", Kind::kSizeOrAuto,
           "Limit on host memory; 0: none. With a limit, as much as fits stays in host memory, "
           "starting with the bytes that move most often. Without one, all state whose device is "
           "nvme lives there. \"auto\" is nine tenths of the memory that the cgroup, ulimit -v or "
           "the machine leaves. If activations need more than the last tenth, give a number "
           "instead (`headrace plan` prints one).")
        .in("bytes"),
    engine("headrace.device_budget_bytes", Kind::kSize,
           "Limit on the GPU memory that the engine takes; 0: none. The limit may reduce the "
           "number of gather slots that headrace.prefetch_groups asks for. It includes neither "
           "activations nor the driver's own memory. Changes no result.")
        .in("bytes")
        .into<&Settings::device_budget_bytes>(),
    engine("headrace.nvme_paths", Kind::kPathList,
           "One directory per drive, for both sections; replaces their nvme_path.")
        .with_check(),
    engine("headrace.drive_shares", Kind::kSharesOrAuto,
           "With several paths: the proportion of the swapped bytes on each, such as [2, 1]. auto: "
           "by speed. freeze() measures all drives at the same time, by writing and reading a file "
           "of at most 64 MiB on each for less than a second. Changes no result.")
        .into<&Settings::drive_shares>()
        .with_check(),
    engine(
        "headrace.master", Kind::kChoice,
        "How a bf16 parameter's f32 master is stored (that of an fp16 parameter is an f32 copy). "
        "split: as the bf16 weight and 16 residual bits; a step reads and writes 10 bytes of "
        "state per parameter. f32: as a copy, with 12 bytes; the weight is rounded to nearest "
        "even.")
        .one_of("split|f32")
        .into<&Settings::master>(),
    engine("headrace.optimizer", Kind::kChoice,
           "The update rule, as torch.optim defines it (lion: its paper). The trainer sets its "
           "constants.")
        .one_of("adamw|adam|adagrad|lion|sgd|sgd_momentum")
        .into<&Settings::optimizer>(),
    engine("headrace.moments", Kind::kChoice,
           "How the rule's moments are stored between steps. f32: as computed, 4 bytes each. "
           "bf16: 2 bytes. 8bit: 1 byte, and a scale per 256 elements. bf16 and 8bit round "
           "stochastically, so results differ from those with f32, but still do not depend on "
           "placement or threads.")
        .one_of("f32|bf16|8bit")
        .into<&Settings::moments>(),
    engine("headrace.non_finite", Kind::kChoice,
           "The reaction of a step to NaN or infinity in a gradient. stop: the step fails, names "
           "the parameter and updates nothing. skip: the step drops the gradients, updates "
           "nothing and counts as skipped.")
        .one_of("stop|skip")
        .into<&Settings::non_finite>(),
    engine("headrace.rounding_seed", Kind::kInteger,
           "Seeds the stochastic rounding of bf16 and 8bit moments.")
        .in("seed")
        .from(0, 9007199254740991.0)
        .into<&Settings::rounding_seed>(),
    engine("headrace.tile_elements", Kind::kInteger,
           "The unit of optimizer work. Smaller tiles need less memory per update slot, larger "
           "ones fewer requests. "
           "Changes no result.")
        .from(base::kBlockElements, 4194304)
        .times(base::kBlockElements)
        .in("elements")
        .into<&Settings::tile_elements>(),
    engine("headrace.update_slots", Kind::kInteger,
           "Tiles in memory during the update. One is enough; with three or more, read, update "
           "and write overlap fully.")
        .in("tiles")
        .from(1, 1024)
        .into<&Settings::update_slots>(),
    engine("headrace.update_mode", Kind::kChoice,
           "When tiles are updated. barrier: all within a step's call. defer: that call returns "
           "before, and each group is updated just ahead of its next use, while the next forward "
           "pass computes. auto: defer where there are weights on NVMe and a second gather slot, "
           "or no "
           "weights but state on NVMe, a device with memory of its own, or several ranks. Changes "
           "no result.")
        .one_of("auto|barrier|defer")
        .into<&Settings::update_mode>(),
    engine(
        "headrace.update_on", Kind::kChoice,
        "Where tiles are updated. cpu: by update_threads. device: the GPU updates the state and "
        "returns it. This moves 14 bytes per bf16 parameter to the GPU and 12 back, and takes up "
        "to 42 MiB of its memory. With checksums, the CPU still passes over the bytes that go to "
        "NVMe. auto: the first six steps alternate between both, and the GPU continues if it was "
        "faster by a twentieth. Without a GPU, or if device_budget_bytes has no room beside the "
        "gather slots, auto means cpu. headrace plan predicts the result. Changes no result.")
        .one_of("cpu|device|auto")
        .into<&Settings::update_on>(),
    engine("headrace.prefetch_groups", Kind::kInteger, "Groups read ahead of the one in use.")
        .in("groups")
        .from(0, 16)
        .into<&Settings::prefetch_groups>(),
    engine("headrace.update_threads", Kind::kInteger,
           "Threads that update tiles; 0: as many as affinity, cgroup quota and Slurm allow. "
           "Changes no result.")
        .in("threads")
        .from(0, 1024)
        .into<&Settings::update_threads>(),
    engine("headrace.io_block_bytes", Kind::kSize, "The size of a request to a drive.")
        .from(4096, 67108864)
        .times(4096)
        .in("bytes")
        .into<&Settings::io_block_bytes>(),
    engine("headrace.queue_depth", Kind::kInteger,
           "Requests in flight per drive. Most drives need 4 to 16 MiB in flight, as with the "
           "defaults.")
        .in("requests")
        .from(1, 4096)
        .into<&Settings::queue_depth>(),
    engine("headrace.submit_batch", Kind::kInteger,
           "Requests per submission to the kernel. The kernel merges more than two adjacent "
           "requests, which is slower.")
        .in("requests")
        .from(1, 256)
        .into<&Settings::submit_batch>(),
    engine("headrace.io_queue", Kind::kChoice,
           "auto: io_uring if it works, otherwise Linux AIO, otherwise threads; the log says "
           "which. Any other value: that queue, or an error.")
        .one_of("auto|uring|aio|threads")
        .into<&Settings::io_queue>(),
    engine("headrace.register_buffers", Kind::kChoice,
           "auto: registers the engine's memory and files with io_uring once, if the limit on "
           "locked memory allows. off: passes them with every request. Registration saves CPU "
           "time if memory is not on huge pages.")
        .one_of("auto|off")
        .into<&Settings::register_buffers>(),
    engine("headrace.direct", Kind::kChoice,
           "auto: O_DIRECT if the file system has it, otherwise buffered I/O with a warning. "
           "require: O_DIRECT, or an error.")
        .one_of("auto|require")
        .into<&Settings::direct>(),
    engine("headrace.allow_memory_backed", Kind::kBoolean,
           "Allows a path on tmpfs or ramfs. Those are in memory, so this is for tests.")
        .into<&Settings::allow_memory_backed>(),
    engine("headrace.checksums", Kind::kSwitch,
           "Computes XXH3 checksums of all bytes that go to a drive, and verifies them when the "
           "bytes return. true and false are accepted too.")
        .one_of("on|off")
        .into<&Settings::checksums>(),
    engine("headrace.io_warn_seconds", Kind::kNumber,
           "A warning names each transfer that is older than this.")
        .from(0.001, kDaySeconds)
        .in("seconds")
        .into<&Settings::io_warn_seconds>(),
    engine("headrace.io_deadline_seconds", Kind::kNumber,
           "A transfer older than this ends the run with an error that names it.")
        .from(0.001, kDaySeconds)
        .in("seconds")
        .into<&Settings::io_deadline_seconds>(),
    section("headrace.tuned",
            "Written by headrace tune: where the settings beside it were measured."),
    tuned("headrace.tuned.drive_model",
          "The drives that the settings were measured on. The engine warns if the paths of a run "
          "are on other drives.")
        .into<&Settings::tuned, &Tuned::drive_model>(),
    tuned("headrace.tuned.file_system", "The file system of that measurement. A note.")
        .into<&Settings::tuned, &Tuned::file_system>(),
    tuned("headrace.tuned.kernel",
          "The kernel of that measurement. The engine warns if the first two numbers of its "
          "version (6.1) differ.")
        .into<&Settings::tuned, &Tuned::kernel>(),
    tuned("headrace.tuned.date", "The date of that measurement. A note.")
        .into<&Settings::tuned, &Tuned::date>(),
    tuned("headrace.tuned.queue", "The I/O queue that moved the bytes. A note.")
        .into<&Settings::tuned, &Tuned::queue>(),
    tuned("headrace.tuned.pattern", "The measured pattern: step, read or rw. A note.")
        .into<&Settings::tuned, &Tuned::pattern>(),
    tuned_rate("headrace.tuned.gb_per_second", "The median rate that the settings reached. A note.")
        .into<&Settings::tuned, &Tuned::gb_per_second>(),
    tuned_rate("headrace.tuned.gb_per_second_low",
               "The lower end of the 95 % interval of the median. A note.")
        .into<&Settings::tuned, &Tuned::gb_per_second_low>(),
    tuned_rate("headrace.tuned.gb_per_second_high", "The upper end of that interval. A note.")
        .into<&Settings::tuned, &Tuned::gb_per_second_high>(),
    tuned("headrace.tuned.headrace_version", "The version of headrace tune. A note.")
        .into<&Settings::tuned, &Tuned::headrace_version>(),
};
}  // namespace

std::span<const Key> keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> rows(std::begin(kHonoured), std::end(kHonoured));
    std::ranges::copy(unserved_keys(), std::back_inserter(rows));
    return rows;
  }();
  return all;
}
}  // namespace headrace::settings
