// SPDX-License-Identifier: Apache-2.0
// The table itself, in the order in which docs/settings.md and Settings::to_json() show it.
#include "settings/key_table.hpp"

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
constexpr Key idle(std::string_view path, Kind kind, std::string_view why) {
  return {.path = path, .kind = kind, .status = Status::kNoEffect, .help = why};
}
constexpr Key refused(std::string_view path, Kind kind, std::string_view why) {
  return {.path = path, .kind = kind, .status = Status::kRefused, .help = why};
}
// A count of elements, bytes or the like: whole, not negative.
constexpr Key idle_count(std::string_view path, std::string_view why) {
  return idle(path, Kind::kInteger, why).from(0);
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

// What is used in place of keys that are not served.
constexpr std::string_view kRanks = "ranks talk through the collective that the trainer passes in";
constexpr std::string_view kResidency =
    "the plan decides what stays, from {headrace.host_budget_bytes}";
constexpr std::string_view kPrefetch = "{headrace.prefetch_groups} is used";
constexpr std::string_view kBuffers =
    "the plan sizes all buffers, from {headrace.update_slots} and "
    "{headrace.prefetch_groups}";
constexpr std::string_view kOverlap = "read, update and write of neighbouring tiles always overlap";
constexpr std::string_view kPinned = "host memory is one arena that the engine owns";
constexpr std::string_view kPinnedDefault = "false until 0.19.4, true since 0.19.5";
constexpr std::string_view kTrainers = "the trainer's own is used";
constexpr std::string_view kSaving = "the trainer saves and loads";
constexpr std::string_view kTrainerLogs = "reporting is the trainer's";
constexpr std::string_view kQuantized = "there are no quantised transfers; all values are exact";
constexpr std::string_view kStale =
    "there are no updates with stale gradients; all steps are exact";
constexpr std::string_view kFeature = "not a part of this engine";
constexpr std::string_view kOneDtype =
    "parameters have one dtype here; remove it and set bf16.enabled or fp16.enabled";
constexpr std::string_view kOtherTraining =
    "it changes what is trained, and none of it runs here; remove it to train without";
constexpr std::string_view kActivations = "activations are the trainer's";
constexpr std::string_view kModules = "the trainer's modules run as they are";
constexpr std::string_view kRules = "{headrace.optimizer} says which of the rules runs";
constexpr std::string_view kUpdates = "the update runs in this engine";
constexpr std::string_view kGroups = "the trainer says which parameters form a group";

constexpr Key kKeys[] = {
    // ---- what is honoured, under DeepSpeed's names
    section("zero_optimization", "DeepSpeed's ZeRO section."),
    engine("zero_optimization.stage", Kind::kInteger,
           "Accepted for DeepSpeed's sake: the two sections below decide what is offloaded, at "
           "every stage. Below 3, where DeepSpeed would offload less than these sections ask for, "
           "a warning says so.")
        .in("stage")
        .from(0, 3)
        .with_check(),
    section("zero_optimization.offload_optimizer", "Where the optimizer state lives.").or_null(),
    engine("zero_optimization.offload_optimizer.device", Kind::kChoice,
           "none and cpu: in host memory. nvme: in a swap file, unless "
           "headrace.host_budget_bytes leaves room in host memory. On a GPU it is never kept, "
           "though it may be updated there: headrace.update_on.")
        .one_of("none|cpu|nvme")
        .into<&Settings::offload_optimizer>(),
    engine("zero_optimization.offload_optimizer.nvme_path", Kind::kPath,
           "A directory on the drive. One that is given in one of the two sections serves both; "
           "for several drives "
           "see headrace.nvme_paths.")
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
           "Deprecated in DeepSpeed: true is offload_optimizer with device cpu.")
        .or_null()
        .with_check(),
    engine("zero_optimization.cpu_offload_params", Kind::kBoolean,
           "Deprecated in DeepSpeed: true is offload_param with device cpu.")
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
    trainer("fp16.loss_scale", Kind::kNumber, "0: dynamic, by the keys below; else it stays.")
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
            "A dynamic scale doubles one step after this many in a row, at least 1, that did not "
            "overflow.")
        .from(0, kMaxCount)
        .in("steps")
        .into<&Settings::loss_scaling, &LossScaling::loss_scale_window>(),
    trainer("fp16.hysteresis", Kind::kInteger,
            "Overflows until a dynamic scale is halved. It is restored when the scale doubles.")
        .in("overflows")
        .from(1, kMaxCount)
        .into<&Settings::loss_scaling, &LossScaling::hysteresis>(),
    trainer("fp16.consecutive_hysteresis", Kind::kBoolean,
            "true: hysteresis is restored by each step that does not overflow.")
        .into<&Settings::loss_scaling, &LossScaling::consecutive_hysteresis>(),
    trainer("fp16.min_loss_scale", Kind::kNumber,
            "A dynamic scale stops here, above 0; an overflow at it ends the run.")
        .in("factor")
        .from(0, 3.4e38)
        .into<&Settings::loss_scaling, &LossScaling::min_loss_scale>(),
    section("optimizer",
            "Which rule runs, and its constants. With a type, what is left out is as in DeepSpeed.")
        .or_null(),
    trainer("optimizer.type", Kind::kText,
            "Sets headrace.optimizer: AdamW, Adam (which is adamw too, unless adam_w_mode is "
            "false), Adagrad, Lion, SGD (with a momentum: sgd_momentum). Another is an error.")
        .or_null()
        .into<&Settings::optimizer_section, &OptimizerSection::type>()
        .with_check(),
    section("optimizer.params", "Its constants.").or_null(),
    trainer("optimizer.params.lr", Kind::kNumber,
            "Learning rate. With a type and without it: 0.001, Adagrad's 0.01.")
        .in("learning rate")
        .from(0, 3.4e38)
        .into<&Settings::optimizer_section, &OptimizerSection::lr>(),
    trainer(
        "optimizer.params.betas", Kind::kPair,
        "Of the moments. With a type and without it: 0.9 and 0.999, Lion's too, as in DeepSpeed.")
        .from(0, 0.9999999)
        .of("adamw|adam|lion")
        .into<&Settings::optimizer_section, &OptimizerSection::betas>(),
    trainer("optimizer.params.eps", Kind::kNumber,
            "Added to the root. With a type and without it: 1e-8, Adagrad's 1e-10.")
        .in("of the gradient")
        .from(0, 3.4e38)
        .of("adamw|adam|adagrad")
        .into<&Settings::optimizer_section, &OptimizerSection::eps>(),
    trainer("optimizer.params.weight_decay", Kind::kNumber,
            "With a type and without it: 0, AdamW's with torch_adam 0.01. The trainer decides "
            "which parameters have one.")
        .in("of the weight, times the rate")
        .from(0, 3.4e38)
        .into<&Settings::optimizer_section, &OptimizerSection::weight_decay>(),
    trainer("optimizer.params.bias_correction", Kind::kBoolean,
            "Adam's divisions by 1 - beta^t. With a type and without it: true.")
        .of("adamw|adam")
        .into<&Settings::optimizer_section, &OptimizerSection::bias_correction>(),
    trainer("optimizer.params.adam_w_mode", Kind::kBoolean,
            "Of the type Adam, or without a type: false adds the decay to the gradient.")
        .of("adamw|adam")
        .into<&Settings::optimizer_section, &OptimizerSection::adam_w_mode>()
        .with_check(),
    trainer("optimizer.params.torch_adam", Kind::kBoolean,
            "true: the constants that are left out are those of torch.optim's AdamW or Adam, which "
            "DeepSpeed would run. The update runs in this engine either way.")
        .of("adamw|adam")
        .into<&Settings::optimizer_section, &OptimizerSection::torch_adam>(),
    trainer("optimizer.params.momentum", Kind::kNumber,
            "A value other than 0 makes sgd_momentum of SGD.")
        .in("ratio")
        .from(0, 0.9999999)
        .of("sgd|sgd_momentum")
        .into<&Settings::optimizer_section, &OptimizerSection::momentum>(),
    trainer("optimizer.params.dampening", Kind::kNumber, "Of SGD's momentum.")
        .in("ratio")
        .from(0, 1)
        .of("sgd|sgd_momentum")
        .into<&Settings::optimizer_section, &OptimizerSection::dampening>(),
    trainer("optimizer.params.nesterov", Kind::kBoolean, "Of SGD's momentum.")
        .of("sgd|sgd_momentum")
        .into<&Settings::optimizer_section, &OptimizerSection::nesterov>(),
    trainer("optimizer.params.maximize", Kind::kBoolean, "Climbs instead of descending.")
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
            "none: it stays. Without warmup_max_lr WarmupLR goes to the optimizer's rate, "
            "WarmupDecayLR to 0.001.")
        .one_of("none|WarmupLR|WarmupDecayLR|WarmupCosineLR|OneCycle|LRRangeTest")
        .or_null()
        .into<&Settings::scheduler, &Scheduler::type>(),
    section("scheduler.params", "Its constants.").or_null(),
    rate("scheduler.params.warmup_min_lr", "Where a warm-up begins.")
        .of(kWarmups)
        .into<&Settings::scheduler, &Scheduler::warmup_min_lr>(),
    rate("scheduler.params.warmup_max_lr", "Where it ends.")
        .or_null()
        .of(kWarmups)
        .into<&Settings::scheduler, &Scheduler::warmup_max_lr>(),
    steps("scheduler.params.warmup_num_steps", "Its steps; 1 counts as 2.")
        .from(1, kMaxCount)
        .of(kAllWarmups)
        .into<&Settings::scheduler, &Scheduler::warmup_num_steps>(),
    trainer("scheduler.params.warmup_type", Kind::kChoice,
            "By the logarithm of the step, or evenly.")
        .one_of("log|linear")
        .of(kAllWarmups)
        .into<&Settings::scheduler, &Scheduler::warmup_type>(),
    steps("scheduler.params.total_num_steps",
          "Steps until the decay has reached its end. Must be given.")
        .from(1, kMaxCount)
        .of("WarmupDecayLR|WarmupCosineLR")
        .into<&Settings::scheduler, &Scheduler::total_num_steps>(),
    ratio("scheduler.params.warmup_min_ratio", "Where the warm-up begins, of the optimizer's rate.")
        .of("WarmupCosineLR")
        .into<&Settings::scheduler, &Scheduler::warmup_min_ratio>(),
    ratio("scheduler.params.cos_min_ratio", "Where the cosine ends, of the optimizer's rate.")
        .of("WarmupCosineLR")
        .into<&Settings::scheduler, &Scheduler::cos_min_ratio>(),
    rate("scheduler.params.cycle_min_lr", "Both ends of the cycle. Must be given.")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_min_lr>(),
    rate("scheduler.params.cycle_max_lr", "Its middle. Must be given.")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_max_lr>(),
    rate("scheduler.params.decay_lr_rate", "How fast the rate falls behind the cycle.")
        .in("per unit of decay")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::decay_lr_rate>(),
    steps("scheduler.params.cycle_first_step_size", "Steps that the rate rises.")
        .from(1, kMaxCount)
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_first_step_size>(),
    steps("scheduler.params.cycle_second_step_size", "Steps that it falls; without it as many.")
        .or_null()
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_second_step_size>(),
    steps("scheduler.params.cycle_first_stair_count", "Stairs upwards; 0: none.")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_first_stair_count>(),
    steps("scheduler.params.cycle_second_stair_count", "Stairs downwards; without it as many.")
        .or_null()
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_second_stair_count>(),
    steps("scheduler.params.decay_step_size", "Steps per unit of decay; 0: no decay.")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::decay_step_size>(),
    trainer("scheduler.params.cycle_momentum", Kind::kBoolean,
            "beta1 goes the other way, and beta2 is 0.99; for rules with betas.")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_momentum>(),
    ratio("scheduler.params.cycle_min_mom", "beta1 in the cycle's middle.")
        .from(0, 0.9999999)
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_min_mom>(),
    ratio("scheduler.params.cycle_max_mom", "beta1 at its ends.")
        .from(0, 0.9999999)
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::cycle_max_mom>(),
    ratio("scheduler.params.decay_mom_rate", "How fast beta1 rises behind the cycle.")
        .in("per unit of decay")
        .of("OneCycle")
        .into<&Settings::scheduler, &Scheduler::decay_mom_rate>(),
    rate("scheduler.params.lr_range_test_min_lr", "Where the test begins.")
        .of("LRRangeTest")
        .into<&Settings::scheduler, &Scheduler::lr_range_test_min_lr>(),
    rate("scheduler.params.lr_range_test_step_rate", "How much of it is added per step size.")
        .in("per step size")
        .of("LRRangeTest")
        .into<&Settings::scheduler, &Scheduler::lr_range_test_step_rate>(),
    steps("scheduler.params.lr_range_test_step_size", "Steps until one is added.")
        .from(1, kMaxCount)
        .of("LRRangeTest")
        .into<&Settings::scheduler, &Scheduler::lr_range_test_step_size>(),
    trainer("scheduler.params.lr_range_test_staircase", Kind::kBoolean,
            "true: all of it at once, at the end of those steps.")
        .of("LRRangeTest")
        .into<&Settings::scheduler, &Scheduler::lr_range_test_staircase>(),
    section("data_types", "Dtypes."),
    trainer("data_types.param_dtype", Kind::kText,
            "What bf16.enabled and fp16.enabled ask for, by a name of torch's; another is an "
            "error, as in "
            "DeepSpeed.")
        .or_null()
        .with_check(),
    engine("data_types.grad_accum_dtype", Kind::kChoice,
           "Gradients are accumulated in f32: fp32 or null. A lower one is accepted with a "
           "warning, as sums stay f32.")
        .one_of("fp32|bf16|fp16")
        .or_null()
        .with_check(),

    // ---- ours
    section("headrace",
            "Keys that DeepSpeed does not have. It ignores the section, so one file serves both."),
    engine("headrace.host_budget_bytes", Kind::kSizeOrAuto,
           "Ceiling of host memory; 0 is none. With it, as much as fits stays in host memory, the "
           "bytes that move most often first; without it everything named nvme lives there. "
           "\"auto\" is "
           "nine tenths of what the cgroup, ulimit -v or the machine leaves: the tenth is for all "
           "else, and where activations take more of host memory, give bytes instead (`headrace "
           "plan` names them).")
        .in("bytes"),
    engine("headrace.device_budget_bytes", Kind::kSize,
           "Ceiling for the GPU memory that the engine takes; 0 is none. With it there are as "
           "many gather slots, up to those of headrace.prefetch_groups, as it has room for. "
           "Activations, and what the driver takes for itself, come beside it. Changes no result.")
        .in("bytes")
        .into<&Settings::device_budget_bytes>(),
    engine("headrace.nvme_paths", Kind::kPathList,
           "One directory per drive, for both sections; takes the place of their nvme_path.")
        .with_check(),
    engine(
        "headrace.drive_shares", Kind::kSharesOrAuto,
        "With several paths: the proportion of the swapped bytes that goes to each, e.g. [2, 1]. "
        "auto: by the speeds that freeze() measures, all at the same time, by writing and reading "
        "a file of at most 64 MiB on each for less than a second. Changes no result.")
        .into<&Settings::drive_shares>()
        .with_check(),
    engine(
        "headrace.master", Kind::kChoice,
        "How a bf16 parameter's f32 master is kept (fp16's is an f32 copy). split: the bf16 weight "
        "and 16 residual bits, "
        "10 bytes of state "
        "read and written per parameter and step. f32: a copy, 12 bytes, rounded to nearest even.")
        .one_of("split|f32")
        .into<&Settings::master>(),
    engine("headrace.optimizer", Kind::kChoice,
           "The update rule, as torch.optim defines it (lion: its paper). The trainer sets its "
           "constants.")
        .one_of("adamw|adam|adagrad|lion|sgd|sgd_momentum")
        .into<&Settings::optimizer>(),
    engine("headrace.moments", Kind::kChoice,
           "How the rule's moments are kept between steps. f32: as computed, 4 bytes each. bf16: 2 "
           "bytes; 8bit: 1 byte and a scale per 256 elements; both stochastically rounded, so "
           "results differ from f32's, and differ no more with placement or threads.")
        .one_of("f32|bf16|8bit")
        .into<&Settings::moments>(),
    engine("headrace.non_finite", Kind::kChoice,
           "A step's answer to a gradient with NaN or infinity. stop: an error that names the "
           "parameter, nothing updated. skip: nothing updated, the gradients dropped, the step "
           "counted as skipped.")
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
        .from(65536, 4194304)
        .times(65536)
        .in("elements")
        .into<&Settings::tile_elements>(),
    engine("headrace.update_slots", Kind::kInteger,
           "Tiles in memory during the update. One makes progress; from three on read, update and "
           "write overlap fully.")
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
        "Where tiles are updated. cpu: by update_threads. device: their state goes to the GPU, is "
        "updated there and comes back, which takes 14 bytes of the link per bf16 parameter there "
        "and 12 back, and up to 42 MiB of the GPU; with checksums the CPU still passes over what "
        "goes to NVMe. auto: the first six steps try both in turn, and the GPU goes on where it "
        "was faster by a twentieth; it is cpu where there is no GPU, or device_budget_bytes has "
        "no room beside the gather slots. headrace plan predicts it. Changes no result.")
        .one_of("cpu|device|auto")
        .into<&Settings::update_on>(),
    engine("headrace.prefetch_groups", Kind::kInteger, "Groups read ahead of the one in use.")
        .in("groups")
        .from(0, 16)
        .into<&Settings::prefetch_groups>(),
    engine("headrace.update_threads", Kind::kInteger,
           "Threads that update tiles; 0 is what affinity, cgroup quota and Slurm leave. Changes "
           "no result.")
        .in("threads")
        .from(0, 1024)
        .into<&Settings::update_threads>(),
    engine("headrace.io_block_bytes", Kind::kSize, "One request to a drive.")
        .from(4096, 67108864)
        .times(4096)
        .in("bytes")
        .into<&Settings::io_block_bytes>(),
    engine("headrace.queue_depth", Kind::kInteger,
           "Requests in flight per drive. Most drives need 4 to 16 MiB in flight, which the "
           "defaults give.")
        .in("requests")
        .from(1, 4096)
        .into<&Settings::queue_depth>(),
    engine("headrace.submit_batch", Kind::kInteger,
           "Requests handed to the kernel at once. More than two adjacent ones get merged there, "
           "which is slower.")
        .in("requests")
        .from(1, 256)
        .into<&Settings::submit_batch>(),
    engine("headrace.io_queue", Kind::kChoice,
           "auto: io_uring where it works, else Linux AIO, else threads, said once. Any other "
           "value: that queue or an error.")
        .one_of("auto|uring|aio|threads")
        .into<&Settings::io_queue>(),
    engine("headrace.register_buffers", Kind::kChoice,
           "auto: io_uring gets the engine's memory and files once instead of with every request, "
           "where the limit on locked memory allows. off: with every request. Saves CPU "
           "where memory is not on huge pages.")
        .one_of("auto|off")
        .into<&Settings::register_buffers>(),
    engine("headrace.direct", Kind::kChoice,
           "auto: O_DIRECT where the file system has it, else buffered with a warning. require: "
           "O_DIRECT or an error.")
        .one_of("auto|require")
        .into<&Settings::direct>(),
    engine("headrace.allow_memory_backed", Kind::kBoolean,
           "Lets a path be on tmpfs or ramfs. Those are memory, so this is for tests.")
        .into<&Settings::allow_memory_backed>(),
    engine("headrace.checksums", Kind::kSwitch,
           "XXH3 over what goes to a drive, verified when it comes back. true and false are "
           "accepted too.")
        .one_of("on|off")
        .into<&Settings::checksums>(),
    engine("headrace.io_warn_seconds", Kind::kNumber,
           "A transfer older than this is named in a warning.")
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
          "Drives the settings were measured on. Different ones in this run's paths are a warning.")
        .into<&Settings::tuned, &Tuned::drive_model>(),
    tuned("headrace.tuned.file_system", "File system they were measured on. A note.")
        .into<&Settings::tuned, &Tuned::file_system>(),
    tuned("headrace.tuned.kernel",
          "Kernel they were measured under. Another version than in its first two numbers (6.1) "
          "is a warning.")
        .into<&Settings::tuned, &Tuned::kernel>(),
    tuned("headrace.tuned.date", "When. A note.").into<&Settings::tuned, &Tuned::date>(),
    tuned("headrace.tuned.queue", "The I/O queue that moved the bytes. A note.")
        .into<&Settings::tuned, &Tuned::queue>(),
    tuned("headrace.tuned.pattern", "What was measured: step, read or rw. A note.")
        .into<&Settings::tuned, &Tuned::pattern>(),
    tuned_rate("headrace.tuned.gb_per_second", "What the settings reached, the median. A note.")
        .into<&Settings::tuned, &Tuned::gb_per_second>(),
    tuned_rate("headrace.tuned.gb_per_second_low",
               "This and the next hold the true median with 95 %. A note.")
        .into<&Settings::tuned, &Tuned::gb_per_second_low>(),
    tuned_rate("headrace.tuned.gb_per_second_high", "See above. A note.")
        .into<&Settings::tuned, &Tuned::gb_per_second_high>(),
    tuned("headrace.tuned.headrace_version", "The version of headrace tune. A note.")
        .into<&Settings::tuned, &Tuned::headrace_version>(),

    // ---- DeepSpeed's, not served: zero_optimization
    idle("zero_optimization.offload_optimizer.pin_memory", Kind::kBoolean, kPinned)
        .unlike(kPinnedDefault),
    idle_count("zero_optimization.offload_optimizer.buffer_count", kBuffers).in("buffers"),
    idle("zero_optimization.offload_optimizer.pipeline_read", Kind::kBoolean, kOverlap)
        .always("true"),
    idle("zero_optimization.offload_optimizer.pipeline_write", Kind::kBoolean, kOverlap)
        .always("true"),
    idle("zero_optimization.offload_optimizer.pipeline", Kind::kBoolean, kOverlap).always("true"),
    idle("zero_optimization.offload_optimizer.fast_init", Kind::kBoolean,
         "swap files are always written in full at the start")
        .always("false"),
    idle("zero_optimization.offload_optimizer.ratio", Kind::kNumber, kResidency)
        .in("ratio")
        .from(0, 1),
    idle("zero_optimization.offload_optimizer.super_offload", Kind::kBoolean,
         "updates run in step(), after the norm is known")
        .always("false"),
    idle("zero_optimization.offload_optimizer.cpuadam_cores_perc", Kind::kNumber,
         "{headrace.update_threads} is used; 0 is all that the machine leaves")
        .in("ratio")
        .from(0, 1),
    idle("zero_optimization.offload_param.pin_memory", Kind::kBoolean, kPinned)
        .unlike(kPinnedDefault),
    idle_count("zero_optimization.offload_param.buffer_count", kBuffers).in("buffers"),
    idle_count("zero_optimization.offload_param.buffer_size", kBuffers).in("elements"),
    idle_count("zero_optimization.offload_param.max_in_cpu", kResidency).in("elements"),
    idle("zero_optimization.cpu_offload_use_pin_memory", Kind::kBoolean, kPinned).or_null(),
    idle("zero_optimization.contiguous_gradients", Kind::kBoolean,
         "gradients always lie in one slab of host memory")
        .always("true"),
    idle("zero_optimization.reduce_scatter", Kind::kBoolean, kRanks).always("true"),
    idle_count("zero_optimization.reduce_bucket_size", kRanks).in("elements"),
    idle("zero_optimization.use_multi_rank_bucket_allreduce", Kind::kBoolean, kRanks),
    idle("zero_optimization.allgather_partitions", Kind::kBoolean, kRanks).always("true"),
    idle_count("zero_optimization.allgather_bucket_size", kRanks).in("elements"),
    idle("zero_optimization.overlap_comm", Kind::kBoolean, kRanks).or_null(),
    idle("zero_optimization.compute_grad_norm", Kind::kBoolean, "the norm is always computed")
        .always("true"),
    idle("zero_optimization.parameter_alignment", Kind::kBoolean,
         "each parameter begins at a multiple of 256 elements of its section")
        .always("true"),
    idle("zero_optimization.load_from_fp32_weights", Kind::kBoolean, kSaving),
    idle("zero_optimization.elastic_checkpoint", Kind::kBoolean, kSaving),
    idle_count("zero_optimization.sub_group_size", "{headrace.tile_elements} is used")
        .in("elements"),
    idle_count("zero_optimization.stage3_prefetch_bucket_size", kPrefetch)
        .or_as("prefetch_bucket_size")
        .in("elements"),
    idle_count("zero_optimization.stage3_param_persistence_threshold", kResidency)
        .or_as("param_persistence_threshold")
        .in("elements"),
    idle_count("zero_optimization.stage3_model_persistence_threshold", kResidency)
        .or_as("model_persistence_threshold")
        .in("elements"),
    idle_count("zero_optimization.stage3_max_live_parameters", kPrefetch)
        .or_as("max_live_parameters")
        .in("elements"),
    idle_count("zero_optimization.stage3_max_reuse_distance", kResidency)
        .or_as("max_reuse_distance")
        .in("elements"),
    idle("zero_optimization.stage3_gather_16bit_weights_on_model_save", Kind::kBoolean, kSaving)
        .or_as("gather_16bit_weights_on_model_save"),
    idle("zero_optimization.stage3_gather_fp16_weights_on_model_save", Kind::kBoolean, kSaving)
        .or_as("gather_fp16_weights_on_model_save"),
    idle_count("zero_optimization.stage3_module_granularity_threshold", kGroups)
        .in("elements")
        .or_as("module_granularity_threshold")
        .always("0"),
    idle("zero_optimization.stage3_use_all_reduce_for_fetch_params", Kind::kBoolean, kRanks)
        .or_as("use_all_reduce_for_fetch_params")
        .always("false"),
    idle("zero_optimization.stage3_allgather_sequential", Kind::kBoolean, kRanks)
        .or_as("allgather_sequential"),
    idle("zero_optimization.ignore_unused_parameters", Kind::kBoolean,
         "a parameter without a gradient is always left alone")
        .always("true"),
    refused("zero_optimization.legacy_stage1", Kind::kBoolean,
            "DeepSpeed refuses it too; remove it")
        .always("false"),
    idle("zero_optimization.round_robin_gradients", Kind::kBoolean, kRanks).always("false"),
    idle_count("zero_optimization.zero_hpz_partition_size", kRanks).in("ranks").always("1"),
    idle("zero_optimization.zero_quantized_weights", Kind::kBoolean, kQuantized).always("false"),
    idle("zero_optimization.zero_quantized_nontrainable_weights", Kind::kBoolean, kQuantized)
        .always("false"),
    idle("zero_optimization.zero_quantized_gradients", Kind::kBoolean, kQuantized).always("false"),
    idle("zero_optimization.zeropp_loco_param", Kind::kOpenSection, kQuantized).or_null(),
    idle("zero_optimization.mics_shard_size", Kind::kInteger, kRanks)
        .in("ranks")
        .from(-1)
        .always("-1"),
    idle("zero_optimization.mics_hierarchical_params_gather", Kind::kBoolean, kRanks)
        .always("false"),
    idle("zero_optimization.memory_efficient_linear", Kind::kBoolean, kModules).always("false"),
    idle("zero_optimization.pipeline_loading_checkpoint", Kind::kBoolean, kSaving),
    idle("zero_optimization.override_module_apply", Kind::kBoolean, kModules).always("false"),
    idle("zero_optimization.log_trace_cache_warnings", Kind::kBoolean, kTrainerLogs)
        .always("false"),
    idle("zero_optimization.enable_sanity_checks", Kind::kBoolean, "checks are always on")
        .always("true"),
    idle("zero_optimization.save_muon_momentum_buffer_in_memory", Kind::kBoolean, kRules),
    section("zero_optimization.leaf_module", "Modules that DeepSpeed fetches whole.").or_null(),
    idle("zero_optimization.leaf_module.classes", Kind::kTextList, kGroups),
    idle("zero_optimization.leaf_module.names", Kind::kTextList, kGroups),
    idle("zero_optimization.leaf_module.name_suffixes", Kind::kTextList, kGroups),
    section("zero_optimization.zenflow", "Updates that DeepSpeed delays.").or_null(),
    idle("zero_optimization.zenflow.topk_ratio", Kind::kNumber, kStale).in("ratio").from(0, 1),
    idle("zero_optimization.zenflow.select_strategy", Kind::kText, kStale),
    idle_count("zero_optimization.zenflow.select_interval", kStale).in("steps"),
    idle_count("zero_optimization.zenflow.update_interval", kStale).in("steps"),
    idle("zero_optimization.zenflow.overlap_step", Kind::kBoolean, kStale),
    idle("zero_optimization.zenflow.offload", Kind::kBoolean, kStale),
    idle("zero_optimization.zenflow.auto_ratio", Kind::kNumber, kStale).in("ratio").from(0, 1),
    idle_count("zero_optimization.zenflow.full_warm_up_rounds", kStale).in("steps"),
    idle("zero_optimization.zenflow.pt_reserved_cores_perc", Kind::kNumber, kStale)
        .in("ratio")
        .from(0, 1),
    idle_count("zero_optimization.zenflow.steps_per_epoch", kStale).in("steps").or_null(),

    // ---- aio
    section("aio", "DeepSpeed's drive section.").or_null(),
    idle_count("aio.block_size", "{headrace.io_block_bytes} is used")
        .in("bytes")
        .as("headrace.io_block_bytes"),
    idle_count("aio.queue_depth", "{headrace.queue_depth} is used")
        .in("requests")
        .as("headrace.queue_depth"),
    idle_count("aio.intra_op_parallelism", "each drive has one thread, with {headrace.queue_depth}")
        .in("threads")
        .or_as("thread_count")
        .always("1"),
    idle("aio.single_submit", Kind::kBoolean, "{headrace.submit_batch} is used"),
    idle("aio.overlap_events", Kind::kBoolean, "requests always overlap").always("true"),
    idle("aio.use_gds", Kind::kBoolean, "transfers between drive and GPU memory are not served")
        .always("false"),

    // ---- dtypes
    idle("fp16.auto_cast", Kind::kBoolean, kTrainers).always("false"),
    idle("fp16.fp16_master_weights_and_grads", Kind::kBoolean, "masters and sums are f32")
        .always("false"),
    idle("fp16.opt_level", Kind::kText,
         "it is of amp's levels, which earlier DeepSpeed left unused and 0.19.8 refuses"),
    idle("bf16.auto_cast", Kind::kBoolean,
         "the trainer's own is used; DeepSpeed 0.19.8 refuses the key")
        .always("false"),
    idle("bf16.immediate_grad_update", Kind::kBoolean, "gradients are always taken as they arrive")
        .always("true")
        .unlike("false until 0.16.4, true from 0.16.5, false since 0.17.1"),
    idle("bf16.check_grad_overflow", Kind::kBoolean,
         "gradients are always checked: {headrace.non_finite} says what follows")
        .always("true")
        .unlike("false until 0.19.2, true since 0.19.3"),
    idle("bf16.bf16_master_weights_and_grads", Kind::kBoolean,
         "masters and sums are f32, with {headrace.master}")
        .always("false"),
    idle("bf16.bf16_optimizer_states", Kind::kBoolean, "moments are kept as {headrace.moments}")
        .always("false"),
    idle("data_types.buffer_dtype", Kind::kText, "buffers belong to the trainer").or_null(),
    idle("data_types.keep_in_fp32_modules", Kind::kTextList, "buffers belong to the trainer"),

    // ---- optimizer and scheduler
    idle("optimizer.legacy_fusion", Kind::kBoolean, kTrainers).or_null().always("false"),
    refused("optimizer.params.amsgrad", Kind::kBoolean,
            "AMSGrad does not run here; remove it, or set it to false")
        .always("false"),
    refused("optimizer.params.initial_accumulator_value", Kind::kNumber,
            "Adagrad's sums of squares begin at 0; remove it")
        .in("squares")
        .always("0"),
    refused("optimizer.params.decoupled_weight_decay", Kind::kBoolean,
            "the type says how weights decay; write AdamW, or Adam with adam_w_mode false")
        .always("false"),
    idle("optimizer.params.set_grad_none", Kind::kBoolean, kUpdates),
    idle("optimizer.params.foreach", Kind::kBoolean, kUpdates).or_null(),
    idle("optimizer.params.fused", Kind::kBoolean, kUpdates).or_null(),
    idle("optimizer.params.capturable", Kind::kBoolean, kUpdates).always("false"),
    idle("optimizer.params.differentiable", Kind::kBoolean, kUpdates).always("false"),
    idle("optimizer.params.fp32_optimizer_states", Kind::kBoolean,
         "moments are kept as {headrace.moments}")
        .always("true"),
    refused("scheduler.params.last_batch_iteration", Kind::kInteger,
            "a schedule goes by the updates that the trainer has counted; write -1, or remove it")
        .in("steps")
        .always("-1"),
    refused("optimizer.params.max_grad_norm", Kind::kNumber,
            "DeepSpeed refuses it too; write gradient_clipping at the top level")
        .in("norm"),

    // ---- batch and the rest of the top level
    idle("managed_gradient_accumulation", Kind::kBoolean, kTrainers),
    idle("zero_allow_untested_optimizer", Kind::kBoolean, kRules),
    idle("zero_force_ds_cpu_optimizer", Kind::kBoolean, kUpdates),
    idle("communication_data_type", Kind::kText, kRanks).or_null(),
    idle("seq_parallel_communication_data_type", Kind::kText, kRanks).or_null(),
    idle("prescale_gradients", Kind::kBoolean, kRanks).always("false"),
    idle("gradient_predivide_factor", Kind::kNumber, kRanks).in("factor").always("1"),
    idle("fp32_allreduce", Kind::kBoolean, kRanks),
    refused("gradient_allreduce_op", Kind::kText,
            "gradients of ranks are averaged by the trainer's gradient_scale; remove it")
        .always("\"mean\""),
    idle("disable_allgather", Kind::kBoolean, kRanks).always("false"),
    idle("sparse_gradients", Kind::kBoolean, "gradients are dense").always("false"),
    idle("steps_per_print", Kind::kInteger, kTrainerLogs)
        .in("steps")
        .or_null()
        .unlike("10 until 0.15.1, none since 0.15.2"),
    idle("wall_clock_breakdown", Kind::kBoolean, kTrainerLogs).always("false"),
    idle("memory_breakdown", Kind::kBoolean, kTrainerLogs).always("false"),
    idle("dump_state", Kind::kBoolean, kTrainerLogs).always("false"),
    idle("log_level", Kind::kText, "HEADRACE_LOG says what is logged").or_null(),
    idle("disable_python_gc", Kind::kBoolean, "no Python runs here").always("false"),
    idle("vocabulary_size", Kind::kInteger, kModules).in("tokens").or_null(),
    idle("dataloader_drop_last", Kind::kBoolean, kTrainers),
    idle("graph_harvesting", Kind::kBoolean, kModules).always("false"),
    refused("sequence_parallel_size", Kind::kInteger,
            "no sequence is divided among ranks here; remove it, or write 1")
        .in("ranks")
        .from(1)
        .or_null()
        .always("1"),
    idle("use_data_before_expert_parallelism", Kind::kBoolean, kRanks).always("false"),
    idle("use_node_local_storage", Kind::kBoolean, kSaving),
    section("checkpoint", "DeepSpeed's checkpoints."),
    idle("checkpoint.tag_validation", Kind::kText, kSaving),
    idle("checkpoint.load_universal", Kind::kBoolean, kSaving).always("false"),
    idle("checkpoint.use_node_local_storage", Kind::kBoolean, kSaving),
    idle("checkpoint.checkpoint_serialization", Kind::kBoolean, kSaving),
    idle("checkpoint.parallel_write", Kind::kOpenSection, kSaving).or_null(),
    idle("checkpoint.writer", Kind::kOpenSection, kSaving).or_null(),
    section("activation_checkpointing", "Recomputing activations."),
    idle("activation_checkpointing.partition_activations", Kind::kBoolean, kActivations)
        .always("false"),
    idle_count("activation_checkpointing.number_checkpoints", kActivations)
        .in("checkpoints")
        .or_null(),
    idle("activation_checkpointing.contiguous_memory_optimization", Kind::kBoolean, kActivations)
        .always("false"),
    idle("activation_checkpointing.cpu_checkpointing", Kind::kBoolean, kActivations)
        .always("false"),
    idle("activation_checkpointing.synchronize_checkpoint_boundary", Kind::kBoolean, kActivations)
        .always("false"),
    idle("activation_checkpointing.profile", Kind::kBoolean, kActivations).always("false"),
    section("compile", "DeepCompile."),
    idle("compile.deepcompile", Kind::kBoolean, kModules).always("false"),
    idle("compile.offload_parameters", Kind::kBoolean,
         "{zero_optimization.offload_param.device} is used")
        .always("false"),
    idle("compile.offload_opt_states", Kind::kBoolean,
         "{zero_optimization.offload_optimizer.device} is used")
        .always("false"),
    idle("compile.offload_activation", Kind::kBoolean, kActivations).always("false"),
    idle("compile.offload_activation_pin_memory", Kind::kBoolean, kActivations),
    idle("compile.double_buffer", Kind::kBoolean, kModules),
    idle("compile.passes", Kind::kTextList, kModules).or_null(),
    idle("compile.autoep_non_moe", Kind::kBoolean, kModules).always("false"),
    idle("compile.free_activation", Kind::kBoolean, kActivations).always("false"),
    idle_count("compile.free_activation_threshold", kActivations).in("bytes"),
    idle("compile.symmetric_memory", Kind::kBoolean, kModules).always("false"),
    idle("compile.debug_log", Kind::kBoolean, kTrainerLogs).always("false"),
    idle("compile.sync_before_reduce", Kind::kBoolean, kRanks).always("false"),
    idle("compile.sync_after_reduce", Kind::kBoolean, kRanks).always("false"),
    idle("compile.sync_before_allgather", Kind::kBoolean, kRanks).always("false"),
    idle("compile.sync_after_allgather", Kind::kBoolean, kRanks).always("false"),
    idle("compile.keep_int_input_tensors", Kind::kBoolean, kModules),
    idle("compile.keep_all_input_tensors", Kind::kBoolean, kModules).always("false"),
    section("timers", "DeepSpeed's timers."),
    section("timers.throughput", "Of a step."),
    idle("timers.throughput.enabled", Kind::kBoolean, kTrainerLogs),
    idle("timers.throughput.synchronized", Kind::kBoolean, kTrainerLogs),

    // ---- whole sections of DeepSpeed's
    idle("tensorboard", Kind::kOpenSection, kTrainerLogs).unless_enabled(),
    idle("wandb", Kind::kOpenSection, kTrainerLogs).unless_enabled(),
    idle("csv_monitor", Kind::kOpenSection, kTrainerLogs).unless_enabled(),
    idle("comet", Kind::kOpenSection, kTrainerLogs).unless_enabled(),
    idle("flops_profiler", Kind::kOpenSection, kTrainerLogs).unless_enabled(),
    idle("comms_logger", Kind::kOpenSection, kTrainerLogs).unless_enabled(),
    refused("amp", Kind::kOpenSection, kOneDtype).unless_enabled(),
    refused("torch_autocast", Kind::kOpenSection, kOneDtype).unless_enabled(),
    idle("autotuning", Kind::kOpenSection, kFeature).unless_enabled(),
    refused("elasticity", Kind::kOpenSection, kOtherTraining).unless_enabled(),
    refused("data_efficiency", Kind::kOpenSection, kOtherTraining).unless_enabled(),
    refused("curriculum_learning", Kind::kOpenSection, kOtherTraining).unless_enabled(),
    refused("compression_training", Kind::kOpenSection, kOtherTraining),
    refused("quantize_training", Kind::kOpenSection, kOtherTraining).unless_enabled(),
    refused("weight_quantization", Kind::kOpenSection, kOtherTraining),
    refused("progressive_layer_drop", Kind::kOpenSection, kOtherTraining).unless_enabled(),
    idle("eigenvalue", Kind::kOpenSection, kFeature).unless_enabled(),
    refused("sparse_attention", Kind::kOpenSection, kOtherTraining),
    refused("expert_parallel", Kind::kOpenSection, "no module is divided here; remove it")
        .unless_enabled(),
    idle("pipeline", Kind::kOpenSection, kFeature),
    refused("tensor_parallel", Kind::kOpenSection,
            "no module is divided here; remove it, or set its autotp_size to 1"),
    idle("hybrid_engine", Kind::kOpenSection, kFeature).unless_enabled(),
    idle("nebula", Kind::kOpenSection, kFeature).unless_enabled(),
    idle("datastates_ckpt", Kind::kOpenSection, kFeature).unless_enabled(),
};
}  // namespace

std::span<const Key> keys() { return kKeys; }
}  // namespace headrace::settings
