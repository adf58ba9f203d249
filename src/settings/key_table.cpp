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
        .from(base::kBlockElements, 4194304)
        .times(base::kBlockElements)
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
